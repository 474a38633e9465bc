"""The gate: its metrics equal scikit-learn's, its intervals hold, and what passes and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forks import ok, run_forked
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from recsys.base.errors import UserError
from recsys.base.parsing import parse
from recsys.evaluation.binary import binary_metrics
from recsys.follow.artefact_check import check_artefact
from recsys.follow.gate import GateConfig, GateResult, QueryWindow, RowWindow, decide

QUICK = GateConfig(resamples=100)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def window(rng: np.random.Generator, n: int = 4000, worse: float = 0.0, shift: float = 0.0) -> RowWindow:
    """Return rows of a known teacher, whose challenger has noise of size `worse` more and is shifted by `shift`."""
    logit = rng.normal(-1, 1, n)
    label = (rng.random(n) < sigmoid(logit)).astype(float)
    noisy = logit + rng.normal(0, 0.3, n)
    other = logit + np.sqrt(0.09 + worse**2) * rng.normal(0, 1, n) + shift
    return RowWindow(label, sigmoid(other), sigmoid(noisy))


def named(result: GateResult) -> dict[str, tuple[float | None, bool]]:
    return {c.name: (c.value, c.passed) for c in result.checks}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), weighted=st.booleans(), coarse=st.booleans())
def test_changes_are_those_of_scikit_learn(seed: int, weighted: bool, coarse: bool) -> None:
    rng = np.random.default_rng(seed)
    w = window(rng, 1000, worse=0.5)
    weight = rng.uniform(0.1, 3, 1000) if weighted else None
    w = replace(w, weight=weight)
    if coarse:  # ties
        w = replace(w, challenger=np.round(w.challenger, 1).clip(0.01, 0.99))
    change = {"auc": -1.0, "logloss": 1.0, "ece": 1.0, "calibration": 9.0}
    found = named(decide(w, GateConfig(change=change, resamples=100)))
    auc, loss, ece, calibration = [], [], [], []
    for p in (w.champion, w.challenger):
        auc.append(roc_auc_score(w.label, p, sample_weight=weight))
        loss.append(log_loss(w.label, p, sample_weight=weight))
        ece.append(binary_metrics(p, w.label, weight=weight)["ece"])
        calibration.append(abs(np.average(p, weights=weight) / np.average(w.label, weights=weight) - 1))
    for name, (before, after) in {"auc": auc, "logloss": loss, "ece": ece, "calibration": calibration}.items():
        assert found[name][0] == pytest.approx(after - before, abs=1e-6)


@pytest.mark.slow
def test_intervals_hold() -> None:
    """Of models that are equally good, the interval of the change misses 0 in about 5 % of windows, not more."""
    missed = 0
    for seed in range(200):
        [_, check, _] = decide(window(np.random.default_rng(seed), 1000), QUICK).checks
        assert check.name == "auc" and check.interval is not None
        missed += not check.interval[0] <= 0 <= check.interval[1]
    assert 1 <= missed <= 22  # of Binomial(200, 0.05), 10 expected; P(above 22) < 0.0003


def test_worse_models_do_not_pass_and_equal_ones_do() -> None:
    equal, worse = (window(np.random.default_rng(0), worse=x) for x in (0.0, 1.0))
    assert decide(equal, QUICK).passed
    result = decide(worse, QUICK)
    assert not result.passed and not named(result)["auc"][1]
    assert result.why.startswith("AUC was 0.7") and "limit -0.001): worse than the limit beyond chance" in result.why
    better = replace(worse, champion=worse.challenger, challenger=worse.champion)
    must = replace(equal, challenger=equal.champion)
    strict = GateConfig(resamples=100, mode="better")
    assert decide(better, strict).passed and "better beyond chance" in decide(better, strict).why
    assert not decide(must, strict).passed and "not better beyond chance" in decide(must, strict).why
    shifted = decide(window(np.random.default_rng(1), shift=0.7), QUICK)
    assert named(shifted)["auc"][1] and not named(shifted)["ne"][1]  # AUC does not see a shift


def test_absolute_limits_and_no_champion() -> None:
    w = replace(window(np.random.default_rng(0)), champion=None)
    config = GateConfig(at_least={"auc": 0.5}, at_most={"ece": 0.2, "ne": 0.1})
    result = decide(w, config)
    passed = {c.name: c.passed for c in result.checks}
    assert passed == {"rows": True, "auc at least": True, "ece at most": True, "ne at most": False}
    one_class = replace(w, label=np.zeros(w.size))
    assert "AUC cannot be computed from this window" in decide(one_class, config).why
    both = replace(one_class, champion=w.challenger)
    assert decide(both, QUICK).why.startswith("AUC cannot be computed: the rows may have one class alone")


def test_windows_that_do_not_pass() -> None:
    w = window(np.random.default_rng(0), 999)
    assert "999 rows, fewer than 1,000" in decide(w, QUICK).why
    w = window(np.random.default_rng(0), 2000)
    wrong = w.challenger.copy()
    wrong[:3] = np.nan, 1.5, -0.1
    assert decide(replace(w, challenger=wrong), QUICK).why.startswith("3 of 2,000 predictions of the challenger")
    few = replace(w, cluster=np.arange(2000) % 7)
    assert decide(few, QUICK).why == "the window has 7 clusters, fewer than 30: too few to decide"


def test_rows_of_a_user_count_together() -> None:
    """Rows that are repeated are no new evidence: with clusters, the interval is that of the rows themselves."""
    w = window(np.random.default_rng(0), 1000)
    times = np.repeat(np.arange(1000), 9)
    label, challenger, champion = (x[times] for x in (w.label, w.challenger, w.champion))  # type: ignore[index]
    many = RowWindow(label, challenger, champion)
    widths = [
        np.ptp(next(c.interval for c in decide(x, QUICK).checks if c.interval))  # type: ignore[type-var]
        for x in (w, many, replace(many, cluster=times))
    ]
    assert widths[2] == pytest.approx(widths[0], rel=0.25) and widths[1] == pytest.approx(widths[0] / 3, rel=0.25)


def test_slices() -> None:
    w = window(np.random.default_rng(0), 6000)
    country = np.array(["de", "fr", "it"])[np.arange(6000) % 3]
    bad = w.challenger.copy()
    bad[country == "fr"] = np.random.default_rng(1).permutation(bad[country == "fr"])
    config = GateConfig(change={"auc": -0.5}, slices={"country": {"auc": -0.01}}, resamples=100)
    w = replace(w, challenger=bad, slices={"country": country})
    result = decide(w, config)
    assert named(result)["auc country=de"][1] and not named(result)["auc country=fr"][1]
    assert result.why.startswith("country=fr: AUC was 0.7")
    assert [c.name for c in decide(w, replace_config(config, min_slice_rows=2001)).checks] == ["rows", "auc"]
    assert decide(replace(w, slices={"county": country}), config).why == (
        "the window has no column country; did you mean county?"
    )
    assert decide(replace(w, slices={}), config).why == "the window has no column country; the window has no columns"


def test_retrieval() -> None:
    rng = np.random.default_rng(0)
    query, ties = np.arange(3000), np.zeros(3000, np.int64)
    rank = rng.geometric(0.05, 3000) - 1
    worse = rank + rng.integers(0, 10, 3000)
    result = decide(QueryWindow(query, (worse, ties), (rank, ties)), QUICK)
    gain = lambda r: np.where(r < 10, 1 / np.log2(r + 2), 0).mean()  # noqa: E731
    assert result.checks[1].value == pytest.approx(gain(worse) - gain(rank)) and not result.passed
    assert result.why.startswith("NDCG@10 was 0.19251 and is 0.087195")
    config = GateConfig(change={"hr@5": -0.5, "mrr": -0.5}, at_least={"hr@20": 0.1}, resamples=100)
    w = QueryWindow(query, (worse, ties), (rank, ties), query // 3, {"odd": query % 2})
    found = decide(w, replace_config(config, slices={"odd": {"hr@5": -0.5}}))
    names = ["queries", "hr@20 at least", "hr@5", "mrr", "hr@5 odd=0", "hr@5 odd=1"]
    assert found.passed and [c.name for c in found.checks] == names
    config = GateConfig(change={"auc": -0.1}, resamples=100)
    assert "auc is not a metric" in decide(QueryWindow(query, (rank, ties), (rank, ties)), config).why


def replace_config(config: GateConfig, **changes: object) -> GateConfig:
    return GateConfig(**(config.model_dump() | changes))


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"chang": {}}, "chang: "),
        ({"change": {"acu": -0.1}}, "change: acu: "),
        ({"change": {"auc": 0.001}}, "change.auc=0.001: "),
        ({"slices": {"user": {"ne": -1}}}, "slices.user.ne=-1.0: "),
        ({"mode": "best"}, "mode=best: "),
    ],
)
def test_mistakes_in_settings(value: object, key: str) -> None:
    with pytest.raises(UserError, match=f"^gate.yaml: {key}"):
        parse(GateConfig, value, file="gate.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["model=lr data=sample_interactions", "model=popularity data=sample_sequences"])
def test_an_artefact(tmp_path: Path, setting: str) -> None:
    ok(run_forked("recsys.train", *setting.split(), "debug=fast", "run_dir=run", cwd=tmp_path))
    ok(run_forked("recsys.export", "run=run", "output=model", cwd=tmp_path))
    result = check_artefact(tmp_path / "model", latency_ms=10_000, size_mb=1000)
    assert result.passed, result.why
    assert [c.name for c in result.checks] == ["loads", "size", "latency"]
    result = check_artefact(tmp_path / "model", latency_ms=1e-6, size_mb=1e-6)
    assert [c.passed for c in result.checks] == [True, False, False]
    assert "the artefact has" in result.why and "MB, over 1e-06" in result.why and "ms, over 1e-06" in result.why
    examples = tmp_path / "model" / "examples.json"
    examples.write_text(examples.read_text()[:-3])
    assert "examples.json: is damaged" in check_artefact(tmp_path / "model").why
