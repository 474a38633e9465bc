"""Fills, clips and options of dense transforms; what YAML may say of them; quantiles of a sample."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn, of_yaml, rows

from recsys.base.errors import UserError
from recsys.data.features import (
    ROW,
    TRANSFORMS,
    Fitted,
    InMemory,
    PartialStatistics,
    StatisticsPass,
    fit,
)
from recsys.data.features import (
    training_statistics as statistics,
)
from recsys.data.features.steps import Params, Transform
from recsys.data.features.training_statistics import Counts, Moments, ValueSample
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.chunks import TextCoder
from recsys.data.prepare.prepared import prepare
from recsys.schema.data_schema import DenseConfig

FLOATS = st.floats(-1e30, 1e30, allow_subnormal=False)
FEW = settings(max_examples=examples(60), deadline=None)


@pytest.mark.parametrize(("fill", "expected"), [("mean", 4.0), ("median", 2.0), ("-7", -7.0), ("1.5", 1.5)])
def test_fill(fill: str, expected: float) -> None:
    data = of_yaml(f"dense: {{x: {{fill: {fill}, transform: []}}}}")
    learnt = learn(data, rows(data, x=[1.0, None]), rows(data, x=[2.0, 9.0, math.nan]))
    assert learnt.apply(rows(data, x=[None, math.nan, 30.0]))["x"].to_list() == [expected, expected, 30]


def test_a_column_of_nothing_is_filled_with_0() -> None:
    for fill in ("mean", "median"):
        data = of_yaml(f"dense: {{x: {{fill: {fill}, transform: [{{clip: {{quantiles: [0, 1]}}}}, minmax]}}}}")
        frame = rows(data, x=pl.Series([None, None], dtype=pl.Float64))
        assert learn(data, frame).apply(frame)["x"].to_list() == [0, 0]


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


MISTAKES = [
    ("x: {transform: [lgo]}", r"data.dense.x.transform: no transform lgo; did you mean log\?"),
    ("x: {transform: [{clpi: [0, 1]}]}", r"data.dense.x.transform: no transform clpi; did you mean clip\?"),
    ("x: {transform: [{clip: {uper: 1}}]}", r"x.transform: clip has no option uper; did you mean upper\?"),
    ("x: {transform: [clip]}", r"clip: needs either bounds"),
    ("x: {transform: [{clip: [2, 1]}]}", r"clip: its lower bound 2 is above its upper bound 1"),
    ("x: {transform: [{clip: [a, b]}]}", r"clip: its options \['a', 'b'\] have the wrong type"),
    ("x: {transform: [{clip: [1, 2, [0, 1], 4]}]}", r"clip takes at most lower, upper, quantiles"),
    ("x: {transform: [{clip: {quantiles: [0.5]}}]}", r"clip: quantiles must be two numbers from 0 to 1"),
    ("x: {transform: [{clip: {quantiles: [0.9, 0.1]}}]}", r"clip: its lower bound 0.9 is above its upper bound 0.1"),
    ("x: {transform: [{clip: [0, .inf]}]}", r"clip: its bounds must be finite numbers"),
    ("x: {transform: [{log: 3}]}", r"log takes no options"),
    ("x: {transform: [{log: {}, minmax: {}}]}", r"must be a name or one {name: options}"),
    ("x: {transform: [{target: {folds: 1}}]}", r"target: folds must be 2 to 100"),
    ("x: {transform: [{target: {smoothing: -1}}]}", r"target: smoothing must be a finite number of at least 0"),
    ("x: {transform: [{target: {smothing: 1}}]}", r"target has no option smothing; did you mean smoothing\?"),
    ("x: {transform: [log, count]}", r"count reads the raw column; put it first"),
    ("x: {fill: 0, transform: [count]}", r"x.fill=0: is ignored with count"),
    ("x: {difference: 1, transform: [count]}", r"x.difference=1: is ignored with count"),
    ("x: {fill: medain}", r"x.fill=medain: must be mean or median; did you mean median\?"),
    ("x: {fill: [1]}", r"x.fill=\[1\]: must be mean or median"),
    ("x: {fill: .nan}", r"x.fill=nan: must be"),
    ("x: {cyclic: [huor]}", r"data.dense.x.cyclic: cyclic: 'huor' is not valid; did you mean hour\?"),
    ("x: {cyclic: []}", r"data.dense.x.cyclic: is empty; list parts of a time"),
    ("x: {cyclic: [hour], transform: [log]}", r"takes neither fill nor transform"),
    ("x: {cyclic: [hour]}, x_hour: {}, x_hour_sin: {}", r"makes a feature x_hour_sin, which exists"),
    ("x: {cyclic: [hour, hour]}", r"names hour twice"),
    ("x: {column: y}", r"data.dense.x: reads y, the column of the label"),
]


@pytest.mark.parametrize(("dense", "told"), MISTAKES)
def test_mistakes_are_one_line(dense: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as e:
        check_data(of_yaml(f"dense: {{{dense}}}"))
    assert "\n" not in str(e.value) and str(e.value).removeprefix("data.").startswith("dense.x")


def test_a_fingerprint_for_every_option(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "f.csv").write_text("y,x\n" + "".join(f"{i % 2},{i}\n" for i in range(100)))
    folders = set()
    for how in ("fill: 0", "fill: mean", "transform: [{clip: [0, 50]}]", "transform: [{clip: [0, 51]}]"):
        data = of_yaml(f"dense: {{x: {{{how}}}}}")
        data = replace(data, root=str(tmp_path / "raw"), prepared=str(tmp_path / "prepared"))
        folders.add(prepare(data).folder)
    assert len(folders) == 4


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
    assert done["b"].to_list() == [median if v is None else np.float32(v) for v in values]
    # what is saved is JSON, and gives the same
    again = json.loads(json.dumps(learnt.dense))
    assert Fitted(data, again).apply(frame).equals(done)


def test_saved_and_loaded(tmp_path: Path) -> None:
    data = of_yaml("""
        dense:
          price: {fill: median, transform: [{clip: [0, 100]}, log, standardise]}
          tail: {column: price, fill: mean, transform: [{clip: {quantiles: [0.01, 0.99]}}]}
          ts: {cyclic: [hour, month]}
          clicks: {column: user, transform: [count, standardise]}
          ctr: {column: user, transform: [{target: {smoothing: 2, folds: 3}}]}
    """)
    frame = rows(data, price=[1.0, None, 1e9], ts=[1.7e9, None, 1.6e12], user=["a", None, "é"])
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
    with pytest.raises(UserError, match=r"data.dense_defaults.cyclic: cannot be a default"):
        check_data(replace(data, dense_defaults=DenseConfig(cyclic=["hour"])))


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


def test_what_was_saved_before_there_were_encodings_and_quantiles(tmp_path: Path) -> None:
    data = of_yaml("dense: {x: {transform: [log, standardise]}}\nsparse: {s: {}}")
    frame = rows(data, x=[1.0, 2, 3], s=["a", "b", "b"])
    learnt = learn(data, frame)
    learnt.save(tmp_path / "run")
    state = json.loads((tmp_path / "run" / "transforms.json").read_text())
    del state["encoders"], state["data"]["dense"]["x"]["cyclic"]
    for key in ("quantiles", "cross", "pattern"):
        del state["data"]["sparse"]["s"][key]
    (tmp_path / "run" / "transforms.json").write_text(json.dumps(state))
    Fitted.copy(tmp_path / "run", tmp_path / "again")
    assert Fitted.load(tmp_path / "again").apply(frame).equals(learnt.apply(frame))
