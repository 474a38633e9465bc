"""Several labels, regression, classes, weights and down-sampled negatives: parsed, fitted, loaded, lost and measured."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from data_configs import small_config
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, mean_absolute_error, roc_auc_score

from recsys.base.errors import UserError
from recsys.data.features import Fitted, ResolvedData
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.data.raw.reasons import Reasons
from recsys.evaluation import calibration
from recsys.evaluation.binary import binary_metrics
from recsys.evaluation.calibration import calibrate
from recsys.evaluation.collected_rows import Rows
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.evaluation.value_metrics import NumberMetrics
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.interface.labels import BinaryLabel, ClassLabel, Label, NumberLabel, columns, predict
from recsys.losses import CrossEntropy, FocalLoss, Huber, LabelLosses, Tasks, label_loss
from recsys.schema.data_schema import (
    DenseConfig,
    LabelConfig,
    NamedLabelConfig,
    SparseConfig,
    SplitConfig,
    WeightConfig,
)

FEW = settings(max_examples=examples(60), deadline=None)
ROWS = 1000
LABELS = {
    "click": NamedLabelConfig(),
    "buy": NamedLabelConfig(only_if="click"),
    "stars": NamedLabelConfig(column="rating", kind="regression", log=True),
    "colour": NamedLabelConfig(kind="classes", classes=["red", "green", "blue"]),
}


def log(rows: int = ROWS) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    click = rng.random(rows) < 0.4
    rating = np.where(rng.random(rows) < 0.3, np.nan, rng.integers(1, 6, rows))
    frame = pl.DataFrame(
        {
            "click": click.astype(int),
            "buy": (click & (rng.random(rows) < 0.3)).astype(int),
            "rating": rating,
            "colour": rng.choice(["red", "green", "blue"], rows),
            "w": np.round(rng.random(rows) * 4, 2),
            "x": np.round(rng.standard_normal(rows), 3),
            "s": rng.choice(list("abc"), rows),
        }
    )
    return frame.with_columns(pl.col("rating").fill_nan(None))


def config(folder: Path, **more: Any) -> ResolvedData:
    given = {"label": LabelConfig(), "dense": {"x": DenseConfig(transform=[])}, "sparse": {"s": SparseConfig()}}
    return small_config(folder, **(given | more))


def prepared_log(folder: Path, **more: Any) -> tuple[pl.DataFrame, Prepared]:
    (folder / "raw").mkdir(exist_ok=True)
    frame = log()
    frame.write_csv(folder / "raw" / "f.csv")
    data = config(folder, **more)
    check_data(data)
    check_raw_files(data)
    return frame, prepare(data)


def batches(prepared: Prepared, split: str) -> list[Batch]:
    return list(ParquetLoader(prepared.files(split), prepared.fitted.features, batch_size=64))


def test_several_labels(tmp_path: Path) -> None:
    frame, prepared = prepared_log(tmp_path, labels=LABELS)
    assert prepared.info["bad_rows"] == 0
    train = frame.head(800)
    click, buy, stars, colour = prepared.fitted.features.labels
    assert click == BinaryLabel("click") and prepared.fitted.features.logits == 6
    assert buy.known == pytest.approx(train["click"].mean())
    logs = train["rating"].drop_nulls().log1p()
    assert stars.known == pytest.approx(len(logs) / 800)
    assert (stars.mean, stars.std) == pytest.approx((logs.mean(), logs.std(ddof=0)), rel=1e-5)
    assert colour.classes == ("red", "green", "blue")
    assert prepared.fitted.features.to_json()["labels"][0] == "click"
    labels = torch.cat([b.labels for b in batches(prepared, "test")]).numpy()
    test = frame.tail(100)
    np.testing.assert_array_equal(labels[:, 0], test["click"])
    np.testing.assert_array_equal(labels[:, 1], np.where(test["click"] == 1, test["buy"], np.nan))
    np.testing.assert_array_equal(labels[:, 2], test["rating"].cast(pl.Float64).fill_null(np.nan))
    assert [["red", "green", "blue"][int(i)] for i in labels[:, 3]] == test["colour"].to_list()
    assert Fitted.load(prepared.folder).features == prepared.fitted.features
    assert FeatureSpec.load(prepared.folder / "features.json") == prepared.fitted.features


def test_target_encoding_uses_the_rows_that_have_the_first_label(tmp_path: Path) -> None:
    labels = {"rating": NamedLabelConfig(kind="regression"), "click": NamedLabelConfig()}
    dense = {"mean": DenseConfig(column="s", transform=[{"target": {"smoothing": 0, "folds": 2}}])}
    frame, prepared = prepared_log(tmp_path, labels=labels, dense=dense)
    [params] = prepared.fitted.dense["mean"]
    means = frame.head(800).group_by("s").agg(pl.col("rating").mean()).sort("s")
    assert params["table"].sort("value")["all"].to_list() == pytest.approx(means["rating"].to_list())


def test_weights_have_mean_1_over_training_rows(tmp_path: Path) -> None:
    frame, prepared = prepared_log(tmp_path, label=LabelConfig("click"), weight=WeightConfig("w"))
    assert prepared.fitted.mean_weight == pytest.approx(frame["w"].head(800).mean(), rel=1e-6)
    weights = torch.cat([b.weight for b in batches(prepared, "train") if b.weight is not None])
    assert len(weights) == 800 and float(weights.mean()) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(weights * prepared.fitted.mean_weight, frame["w"].head(800), rtol=1e-5)


def test_a_sample_of_the_negatives(tmp_path: Path) -> None:
    frame, prepared = prepared_log(tmp_path, label=LabelConfig("click"), sample_negatives=0.25)
    train = torch.cat([b.labels for b in batches(prepared, "train")])
    positives = int(frame["click"].head(800).sum())
    assert int(train.sum()) == positives
    assert len(train) - positives == pytest.approx(0.25 * (800 - positives), rel=0.2)
    assert prepared.info["rows"]["train"] == len(train) and prepared.info["rows"]["test"] == 100
    [label] = prepared.fitted.features.labels
    # a model that knows the odds of the sampled rows predicts those of all rows
    odds = positives / (0.25 * (800 - positives))
    p = predict(torch.tensor([[math.log(odds)]]), (label,))
    assert float(p) == pytest.approx(positives / 800, rel=1e-6)


def test_nothing_is_fitted_to_negatives_that_are_left_out(tmp_path: Path) -> None:
    """Every value of a vocabulary is in a row that trains; the mean of the weights is that of these rows."""
    _, prepared = prepared_log(tmp_path, label=LabelConfig("click"), weight=WeightConfig("w"), sample_negatives=0.1)
    rows = pl.concat(pl.read_parquet(file) for file in prepared.files("train"))
    assert rows["__weight__"].mean() == pytest.approx(1, abs=1e-6)
    for name, c in prepared.fitted.data.sparse_columns.items():
        if (vocabulary := prepared.fitted.vocabularies.get(c.table)) is not None and not c.is_list:
            assert set(vocabulary["id"]) <= set(rows[name])


def test_measured_training_rows_stand_for_the_negatives_that_were_left_out(tmp_path: Path) -> None:
    frame, prepared = prepared_log(tmp_path, label=LabelConfig("click"), sample_negatives=0.25)
    loader = ParquetLoader(prepared.files("train"), prepared.fitted.features, batch_size=64, negatives=0.25)
    label, weight = (torch.cat([getattr(b, name) for b in loader]) for name in ("labels", "weight"))
    assert {*zip(label[:, 0].tolist(), weight.tolist(), strict=True)} == {(0.0, 4.0), (1.0, 1.0)}
    rate = frame["click"].head(800).mean()
    assert float((label[:, 0] * weight).sum() / weight.sum()) == pytest.approx(rate, rel=0.1)


def test_bad_labels_and_weights(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    bad_ones = "1,,2,red,1 2,0,2,red,1 1,0,-1,red,1 1,0,x,red,1 1,0,1,pink,1 1,0,1,red,-1 ,,,,1"
    rows = [f"{r},1,a" for r in bad_ones.split(" ")]
    good = ["1,1,5,blue,2,1,b", "0,,5,blue,2,1,b", "1,0,5,blue,2,1,b", "1,1,5,blue,2,1,b"] * 25
    (tmp_path / "raw" / "f.csv").write_text("\n".join(["click,buy,rating,colour,w,x,s", *rows, *good]) + "\n")
    data = config(tmp_path, labels=LABELS, weight=WeightConfig("w"), max_bad_rows=0.1, split=SplitConfig(test=0.2))
    prepared = prepare(data)
    bad = pl.read_csv(f"{prepared.folder}.bad_rows.csv")
    assert dict(zip(bad["line"], bad["reason"], strict=True)) == {
        3: "label click is neither 0 nor 1",
        4: "label rating is not a number of at least 0",
        5: "label rating is not a number of at least 0",
        6: "label colour is not one of its classes",
        7: "weight w is not a number of at least 0",
    }


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"label": LabelConfig("click")}, None),
        ({"label": LabelConfig("none")}, "data.label: no training row is positive"),
        ({"label": LabelConfig("rating", at_least=1)}, "no training row is negative: .* by data.label.at_least=1.0"),
        ({"labels": {"click": NamedLabelConfig(), "none": NamedLabelConfig()}}, "^data.labels.none: no training row"),
        ({"label": LabelConfig("click"), "sample_negatives": 1e-6}, "negative: .* raise data.sample_negatives=1e-06$"),
    ],
)
def test_binary_labels_of_one_value(tmp_path: Path, labels: dict[str, Any], expected: str | None) -> None:
    (tmp_path / "raw").mkdir()
    log(100).with_columns(none=0, rating=3).write_csv(tmp_path / "raw" / "f.csv")
    data = config(tmp_path, **labels)
    with pytest.raises(UserError, match=expected) if expected else nullcontext():
        prepare(data)


def test_missing_single_labels_are_called_missing(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    frame = log(100).with_columns(pl.col("rating").clip(0, 1))
    frame.write_csv(tmp_path / "raw" / "f.csv")
    n = frame["rating"].null_count()
    expected = f'{n} rows: label rating is missing .*; data.where="rating IS NOT NULL" leaves them out'
    with pytest.raises(UserError, match=expected):
        prepare(config(tmp_path, label=LabelConfig("rating", at_least=1)))
    reasons = Reasons()
    reasons.add("label a b is missing", 1, "f.csv line 2", None)
    assert str(reasons).endswith("""; data.where='"a b" IS NOT NULL' leaves them out""")


KINDS = (
    BinaryLabel("click", known=0.8),
    NumberLabel("stars", mean=3.0, std=2.0, known=0.5),
    ClassLabel("colour", ("r", "g", "b")),
)


def numpy_loss(logits: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> float:
    """The sum over labels of: sum of weight x loss over rows with the label / (rows x known)."""
    n, total = len(logits), 0.0
    for i in range(n):
        y, s, c = labels[i]
        if not np.isnan(y):
            p = 1 / (1 + np.exp(-logits[i, 0]))
            total -= weight[i] * np.log(p if y else 1 - p) / 0.8
        if not np.isnan(s):
            total += weight[i] * (logits[i, 1] - (s - 3) / 2) ** 2 / 0.5
        if not np.isnan(c):
            z = logits[i, 2:]
            total -= weight[i] * (z[int(c)] - np.log(np.exp(z).sum()))
    return total / n


@FEW
@given(st.integers(1, 9), st.integers(0, 10**6), st.booleans())
def test_the_loss_over_labels(rows: int, seed: int, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, 5))
    labels = np.stack([rng.integers(0, 2, rows), rng.random(rows) * 5, rng.integers(0, 3, rows)], 1).astype(float)
    labels[rng.random(labels.shape) < 0.3] = np.nan
    weight = rng.random(rows) * 3 if weighted else np.ones(rows)
    given = torch.tensor(weight) if weighted else None
    x = torch.tensor(logits, requires_grad=True)
    loss = LabelLosses(KINDS)(x, torch.tensor(labels), given)
    assert float(loss) == pytest.approx(numpy_loss(logits, labels, weight), rel=1e-6, abs=1e-9)
    loss.backward()
    assert x.grad is not None and bool(torch.isfinite(x.grad).all())  # no NaN from rows without a label
    # two halves of a batch, as two processes see them, have the same mean loss
    if rows % 2 == 0:
        halves = [slice(0, rows // 2), slice(rows // 2, rows)]
        parts = [LabelLosses(KINDS)(x[h], torch.tensor(labels[h]), None if given is None else given[h]) for h in halves]
        assert float(sum(parts) / 2) == pytest.approx(float(loss), rel=1e-6)


def test_the_labels_losses_by_name() -> None:
    loss = LabelLosses(KINDS, Tasks(losses={"stars": "huber"}, weights={"click": 0.5}))
    assert isinstance(loss.losses[1], Huber) and loss.weights == [0.5, 1.0, 1.0]
    focal = LabelLosses(KINDS, FocalLoss())
    assert isinstance(focal.losses[0], FocalLoss) and isinstance(focal.losses[2], CrossEntropy)
    for wrong, expected in (
        (Tasks(losses={"star": "huber"}), "there is no label star; did you mean stars?"),
        (Tasks(losses={"stars": "focal"}), "is a loss of binary labels; this one is regression"),
    ):
        with pytest.raises(ValueError, match=expected.replace("?", r"\?")):
            LabelLosses(KINDS, wrong)
    with pytest.raises(ValueError, match="is a loss of classes labels; this data has labels of kind binary"):
        label_loss((BinaryLabel("label"),), CrossEntropy())
    with pytest.raises(ValueError, match=r"losses\.a=hubber: no such loss; did you mean huber\?"):
        Tasks(losses={"a": "hubber"})


@pytest.mark.slow
def test_uncertainty_learns_the_scale_of_each_loss() -> None:
    """At the optimum of loss x exp(-s) + s / 2, s is ln(2 x loss)."""
    losses = LabelLosses(KINDS, Tasks(balance="uncertainty"))
    logits, labels = torch.zeros(4, 5), torch.tensor([[1.0, 9.0, 0.0]]).repeat(4, 1)
    optimizer = torch.optim.Adam(losses.parameters(), lr=0.05)
    for _ in range(2000):
        optimizer.zero_grad()
        losses(logits, labels).backward()
        optimizer.step()
    alone = [math.log(2) / 0.8, 9 / 0.5, math.log(3)]
    assert losses.scales is not None
    logged = {name: float(x) for name, x in losses.logged().items()}
    names = [label.name for label in KINDS]
    assert [logged[f"{n}/loss"] for n in names] == pytest.approx(alone, rel=1e-5)
    assert [logged[f"{n}/share"] for n in names] == pytest.approx([1 / (2 * x) for x in alone], rel=0.02)
    assert losses.scales.tolist() == pytest.approx([math.log(2 * x) for x in alone], abs=0.01)


@FEW
@given(st.integers(2, 60), st.integers(0, 10**6))
def test_weighted_metrics_are_those_of_scikit_learn(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, y = rng.integers(1, 20, rows).astype(np.float32) / 20, rng.integers(0, 2, rows)
    y[:2] = [0, 1]
    w = (rng.random(rows) * 5 + 0.01).astype(np.float32)
    found = binary_metrics(p, y, weight=w)
    assert found["auc"] == pytest.approx(roc_auc_score(y, p, sample_weight=w), rel=1e-6)
    assert found["pr_auc"] == pytest.approx(average_precision_score(y, p, sample_weight=w), rel=1e-6)
    assert found["logloss"] == pytest.approx(log_loss(y, p.astype(np.float64), sample_weight=w), rel=1e-6)
    assert found["calibration"] == pytest.approx((w * p).sum() / (w * y).sum(), rel=1e-5)
    assert found["rows"] == rows
    doubled = binary_metrics(np.repeat(p, 2), np.repeat(y, 2))  # a row of weight 2 is two rows
    twice = binary_metrics(p, y, weight=np.full(rows, 2, np.float32))
    assert {k: v for k, v in twice.items() if k not in ("rows", "ece")} == pytest.approx(
        {k: v for k, v in doubled.items() if k not in ("rows", "ece")}
    )


def test_metrics_of_every_kind_of_label() -> None:
    rng = np.random.default_rng(0)
    labels = (BinaryLabel("click"), NumberLabel("stars", log=True, mean=1.0, std=0.5), KINDS[2])
    logits = torch.from_numpy(rng.standard_normal((200, 5)).astype(np.float32))
    y = np.stack([rng.integers(0, 2, 200), rng.integers(1, 6, 200), rng.integers(0, 3, 200)], 1).astype(np.float32)
    y[:30, 1] = np.nan
    w = rng.random(200).astype(np.float32) + 0.1
    w[5] = 0
    evaluator = LabelsEvaluator(labels)
    for at in range(0, 200, 64):
        part = slice(at, at + 64)
        batch = Batch(torch.zeros(0), None, torch.from_numpy(y[part]), torch.from_numpy(w[part]), first_row=at)  # type: ignore[arg-type]
        evaluator.update(None, logits[part], batch)
    found = evaluator.compute()
    p = predict(logits, labels).numpy()
    assert columns(labels) == ["click", "stars", "colour_r", "colour_g", "colour_b"]
    assert np.allclose(p[:, 1], np.expm1(logits[:, 1].numpy() * 0.5 + 1), rtol=1e-5)
    assert np.allclose(p[:, 2:].sum(1), 1)
    assert found["click/auc"] == pytest.approx(roc_auc_score(y[:, 0], p[:, 0], sample_weight=w), rel=1e-6)
    known = slice(30, 200)
    assert found["stars/mae"] == pytest.approx(
        mean_absolute_error(y[known, 1], p[known, 1], sample_weight=w[known]), rel=1e-5
    )
    squared = np.average((y[known, 1] - p[known, 1]) ** 2, weights=w[known])
    assert found["stars/rmse"] == pytest.approx(math.sqrt(squared), rel=1e-5)
    assert found["colour/accuracy"] == pytest.approx(
        accuracy_score(y[:, 2], p[:, 2:].argmax(1), sample_weight=w), rel=1e-6
    )
    assert found["colour/logloss"] == pytest.approx(log_loss(y[:, 2], p[:, 2:], sample_weight=w), rel=1e-5)
    assert found["rows"] == 199 and not [n for n in found if n.endswith("/rows")]


def off_by(rows: int, seed: int = 0) -> tuple[Rows, Rows]:
    """Return rows whose logits are 2 x true logit + 1, as probabilities, twice."""
    rng = np.random.default_rng(seed)
    logit = rng.standard_normal(2 * rows)
    y = rng.random(2 * rows) < 1 / (1 + np.exp(-logit))
    p = (1 / (1 + np.exp(-2 * logit - 1))).astype(np.float32)
    both = Rows(np.arange(2 * rows), p, y)
    return both.take(np.arange(rows)), both.take(np.arange(rows, 2 * rows))


def calibrated(rows: Rows, label: Label) -> np.ndarray:
    p = torch.from_numpy(rows.probability.astype(np.float64))
    return predict(torch.logit(p)[:, None], (label,)).numpy()[:, 0]


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibration_on_held_out_rows(method: str) -> None:
    fitted_on, held_out = off_by(20_000)
    label = calibrate(BinaryLabel("y"), fitted_on, method)
    before = binary_metrics(held_out.probability, held_out.label)
    after = binary_metrics(calibrated(held_out, label), held_out.label)
    assert before["ece"] > 0.1 and after["ece"] < 0.02 and after["logloss"] < before["logloss"]
    assert after["calibration"] == pytest.approx(1, abs=0.03)
    assert after["auc"] == pytest.approx(before["auc"], abs=1e-3)
    if method == "platt":
        assert label.platt == pytest.approx((0.5, -0.5), abs=0.05)


@pytest.mark.parametrize(("centre", "spread"), [(0, 3), (-8, 1), (9, 0.1), (-30, 5)])
def test_logits_that_are_far_off_are_calibrated(centre: float, spread: float) -> None:
    """Newton's first step would be too long: the loss of the result is that of scikit-learn."""
    rng = np.random.default_rng(0)
    logit, y = centre + spread * rng.normal(size=400), rng.random(400) < 0.3
    a, b = calibration._platt(logit, y.astype(float), np.ones(400))
    found = log_loss(y, 1 / (1 + np.exp(-(a * logit + b))))
    best = LogisticRegression(C=1e9, max_iter=10_000).fit((logit[:, None] - centre) / spread, y)
    assert found == pytest.approx(log_loss(y, best.predict_proba((logit[:, None] - centre) / spread)), abs=1e-3)


@FEW
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_isotonic_calibration_is_that_of_scikit_learn(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(rows), 1).astype(np.float32) * np.float32(0.9) + np.float32(0.05)
    y, w = rng.random(rows) < 0.5, rng.random(rows) + 0.1
    label = calibrate(BinaryLabel("y"), Rows(np.arange(rows), p, y, w.astype(np.float32)), "isotonic")
    if len(np.unique(y)) < 2:
        assert label == BinaryLabel("y")
        return
    reference = IsotonicRegression(out_of_bounds="clip").fit(p, y, sample_weight=w.astype(np.float32))
    x = np.linspace(0.05, 0.95, 19).astype(np.float32)
    found = calibrated(Rows(np.arange(len(x)), x, x > 2), label)
    assert found == pytest.approx(reference.predict(x), abs=1e-4)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibrated_numbers_are_right_on_average(method: str) -> None:
    """A model of ln(1 + label) predicts near the median of a skewed label, whose sum is too low."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(20_000)
    y = np.exp(x + 0.8 * rng.standard_normal(20_000))
    label = NumberLabel("y", log=True)
    logits = torch.from_numpy(np.log1p(np.exp(x)))[:, None].float()

    def rows(label: Label, part: slice) -> Rows:
        return Rows(np.arange(len(y))[part], predict(logits, (label,)).numpy()[part, 0], y[part].astype(np.float32))

    fitted_on, held_out = slice(0, 10_000), slice(10_000, None)
    before = NumberMetrics.of(rows(label, held_out))
    better = calibrate(label, rows(label, fitted_on), method)
    after = NumberMetrics.of(rows(better, held_out))
    assert before["calibration"] < 0.8 and after["calibration"] == pytest.approx(1, abs=0.05)
    assert method == "isotonic" or after["rmse"] < before["rmse"]  # a step of few rows follows outliers
    assert predict(torch.full((1, 1), -50.0), (better,)).item() >= 0
    assert "calibration" not in NumberMetrics.of(Rows(np.arange(2), y[:2], np.array([-1.0, 3.0])))


def test_logits_beyond_probabilities_are_calibrated_as_those_of_the_last_ones() -> None:
    logit = torch.tensor([[-300.0], [200.0], [250.0], [-100.0]] * 50)
    y = np.tile([0, 1, 0, 1], 50)
    rows = Rows(np.arange(200), predict(logit, (BinaryLabel("y"),)).numpy()[:, 0], y)
    found = predict(logit, (calibrate(BinaryLabel("y"), rows, "platt"),)).numpy()[:, 0]
    assert log_loss(y, found) == pytest.approx(math.log(2), abs=0.01)


def test_a_calibration_is_stored_with_the_run(tmp_path: Path) -> None:
    rows, _ = off_by(500)
    labels = (
        calibrate(BinaryLabel("a"), rows, "platt"),
        calibrate(BinaryLabel("b"), rows, "isotonic"),
        BinaryLabel("c"),
    )
    calibration.save(tmp_path, labels)
    assert calibration.load(tmp_path, tuple(x.uncalibrated() for x in labels)) == labels
    assert calibration.load(tmp_path / "other", labels) == labels
