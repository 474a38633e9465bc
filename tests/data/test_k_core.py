"""data.k_core: against a plain loop, before the split, in small chunks; what is left out is said."""

from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from data_configs import data_from
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.data.prepare import k_core
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.data.raw.raw_format import RawFormat
from recsys.schema.data_schema import DataConfig

ROWS = """
source: {files: ["*.csv"]}
label: {column: null}
split: {by: order, validation: 0.2, test: 0.2}
sparse: {user: {min_count: 0}, item: {min_count: 0}}
"""
SEQUENCES = """
source: {files: ["*.csv"]}
group: {by: user}
sequences: {max_length: 9}
split: {by: leave_one_out}
sparse: {item: {min_count: 0}}
items: {file: items.tsv, key: id, separator: "\\t", sparse: {kind: {}}}
"""


def core(pairs: list[tuple[str, str]], users: int, items: int) -> list[tuple[str, str]]:
    """The rows that are left, one rule after the other, by a loop."""
    while True:
        by_user, by_item = Counter(u for u, _ in pairs), Counter(i for _, i in pairs)
        left = [(u, i) for u, i in pairs if by_user[u] >= users and by_item[i] >= items]
        if left == pairs:
            return pairs
        pairs = left


def config(folder: Path, text: str, pairs: list[tuple[str, str]], least: dict[str, Any], files: int = 1) -> DataConfig:
    raw = folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    size = -(-len(pairs) // files)
    for n in range(files):
        lines = [f"{u},{i}" for u, i in pairs[n * size : (n + 1) * size]]
        (raw / f"{n}.csv").write_text("user,item\n" + "\n".join(lines) + "\n")
    (raw / "items.tsv").write_text("id\tkind\n" + "".join(f"i{i}\t{i % 3}\n" for i in range(40)))
    data = data_from({"root": str(raw), "prepared": str(folder / "prepared"), "k_core": least}, text)
    check_data(data)
    return data


def rows_of(done: Prepared) -> list[tuple[str, str]]:
    """The rows of all splits in their order, as the values of their ids."""
    frames = [pl.read_parquet(f) for split in ("train", "validation", "test") for f in done.files(split)]
    rows = pl.concat(f.select("user", "item") for f in frames)
    values = {}
    for n in ("user", "item"):
        vocabulary = done.fitted.vocabularies[n]
        values[n] = dict(zip(vocabulary["id"], vocabulary["value"], strict=True))
    return [(values["user"][u], values["item"][i]) for u, i in rows.iter_rows()]


PAIRS = st.lists(
    st.tuples(st.sampled_from([f"u{i}" for i in range(8)]), st.sampled_from([f"i{i}" for i in range(8)])),
    min_size=30,
    max_size=90,
)


@settings(max_examples=examples(12), deadline=None)
@given(PAIRS, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_it_is_what_a_loop_leaves(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], users: int, items: int, files: int
) -> None:
    data = config(tmp_path_factory.mktemp("core"), ROWS, pairs, {"user": users, "item": items}, files)
    left = core(pairs, users, items)
    if len(left) < 10:  # too few for three splits
        return
    done = prepare(data)
    assert rows_of(done) == left  # split by their order, of the rows that are left
    removed = done.info["k_core"]
    assert removed["rows"] == [len(pairs), len(left)]
    assert removed["values"]["item"] == [len({i for _, i in pairs}), len({i for _, i in left})]
    assert done.rows("test") == round(0.2 * len(left))


def many(users: int, items: int) -> list[tuple[str, str]]:
    """User u chooses item 0 to u: the 5-core leaves out all of small numbers, in several rounds."""
    return [(f"u{u}", f"i{(u * 7 + i * i) % items}") for u in range(users) for i in range(u % 11 + 1)]


def test_sequences_and_the_item_table_have_the_items_of_the_core(tmp_path: Path) -> None:
    pairs = many(60, 37)
    left = core(pairs, 5, 4)
    assert 0 < len(left) < len(pairs)
    done = prepare(config(tmp_path, SEQUENCES, pairs, {"user": 5, "item": 4}))
    items = {i for _, i in left}
    assert set(done.fitted.item_vocabulary["value"]) <= items < {f"i{i}" for i in range(40)}
    assert len(done.fitted.candidates) == len(items)
    assert done.rows("test") == len({u for u, _ in left})  # of each user the last item


def test_many_chunks_and_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, least = many(60, 37), {"user": 5, "item": 4}
    expected = rows_of(prepare(config(tmp_path, ROWS, pairs, least)))
    monkeypatch.setattr(RawFormat, "range_bytes", 300)
    calls, real = count(), k_core._write_chunk

    def dies(*args: Any) -> None:
        if next(calls) == 2:  # threads write chunks, so that fewer may be whole
            raise KeyboardInterrupt
        real(*args)

    data = replace(config(tmp_path, ROWS, pairs, least), prepared=str(tmp_path / "again"))
    monkeypatch.setattr(k_core, "_write_chunk", dies)
    with pytest.raises(KeyboardInterrupt):
        prepare(data)
    monkeypatch.setattr(k_core, "_write_chunk", real)
    assert rows_of(prepare(data)) == expected


def test_rows_without_a_value_are_left_out(tmp_path: Path) -> None:
    """And a feature may have the name of a column of counts."""
    pairs = many(60, 37)
    left = core(pairs, 5, 4)
    text = ROWS.replace("item: {min_count: 0}", "item: {min_count: 0}, count: {column: item}")
    done = prepare(config(tmp_path, text, [("", "i1")] * 9 + pairs, {"user": 5, "count": 4}))
    assert rows_of(done) == left and done.info["k_core"]["rows"] == [len(pairs) + 9, len(left)]


@pytest.mark.parametrize(
    ("least", "words"), [({"user": 99, "item": 1}, "no row is left of"), ({"usr": 5}, "data.k_core.usr: must be")]
)
def test_mistakes(tmp_path: Path, least: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=r"data\.k_core") as e:
        prepare(config(tmp_path, ROWS, many(20, 9), least))
    assert words in str(e.value)
