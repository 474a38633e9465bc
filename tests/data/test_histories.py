"""Histories: lists in files and values of earlier rows share the table of the item, and hold nothing of later rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from data_configs import data_from

from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.models.common.behaviour import history_pairs

ROWS, USERS, LAST = 300, 12, 5


def prepared_data(text: str, folder: Path) -> Prepared:
    data = data_from({"root": str(folder / "raw")}, text)
    data = replace(data, prepared=str(folder / "prepared"))
    check_data(data)
    return prepare(data)


def rows_of(prepared: Prepared) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(f) for s in ("train", "validation", "test") for f in prepared.files(s)])


SOURCES = {
    "lists": ("format: parquet", "items: {split: '|', table: item}, kinds: {split: '|', table: kind}"),
    "text": ("format: csv", "items: {split: '|', table: item}, kinds: {split: '|', table: kind}"),
    "rows": ("format: csv", "items: {column: item, last: 3, table: item}, kinds: {column: kind, last: 3, table: kind}"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_a_history_of_the_item_s_table(source: str, tmp_path: Path) -> None:
    """The lists are sequences that share the table and the ids of the item; other lists are no sequences."""
    (tmp_path / "raw").mkdir()
    rng = np.random.default_rng(0)
    items = rng.integers(0, 9, ROWS)
    past = [[] if i < USERS else [items[j] for j in range(i % USERS, i, USERS)][-3:] for i in range(ROWS)]
    frame = pl.DataFrame(
        {
            "user": [f"u{i % USERS}" for i in range(ROWS)],
            "item": [f"i{i}" for i in items],
            "kind": [f"k{i % 3}" for i in items],
            "items": [[f"i{i}" for i in p] for p in past],
            "kinds": [[f"k{i % 3}" for i in p] for p in past],
            "tags": ["a|b"] * ROWS,
            "t": range(ROWS),
            "label": rng.integers(0, 2, ROWS),
        }
    )
    form, features = SOURCES[source]
    if form == "format: parquet":
        frame.write_parquet(tmp_path / "raw" / "log.parquet")
    else:
        frame.with_columns(pl.col("items", "kinds").list.join("|")).write_csv(tmp_path / "raw" / "log.csv")
    prepared = prepared_data(
        f"""
        source: {{{form}, files: ["log.*"]}}
        group: {{by: user, order: t}}
        split: {{by: time, column: t}}
        dense: {{t: {{transform: []}}}}
        sparse: {{item: {{}}, kind: {{}}, tags: {{split: '|'}}, {features}}}
        """,
        tmp_path,
    )
    spec = prepared.fitted.features
    assert {f.name for f in spec.sparse if f.sequence} == {"items", "kinds"}
    assert history_pairs(spec, None, "DIN") == {"item": "items", "kind": "kinds"}
    found = rows_of(prepared).sort("t")
    ids = found["item"].to_list()
    for i, own in enumerate(found["items"].to_list()):
        assert list(own) == [ids[j] for j in range(i % USERS, i, USERS)][-3:]
    assert (found["items"].list.len() == found["kinds"].list.len()).all()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_condition_chooses_among_the_rows_strictly_before(kind: str, tmp_path: Path) -> None:
    """The label of earlier rows, of any split; rows of one moment, three on average, never see each other's."""
    (tmp_path / "raw").mkdir()
    rng = np.random.default_rng(2)
    user, time = rng.integers(0, USERS, ROWS), rng.integers(0, 8, ROWS)
    rows = pl.DataFrame({"user": user, "item": range(ROWS), "t": time, "label": rng.integers(0, 2, ROWS)})
    (rows.write_csv if kind == "csv" else rows.write_parquet)(tmp_path / "raw" / f"log.{kind}")
    sql = "label = '1'" if kind == "csv" else "label = 1"
    ids = f"column: item, encode: id, rows: {ROWS}, table: item"
    prepared = prepared_data(
        f"""
        source: {{format: {kind}, files: [log.{kind}]}}
        group: {{by: user, order: t}}
        split: {{by: time, column: t}}
        derive: {{clicked: "{sql}"}}
        dense: {{t: {{lag: 2, where: clicked, fill: -1, transform: []}}}}
        sparse:
          item: {{encode: id, rows: {ROWS}}}
          clicks: {{{ids}, last: {LAST}, where: "{sql}"}}
          before: {{{ids}, last: {LAST}}}
        """,
        tmp_path,
    )
    found = rows_of(prepared)
    assert found.height == ROWS and prepared.fitted.data.has_moments
    for row, clicks, before, t in found.select("item", "clicks", "before", "t").iter_rows():
        earlier = [j for j in np.argsort(time, kind="stable") if user[j] == user[row] and time[j] < time[row]]
        clicked = [j for j in earlier if rows["label"][int(j)]]
        assert list(before) == earlier[-LAST:] and list(clicks) == clicked[-LAST:]
        assert t == (time[clicked[-2]] if len(clicked) > 1 else -1)
