"""Rows by group: against plain Python, in little memory, and never with a look at what comes later."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from data_configs import data_from
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import by_user, frames

from recsys.base.errors import UserError
from recsys.data.features import GROUP
from recsys.data.features.blocks import HISTORY, ORDER, PLACE, SPLIT
from recsys.data.features.group_features import arrange
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare import passes, shuffle
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import prepare
from recsys.data.raw.raw_format import RawFormat
from recsys.online.raw_rows import RawRows
from recsys.online.row_transforms import RowTransforms
from recsys.schema.data_schema import DataConfig

SPLITS = ("train", "validation", "test")
Event = tuple[str, str, int]  # user, item, time


def config(text: str, **more: Any) -> DataConfig:
    data = data_from(text, more)
    check_data(data)
    return data


def typed_rows(events: list[Event], **columns: list[Any]) -> pl.DataFrame:
    users, items, times = ([e[i] for e in events] for i in range(3))
    return pl.DataFrame(
        {"item": items, GROUP: users, ORDER: times, PLACE: range(len(events)), **columns},
        schema_overrides={"item": pl.String, GROUP: pl.String, ORDER: pl.Float64, PLACE: pl.Int64},
    )


EVENTS = st.lists(st.tuples(st.sampled_from("uvwxé"), st.sampled_from("abcd"), st.integers(0, 30)), max_size=40)


TIED = st.lists(st.tuples(st.sampled_from("uv"), st.sampled_from("abcd"), st.integers(0, 3)), max_size=12)


@settings(max_examples=examples(120), deadline=None)
@given(EVENTS | TIED, st.integers(1, 3), st.none() | st.integers(0, 9), st.booleans())
def test_rows_before(events: list[Event], k: int, gap: int | None, moments: bool) -> None:
    """Features take rows that are strictly before, or with ties=order those before in the files."""
    data = config(f"""
        group: {{by: user, order: t, gap: {"null" if gap is None else gap}, ties: {"null" if moments else "order"}}}
        split: {{by: leave_one_out}}
        dense: {{x: {{lag: {k}}}, d: {{column: x, difference: {k}}}}}
        sparse:
          item: {{}}
          before: {{column: item, lag: {k}}}
          history: {{column: item, last: {k}}}
          chosen: {{column: item, last: {k}, where: "item <> 'a'"}}
          ages: {{column: x, last: {k}, age: true, quantiles: 2, where: "item <> 'a'"}}
    """)
    x = [None if e[2] % 7 == 0 else float(e[2]) for e in events]
    items = [e[1] for e in events]
    assert data.has_moments == moments and len(data.conditions) == 2
    columns = {**dict.fromkeys("xd", x), **dict.fromkeys(("before", "history", "chosen"), items), "ages": x}
    conditions = {n: [i != "a" for i in items] for n in data.conditions}
    types = {"x": pl.Float64, "d": pl.Float64, "ages": pl.Float64, **dict.fromkeys(conditions, pl.Boolean)}
    done = arrange(data, typed_rows(events, **columns, **conditions).cast(types)).sort(PLACE)
    expected: dict[int, Any] = {}
    splits = {
        p: 0 if len(rows) < 3 else {len(rows) - 1: 2, len(rows) - 2: 1}.get(i, 0)
        for rows in by_user(events)  # not a session, as which a user's last rows test
        for i, p in enumerate(rows)
    }
    for group in by_user(events, gap):
        for i, place in enumerate(group):
            past = [p for p in group[:i] if not moments or events[p][2] < events[place][2]]
            chosen = [p for p in past if items[p] != "a"][-k:]
            nth = past[-k] if len(past) >= k else None
            lagged = None if nth is None else x[nth]
            less = None if lagged is None or x[place] is None else x[place] - lagged  # type: ignore[operator]
            ages = [None if x[place] is None or x[p] is None else x[place] - x[p] for p in chosen]  # type: ignore[operator]
            before, history = None if nth is None else items[nth], [items[p] for p in past[-k:]]
            expected[place] = (lagged, less, before, history, [items[p] for p in chosen], ages, splits[place])
    found = done.select("x", "d", "before", "history", "chosen", "ages", SPLIT).rows()
    assert found == [expected[i] for i in range(len(events))]


@settings(max_examples=examples(80), deadline=None)
@given(EVENTS, st.integers(1, 4), st.none() | st.integers(1, 3), st.booleans(), st.integers(0, 30), st.integers(0, 9))
def test_sequences(events: list[Event], longest: int, stride: int | None, reverse: bool, bound: int, more: int) -> None:
    """Training windows hold no item from the first held-out one on; each later item has all before it."""
    data = config(f"""
        group: {{by: user, order: t}}
        sequences: {{max_length: {longest}, stride: {stride or "null"}, reverse: {reverse}}}
        split: {{by: time, column: t}}
        sparse: {{item: {{}}}}
    """)
    which = [(e[2] >= bound) + (e[2] >= bound + more) for e in events]
    rows = typed_rows(events).with_columns(pl.Series(SPLIT, which, dtype=pl.UInt8))
    done = arrange(data, rows)
    train, later = [], []
    for group in by_user(events):
        items = [events[p][1] for p in group]
        held = next((i for i, p in enumerate(group) if which[p]), len(group))
        stop = held
        while stop >= 2:
            train.append(items[max(0, stop - longest - 1) : stop])
            if stride is None or stop <= longest + 1:
                break
            stop -= stride
        for i in range(max(held, 1), len(group)):
            if which[group[i]]:
                later.append((which[group[i]], items[max(0, i - longest) : i + 1]))
    rows_of = lambda k: sorted(done.filter(pl.col(SPLIT) == k)["item"].to_list())  # noqa: E731
    assert rows_of(0) == sorted(train)
    assert rows_of(3) == (sorted(t[::-1] for t in train) if reverse else [])
    assert sorted(rows_of(1) + rows_of(2)) == sorted(s for _, s in later)
    assert rows_of(2) == sorted(s for k, s in later if k == 2)


def write(folder: Path, events: list[Event], files: int = 3) -> Path:
    folder.mkdir()
    for i in range(files):
        lines = [f"{u},{item},{t},{(t + len(item)) % 2}" for u, item, t in events[i::files]]
        (folder / f"{i}.csv").write_text("\n".join(["user,item,t,y", *lines]) + "\n")
    return folder


def many(users: int = 60) -> list[Event]:
    return [(f"u{u}", f"i{(u * k * 7) % 23}", 1000 * k + u) for k in range(9) for u in range(users) if (u + k) % 5]


SEQUENCES = """
    group: {by: user, order: t}
    sequences: {max_length: 4, reverse: true}
    split: {by: leave_one_out}
    dense: {hour: {column: t, cyclic: [hour]}}
    sparse: {user: {per: group}, item: {}, pause: {column: t, difference: 1, quantiles: 4}}
"""


def test_however_rows_are_piled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "raw", many())
    one = frames(prepare(config(SEQUENCES, root=str(root), prepared=str(tmp_path / "one"))))
    monkeypatch.setattr(RawFormat, "range_bytes", 300)
    monkeypatch.setattr(shuffle, "PILE_ROWS", 37)
    monkeypatch.setattr(shuffle, "PART_ROWS", 5)
    prepared = prepare(config(SEQUENCES, root=str(root), prepared=str(tmp_path / "many")))
    for split, frame in frames(prepared).items():
        assert frame.height == one[split].height > 0
        assert sorted(frame.rows(), key=str) == sorted(one[split].rows(), key=str)
    assert not (prepared.folder / "arranged").exists()
    # what is read once more backwards is counted once
    vocabulary = prepared.fitted.vocabularies["item"]
    assert vocabulary["count"].sum() == one["train"][HISTORY].list.len().sum()
    assert one["train"].filter(pl.col(HISTORY).list.len() > 0).height == one["train"].height // 2


def test_long_lists_are_arranged_some_groups_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path / "raw", many())
    text = """
        label: {column: y}
        group: {by: user, order: t}
        split: {by: time, column: t, validation: 0.2, test: 0.2}
        sparse: {user: {}, item: {}, history: {column: item, table: item, last: 8}, times: {column: t, last: 8, age: true, quantiles: 3}}
    """
    one = frames(prepare(config(text, root=str(root), prepared=str(tmp_path / "one"))))
    held: list[int] = []

    def arrange_some(data: Any, rows: pl.DataFrame) -> pl.DataFrame:
        held.append(rows.height)
        return arrange(data, rows)

    monkeypatch.setattr(shuffle, "MAX_VALUES", 16 * 20)
    monkeypatch.setattr(passes, "MAX_WAITING", 2000)
    monkeypatch.setattr(shuffle, "arrange", arrange_some)
    prepared = prepare(config(text, root=str(root), prepared=str(tmp_path / "some")))
    assert len(held) > 15 and max(held) < 20 + 9  # 20 rows, and the rest of a user's
    assert len(prepared.files("train")) > 3
    for split, frame in frames(prepared).items():
        assert frame.height == one[split].height > 0
        assert sorted(frame.rows(), key=str) == sorted(one[split].rows(), key=str)
    group = pq.read_metadata(prepared.files("train")[0]).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    assert {c.compression for c in columns if c.path_in_schema.startswith("history")} == {"ZSTD"}


def test_batches_of_sequences(tmp_path: Path) -> None:
    root = write(tmp_path / "raw", many())
    for pad in ("null", "left", "right"):
        text = SEQUENCES.replace("reverse: true", f"reverse: false, pad: {pad}")
        prepared = prepare(config(text, root=str(root), prepared=str(tmp_path / "p")))
        features = prepared.fitted.features
        assert features.labels == () and [f.name for f in features.sparse if f.sequence] == ["item", "pause"]
        batch = next(iter(ParquetLoader(prepared.files("test"), features, batch_size=8)))
        assert batch.labels.shape == (8, 0) and batch.dense.shape == (8, 2)
        lengths = batch.sparse["item"].lengths()
        assert (lengths == batch.sparse["pause"].lengths()).all() and (batch.sparse["user"].lengths() == 1).all()
        assert (lengths == 5).all() if pad != "null" else (lengths >= 3).all()
        if pad == "left":
            assert (batch.sparse["item"].values().reshape(8, 5)[:, -1] > 0).all()


@pytest.mark.parametrize(("validation", "test"), [(0.1, 0.1), (0, 0.1), (0.1, 0), (0, 0)])
def test_leave_one_out_shares_nothing(tmp_path: Path, validation: float, test: float) -> None:
    """A group's last row tests, the one before it validates, or trains if validation is 0; all others train.

    If test is 0, the last row validates or, if validation is 0 as well, trains.
    """
    events = many()
    root = write(tmp_path / "raw", events)
    text = """
        label: {column: y}
        group: {by: user, order: t}
        split: {by: leave_one_out, validation: VALIDATION, test: TEST}
        dense: {t: {transform: []}}
        sparse: {user: {}}
    """.replace("VALIDATION", str(validation)).replace("TEST", str(test))
    prepared = prepare(config(text, root=str(root), prepared=str(tmp_path / "p")))
    names = dict(prepared.fitted.vocabularies["user"].select("id", "value").iter_rows())
    found = {
        s: sorted((names[u], int(t)) for u, t in f.select("user", "t").rows()) for s, f in frames(prepared).items()
    }
    times = defaultdict(list)
    for user, _, t in events:
        times[user].append(t)
    tests, held_out = bool(test), bool(test) + bool(validation)
    assert found["test"] == sorted((u, sorted(t)[-1]) for u, t in times.items() if test)
    assert found["validation"] == sorted((u, sorted(t)[-1 - tests]) for u, t in times.items() if validation)
    assert found["train"] == sorted((u, x) for u, t in times.items() for x in sorted(t)[: len(t) - held_out])
    of_last = {(True, True): "tests", (False, True): "validates", (False, False): "all rows train"}
    assert of_last.get((tests, bool(validation)), "tests") in prepared.info["split"]


def test_one_by_one_with_their_history(tmp_path: Path) -> None:
    """The online path, given a user's earlier rows, makes of a row what preparing made of it."""
    events = many(20)
    root = write(tmp_path / "raw", events, files=1)
    text = """
        label: {column: y}
        group: {by: user, order: t, gap: 1500}
        split: {by: time, column: t, test: 0.3}
        dense: {since: {column: t, difference: 1, transform: [standardise]}, last_t: {column: t, lag: 2, fill: mean}}
        sparse: {user: {}, before: {column: item, lag: 1}, history: {column: item, last: 3}}
    """
    prepared = prepare(config(text, root=str(root), prepared=str(tmp_path / "p")))
    pipeline = RowTransforms.load(prepared.folder)
    rows = [{"user": u, "item": i, "t": t} for u, i, t in events]
    test = frames(prepared)["test"].drop("__label__")
    for place, row in enumerate(rows[-test.height :], len(rows) - test.height):
        history = [r for r in rows[:place] if r["user"] == row["user"]]
        assert pipeline.frame(row, history).equals(
            test[place - len(rows) + test.height : place - len(rows) + test.height + 1]
        )
    assert pipeline.frame(rows).tail(test.height).equals(test)
    with pytest.raises(UserError, match="column user"):
        pipeline({"item": "a", "t": 1})


@pytest.mark.parametrize("ties", ["moment", "order"])
def test_validation_rows_that_are_drawn_at_random(ties: str) -> None:
    """With moments they are rows like others; where the files' order counts, they follow the training rows."""
    data = config(f"""
        group: {{by: user, order: t, ties: {ties}}}
        split: {{by: files, train_files: [a], test_files: [b], validation_rows: random}}
        sparse: {{item: {{}}, history: {{column: item, last: 9}}}}
    """)
    events = [("u", "a", 0), ("u", "b", 1), ("u", "c", 1), ("u", "d", 2)]
    rows = typed_rows(events, history=list("abcd")).with_columns(pl.Series(SPLIT, [0, 1, 0, 0], dtype=pl.UInt8))
    histories = ["".join(h) for h in arrange(data, rows).sort(PLACE)["history"].to_list()]
    assert histories == (["", "a", "a", "abc"] if ties == "moment" else ["", "acd", "a", "ac"])


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("y = 1", "the file's columns are text: write CAST("),
        ("z = '1'", "there is no column z"),
        ("item", "is String"),
        ("(y", "'(y': "),
    ],
)
def test_conditions_that_are_wrong(tmp_path: Path, sql: str, expected: str) -> None:
    root = write(tmp_path / "raw", many(3))
    text = "label: {column: y}\ngroup: {by: user, order: t}\nsparse: {item: {}, h: {column: item, last: 2}}"
    data = data_from(text, {"root": str(root), "prepared": str(tmp_path / "p"), "sparse": {"h": {"where": sql}}})
    with pytest.raises(UserError) as e:
        prepare(data)
    assert str(e.value).startswith("data.sparse.h.where: ") and expected in str(e.value)


def test_rows_that_share_their_time_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once, over all piles, and only where features of rows with labels look back in time."""
    monkeypatch.setattr(shuffle, "PILE_ROWS", 37)
    root = write(tmp_path / "raw", [(u, i, t // 2) for u, i, t in many(20)] + [("u1", "i1", 0), ("u1", "i2", 0)])
    said = {}
    for ties in ("null", "order"):
        for feature in ("lag: 1", "min_count: 2"):
            text = f"""
                label: {{column: y}}
                group: {{by: user, order: t, ties: {ties}}}
                split: {{by: time, column: t}}
                sparse: {{item: {{}}, before: {{column: item, {feature}}}}}
            """
            prepare(config(text, root=str(root), prepared=str(tmp_path / f"{ties}{feature}")))
            said[ties, feature] = [line for line in capfd.readouterr().err.splitlines() if "share their" in line]
    for ties, told in (("null", "are one moment"), ("order", "see each other in the order of the files")):
        [line] = said[ties, "lag: 1"]
        assert line.startswith(f"3 of 146 rows share their t with another row of their user: they {told}")
        assert said[ties, "min_count: 2"] == []


def test_rows_without_a_group_or_a_time_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(
        "user,item,t,y\n" + "".join(f"u{i % 3},a,{i},{i % 2}\n" for i in range(20)) + ",a,3,1\nu,a,x,1\n"
    )
    text = "group: {by: user, order: t}\nlabel: {column: y}\nsparse: {item: {}, b: {column: item, lag: 1}}"
    prepared = prepare(config(text, root=str(tmp_path / "f.csv"), prepared=str(tmp_path / "p"), max_bad_rows=0.5))
    aside = pl.read_csv(Path(f"{prepared.folder}.bad_rows.csv"))
    assert aside["reason"].to_list() == ["group user is missing", "time t is neither a number nor a time"]
    rows = pl.DataFrame({"user": ["u1", "", None], "item": ["a"] * 3, "t": ["1"] * 3})  # an empty text is missing, too
    raw = RawRows.load(prepared.folder)
    parsed, bad = raw.parse_frame(rows)
    assert parsed.height == 1 and [b.reason for b in bad] == ["group user is missing"] * 2


@pytest.mark.parametrize("by", ["order", "time", "random", "hash", "kfold", "files", "leave_one_out"])
def test_no_row_is_in_two_splits(tmp_path: Path, by: str) -> None:
    """Of every way to split: all rows, each once; and what must stay together (a moment, a key, a file) does."""
    events = sorted(many(), key=lambda e: e[2] // 1000)
    root = write(tmp_path / "raw", events)
    column = {"time": "t", "hash": "user", "kfold": "user"}.get(by)
    split = {"by": by, "column": column, "validation": 0.2, "test": 0.2}
    if by == "files":
        split |= {f"{s}_files": [f"{i}.csv"] for i, s in enumerate(SPLITS)}
    text = "label: {column: y}\ngroup: {by: user, order: t}\ndense: {t: {transform: []}}\nsparse: {user: {}, item: {}}"
    done = frames(prepare(config(text, root=str(root), prepared=str(tmp_path / "p"), split=split)))
    seen = sorted((t, s) for s in SPLITS for t in done[s]["t"])  # a time names a row, here
    assert len(seen) == len({t for t, _ in seen}) == len(events)
    ranks = [SPLITS.index(s) for _, s in seen]
    assert by != "time" or ranks == sorted(ranks)
    if by in ("hash", "kfold"):
        of = {float(t): u for u, _, t in events}
        assert len({(of[t], s) for t, s in seen}) == len(set(of.values()))
        assert done["test"]["user"].max() == done["validation"]["user"].max() == 0  # none was seen in training
