"""Count and target encoding: closed forms, and no label that leaks into training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn, of_yaml, rows

from recsys.data.features import LABEL, Fitted
from recsys.data.features.blocks import ROW
from recsys.data.features.training_statistics import fold_of
from recsys.data.prepare.prepared import prepare
from recsys.schema.data_schema import SplitConfig

FEW = settings(max_examples=examples(60), deadline=None)


def area(labels: np.ndarray, scores: np.ndarray) -> float:
    """Under the ROC curve: the chance that a row of label 1 is above one of label 0, ties one half."""
    order = pl.Series(scores).rank("average").to_numpy()
    ones = labels == 1
    n, m = ones.sum(), (~ones).sum()
    return float((order[ones].sum() - n * (n + 1) / 2) / (n * m))


def test_count() -> None:
    data = of_yaml("dense: {n: {column: u, transform: [count]}, k: {column: id, transform: [count, minmax]}}")
    learnt = learn(data, rows(data, u=["a", "a", None], id=[1, 2, 2]), rows(data, u=["a", "", "b"], id=[2, 9, 9]))
    done = learnt.apply(rows(data, u=["a", "b", None, "new"], id=[1, 2, 9, 10]))
    np.testing.assert_allclose(done["n"], np.log1p([3, 1, 2, 0]), rtol=1e-6)
    np.testing.assert_allclose(done["k"], np.clip((np.log1p([1, 3, 2, 0]) - np.log(2)) / np.log(2), 0, 1), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0, 3, 20.5])
def test_target_is_the_smoothed_mean_of_all_other_folds(smoothing: float) -> None:
    rng = np.random.default_rng(0)
    users, labels, places = rng.integers(0, 8, 300), rng.integers(0, 2, 300), np.sort(rng.permutation(1000)[:300])
    data = of_yaml(f"dense: {{t: {{column: u, transform: [{{target: {{smoothing: {smoothing}, folds: 4}}}}]}}}}")
    frame = rows(data, u=users, y=labels).with_columns(pl.Series(ROW, places))
    learnt = learn(data, *(frame[i : i + 77] for i in range(0, 300, 77)))

    def mean(chosen: np.ndarray) -> float:
        return float((labels[chosen].sum() + smoothing * labels.mean()) / (chosen.sum() + smoothing))

    folds = fold_of(places, 4)
    training = [mean((users == u) & (folds != f)) for u, f in zip(users, folds, strict=True)]
    np.testing.assert_allclose(learnt.apply(frame)["t"], training, rtol=1e-6)
    serving = [mean(users == u) for u in users]
    np.testing.assert_allclose(learnt.apply(frame.drop(ROW))["t"], serving, rtol=1e-6)
    nulls = frame.with_columns(pl.lit(None, pl.Int64).alias(ROW))
    np.testing.assert_allclose(learnt.apply(nulls)["t"], serving, rtol=1e-6)
    assert learnt.apply(rows(data, u=["unseen", None]))["t"].to_list() == [np.float32(labels.mean())] * 2


def test_no_leak_through_preparing(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    users = rng.integers(0, 30, 6000)
    (tmp_path / "raw").mkdir()
    told = (rng.random(6000) < users / 30).astype(int)  # what user says of the label
    frame = pl.DataFrame({"y": told, "unique": np.arange(6000), "user": users})
    frame.write_csv(tmp_path / "raw" / "f.csv")
    for by in ("order", "random"):
        data = of_yaml("dense: {n: {column: unique, transform: [target]}, u: {column: user, transform: [target]}}")
        data = replace(data, root=str(tmp_path / "raw"), prepared=str(tmp_path / "prepared"), split=SplitConfig(by=by))
        prepared = prepare(data)
        parts = {s: pl.concat(map(pl.read_parquet, prepared.files(s))) for s in ("train", "test")}
        areas = {(s, n): area(f[LABEL].to_numpy(), f[n].to_numpy()) for s, f in parts.items() for n in "nu"}
        assert areas["train", "n"] == areas["test", "n"] == 0.5  # one number for all rows
        assert areas["train", "u"] == pytest.approx(areas["test", "u"], abs=0.05) and areas["test", "u"] > 0.75
        # what predicting computes from the saved transforms is what the test split has
        raw = frame.with_columns(pl.col("unique", "user").cast(pl.String)).select("unique", "user", "y")
        later = prepared.fitted.apply(rows(data, **raw.to_dict(as_series=False)))
        pairs = later.group_by("u").len()["u"].to_list()
        assert set(parts["test"]["u"]) <= set(pairs) and set(parts["train"]["u"]).isdisjoint(pairs)


@FEW
@given(st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=2)), st.booleans()), min_size=1, max_size=25))
def test_any_values(pairs: list[tuple[str | None, bool]]) -> None:
    data = of_yaml("""
        dense:
          n: {column: u, transform: [count, standardise]}
          t: {column: u, transform: [{target: {smoothing: 0, folds: 2}}]}
          z: {column: u, transform: [{target: 5}, minmax]}
    """)
    frame = rows(data, u=pl.Series([u for u, _ in pairs], dtype=pl.String), y=[int(y) for _, y in pairs])
    learnt: Fitted = learn(data, frame.head(7), frame.tail(-7))
    placed = frame.with_columns(pl.int_range(frame.height).alias(ROW))
    for done in (learnt.apply(placed), learnt.apply(frame), learnt.apply(placed.head(0))):
        for name in "ntz":
            assert done[name].is_finite().all() and not done[name].null_count()
        assert done["t"].is_between(0, 1).all()


def test_target_weighs_rows(tmp_path: Path) -> None:
    """A row of weight 0 is none, one of weight 2 is two, and another unit changes nothing."""
    rng = np.random.default_rng(3)
    users, labels, weights = rng.integers(0, 8, 300), rng.integers(0, 2, 300), rng.integers(0, 3, 300)
    data = of_yaml("weight: {column: w}\ndense: {t: {column: u, transform: [{target: {smoothing: 3}}]}}")
    encoded = []
    for unit in (1, 0.01):
        frame = rows(data, u=users, y=labels, w=weights * unit).with_columns(pl.int_range(300).alias(ROW))
        encoded.append(learn(data, frame).apply(frame.drop(ROW))["t"].to_numpy())
    mean = float(np.average(labels, weights=weights))
    one = weights.mean()  # the smoothing is that of rows of the mean weight
    expected = [
        ((labels * weights)[users == u].sum() + 3 * one * mean) / (weights[users == u].sum() + 3 * one) for u in users
    ]
    np.testing.assert_allclose(encoded[0], expected, rtol=1e-6)
    np.testing.assert_allclose(encoded[1], expected, rtol=1e-6)
