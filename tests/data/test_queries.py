"""Data for retrieval: what held-out rows ask for, against plain Python; candidates, and the table of items."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import by_user, frames, of_yaml

from recsys.base.errors import UserError
from recsys.data.features import GROUP, group_features
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.features.blocks import HISTORY, ORDER, PLACE, SPLIT, TARGETS
from recsys.data.features.group_features import arrange
from recsys.data.features.value_index import shares
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare import passes as build
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.schema.data_schema import DataConfig

SPLITS = ("train", "validation", "test")
WAYS = ("time", "order", "hash", "leave_one_out")
Event = tuple[str, str, int]  # user, item, time
Query = tuple[int, list[str], list[str], list[str]]  # split, items of the row, targets, history
EVENTS = st.lists(st.tuples(st.sampled_from("uvwxé"), st.sampled_from("abcdefg"), st.integers(0, 30)), max_size=40)


def config(text: str, **more: Any) -> DataConfig:
    data = replace(of_yaml(text), **more)
    check_data(data)
    return data


def sequences(way: str, longest: int, held_out: str, gap: int | None, more: str = "") -> str:
    column = {"time": "t", "hash": "user"}.get(way, "null")
    return "\n".join(
        [
            f"group: {{by: user, order: t, gap: {'null' if gap is None else gap}}}",
            f"sequences: {{max_length: {longest}, held_out: {held_out}}}",
            f"split: {{by: {way}, column: {column}, validation: 0.2, test: 0.2}}",
            "sparse: {item: {}}",
            more,
        ]
    )


def splits_of(events: list[Event], way: str, validation: float = 0.2, test: float = 0.2) -> list[int]:
    n = len(events)
    bounds = (n - round(n * (validation + test)), n - round(n * test))
    if way == "order":
        return [(p >= bounds[0]) + (p >= bounds[1]) for p in range(n)]
    if way == "time":
        times = sorted(e[2] for e in events)
        first, second = (times[min(b, n - 1)] if n else 0 for b in bounds)
        return [(t >= first) + (t >= second) for _, _, t in events]
    if way == "hash":
        draws = shares(pl.Series([e[0] for e in events], dtype=pl.String), 0)
        return [int(d >= 1 - validation - test) + int(d >= 1 - test) for d in draws]
    which = [0] * n
    for rows in by_user(events):
        if len(rows) >= 3:
            which[rows[-2]], which[rows[-1]] = 1, 2
    return which


def of_sequences(events: list[Event], which: list[int], longest: int, held_out: str, gap: int | None) -> list[Query]:
    found: list[Query] = []
    for group in by_user(events, gap):
        items, splits = [events[p][1] for p in group], [which[p] for p in group]
        trains = next((i for i, s in enumerate(splits) if s), len(group))
        if trains >= 2:
            found.append((0, items[max(0, trains - longest - 1) : trains], [], items[:trains]))
        for i in range(1, len(group)):
            if not splits[i] or (held_out == "all" and splits[i] == splits[i - 1]):
                continue
            stop = i + 1
            while held_out == "all" and stop < len(group) and splits[stop] == splits[i]:
                stop += 1
            found.append((splits[i], items[max(0, i - longest) : i + 1], items[i:stop], items[:i]))
    return found


def of_rows(events: list[Event], which: list[int]) -> list[tuple[int, int, list[str], list[str]]]:
    """(split, place, targets, history)"""
    found: list[tuple[int, int, list[str], list[str]]] = []
    for group in by_user(events):
        parts = [[p for p in group if which[p] == split] for split in range(3)]
        found += [(0, p, [], []) for p in parts[0]]
        for split in (1, 2):
            if parts[split]:
                targets, before = parts[split], [p for part in parts[:split] for p in part]
                found.append((split, targets[0], [events[p][1] for p in targets], [events[p][1] for p in before]))
    return found


def typed_rows(events: list[Event], which: list[int], way: str) -> pl.DataFrame:
    users, items, times = ([e[i] for e in events] for i in range(3))
    rows = pl.DataFrame(
        {"item": items, GROUP: users, ORDER: times, PLACE: range(len(events)), SPLIT: which},
        schema_overrides={"item": pl.String, GROUP: pl.String, ORDER: pl.Float64, PLACE: pl.Int64, SPLIT: pl.UInt8},
    )
    return rows.drop(SPLIT) if way == "leave_one_out" else rows


@settings(max_examples=examples(60), deadline=None)
@given(
    EVENTS, st.sampled_from(WAYS), st.integers(1, 4), st.sampled_from(["next", "all"]), st.none() | st.integers(0, 9)
)
def test_queries_of_sequences(events: list[Event], way: str, longest: int, held_out: str, gap: int | None) -> None:
    which = splits_of(events, way)
    held_out = "next" if way == "hash" else held_out
    data = config(sequences(way, longest, held_out, gap))
    found = arrange(data, typed_rows(events, which, way)).select(SPLIT, "item", TARGETS, HISTORY).rows()
    assert sorted(found) == sorted(of_sequences(events, which, longest, held_out, gap))


@settings(max_examples=examples(60), deadline=None)
@given(EVENTS, st.sampled_from([*WAYS, "any"]), st.none() | st.integers(0, 9), st.data())
def test_queries_of_rows(events: list[Event], way: str, gap: int | None, draws: st.DataObject) -> None:
    """Of whole groups, sessions or not; `any`: splits that follow neither time nor groups."""
    which = [draws.draw(st.integers(0, 2)) for _ in events] if way == "any" else splits_of(events, way)
    data = config(f"""
        group: {{by: user, order: t, gap: {"null" if gap is None else gap}}}
        items: {{feature: item}}
        split: {{by: {way if way != "any" else "random"}, column: {"t" if way == "time" else "user"}}}
        sparse: {{item: {{}}}}
    """)
    rows = typed_rows(events, which, way).with_columns(pl.col(PLACE).alias("place"))
    done = arrange(data, rows)
    assert done[PLACE].is_sorted() or done.is_empty()
    found = done.select(SPLIT, PLACE, TARGETS, HISTORY).rows()
    assert sorted(found) == sorted(of_rows(events, which))
    assert done["item"].to_list() == [events[p][1] for p in done["place"]]  # features of a query: its first row's


def write(folder: Path, events: list[Event], table: list[str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    lines = [f"{u},{item},{t}" for u, item, t in events]
    (folder / "f.csv").write_text("\n".join(["user,item,t", *lines]) + "\n")
    if table is not None:
        rows = [f"{item},{i % 5},{'x' if i % 2 else 'x y'}" for i, item in enumerate(table)]
        (folder / "items.tsv").write_text("\n".join(["id,price,tags", *rows]).replace(",", "\t") + "\n")
    return folder


ITEMS = r'items: {feature: item, file: items.tsv, key: id, separator: "\t", dense: {price: {}}, sparse: {tags: {split: " "}}}'
FILES = 'source: {files: ["f.csv"]}\nlabel: {column: null}\n'


def many(users: int = 40, seed: int = 0) -> list[Event]:
    """Groups of 1 to 12 rows, some at one time, some items rare."""
    draw = np.random.default_rng(seed)
    events = []
    for u in range(users):
        start = int(draw.integers(0, 60))
        for _ in range(1 + u % 12):
            start += int(draw.integers(0, 9))
            events.append((f"u{u}", f"i{int(draw.exponential(4))}", start))
    return [events[i] for i in draw.permutation(len(events))]


def numbered(prepared: Prepared, counted: Counter[str], least: int, table: list[str] | None) -> dict[str, int]:
    """Items -> candidates, which are as they must be: training's by falling count, then what the table adds."""
    names = prepared.fitted.candidates.to_list()
    known = {item for item, n in counted.items() if n >= least}
    assert set(names[: len(known)]) == known
    assert [counted[x] for x in names[: len(known)]] == sorted((counted[x] for x in known), reverse=True)
    assert names[len(known) :] == [item for item in table or [] if item not in known]
    return {name: i for i, name in enumerate(names, 1)}


CASES = [
    (way, held_out, least, table)
    for way in WAYS
    for held_out in ("next", "all", "rows")
    for least, table in ((0, False), (1, False), (3, True))
    if (way, held_out) != ("hash", "all")
]


@pytest.mark.few(7)
@pytest.mark.parametrize(("way", "held_out", "least", "with_table"), CASES)
def test_prepared_queries(tmp_path: Path, way: str, held_out: str, least: int, with_table: bool) -> None:
    """What stands in Parquet, and what batches hold of it; rare items are unknown, or cold where the table has them.

    With min_count=0, items that only held-out rows have are known, too, with a count of 0."""
    events = many()
    table = [f"i{i}" for i in range(0, 12, 2)] + ["new", "i99"] if with_table else None
    more = ITEMS if with_table else "items: {feature: item}"
    text = sequences(way, 3, "next" if held_out == "rows" else held_out, None, more).replace(
        "{item: {}}", f"{{item: {{min_count: {least}}}}}"
    )
    if held_out == "rows":
        text = text.replace("sequences: {max_length: 3, held_out: next}", "")
    root = write(tmp_path / "raw", events, table)
    prepared = prepare(config(FILES + text, root=str(root), prepared=str(tmp_path / "p")))
    which = splits_of(events, way)
    expected = [
        (split, [events[row][1]] if isinstance(row, int) else row, targets, history)
        for split, row, targets, history in (
            of_rows(events, which) if held_out == "rows" else of_sequences(events, which, 3, held_out, None)
        )
    ]
    trained = [items if held_out == "rows" else history for split, items, _, history in expected if split == 0]
    counted = Counter(item for items in trained for item in items)
    if least == 0:
        counted.update({x: 0 for _, *lists in expected for items in lists for x in items})
    number = numbered(prepared, counted, least, table)
    seen = len(prepared.fitted.vocabularies["item"])
    ids = lambda items, most: [number.get(x, 0) if number.get(x, 0) <= most else 0 for x in items]  # noqa: E731
    for i, frame in enumerate(frames(prepared).values()):
        rows = frame.with_columns(pl.concat_list("item") if held_out == "rows" else pl.col("item"))
        assert sorted(rows.select("item", TARGETS, HISTORY).rows()) == sorted(
            (ids(items, seen), ids(targets, len(number)), ids(history, len(number)))
            for s, items, targets, history in expected
            if s == i
        )
        assert frame.height
    popularity = candidates_of(prepared.fitted).popularity.tolist()
    names = prepared.fitted.candidates
    assert popularity == [0.0, *(float(counted[x]) if i < seen else 0.0 for i, x in enumerate(names))]
    if with_table and (way, held_out) != ("leave_one_out", "rows"):
        assert any(number.get(x, 0) > seen for x in {e[1] for e in events})  # cold ones are asked for
    _check_batches(prepared, "test")


def _check_batches(prepared: Prepared, split: str) -> None:
    frame, features = frames(prepared)[split], prepared.fitted.features
    for size, ranks in ((7, 1), (frame.height, 1), (1000, 1), (4, 2), (3, 3)):
        found: list[tuple[list[int], list[int]]] = []
        for rank in range(ranks):
            loader = ParquetLoader(
                prepared.files(split), features, batch_size=size, rank=rank, world_size=ranks, buffer_rows=2 * size
            )
            for batch in loader:
                assert batch.targets is not None and batch.history is not None
                lists = list(zip(_lists(batch.targets), _lists(batch.history), strict=True))
                assert len(lists) == batch.weight.numel() if batch.weight is not None else True
                real = len(lists) if batch.weight is None else int(batch.weight.sum())
                assert all(x == ([], []) for x in lists[real:])
                assert real == 0 or batch.first_row == len(found)
                found += lists[:real]
        assert found == frame.select(TARGETS, HISTORY).rows()
    training = next(iter(ParquetLoader(prepared.files("train"), features, batch_size=4, training=True, shuffle=True)))
    assert training.targets is None and training.history is None


def _lists(lists: Any) -> Iterator[list[int]]:
    return (x.tolist() for x in torch.split(lists.values, lists.lengths.tolist()))


def test_a_history_that_would_be_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [("bot", "a", t) for t in range(50)] + [("u", "b", t) for t in range(50)]
    monkeypatch.setattr(group_features, "MAX_HISTORY", 700)
    for held_out, fails in (("next", True), ("all", False)):
        data = config(sequences("time", 3, held_out, None))
        rows = typed_rows(events, splits_of(events, "time"), "time")
        if not fails:
            assert arrange(data, rows).height
            continue
        with pytest.raises(UserError, match=r"group 'bot' has 20 held-out items, .* use held_out=all"):
            arrange(data, rows)


TABLE = {
    "csv": "id,price,tags\ni0,1,x y\ni1,,y\ni2,9,\ncold,4,new x\n",
    "tsv": "id\tprice\ttags\ni0\t1\tx y\ni1\t\ty\ni2\t9\t\ncold\t4\tnew x\n",
}


def with_items(tmp_path: Path, items: str, prepared: str = "p", **more: Any) -> Prepared:
    """Items i0 to i3 train; i3 stands in no table."""
    events = [(f"u{u}", f"i{(u + k) % 4}", k) for u in range(12) for k in range(5)]
    root = write(tmp_path / "raw", events)
    text = FILES + sequences("leave_one_out", 3, "next", None, f"items: {{{items}}}")
    return prepare(config(text, root=str(root), prepared=str(tmp_path / prepared), **more))


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_what_is_known_of_items(tmp_path: Path, kind: str) -> None:
    (tmp_path / "raw").mkdir()
    file = tmp_path / "raw" / f"items.{kind}"
    if kind == "parquet":
        tags = [["x", "y"], ["y"], [], ["new", "x"]]
        frame = pl.DataFrame({"id": ["i0", "i1", "i2", "cold"], "price": [1.0, None, 9.0, 4.0], "tags": tags})
        frame.write_parquet(file)
    else:
        file.write_text(TABLE[kind])
    separator = r'"\t"' if kind == "tsv" else '","'
    about = "dense: {price: {fill: mean, transform: []}}, sparse: {tags: {split: ' '}}"
    prepared = with_items(tmp_path, f"file: items.{kind}, key: id, separator: {separator}, {about}")
    fitted = prepared.fitted
    assert fitted.items is not None
    assert fitted.candidates.to_list() == [*fitted.vocabularies["item"]["value"], "cold"]
    row = {name: i for i, name in enumerate(fitted.candidates, 1)}
    tags = dict(fitted.items.fitted.vocabularies["tags"].select("value", "id").iter_rows())
    assert set(tags) == {"x", "y"}  # fitted on what training has seen
    known = candidates_of(fitted)
    assert known.dense is not None
    assert [known.dense[row[x], 0].item() for x in ("i0", "i1", "i2", "i3", "cold")] == [1, 5, 9, 5, 4]
    dense, bags = known.about(torch.tensor([row["cold"], row["i3"], row["i0"], 0]))
    assert dense.shape == (4, 1)
    assert bags["tags"].lengths().tolist() == [2, 0, 2, 0]
    assert bags["tags"].values().tolist() == [0, tags["x"], tags["x"], tags["y"]]
    assert known.popularity[row["cold"]] == 0 and len(known) == 6


def test_attributes_in_json_and_columns_by_other_names(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.json").write_text(json.dumps({"i0": [3, 4], "i1": [], "cold": [4]}))
    prepared = with_items(
        tmp_path, "file: a.json, key: item, columns: {item: key, about: value}, sparse: {about: {split: ' '}}"
    )
    known = candidates_of(prepared.fitted)
    row = {name: i for i, name in enumerate(prepared.fitted.candidates, 1)}
    lengths = known.about(torch.tensor([row[x] for x in ("i0", "i1", "i2", "cold")]))[1]["about"].lengths()
    assert lengths.tolist() == [2, 0, 0, 1]


MUCH = "1 of 2 rows cannot be read, more than data.max_bad_rows=0.01: 1 row: price is not a number (such as 'much', id 'i1')"
BAD_TABLES = [
    ("id,price\ni0,1\ni0,2\n", "key: id", "data.items.file: items.csv has more than one row for id 'i0'"),
    ("id,price\ni0,1\n", "key: idd", "data.items.file: items.csv has no column idd; did you mean id?"),
    ("id,prize\ni0,1\n", "key: id", "data.items.file: items.csv has no column price; did you mean prize?"),
    ("id,price\ni0,1\ni1,much\n", "key: id", MUCH),
    ("id,price\n,0\ni0,1\ni1,much\n", "key: id", MUCH),
    ("id,price\ni0,1,3\n", "key: id", "1 of 1 rows cannot be read, more than data.max_bad_rows=0.01: 1 row: 3 fields"),
    ("id,price\n", "key: id", "data.items.file: items.csv has no rows"),
    ("id,price\n0,1\n1,2\n", "key: id", "has no row for any of the items; data.items.key=id holds values such as '0'"),
]


@pytest.mark.parametrize(("table", "key", "expected"), BAD_TABLES)
def test_tables_that_cannot_be_used(tmp_path: Path, table: str, key: str, expected: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "items.csv").write_text(table)
    with pytest.raises(UserError) as e:
        with_items(tmp_path, f"file: items.csv, {key}, dense: {{price: {{}}}}")
    assert expected in str(e.value) and "\n" not in str(e.value)


MISTAKES = [
    ("file: no.csv, key: id, dense: {price: {}}", "data.items.file: no such file: "),
    ("file: items.csv, dense: {price: {}}", "needs data.items.key"),
    ("file: items.csv, key: id", "needs features under data.items.dense"),
    ("dense: {price: {}}", "need data.items.file"),
    ("file: items.csv, key: id, dense: {price: {fill: middle}}", "items.dense.price.fill=middle: must be mean"),
    ("file: items.csv, key: id, sparse: {tags: {lag: 1}}", "data.items.sparse.tags.lag: does not apply to features"),
    ("file: items.csv, key: id, dense: {id: {vectors: {file: v.npy}}}", "data.items.dense.id.vectors: no such file"),
    ("feature: itme", "data.items.feature=itme: there is no such sparse feature; did you mean item?"),
]


@pytest.mark.parametrize(("items", "expected"), MISTAKES)
def test_mistakes(tmp_path: Path, items: str, expected: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "items.csv").write_text(TABLE["csv"])
    with pytest.raises(UserError) as e:
        with_items(tmp_path, items)
    assert expected in str(e.value) and "\n" not in str(e.value)


def test_a_row_without_an_item_is_set_aside(tmp_path: Path) -> None:
    events = [*many(), ("u1", "", 3)]
    data = config(
        FILES + sequences("time", 3, "next", None),
        root=str(write(tmp_path / "raw", events)),
        prepared=str(tmp_path / "p"),
    )
    prepared = prepare(data)
    assert prepared.info["bad_rows"] == 1 and "" not in prepared.fitted.candidates.to_list()
    assert pl.read_csv(f"{prepared.folder}.bad_rows.csv")["reason"].to_list() == ["item item is missing"]


def test_another_table_reads_no_raw_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").mkdir()
    file = tmp_path / "raw" / "items.csv"
    file.write_text(TABLE["csv"])
    read: list[str] = []
    read_chunk = build.read_chunk
    monkeypatch.setattr(build, "read_chunk", lambda d, c, *a: (read.append(c[0].file.name), read_chunk(d, c, *a)))
    items = "file: items.csv, key: id, dense: {price: {}}"
    first = with_items(tmp_path, items)
    assert read == ["f.csv"] and with_items(tmp_path, items).folder == first.folder
    file.write_text(TABLE["csv"].replace("cold", "colder"))
    second = with_items(tmp_path, items)
    third = with_items(tmp_path, items.replace("{}", "{fill: 3}"))
    bare = with_items(tmp_path, "feature: item")
    assert len({p.folder for p in (first, second, third, bare)}) == 4 and read == ["f.csv"]
    assert [p.fitted.candidates[-1] for p in (first, second)] == ["cold", "colder"]
    for split in SPLITS:  # the rows' own features are the same
        assert all(frames(p)[split]["item"].equals(frames(first)[split]["item"]) for p in (second, third, bare))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_that_count(tmp_path: Path, kind: str) -> None:
    """The others are as if they were not there: neither bad nor counted, nor in another row's history."""
    events = many()
    stars = [i % 5 + 1 for i in range(len(events))]
    frame = pl.DataFrame(events, schema=["user", "item", "t"], orient="row").with_columns(pl.Series("stars", stars))
    frame = pl.concat([frame, pl.DataFrame({"user": ["u", None], "item": ["i", "i"], "t": [1, 1], "stars": [None, 1]})])
    for name, rows in (("all", frame), ("liked", frame.filter(pl.col("stars") >= 4))):
        (tmp_path / name).mkdir()
        rows.write_csv(tmp_path / name / "f.csv")
        rows.write_parquet(tmp_path / name / "f.parquet")
    text = f"source: {{format: {kind}, files: [f.{kind}]}}\nlabel: {{column: null}}\n" + sequences(
        "time", 3, "next", None
    )
    sql = "CAST(stars AS DOUBLE) >= 4" if kind == "csv" else "stars >= 4"
    made = [
        prepare(config(text, root=str(tmp_path / name), prepared=str(tmp_path / "p"), **more))
        for name, more in (("all", {"where": sql}), ("liked", {}))
    ]
    assert made[0].folder != made[1].folder and made[0].info["bad_rows"] == 0
    for split in SPLITS:
        assert frames(made[0])[split].equals(frames(made[1])[split]) and frames(made[0])[split].height


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("t >= 4", "data.where: 't >= 4': cannot compare string with numeric type (i32); the file's columns are text"),
        ("MAX(t) = '3'", "data.where: \"MAX(t) = '3'\": an expression must read one row at a time"),
        ("item = 'none such'", "no usable row"),
    ],
)
def test_what_chooses_no_rows(tmp_path: Path, sql: str, expected: str) -> None:
    root = write(tmp_path / "raw", many())
    with pytest.raises(UserError) as e:
        prepare(
            config(FILES + sequences("time", 3, "next", None), root=str(root), prepared=str(tmp_path / "p"), where=sql)
        )
    assert expected in str(e.value) and "\n" not in str(e.value)


def test_items_are_counted_once_whatever_windows_hold(tmp_path: Path) -> None:
    """The vocabulary's counts are of all that groups train on: not of the last items alone, nor of each window anew."""
    (tmp_path / "raw").mkdir()
    lines = [f"u{u},i{(u + t) % 11}" for t in range(9) for u in range(20)]
    (tmp_path / "raw" / "f.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    expected = pl.Series([line.split(",")[1] for line in lines[:140]]).value_counts().sort("").rows()
    for windows in ("", ", stride: 1", ", reverse: true", ", stride: 2, reverse: true"):
        yaml = f"label: {{column: null}}\ngroup: {{by: user}}\nsequences: {{max_length: 3{windows}}}\nsplit: {{by: leave_one_out}}\nsparse: {{item: {{}}}}"
        fitted = prepare(of_yaml(f"{yaml}\nroot: {tmp_path}/raw\nprepared: {tmp_path}/prepared")).fitted
        assert fitted.vocabularies["item"].select("value", "count").sort("value").rows() == expected
