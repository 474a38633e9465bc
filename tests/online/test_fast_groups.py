"""Features of earlier rows of a group that NumPy gathers are those that polars gathers."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn, of_yaml, rows

from recsys.data.features.arrays import Arrays
from recsys.data.raw.raw_schema import RawSchema
from recsys.online.raw_rows import RawRows
from recsys.online.row_error import RowError
from recsys.online.row_transforms import RowTransforms

CONFIG = """
group: {by: user, order: t}
dense:
  price: {fill: 0.0}
sparse:
  user: {}
  item: {}
  before: {column: item, lag: 1}
  two_before: {column: kind, lag: 2, encode: hash, buckets: 40}
  viewed: {column: item, table: item, last: 3, pooling: mean}
  kinds: {column: kind, last: 2, pooling: mean}
"""
CONFIGS = {
    "order": CONFIG,
    "sessions": CONFIG.replace("order: t", "order: t, gap: 2"),
    "ties": CONFIG.replace("order: t", "order: t, ties: order"),
    "as_given": CONFIG.replace(", order: t", ""),
    "with_polars": CONFIG + "  jump: {column: price, difference: 1, quantiles: 4}\n",
    "chosen": CONFIG + '  late: {column: item, table: item, last: 2, where: "TRY_CAST(t AS DOUBLE) > 0"}\n',
}


def pipeline(yaml: str) -> RowTransforms:
    rng = np.random.default_rng(0)
    data = of_yaml(yaml)
    columns = {
        "user": [f"u{i % 7}" for i in range(300)],
        "item": [f"i{i}" for i in rng.integers(0, 9, 300)],
        "kind": rng.choice(["a", "b", ""], 300).tolist(),
        "price": rng.integers(0, 50, 300).tolist(),
        "t": list(range(300)),
    }
    schema = RawSchema(pl.DataFrame(schema=dict.fromkeys(columns, pl.String)), {})
    return RowTransforms(RawRows(learn(data, rows(data, **columns)), schema))


row = st.fixed_dictionaries(
    {"user": st.sampled_from(["u1", "u2", "v", 3]), "t": st.sampled_from([0, 1, 4, "2", "1e1", "-0"])},
    optional={
        "item": st.sampled_from(["i1", "i2", "i3", "new", 7, "", None]),
        "kind": st.sampled_from(["a", "b", "c", "", None, 5]),
        "price": st.sampled_from([1, 2.5, "3", None]),
    },
)


@pytest.mark.parametrize("yaml", CONFIGS.values(), ids=CONFIGS)
def test_features_are_those_of_polars(yaml: str) -> None:
    transforms = pipeline(yaml)
    assert transforms._fast is not None and transforms._fast.groups is not None
    assert (transforms._rest is None) == (yaml not in (CONFIGS["with_polars"], CONFIGS["chosen"]))

    @settings(max_examples=60, deadline=None)
    @given(st.lists(row, min_size=1, max_size=12), st.lists(row, max_size=6))
    def check(given_rows: list[dict[str, object]], history: list[dict[str, object]]) -> None:
        found = transforms.arrays(given_rows, history)
        expected = Arrays.from_frame(transforms.frame(given_rows, history), transforms.features)
        np.testing.assert_array_equal(found.dense, expected.dense)
        np.testing.assert_array_equal(found.ids, expected.ids)
        for name in expected.values:
            np.testing.assert_array_equal(found.values[name], expected.values[name])
            np.testing.assert_array_equal(found.lengths[name], expected.lengths[name])

    check()


@pytest.mark.parametrize("wrong", [{"user": ""}, {"user": None}, {"t": ""}, {"t": "soon"}, {"t": None}, {"user": [1]}])
def test_rows_without_a_group_or_an_order_are_refused(wrong: dict[str, object]) -> None:
    good = {"user": "u1", "item": "i1", "t": 1}
    with pytest.raises(RowError, match=r"^rows\[1\]: column (user|t): "):
        pipeline(CONFIG).arrays([good, {**good, **wrong}])
