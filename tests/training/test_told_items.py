"""A property of the item among the features of a query tells a model its answer, and a run says so."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from data_configs import data_from

from recsys.data.prepare.prepared import Prepared, prepare
from recsys.training.advice import tells_the_item

FLAT = """
split: {by: time, column: t}
sparse: {user: {}, item: {}, genre: {}, tags: {split: "|"}, place: {}, shown: {}, list: {column: place}, earlier: {column: genre, lag: 1}}
"""
SEQUENCES = """
split: {by: leave_one_out}
sequences: {max_length: 20, stride: 1}
sparse: {user: {per: group}, item: {}, genre: {}, shown: {per: group}, own: {column: genre, per: group}}
"""


def prepared(folder: Path, text: str, rows: int = 3000, genres: int = 7) -> Prepared:
    """Rows of 100 items, each with a genre and two tags, in 300 places, shown in three ways."""
    draw = np.random.default_rng(0)
    item = draw.integers(0, 100, rows)
    columns = {
        "user": [f"u{u}" for u in draw.integers(0, 300, rows)],
        "item": [f"i{i}" for i in item],
        "genre": [f"g{i % genres}" for i in item],
        "tags": [f"a{i % 5}|b{i % 3}" for i in item],
        "place": [f"p{p}" for p in draw.integers(0, 300, rows)],
        "shown": [f"s{s}" for s in draw.integers(0, 3, rows)],
        "t": np.arange(rows),
    }
    (folder / "raw").mkdir()
    pl.DataFrame(columns).write_csv(folder / "raw" / "log.csv")
    common = "source: {format: csv}\nlabel: {column: null}\ngroup: {by: user, order: t}\nitems: {feature: item}\n"
    known = {"name": "t", "root": str(folder / "raw"), "prepared": str(folder / "prepared")}
    return prepare(data_from(known, common + text))


@pytest.mark.parametrize(
    ("text", "tables", "told"),
    [
        (FLAT, {"user", "item", "genre", "tags", "place", "shown", "list", "earlier"}, "genre, tags"),
        (FLAT, {"user", "item", "tags", "place"}, "tags"),  # a model that does not read the genre
        (FLAT, {"user", "item", "place", "shown", "earlier"}, None),
        (SEQUENCES, {"user", "item", "genre", "shown", "own"}, "own"),
        (SEQUENCES, {"user", "item", "genre", "shown"}, None),  # the model reads the genres before the item
    ],
)
def test_features_that_tell_the_item(text: str, tables: set[str], told: str | None, tmp_path: Path) -> None:
    line = tells_the_item(prepared(tmp_path, text), tables)
    assert (line is None) == (told is None)
    if line is not None:
        assert line.startswith(f"data.sparse.{told}: has one value for each item in the first ")
        assert "move it to data.items.sparse" in line


@pytest.mark.parametrize(("rows", "genres"), [(60, 7), (3000, 1)])
def test_few_rows_and_a_constant_are_no_alarm(rows: int, genres: int, tmp_path: Path) -> None:
    assert tells_the_item(prepared(tmp_path, FLAT, rows, genres), {"user", "item", "genre"}) is None
