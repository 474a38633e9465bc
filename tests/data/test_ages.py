"""Ages of a history's items: against plain NumPy, never from later rows, and the same online as offline."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from data_configs import data_from
from entries import assert_same, moved
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import frames

from recsys.data.features import GROUP, ResolvedData
from recsys.data.features.batch_tensors import RowTensors
from recsys.data.features.blocks import ORDER, PLACE
from recsys.data.features.group_features import arrange, next_item_queries
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.data.raw.raw_schema import RawSchema
from recsys.online.raw_rows import RawRows

LAST, BUCKETS = 4, 5
Event = tuple[str, int, float | None]  # user, order, time


def config(text: str, **more: Any) -> ResolvedData:
    data = data_from(text, more)
    check_data(data)
    return data


def arranged(events: list[Event], last: int = LAST, gap: int | None = None, ties: str = "null") -> pl.DataFrame:
    data = config(f"""
        group: {{by: user, order: at, gap: {"null" if gap is None else gap}, ties: {ties}}}
        sparse:
          items: {{column: item, last: {last}}}
          ages: {{column: t, last: {last}, age: true, quantiles: 3}}
    """)
    users, orders, times = ([e[i] for e in events] for i in range(3))
    columns = {GROUP: users, ORDER: orders, PLACE: range(len(events)), "items": [str(i) for i in range(len(events))]}
    types = {GROUP: pl.String, ORDER: pl.Float64, PLACE: pl.Int64, "items": pl.String, "ages": pl.Float64}
    return arrange(data, pl.DataFrame(columns | {"ages": times}, schema_overrides=types)).sort(PLACE)


def earlier_rows(events: list[Event], row: int, last: int, gap: int | None) -> list[int]:
    """Return the places of the last rows strictly before `row` in its group and session, by brute force."""
    same = [i for i in range(len(events)) if events[i][0] == events[row][0]]
    before = sorted((events[i][1], i) for i in same if (events[i][1], i) <= (events[row][1], row))
    for n in range(len(before) - 1, 0, -1):
        if gap is not None and before[n][0] - before[n - 1][0] > gap:
            before = before[n:]
            break
    return [i for at, i in before if at < events[row][1]][-last:]


TIMES = st.none() | st.integers(-5, 40).map(float)
EVENTS = st.lists(st.tuples(st.sampled_from("uvwxé"), st.integers(0, 12), TIMES), max_size=40)


@settings(max_examples=examples(80), deadline=None)
@given(EVENTS, st.integers(1, 5), st.none() | st.integers(0, 4))
def test_against_a_brute_force(events: list[Event], last: int, gap: int | None) -> None:
    """`order` has ties, and the times, another column, are missing in some rows."""
    found = arranged(events, last, gap)
    for row, (items, ages) in enumerate(found.select("items", "ages").iter_rows()):
        earlier = earlier_rows(events, row, last, gap)
        assert items == [str(i) for i in earlier]
        now = events[row][2]
        then = [events[i][2] for i in earlier]
        assert ages == [None if now is None or t is None else now - t for t in then]


def test_the_query_for_the_next_item_is_at_the_time_of_the_last_row() -> None:
    data = config("""
        group: {by: user, order: at}
        split: {by: time, column: at}
        items: {feature: item}
        sparse: {item: {}, ages: {column: at, last: 2, age: true, quantiles: 3}}
    """)
    times = [1.0, 5.0, 2.0, 9.0]
    rows = pl.DataFrame({GROUP: ["u", "u", "v", "u"], ORDER: times, "item": list("abcd"), "ages": times})
    queries = next_item_queries(data, rows)
    assert queries.select(GROUP, "ages").rows() == [("u", [4.0, 0.0]), ("v", [0.0])]


# --- prepared and served ---------------------------------------------------------------------------------

YAML = f"""
    source: {{files: ["*.csv"]}}
    label: {{column: y}}
    group: {{by: user, order: at}}
    split: {{by: time, column: at, validation: 0.2, test: 0.2}}
    sparse:
      item: {{}}
      items: {{column: item, table: item, last: {LAST}}}
      ages: {{column: seen, last: {LAST}, age: true, quantiles: {BUCKETS}}}
"""


def log(rows: int = 400) -> pl.DataFrame:
    """Rows in any order; `seen` is `at` in seconds, and is missing in some rows; many rows share their times."""
    rng = np.random.default_rng(0)
    at = rng.permutation(rows) // 3 * 3600 + rng.integers(0, 2, rows)
    seen = [None if i % 11 == 0 else int(t) for i, t in enumerate(at)]
    columns = {"user": rng.integers(0, 9, rows), "item": rng.integers(0, 12, rows), "at": at, "seen": seen}
    return pl.DataFrame(columns | {"y": rng.integers(0, 2, rows)})


def as_text(times: pl.Series) -> pl.Series:
    start = datetime(2024, 2, 28, tzinfo=UTC)
    text = [None if t is None else (start + timedelta(seconds=t)).isoformat() for t in times]
    return pl.Series(times.name, text, dtype=pl.String)


def prepared_log(rows: pl.DataFrame, folder: Path) -> Prepared:
    (folder / "raw").mkdir()
    for i in range(3):  # in the order of rows
        rows[i * len(rows) // 3 : (i + 1) * len(rows) // 3].write_csv(folder / "raw" / f"{i}.csv")
    return prepare(config(YAML, root=str(folder / "raw"), prepared=str(folder / "prepared")))


def test_buckets_are_quantiles_of_the_training_rows(tmp_path: Path) -> None:
    rows = log()
    prepared = prepared_log(rows, tmp_path)
    events: list[Event] = [(str(u), t, s) for u, t, s in rows.select("user", "at", "seen").iter_rows()]
    earlier = [earlier_rows(events, i, LAST, None) for i in range(len(events))]
    seen = np.array([np.nan if e[2] is None else e[2] for e in events])
    ages = [seen[i] - seen[places] for i, places in enumerate(earlier)]
    done = frames(prepared)
    order = np.lexsort((np.arange(len(events)), rows["at"]))  # of the split
    trains = np.zeros(len(events), bool)
    trains[order[: done["train"].height]] = True
    known = np.concatenate([a for a, t in zip(ages, trains, strict=True) if t])
    bounds = np.unique(np.quantile(known[~np.isnan(known)], np.arange(1, BUCKETS) / BUCKETS))
    assert prepared.fitted.encoders == {"ages": bounds.tolist()} and len(bounds) == BUCKETS - 1
    ids = [np.where(np.isnan(a), BUCKETS + 1, 1 + np.searchsorted(bounds, a)).tolist() for a in ages]
    expected = [x for x, t in zip(ids, trains, strict=True) if t]
    assert done["train"]["ages"].to_list() == expected
    rest = pl.concat([done["validation"], done["test"]])["ages"].to_list()
    assert sorted(rest) == sorted(x for x, t in zip(ids, trains, strict=True) if not t)
    for frame in done.values():
        assert frame["ages"].list.len().equals(frame["items"].list.len())
    feature = prepared.fitted.features.feature("ages")
    assert feature.cardinality == BUCKETS + 2 and feature.multi_valued and feature.sequence


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "iso"])
def test_online_as_offline(tmp_path: Path, text: bool) -> None:
    """One row with its user's earlier rows, all rows at once and a data frame give the bits of the prepared rows."""
    rows = log()
    if text:
        rows = rows.with_columns(as_text(rows["at"]), as_text(rows["seen"]))
    prepared = prepared_log(rows, tmp_path)
    pipeline = moved(prepared, tmp_path)
    everything = pipeline(rows.to_dicts())
    raw_rows = RawRows(prepared.fitted, RawSchema.load(prepared.folder, prepared.fitted.data))
    parsed, bad = raw_rows.parse_frame(rows)
    assert not bad
    batch = prepared.fitted.apply(raw_rows.in_context(parsed))
    assert_same(everything, RowTensors.from_frame(batch, pipeline.features))
    by_split = frames(prepared)
    offline = sorted(r for f in by_split.values() for r in f.drop("__label__").rows())
    assert sorted(batch.select(by_split["train"].drop("__label__").columns).rows()) == offline
    given = rows.with_row_index("place").sort("at", "place")
    for place, row in list(enumerate(given.to_dicts()))[::9]:
        history = given[:place].filter(pl.col("user") == row["user"]).sort("place").to_dicts()  # of any order
        assert pipeline.frame(row, history).equals(batch[row["place"]])
