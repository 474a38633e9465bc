"""Candidates of one user, whose shared columns and past are transformed once, have the features of single rows."""

import numpy as np
import polars as pl
import pytest
from raw_rows import learn, of_yaml, rows

from recsys.data.raw.raw_schema import RawSchema
from recsys.online.raw_rows import RawRows
from recsys.online.row_transforms import RowTransforms, SharedColumns

CONFIG = """
group: {by: user, order: t}
dense:
  price: {fill: 0.0}
  DENSE
sparse:
  user: {}
  item: {}
  age: {}
  SPARSE
"""
LAGS = "item_before: {column: item, lag: 1}\n  two_before: {column: item, lag: 2}"
VIEWED = "viewed: {column: item, last: 3, pooling: mean}"
LOOKING_BACK = [
    ("before: {column: price, lag: 1, fill: 0.0}", ""),
    ("change: {column: price, difference: 1, fill: 0.0}", ""),
    ("", LAGS),
    ("", "jump: {column: price, difference: 1, quantiles: 4}"),
    ("", f"{LAGS}\n  {VIEWED}"),
]
SHARED = {"user": "u1", "age": "old", "t": 100}


def pipeline(dense: str, sparse: str) -> tuple[RawRows, RowTransforms]:
    rng = np.random.default_rng(0)
    n = 300
    data = of_yaml(CONFIG.replace("DENSE", dense).replace("SPARSE", sparse))
    columns = {
        "user": [f"u{i % 7}" for i in range(n)],
        "item": [f"i{i}" for i in rng.integers(0, 9, n)],
        "age": rng.choice(["old", "new"], n).tolist(),
        "price": rng.integers(0, 50, n).tolist(),
        "t": list(range(n)),
    }
    fitted = learn(data, rows(data, **columns))
    raw = RawRows(fitted, RawSchema(pl.DataFrame(schema=dict.fromkeys(columns, pl.String)), {}))
    return raw, RowTransforms(raw)


@pytest.mark.parametrize(("dense", "sparse"), LOOKING_BACK)
@pytest.mark.parametrize("known", [3, 1, 0])
def test_candidates_have_the_features_of_single_rows(known: int, dense: str, sparse: str) -> None:
    raw, single = pipeline(dense, sparse)
    shared_columns = SharedColumns(raw, single)
    history = [{**SHARED, "item": f"i{i}", "price": 10 * i, "t": i} for i in range(known)]
    candidates = [{"item": f"i{i}", "price": i + 1} for i in range(4)]
    division = shared_columns.division(frozenset(SHARED))
    once = division.once.arrays(SHARED, history)
    found = shared_columns.joined(once, shared_columns.each(division, SHARED, candidates, history), division)
    for i, candidate in enumerate(candidates):
        expected = single.arrays({**SHARED, **candidate}, history)
        np.testing.assert_array_equal(found.dense[i], expected.dense[0])
        np.testing.assert_array_equal(found.ids[i], expected.ids[0])
        for name, lengths in found.lengths.items():
            stop = int(lengths[: i + 1].sum())
            np.testing.assert_array_equal(found.values[name][stop - lengths[i] : stop], expected.values[name])
