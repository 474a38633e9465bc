import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from recsys.base.errors import NotFinite
from recsys.data.features import Fitted
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.evaluation.binary import BinaryMetrics, binary_metrics, gauc, group_aucs, metrics_of, sampled, undefined
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.evaluation.scores import BINS, Scores
from recsys.interface.batch import Batch
from recsys.interface.labels import BinaryLabel

SOME = st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), min_size=2, max_size=200)


def columns(rows: list[tuple[int, bool, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    score, label, group = (np.array(c) for c in zip(*rows, strict=True))
    return (0.1 + 0.15 * score).astype(np.float32), label.astype(np.float32), group  # many ties


def random_rows(n: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(0)
    logit = r.normal(-2, 1.5, n)
    label = r.random(n) < 1 / (1 + np.exp(-logit))
    return (1 / (1 + np.exp(-logit - r.normal(0, 1, n)))).astype(np.float32), label.astype(np.float64)


@settings(max_examples=examples(60), deadline=None)
@given(SOME)
def test_as_scikit_learn(rows: list[tuple[int, bool, int]]) -> None:
    p, y, _ = columns(rows)
    found = binary_metrics(p, y)
    assert found["logloss"] == pytest.approx(log_loss(y, p.astype(np.float64), labels=[0, 1]), rel=1e-6)
    if y.any():
        assert found["pr_auc"] == pytest.approx(average_precision_score(y, p), abs=1e-12)
    if 0 < y.sum() < len(y):
        assert found["auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-12)
        assert undefined(found) is None
    else:
        assert math.isnan(found["auc"])
        what = "auc and ne" if y.any() else "auc, pr_auc, ne and calibration"
        which = "negatives" if y.any() else "positives"
        assert undefined(found) == f"{what} are undefined: no {which} among {len(y)} rows"
        assert {name for name, value in found.items() if math.isnan(value)} == set(re.split(", | and ", what))


@settings(max_examples=examples(60), deadline=None)
@given(SOME, st.integers(0, 2**31), st.sampled_from(["none", "integer", "any"]))
def test_gauc_is_that_of_groups_one_by_one(rows: list[tuple[int, bool, int]], seed: int, weights: str) -> None:
    """scikit-learn's AUC of each group, weighted by the group's weight; a weight of 2 is the same as two rows."""
    p, y, group = columns(rows)
    rng = np.random.default_rng(seed)
    w = {"none": np.ones(len(y), int), "integer": rng.integers(1, 4, len(y)), "any": rng.random(len(y)) + 0.01}[weights]
    both = [group == g for g in np.unique(group) if 0 < y[group == g].mean() < 1]
    value, counted = gauc(group, p, y, None if weights == "none" else w)
    assert counted == sum(at.sum() for at in both)
    if not both:
        assert math.isnan(value)
        return
    auc = [roc_auc_score(y[at], p[at], sample_weight=w[at]) for at in both]
    assert value == pytest.approx(np.average(auc, weights=[w[at].sum() for at in both]), abs=1e-12)
    if weights != "any":
        group, p, y = (np.repeat(x, w) for x in (group, p, y))
        assert value == pytest.approx(gauc(group, p, y)[0], abs=1e-12)


def test_rows_whose_user_training_lacks_are_no_group(tmp_path: Path) -> None:
    """Unless id 0 is a value like others; stored predictions have groups that can be resampled."""
    p, y = random_rows(600)
    user = np.arange(600) % 4
    loader = cast(ParquetLoader, SimpleNamespace(column=lambda _, start, stop: pl.Series(user[start:stop])))
    batch = Batch(torch.zeros(600, 0), None, torch.from_numpy(y)[:, None].float())  # type: ignore[arg-type]
    found = {}
    for every_id_known in (False, True):
        evaluator = LabelsEvaluator(gauc="user", every_id_known=every_id_known)
        evaluator.begin(None, loader)
        evaluator.add(torch.from_numpy(p)[:, None], batch)
        found[every_id_known] = evaluator.compute()
    known = user > 0
    assert found[False]["gauc"] == pytest.approx(gauc(user[known], p[known], y[known])[0])
    assert found[False]["gauc_rows"] == known.sum() and found[True]["gauc_rows"] == 600
    assert found[True]["gauc"] == pytest.approx(gauc(user, p, y)[0])
    assert found[False]["auc"] == found[True]["auc"]
    evaluator = LabelsEvaluator(gauc="user")
    evaluator.begin(None, loader)
    evaluator.add(torch.from_numpy(p)[:, None], batch)
    evaluator.compute()
    evaluator.write(tmp_path, "test")
    group = pl.read_parquet(tmp_path / "test_predictions.parquet")["group"].to_numpy()
    assert np.array_equal(group[known], user[known]) and len(np.unique(group[~known])) == (~known).sum()


def test_a_constant_scorer_gets_chance_and_the_mean_gets_ne_1() -> None:
    y = np.array([0, 0, 0, 1], np.float32)
    found = binary_metrics(np.full(4, 0.25, np.float32), y)
    assert found["auc"] == 0.5
    assert found["pr_auc"] == 0.25
    assert found["ne"] == pytest.approx(1)
    assert found["calibration"] == pytest.approx(1)
    assert found["ece"] == pytest.approx(0)


def test_calibration_error_over_bins_of_equally_many_rows() -> None:
    p, y = random_rows()
    order = np.argsort(p, kind="stable")
    bins = np.array_split(order, 10)
    expected = sum(len(b) * abs(p[b].mean(dtype=np.float64) - y[b].mean()) for b in bins) / len(p)
    assert binary_metrics(p, y, bins=10)["ece"] == pytest.approx(expected, rel=1e-9)


def test_curves_have_the_areas_of_their_metrics() -> None:
    p, y = random_rows()
    scores = Scores.from_rows(p, y)
    curves = scores.curves(20)
    fp, tp = np.array(curves["roc"]).T
    assert np.trapezoid(tp, fp) == pytest.approx(scores.auc()[0], abs=2e-3)
    recall, precision = np.array(curves["pr"]).T
    assert (np.diff(recall, prepend=0) * precision).sum() == pytest.approx(scores.pr_auc(), abs=5e-3)
    assert sum(n for *_, n in curves["calibration"]) == len(p)
    assert Scores.from_rows(p, np.zeros_like(y)).curves(5)["roc"] == []


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(SOME, st.integers(0, 2**31))
def test_binned_scores_are_within_their_bound(rows: list[tuple[int, bool, int]], seed: int) -> None:
    p, y, _ = columns(rows)
    p = (p + np.random.default_rng(seed).random(len(p)) * 1e-5).astype(np.float32)  # several to a bin, not equal
    exact, binned = Scores.from_rows(p, y), Scores.binned(p, y)
    assert len(binned.rows) == BINS
    (auc, none), (about, error) = exact.auc(), binned.auc()
    if not math.isnan(auc):
        assert abs(about - auc) <= error + 1e-12
        assert none >= 0  # half the pairs that tie
    if y.any():
        assert abs(binned.pr_auc() - exact.pr_auc()) <= binned.pr_auc_error() + 1e-9
    a, b = metrics_of(exact), metrics_of(binned)
    sums = ("logloss", "calibration", "rows")
    assert {k: a[k] for k in sums} == pytest.approx({k: b[k] for k in sums}, nan_ok=True)


def test_of_many_rows_the_bound_is_small() -> None:
    p, y = random_rows(200_000)
    metrics = BinaryMetrics(exact_rows=50_000)
    metrics.groups = lambda start, stop: np.arange(start, stop) // 100
    for start in range(0, len(p), 1000):
        part = slice(start, start + 1000)
        metrics.update(torch.from_numpy(p[part]), torch.from_numpy(y[part]).float(), first_row=start)
    found = metrics.compute()
    assert abs(found["auc"] - roc_auc_score(y, p)) <= found["auc_error"] < 1e-4
    assert abs(found["pr_auc"] - average_precision_score(y, p)) <= found["pr_auc_error"] < 1e-3
    assert found["logloss"] == pytest.approx(log_loss(y, p.astype(np.float64)), rel=1e-6)
    assert metrics.rows is not None
    assert len(metrics.rows.place) == pytest.approx(50_000, rel=0.1)
    _, counts = np.unique(metrics.rows.place // 100, return_counts=True)
    assert (counts == 100).all()  # whole groups
    assert found["gauc"] == pytest.approx(gauc(np.arange(len(p)) // 100, p, y)[0], abs=0.01)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_memory_is_bounded_and_the_metrics_are_those_of_all_rows_at_once(grouped: bool, weighted: bool) -> None:
    rows, most, batch = 20_000, 3_000, 100
    p, y = random_rows(rows)
    w = np.random.default_rng(1).random(rows).astype(np.float32) + 0.1 if weighted else None
    metrics = BinaryMetrics(exact_rows=most)
    if grouped:
        metrics.groups = lambda start, stop: np.arange(start, stop) // 7
    for start in np.random.default_rng(2).permutation(rows // batch) * batch:  # batches may come in any order
        part = slice(start, start + batch)
        weight = None if w is None else torch.from_numpy(w[part])
        metrics.update(torch.from_numpy(p[part]), torch.from_numpy(y[part]).float(), weight, first_row=int(start))
        held = metrics._collected.rows + (0 if metrics._sample is None else len(metrics._sample.place))
        assert held < 2.5 * most
    found = metrics.compute()
    expected = Scores.binned(p, y, w)
    assert found["auc"] == pytest.approx(expected.auc()[0], abs=1e-12)
    assert found["logloss"] == pytest.approx(metrics_of(expected)["logloss"], abs=1e-12)
    assert found["rows"] == rows
    place = np.arange(rows)
    keys = place // 7 if grouped else place
    kept = place[sampled(keys, most / rows)]
    assert metrics.rows is not None and np.array_equal(metrics.rows.place, kept)
    assert np.array_equal(metrics.rows.probability, p[kept]) and np.array_equal(metrics.rows.label, y[kept])
    if grouped:
        weights = None if w is None else w[kept]
        assert (found["gauc"], found["gauc_rows"]) == pytest.approx(gauc(keys[kept], p[kept], y[kept], weights))
    assert metrics.compute()["rows"] == 0


def test_a_prediction_that_is_not_finite_is_reported_among_many_rows() -> None:
    metrics = BinaryMetrics(exact_rows=10)
    for start in range(0, 100, 5):
        p = torch.full((5,), math.nan if start == 50 else 0.5)
        metrics.update(p, torch.ones(5), first_row=start)
    with pytest.raises(NotFinite, match="5 of 100 predictions"):
        metrics.compute()
    assert metrics.compute()["rows"] == 0


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_groups_and_scores_are_sorted_alike_by_one_key_and_by_two(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40))
    scores = st.sampled_from([-0.0, 0.0, -1.5, 1e-30, -1e-30, 0.25, 1.0, 3.5])
    score = np.array(data.draw(st.lists(scores, min_size=rows, max_size=rows)), np.float32)
    ids = st.sampled_from([-(2**62), -3, -1, 0, 1, 7, 2**31, 2**62] if data.draw(st.booleans()) else [-3, 0, 1, 2])
    group = np.array(data.draw(st.lists(ids, min_size=rows, max_size=rows)), np.int64)
    label = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    one, two = group_aucs(group, score, label), group_aucs(group, score.astype(np.float64), label)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_rows_of_weight_0_do_not_count() -> None:
    metrics = BinaryMetrics()
    metrics.update(torch.tensor([0.8, 0.2, 0.9]), torch.tensor([1.0, 0, 0]), torch.tensor([1.0, 1, 0]))
    found = metrics.compute()
    assert (found["rows"], found["auc"]) == (2, 1)
    assert metrics.compute()["rows"] == 0


def test_slices_of_several_labels_measure_the_rows_that_have_them() -> None:
    rng, rows = np.random.default_rng(0), 500
    ids = pl.Series(rng.integers(1, 4, rows))
    labels = np.stack([np.where(rng.random(rows) < 0.3, np.nan, rng.random(rows) < 0.4) for _ in range(2)], 1)
    logits, weight = rng.normal(size=(rows, 2)), rng.random(rows) + 0.1
    evaluator = LabelsEvaluator((BinaryLabel("click"), BinaryLabel("buy")))
    output, y, w = (torch.from_numpy(x).float() for x in (logits, labels, weight))
    evaluator.update(None, output, cast(Batch, SimpleNamespace(labels=y, weight=w, first_row=0)))
    evaluator.compute()
    loader = SimpleNamespace(total_rows=rows, column=lambda _, start, stop: ids[start:stop])
    data = SimpleNamespace(sparse={"c"}, sparse_columns={"c": SimpleNamespace(table=None)})
    fitted = SimpleNamespace(data=data, vocabularies={})
    table = evaluator.details(["c"], cast(ParquetLoader, loader), cast(Fitted, fitted), 20)["slices"]["c"]
    p = torch.sigmoid(output).numpy()
    for part in table:
        there = ids.to_numpy() == int(part["value"])
        for i, name in enumerate(("click", "buy")):
            at = there & ~np.isnan(labels[:, i])
            expected = binary_metrics(p[at, i], labels[at, i], weight=w.numpy()[at])
            assert {n: part[f"{name}/{n}"] for n in expected} == pytest.approx(expected)
    assert list(evaluator.curves(5) or {}) == ["roc", "pr", "calibration", "buy/roc", "buy/pr", "buy/calibration"]
