"""Fills, clips and options of dense transforms; what YAML may say of them; quantiles of a sample."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn, of_yaml, rows

from recsys.data.features import Fitted
from recsys.data.features import training_statistics as statistics
from recsys.data.features.blocks import ROW
from recsys.data.features.fit import InMemory, PartialStatistics, StatisticsPass, fit
from recsys.data.features.steps import TRANSFORMS, Params, Transform
from recsys.data.features.training_statistics import Counts, Moments, ValueSample
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.chunks import TextCoder

FLOATS = st.floats(-1e30, 1e30, allow_subnormal=False)
FEW = settings(max_examples=examples(60), deadline=None)


@pytest.mark.parametrize(("fill", "expected"), [("mean", 4.0), ("median", 2.0), ("-7", -7.0), ("1.5", 1.5)])
def test_fill(fill: str, expected: float) -> None:
    data = of_yaml(f"dense: {{x: {{fill: {fill}, transform: []}}}}")
    learnt = learn(data, rows(data, x=[1.0, None]), rows(data, x=[2.0, 9.0, math.nan]))
    assert learnt.apply(rows(data, x=[None, math.nan, 30.0]))["x"].to_list() == [expected, expected, 30]


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        ("[0, 100]", [0, 5, 100]),
        ("{upper: 6}", [-3, 5, 6]),
        ("[4]", [4, 5, 1000]),
        ("[null, 7]", [-3, 5, 7]),
        ("{quantiles: [0.25, 0.75]}", [1, 3, 3]),  # of 0 1 2 3 4
    ],
)
def test_clip(clip: str, expected: list[float]) -> None:
    data = of_yaml(f"dense: {{x: {{transform: [{{clip: {clip}}}]}}}}")
    learnt = learn(data, rows(data, x=[0.0, 1, 2, 3, 4]))
    assert learnt.apply(rows(data, x=[-3.0, 5, 1000]))["x"].to_list() == expected


def test_each_step_is_fitted_on_the_ones_before_and_a_pass_serves_all_features() -> None:
    data = of_yaml("""
        dense:
          x: {fill: median, transform: [{clip: [0, 100]}, log, standardise]}
          z: {fill: 3, transform: [minmax]}
          v: {transform: [{clip: [0, 1]}]}
    """)
    frame = rows(data, x=[None, -5, 3, 7, 1e6], z=[1.0, 2, 3, 4, 5], v=[1.0] * 5)
    passes = []

    class Counted(InMemory):
        def collect(self, statistics_pass: StatisticsPass) -> Iterator[PartialStatistics]:
            passes.append(1)
            return super().collect(statistics_pass)

    learnt = fit(data, Counted(frame, {}))
    assert len(passes) == 3  # the median; log; standardise
    x = np.log(np.clip([5.0, -5, 3, 7, 1e6], 0, 100) + 1)
    np.testing.assert_allclose(learnt.apply(frame)["x"], (x - x.mean()) / x.std(), rtol=1e-5)


@FEW
@given(st.lists(st.one_of(st.none(), FLOATS), min_size=1, max_size=30), st.lists(st.integers(0, 30), max_size=3))
def test_any_numbers_in_any_blocks(values: list[float | None], cuts: list[int]) -> None:
    data = of_yaml("""
        dense:
          a: {column: x, fill: mean, transform: [{clip: {quantiles: [0.1, 0.9]}}, standardise]}
          b: {column: x, fill: median, transform: []}
          c: {column: x, fill: median, transform: [log, minmax]}
    """)
    frame = rows(data, x=pl.Series(values, dtype=pl.Float64))
    edges = [0, *sorted(min(c, frame.height) for c in cuts), frame.height]
    learnt = learn(data, *(frame[a:b] for a, b in pairwise(edges)))
    done = learnt.apply(frame)
    assert all(done[n].is_finite().all() and not done[n].null_count() for n in "abc")
    there = [v for v in values if v is not None]
    median = np.float32(np.median(there)) if there else 0
    assert there or done["a"].unique().to_list() == [0]  # a column of nothing
    assert done["b"].to_list() == [median if v is None else np.float32(v) for v in values]
    # what is saved is JSON, and gives the same
    again = json.loads(json.dumps(learnt.dense))
    assert Fitted(data, again).apply(frame).equals(done)


def test_saved_and_loaded(tmp_path: Path) -> None:
    """Of every kind of transform, and of names that are no words."""
    data = of_yaml("""
        dense:
          price: {fill: median, transform: [{clip: [0, 100]}, log, standardise]}
          tail: {column: price, fill: mean, transform: [{clip: {quantiles: [0.01, 0.99]}}]}
          ts: {cyclic: [hour, month]}
          clicks: {column: user, transform: [count, standardise]}
          ctr: {column: user, transform: [{target: {smoothing: 2, folds: 3}}]}
        sparse: {s: {column: user, min_count: 2}, "sp ace:1": {column: user}, m: {column: text, split: " "}}
    """)
    frame = rows(data, price=[1.0, None, 1e9], ts=[1.7e9, None, 1.6e12], user=["é", "é", None], text=["a b", None, "b"])
    learnt = learn(data, frame)
    learnt.save(tmp_path / "one")
    Fitted.copy(tmp_path / "one", tmp_path / "two")
    again = Fitted.load(tmp_path / "two")
    names = ["price", "tail", "ts_hour_sin", "ts_hour_cos", "ts_month_sin", "ts_month_cos", "clicks", "ctr"]
    assert [f.name for f in again.features.dense] == names == list(data.dense_columns)
    assert again.features == learnt.features and again.apply(frame).equals(learnt.apply(frame))
    assert again.apply(frame.head(0)).schema == learnt.apply(frame).schema


def test_a_sample_s_quantiles_are_as_near_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "SAMPLE_ROWS", 4000)
    values = np.random.default_rng(0).permutation(100_000).astype(np.float64)
    whole, again = ValueSample(), ValueSample()
    for statistic, step in ((whole, 7000), (again, 31)):
        for at in range(0, len(values), step):
            piece = pl.Series(values[at : at + step])
            part = ValueSample() if at % 3 else statistic  # as it stands, or merged
            part.add(piece, pl.DataFrame({ROW: range(at, at + len(piece))}))
            if part is not statistic:
                statistic.merge(part)
    shares = [0.01, 0.1, 0.5, 0.9, 0.99]
    found = whole.quantiles(shares)
    assert found == again.quantiles(shares)  # however the rows come
    for q, value in zip(shares, found, strict=True):
        assert abs(value / 1e5 - q) < 4 * math.sqrt(q * (1 - q) / 4000)
    assert whole._size == 4000


@FEW
@given(st.lists(st.lists(st.sampled_from(["a", "b", "", None, "é"]), max_size=9), min_size=1, max_size=9))
def test_counts_by_blocks_are_those_of_the_whole(blocks: list[list[str | None]]) -> None:
    coder, seen = TextCoder(["s"]), Counts()
    for b in blocks:
        coded = coder.encode(pl.DataFrame({"s": b}, schema={"s": pl.String}))
        seen.add(coded["s"], coded)
    whole = [v or "" for b in blocks for v in b]
    table = seen.table(coder.values()["s"])
    assert table.columns == ["value", "count"] and dict(table.rows()) == {v: whole.count(v) for v in set(whole)}


def test_defaults_of_numbers_are_not_of_times() -> None:
    data = of_yaml("dense_defaults: {fill: 3, transform: [log]}\ndense: {x: {cyclic: [hour]}, z: {transform: [count]}}")
    check_data(data)
    assert [c.fill for c in data.dense_columns.values()] == [None, None, None]


def test_a_new_transform_is_one_class(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Power(Transform, name="power_for_this_test"):
        exponent: float = 2.0
        learns = Moments

        def fit(self, seen: Moments) -> Params:
            return {"max": seen.max}

        def apply(self, x: pl.Expr, p: Params) -> pl.Expr:
            return (x / p["max"]) ** self.exponent

    try:
        data = of_yaml("dense: {x: {transform: [{power_for_this_test: 3}]}, z: {transform: [power_for_this_test]}}")
        learn(data, rows(data, x=[1.0, 2], z=[1.0, 4])).save(tmp_path)
        done = Fitted.load(tmp_path).apply(rows(data, x=[1.0, 4], z=[2.0, 4]))
        assert done["x"].to_list() == [1 / 8, 8] and done["z"].to_list() == [1 / 4, 1]
    finally:
        del TRANSFORMS["power_for_this_test"]
