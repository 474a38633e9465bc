"""Transforms: closed forms, vocabularies, bad values, and what hypothesis can think of."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn

from recsys.base.errors import UserError
from recsys.data.features import Fitted, ResolvedData, parse_rows
from recsys.data.features.batch_tensors import batch_of
from recsys.data.features.blocks import LINE, TIME, Block
from recsys.schema.data_schema import DataConfig, DenseConfig, LabelConfig, SparseConfig, SplitConfig

FEW = settings(max_examples=examples(60), deadline=None)


def config(
    dense: dict[str, DenseConfig] | None = None, sparse: dict[str, SparseConfig] | None = None, **more: Any
) -> DataConfig:
    label = more.pop("label", LabelConfig("y", kind="regression"))  # `block` makes all labels equal
    return ResolvedData(name="t", dense=dict(dense or {}), sparse=dict(sparse or {}), label=label, **more)


def block(**columns: Any) -> Block:
    frame = pl.DataFrame(columns, strict=False)
    if "y" not in frame.columns:
        frame = frame.with_columns(y=pl.lit(1))
    return Block(Path("f"), frame.with_columns(pl.int_range(1, pl.len() + 1).alias(LINE)))


def fitted(data: DataConfig, *blocks: Block) -> tuple[Fitted, pl.DataFrame]:
    frames = [parse_rows(data, b)[0] for b in blocks]
    return learn(data, *frames), pl.concat(frames)


X = [3.0, -2.0, 0.5, None, 90.0, 7.25]


@pytest.mark.parametrize(
    ("transform", "formula"),
    [
        ("log", lambda t, x: np.log(np.maximum(x - t.min() + 1, 1))),
        ("standardise", lambda t, x: (x - t.mean()) / t.std()),
        ("minmax", lambda t, x: np.clip((x - t.min()) / (t.max() - t.min()), 0, 1)),
    ],
)
def test_closed_forms(transform: str, formula: Any) -> None:
    data = config({"x": DenseConfig(transform=[transform], fill=0.25)})
    learnt, _ = fitted(data, block(x=X[:3]), block(x=X[3:]))
    train = np.array([0.25 if x is None else x for x in X])
    unseen = [*X, -50.0, 1e7]  # outside the training range
    got = learnt.apply(parse_rows(data, block(x=unseen))[0])["x"]
    expected = formula(train, np.array([0.25 if x is None else x for x in unseen]))
    assert got.dtype == pl.Float32
    np.testing.assert_allclose(got.to_numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_constant_column_has_no_deviation() -> None:
    data = config({"x": DenseConfig(transform=["standardise"]), "z": DenseConfig(transform=["minmax"])})
    learnt, frame = fitted(data, *[block(x=[1e9 + 0.1] * 333, z=[0.1] * 333)] * 3)
    assert learnt.dense["x"][0]["std"] == 0
    done = learnt.apply(frame)
    assert done["x"].abs().max() < 1e-3 and done["z"].unique().to_list() == [0.0]


def test_quantiles_with_frequent_values() -> None:
    """Zero fills most rows and has one knot; the others divide the numbers from 1 to 100 evenly."""
    data = config({"x": DenseConfig(transform=[{"quantile": 5}])})
    learnt, _ = fitted(data, block(x=[0.0] * 400 + list(range(1, 102))))
    assert learnt.dense["x"][0]["knots"] == [0, 1, 26, 51, 76, 101]
    new = block(x=[-5.0, 0, 0.5, 1, 26, 38.5, 101, 1e9])
    got = learnt.apply(parse_rows(data, new)[0])["x"]
    np.testing.assert_allclose(got, [0, 0, 0.1, 0.2, 0.4, 0.5, 1, 1], rtol=1e-6)
    assert learnt.features.dense[0].unit


@FEW
@given(st.lists(st.floats(-1e6, 1e6) | st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 9))
def test_quantiles_keep_the_order_and_end_at_0_and_1(values: list[float], bins: int) -> None:
    data = config({"x": DenseConfig(transform=[{"quantile": bins}], fill=0.0)})
    learnt, frame = fitted(data, block(x=[float(v) for v in values]))
    knots = learnt.dense["x"][0]["knots"]
    assert knots == sorted(set(knots)) and len(knots) <= bins + 1
    assert (knots[0], knots[-1]) == (min(values), max(values)) or len(knots) == 1
    got = learnt.apply(frame)["x"].to_numpy()
    assert ((got >= 0) & (got <= 1)).all()
    assert (np.diff(got[np.argsort(values, kind="stable")]) >= 0).all()


@FEW
@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=9), min_size=1, max_size=5).filter(lambda v: any(v)))
def test_moments_by_chunks_are_those_of_the_whole(chunks: list[list[float]]) -> None:
    data = config({"x": DenseConfig(transform=["standardise"], fill=0.0)})
    learnt, _ = fitted(data, *(block(x=pl.Series(c, dtype=pl.Float64)) for c in chunks))
    whole = np.array([x for c in chunks for x in c])
    p = learnt.dense["x"][0]
    assert (p["min"], p["max"]) == (whole.min(), whole.max())
    assert p["mean"] == pytest.approx(whole.mean(), abs=1e-6)
    assert p["std"] == pytest.approx(whole.std(), abs=1e-3, rel=1e-6)


def test_multi_valued() -> None:
    raw = ["a b  a c", None, "", " b", "c c c c"]
    data = config(sparse={"m": SparseConfig(split=" ", max_length=3, pooling="mean"), "s": SparseConfig()})
    learnt, frame = fitted(data, block(m=raw, s=["x"] * 5))
    assert [f.name for f in learnt.features.sparse] == ["s", "m"]
    assert learnt.features.sparse[1].multi_valued and learnt.features.sparse[1].pooling == "mean"
    # cut to three values: a b a, c c c
    assert learnt.vocabularies["m"].select("value", "count").rows() == [("c", 3), ("a", 2), ("b", 2)]
    done = learnt.apply(frame)["m"]
    assert done.dtype == pl.List(pl.Int32)
    assert done.to_list() == [[2, 3, 2], [], [], [3], [1, 1, 1]]
    assert learnt.apply(parse_rows(data, block(m=["zz a"], s=["x"]))[0])["m"].to_list() == [[0, 2]]


@pytest.mark.parametrize("kind", [pl.List(pl.Int64), pl.List(pl.String)])
def test_lists_of_a_parquet_file(kind: Any) -> None:
    data = config(sparse={"m": SparseConfig(split="|")})
    values = pl.Series("m", [[7, 8], [], None, [7, None, 9]]).cast(kind)
    learnt, frame = fitted(data, block(m=values))
    assert learnt.apply(frame)["m"].to_list() == [[1, 2], [], [], [1, 3]]  # a null element is none


def test_shared_tables() -> None:
    sparse = {
        "p": SparseConfig(table="t", min_count=2),
        "q": SparseConfig(table="t"),
        "m": SparseConfig(table="t", split=" "),
    }
    learnt, frame = fitted(config(sparse=sparse), block(p=["a", "b"], q=["b", "c"], m=["b", "a c d"]))
    vocabulary = learnt.vocabularies["t"]
    assert vocabulary.select("value", "count").rows() == [("b", 3), ("a", 2), ("c", 2)]  # the largest min_count
    assert learnt.apply(frame).rows() == [(1.0, 2, 1, [1]), (1.0, 1, 3, [2, 3, 0])]
    assert {f.cardinality for f in learnt.features.sparse} == {4}


def test_bad_values_are_set_aside_and_the_good_ones_kept() -> None:
    split = SplitConfig(by="time", column="t")
    data = config({"x": DenseConfig(fill=0.0)}, split=split, label=LabelConfig("y"))
    raw = block(
        y=["1", "0", "2", "", "nan", "1", "0", "1", "0", "1", "1"],
        x=["1", "", "3", "4", "5", "six", "inf", "NaN", "1e39", "2", "3"],
        t=["1", "2", "3", "4", "5", "6", "7", "8", "9", "noon", "nan"],
    )
    frame, bad = parse_rows(data, raw)
    assert frame[LINE].to_list() == [1, 2, 8]
    reasons = {b.line: b.reason for b in bad}
    assert reasons[3] == reasons[4] == reasons[5] == "label y is neither 0 nor 1"
    assert reasons[6] == reasons[7] == "x is not a number" and reasons[9] == "x is out of the range of float32"
    assert reasons[10] == reasons[11] == "time t is neither a number nor a time"
    assert bad[0].text == "2\t3\t3"
    assert set(reasons) | set(frame[LINE]) == set(range(1, 12)) and len(bad) + frame.height == 11
    assert frame.filter(pl.col(LINE) == 8)["x"].to_list() == [None] and frame[TIME].dtype == pl.Float64


@pytest.mark.parametrize(
    ("dense", "sparse", "value", "told"),
    [
        ({}, {"s": SparseConfig()}, [1], r"data\.sparse\.s: column s holds List.*set split"),
        ({"s": DenseConfig()}, {}, [1], r"data\.dense\.s: column s holds"),
        ({}, {"s": SparseConfig(split=",")}, [[1]], r"data\.sparse\.s"),
    ],
)
def test_types_that_hold_no_value(dense: Any, sparse: Any, value: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        parse_rows(config(dense, sparse), block(s=[value, value]))


def test_floats_of_a_parquet_file_where_nan_is_missing() -> None:
    data = config({"x": DenseConfig(fill=0.0)}, {"s": SparseConfig()})
    learnt, frame = fitted(data, block(x=[1.0, float("nan")], s=[3.0, float("nan")]))
    assert learnt.vocabularies["s"]["value"].to_list() == ["", "3"]
    assert frame.height == 2


def test_no_training_rows() -> None:
    for data in (config({"x": DenseConfig(transform=["log"])}), config(sparse={"x": SparseConfig()})):
        empty = parse_rows(data, block(x=["1"]))[0].head(0)
        for frames in ([], [empty]):
            with pytest.raises(UserError, match="train split has no rows"):
                learn(data, *frames)


TEXT = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
NUMBER = st.one_of(
    st.none(),
    st.floats(),
    st.integers(-(10**40), 10**40),
    st.sampled_from(["", " ", "x", "1_0", "NaN", "-inf", "1e999", "9" * 400]),
)


@FEW
@given(st.lists(st.tuples(NUMBER, NUMBER, TEXT, TEXT), min_size=1, max_size=20), st.integers(0, 3))
def test_anything_goes_in_and_finite_numbers_come_out(rows: list[tuple[Any, ...]], least: int) -> None:
    data = config(
        {
            "x": DenseConfig(transform=["log"]),
            "z": DenseConfig(transform=["standardise", "minmax"]),
            "w": DenseConfig(column="z", transform=[]),
        },
        {"s": SparseConfig(min_count=least), "m": SparseConfig(split=",", min_count=least, max_length=2)},
    )
    columns = {
        n: pl.Series([None if r[i] is None else str(r[i]) for r in rows], dtype=pl.String) for i, n in enumerate("xzsm")
    }
    frame, bad = parse_rows(data, block(**columns))
    assert sorted([*frame[LINE], *(b.line for b in bad)]) == list(range(1, len(rows) + 1))

    def number(x: Any) -> bool:
        try:
            return x in (None, "", " ") or (not math.isinf(float(x)) and not abs(float(x)) > 3.4e38)
        except (ValueError, OverflowError):
            return False

    good = [number(r[0]) and number(r[1]) for r in rows]
    strict = [g for g, r in zip(good, rows, strict=True) if "1_0" not in r[:2]]  # Python alone reads that as 10
    assert frame.height <= sum(good) and frame.height >= sum(strict) - len(rows) + len(strict)
    if frame.is_empty():
        return
    learnt = learn(data, frame.head(3), frame.tail(-3))
    done = learnt.apply(frame)
    for name in ("x", "z", "w"):
        assert done[name].is_finite().all(), (name, done[name])
    counts = Counter(v or "" for v in frame["s"])
    ids = {
        v: i
        for i, (v, _) in enumerate(
            sorted(((v, n) for v, n in counts.items() if n >= least), key=lambda vn: (-vn[1], vn[0].encode())), 1
        )
    }
    assert done["s"].to_list() == [ids.get(v or "", 0) for v in frame["s"]] and done["s"].dtype == pl.Int32
    assert learnt.features.feature("s").cardinality == len(ids) + 1
    unseen = parse_rows(data, block(x=["1"], z=["1"], s=["no such text"], m=["no such text"]))[0]
    assert learnt.apply(unseen).select("s", "m").row(0) == (0, [0])
    batch = batch_of(done, learnt.features)
    assert batch.sparse["m"].lengths().tolist() == [len(v) for v in done["m"]]
