"""Features that the online pipeline computes by column have the bits, and the errors, of the path through polars."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn, of_yaml, rows

from recsys.base.errors import UserError
from recsys.data.features import steps
from recsys.data.features.arrays import Arrays
from recsys.data.features.steps import FLOAT32_MAX, Clip, FillMean, Log, MinMax, Params, Standardise, Transform
from recsys.data.raw.raw_schema import RawSchema
from recsys.online import fast_lookups, raw_columns
from recsys.online.raw_rows import RawRows
from recsys.online.row_error import RowError
from recsys.online.row_transforms import RowTransforms

NUMBERS = """
dense:
  log: {column: x, transform: [log]}
  usual: {column: x, transform: [log, standardise]}
  other: {column: y, fill: median, transform: [log, standardise]}
  asis: {column: x, fill: 2.5, transform: []}
  scaled: {column: x, fill: 20, transform: [minmax]}
  infinite: {column: x, fill: 1e300, transform: []}
  standard: {column: y, fill: mean, transform: [standardise]}
  bounded: {column: x, transform: [{clip: [-3, 50.5]}, minmax]}
  lower: {column: y, transform: [{clip: {lower: 0}}]}
  quantiles: {column: x, fill: median, transform: [{clip: {quantiles: [0.1, 0.9]}}, log]}
  places: {column: x, fill: median, transform: [quantile]}
  few_places: {column: y, fill: 0, transform: [{quantile: 3}]}
  count: {column: w, transform: [count, standardise]}
  mean: {column: w, transform: [{target: {smoothing: 2}}]}
sparse:
  w: {min_count: 2}
  same: {column: v, table: w}
  hashed: {column: w, encode: hash, buckets: 11}
  numbers_hashed: {column: x, encode: hash, buckets: 7}
  value: {column: x}
  bucket: {column: y, quantiles: 5}
  place: {column: i, encode: id, rows: 40}
"""
TEXT = """
  hour: {column: t, cyclic: [hour, month]}
"""
BAGS = """
  tags: {column: b, split: "|", max_length: 3}
  marks: {column: b, pattern: '[a-z]', encode: hash, buckets: 5}
"""
LOCAL = (
    "source: {decimal: ',', thousands: '.', strip: true, null_values: ['NULL', '-999'], column_null_values: {w: [b]}}"
)
NULLS = "source: {null_values: ['', '7', b]}"


def pipeline(yaml: str, **columns: Any) -> RowTransforms:
    data = of_yaml(yaml)
    frame = pl.DataFrame(columns, strict=False)
    fitted = learn(data, rows(data, **{n: frame[n] for n in columns}, y_=[i % 2 for i in range(frame.height)]))
    return RowTransforms(RawRows(fitted, RawSchema(frame.head(0), {})))


def text_pipeline(source: str) -> RowTransforms:
    yaml = source + NUMBERS.replace("sparse:", TEXT.strip("\n") + "\nsparse:") + BAGS.strip("\n")
    numbers = [None, "0", "-3.25", "7", "1e3", "12.5", "0.125", "400"] * 4
    if "decimal" in source:
        numbers = [n and n.replace(".", ",") for n in numbers]
    words = ["a", "b", None, "a", "é", " s ", "7", "1.5"] * 4
    more = {"t": ["2024-01-31 10:00", "20230215", None, "1e9"] * 8, "b": ["a|b", None, "c|a|7", "x"] * 8}
    columns = {"x": numbers, "y": numbers[::-1], "w": words, "v": words[::-1], "i": [str(n) for n in range(32)]}
    return pipeline("label: {column: y_}\n" + yaml, **columns, **more)


def typed_pipeline() -> RowTransforms:
    whole = pl.Series([None, 0, 3, -7, 120, 3, 3, 9] * 4, dtype=pl.Int8)
    y = pl.Series([None, 0.5, -1.25, 3e30, float("nan"), 7, 8, 9] * 4, dtype=pl.Float32)
    w, v = pl.Series([True, False, None, True] * 8), pl.Series([1, 2, None, 2] * 8, dtype=pl.UInt64)
    yaml = "label: {column: y_}\nsource: {format: parquet}" + NUMBERS
    return pipeline(yaml, x=whole, y=y, w=w, v=v, i=pl.Series(range(32), dtype=pl.Int64))


SOURCES = {"csv": "source: {}", "local": LOCAL, "nulls": NULLS, "jsonl": "source: {format: jsonl}"}
NAMES = (*SOURCES, "parquet")


@cache
def named(name: str) -> RowTransforms:
    return typed_pipeline() if name == "parquet" else text_pipeline(SOURCES[name])


def by_polars(pipeline: RowTransforms, given: Any) -> Arrays:
    return Arrays.from_frame(pipeline.frame(given), pipeline.features, pipeline.fitted.matrices)


def assert_equal(a: Arrays, b: Arrays) -> None:
    assert a.dense.tobytes() == b.dense.tobytes(), (a.dense, b.dense)
    assert a.ids.tobytes() == b.ids.tobytes() and a.ids.dtype == b.ids.dtype == np.int32, (a.ids, b.ids)
    assert a.ids.flags.c_contiguous and a.dense.dtype == np.float32 and a.dense.shape == b.dense.shape
    for x, y in ((a.values, b.values), (a.lengths, b.lengths)):
        assert list(x) == list(y)
        assert all(x[n].dtype == np.int32 and np.array_equal(x[n], y[n]) for n in x), (x, y)


def assert_same_outcome(call: Callable[[], Arrays], expected: Callable[[], Arrays]) -> None:
    """Check for equal arrays, or for equal errors."""
    try:
        arrays = expected()
    except UserError as error:
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
            call()
    else:
        assert_equal(call(), arrays)


@contextmanager
def no_polars(pipeline: RowTransforms) -> Iterator[None]:
    with patch.object(type(pipeline._frames), "frame", side_effect=AssertionError("polars")):
        yield


NUMBER = st.one_of(
    st.none(),
    st.integers(-130, 130),
    st.integers(),
    st.floats(),
    st.floats(width=32),
    st.sampled_from([-0.0, 0.0, 2**53 + 1, -(2**63), 2**63, 2**64, 10**38, 3.4e38, 3.41e38, 1e-310, float("inf")]),
)
ODD_TEXTS = """1_0 inf -inf nan -nan +nan NULL -999 1,5 1.000,5 . , -0 -0.0 +1 1. .5 1e ٣ é 0x1 true a b a|b | a|b|c|d|e
    2024-01-31 2024-02-30 20240131 7.0 7.5 39 40""".split()
ODD_TEXTS += ["", " ", " 7", "7 ", "\t7", "\n7", " NaN", " NULL ", "\ud800", " b"]
ODD_VALUES = [True, False, b"a", b"\xff", [1], ["a", None, "b"], (), {}, Decimal("7.0"), Decimal("1e400"), 10**400]
ODD_VALUES += [np.float32(0.1), np.int64(7), np.str_("a"), date(2024, 1, 1), datetime(2024, 1, 1), object()]
ODD = st.one_of(st.sampled_from([*ODD_TEXTS, *ODD_VALUES]), NUMBER.map(str), st.text(max_size=3))
COLUMNS = ("x", "y", "w", "v", "i", "t", "b")


@st.composite
def some_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of usual values, at most one of which is odd; `i`, which may not be missing, is usually valid."""
    words, times = (
        st.sampled_from(["a", "b", "é", "7", "?", None, "", 1, 0]),
        st.sampled_from(["1e9", None, "2024-01-01"]),
    )
    bags = st.sampled_from(["a|b", "", None, "7|x|?|a"])
    usual = {"x": NUMBER, "y": NUMBER, "w": words, "v": st.integers(0, 9), "t": times, "b": bags}
    row = st.fixed_dictionaries({"i": st.integers(0, 39)}, optional=usual)
    found = draw(st.lists(row, min_size=1, max_size=12))
    if draw(st.booleans()):
        found[draw(st.integers(0, len(found) - 1))][draw(st.sampled_from(COLUMNS))] = draw(ODD)
    return found


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(sorted(NAMES)), some_rows(), st.sampled_from([0, 1000]), st.sampled_from([0, 100]))
def test_the_bits_and_errors_of_polars(name: str, given: list[dict[str, Any]], many: int, few: int) -> None:
    pipeline = named(name)
    columns = {c: [row.get(c) for row in given] for c in COLUMNS}
    with patch.object(steps, "POLARS_FROM", many), patch.object(raw_columns, "MAX_TRANSPOSED_ROWS", few):
        assert_same_outcome(lambda: pipeline.arrays(given[-1]), lambda: by_polars(pipeline, given[-1]))
        assert_same_outcome(lambda: pipeline.arrays(given), lambda: by_polars(pipeline, given))
        assert_same_outcome(lambda: pipeline.arrays_of_columns(columns, len(given)), lambda: by_polars(pipeline, given))


@pytest.mark.parametrize("name", NAMES)
def test_usual_rows_take_no_polars(name: str) -> None:
    typed = name == "parquet"
    usual = [
        {"x": 3, "y": 2.5, "w": True if typed else "a", "v": 7, "i": 3},
        {"x": None, "y": 1, "w": None, "v": "9", "i": "4"},
        {"x": "12", "y": "1" if name == "local" else "-2.5", "w": "0" if typed else "new", "i": 39.0},
    ]
    usual = [row | {"t": "2024-01-31 10:00", "b": "a|b"} for row in usual]
    pipeline = named(name)
    assert pipeline._rest is None
    expected = by_polars(pipeline, usual)
    pipeline.arrays(usual)  # fills the memo of times and tags
    with no_polars(pipeline):
        assert_equal(pipeline.arrays(usual), expected)
        assert_equal(pipeline.arrays_of_columns({k: [r.get(k) for r in usual] for k in COLUMNS}, 3), expected)
        assert_equal(pipeline.arrays(usual, history=[usual[0], usual[0]]), expected)


def test_a_bad_row_of_the_history_is_an_error() -> None:
    with pytest.raises(RowError, match=r"history\[0\]: column x: 'oops' is not a number"):
        named("csv").arrays({"i": 3}, history=[{"x": "oops", "i": 3}])


def test_columns_of_numpy_and_polars() -> None:
    pipeline, usual = named("csv"), {"x": [1.5, 7.0], "w": ["a", "?"], "i": [3, 4]}
    expected = pipeline.arrays([{n: v[i] for n, v in usual.items()} for i in range(2)])
    for make in (tuple, np.array, pl.Series):
        assert_equal(pipeline.arrays_of_columns({n: make(v) for n, v in usual.items()}, 2), expected)
    with pytest.raises(UserError, match="column w: has 3 values for 2 rows; give one for each row"):
        pipeline.arrays_of_columns(usual | {"w": ["a", "b", "c"]}, 2)
    assert named("parquet").arrays_of_columns({}, 0).rows == 0


def test_memos_are_bounded() -> None:
    pipeline = text_pipeline(LOCAL)
    given = [{"w": f"w{i}", "t": str(10**9 + 5000 * i), "b": f"a|{i}", "i": 3} for i in range(60)]
    expected = by_polars(pipeline, given)
    with patch.object(fast_lookups, "LIMIT", 16):
        for first in range(0, 60, 10):
            chosen = given[first : first + 10]
            assert pipeline.arrays(chosen).dense.tobytes() == expected.dense[first : first + 10].tobytes()
        memos = [lookup.memo for _, lookup in pipeline._fast._looked_up.ids] + [*pipeline._fast._memo._memos.values()]  # type: ignore[union-attr]
        assert all(len(memo) <= 27 for memo in memos) and max(map(len, memos)) > 10


def test_a_transform_without_numpy_goes_through_polars() -> None:
    def apply(_: Standardise, x: pl.Expr, p: Params) -> pl.Expr:
        return ((x - p["mean"]) * (1 / p["std"])).clip(-FLOAT32_MAX, FLOAT32_MAX)

    other = {"apply_array": staticmethod(Transform.apply_array), "apply": apply}
    with patch.multiple(Standardise, **other):
        changed = text_pipeline("source: {}")
        assert {"usual", "other", "standard"} <= changed._fast.dense  # type: ignore[union-attr]
        assert changed._rest is not None
        two = [{"x": "3", "y": 2.7, "i": 1}, {"x": 5, "i": 2, "w": "a"}]
        assert_equal(changed.arrays(two), by_polars(changed, two))
        found = changed.arrays(two)
    assert_equal(found, named("csv").arrays(two))


SOME_NUMBERS = st.lists(st.floats(-3e38, 3e38) | st.integers(-9, 9).map(float) | st.none(), min_size=2, max_size=60)


@given(x=SOME_NUMBERS, low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6))
def test_numbers_are_transformed_as_polars_would(x: list[float | None], low: float, width: float) -> None:
    """To the bit, so that data prepared by expressions of polars, as this project once did, stays the same.

    polars multiplies by the inverse of a divisor, but not for a single row, hence at least two.
    """
    low += 0.0  # polars leaves out the subtraction of -0.0
    seen = {"min": low, "max": low + width, "mean": low, "std": width}
    c, one = pl.col("x"), pl.DataFrame({"x": pl.Series(x, dtype=pl.Float64)})
    for step, p, expression in (
        (Log(), seen, (c - low + 1).clip(lower_bound=1).log()),
        (Standardise(), seen, ((c - low) / width).clip(-FLOAT32_MAX, FLOAT32_MAX)),
        (MinMax(), seen, ((c - low) / (low + width - low)).clip(0, 1)),
        (Clip(low, low + width), {}, c.clip(low, low + width)),
        (FillMean(), {"value": low}, c.fill_null(low)),
    ):
        found, expected = one.select(step.apply(c, p), y=expression)
        assert found.null_count() == expected.null_count(), step
        assert found.fill_null(0).to_numpy().tobytes() == expected.fill_null(0).to_numpy().tobytes(), step
