"""recsys.report: intervals and tests of significance by closed forms, what is compared, the page in a browser."""

import json
import shutil
import sys
from html import unescape
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from run_folders import write_labels, write_retriever, write_run
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from recsys.cli import command_line
from recsys.evaluation import resampling as statistics
from recsys.evaluation.binary import binary_metrics
from recsys.evaluation.resampling import (
    Groups,
    Means,
    Predictions,
    delong,
    deviations,
    difference,
    hanley_mcneil,
    holm,
    interval,
    student_bound,
    student_p,
)
from recsys.evaluation.retrieval_metrics import query_metrics, ranking_metrics
from recsys.pages.page_table import PageTable, Paint
from recsys.report import __main__ as command
from recsys.report.comparison import compare, differences
from recsys.report.comparison_table import beaten_by_baseline, comparison, verdict
from recsys.report.report_page import not_compared, page
from recsys.report.runs import read
from recsys.report.user_lists import RunList, UserLists, UserSection, by_difference

MODEL = "model___target_"


def scores(rng: np.random.Generator, rows: int, ties: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, and two models' probabilities for them that go together."""
    label = rng.random(rows) < 0.3
    common = rng.normal(size=rows) + label
    a, b = (1 / (1 + np.exp(1 - common - s * rng.normal(size=rows))) for s in (0.3, 0.8))
    return (label, a.round(1), b.round(1)) if ties else (label, a, b)


# --- statistics ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_weighted_metrics_are_scikit_learns(ties: bool) -> None:
    rng = np.random.default_rng(0)
    label, p, _ = scores(rng, 3000, ties)
    p = np.clip(p, 0.01, 0.99)
    weight = rng.poisson(1, 3000).astype(float)
    auc, ap, loss, _, calibration = Predictions(p, label).weighted(weight)
    assert auc == pytest.approx(roc_auc_score(label, p, sample_weight=weight), abs=1e-12)
    assert ap == pytest.approx(average_precision_score(label, p, sample_weight=weight), abs=1e-12)
    assert loss == pytest.approx(log_loss(label, p, sample_weight=weight))
    assert calibration == pytest.approx((weight * p).sum() / (weight * label).sum())


def test_without_weights_they_are_those_of_metrics_json() -> None:
    label, p, _ = scores(np.random.default_rng(1), 2000, ties=True)
    p = p.astype(np.float32)
    whole, rows = binary_metrics(p, label), Predictions(p, label)
    assert rows.weighted(np.ones(2000)) == pytest.approx([whole[n] for n in rows.names], rel=1e-6)


@pytest.mark.parametrize("label", [np.zeros(5, bool), np.ones(5, bool)])
def test_one_class_has_no_auc(label: np.ndarray) -> None:
    assert np.isnan(Predictions(np.linspace(0.1, 0.9, 5), label).weighted(np.ones(5))).all()
    low, high = interval(0.5, np.full(10, np.nan))
    assert np.isnan(low) and np.isnan(high)


@pytest.mark.parametrize("most", [100_000, 1500])
def test_bootstrap_is_delongs(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard errors of AUCs and of their paired difference; likewise where a sample of rows is resampled."""
    monkeypatch.setattr(statistics, "ROWS", most)
    label, a, b = scores(np.random.default_rng(2), 4000)
    auc, c = delong(np.stack([a, b]), label)
    off = deviations([Predictions(a, label), Predictions(b, label)], 600, 0)[:, :, 0]
    assert auc == pytest.approx([roc_auc_score(label, a), roc_auc_score(label, b)], abs=1e-12)
    assert off.std(0) == pytest.approx(np.sqrt(np.diag(c)), rel=0.12)
    paired = np.sqrt(c[0, 0] + c[1, 1] - 2 * c[0, 1])
    assert (off[:, 0] - off[:, 1]).std() == pytest.approx(paired, rel=0.12)
    assert paired < 0.9 * np.sqrt(c[0, 0] + c[1, 1]), "being paired tells more"


@pytest.mark.slow
def test_coverage_of_the_interval() -> None:
    """Of the normal model's AUC, Phi(1 / sqrt 2), in 95 of 100 samples, within chance."""
    rng, inside = np.random.default_rng(3), 0
    for i in range(200):
        label = rng.random(400) < 0.4
        p = 1 / (1 + np.exp(-(rng.normal(size=400) + label)))
        rows = Predictions(p, label)
        low, high = interval(rows.weighted(np.ones(400))[0], deviations([rows], 200, i)[:, 0, 0])
        inside += low < 0.76025 < high
    assert 0.90 <= inside / 200 <= 0.985


def test_coverage_of_means_over_queries() -> None:
    """A mean's standard error is sd / sqrt n."""
    values = np.random.default_rng(4).random((900, 2)) ** 3
    off = deviations([Means(("a", "b"), values)], 800, 0)[:, 0]
    assert off.std(0) == pytest.approx(values.std(0) / 30, rel=0.1)


def test_intervals_of_a_weighted_mean_are_the_delta_methods() -> None:
    """Variance of sum w x / sum w: sum w^2 (x - mean)^2 / (sum w)^2; of its root, divided by 4 times the mean."""
    rng = np.random.default_rng(7)
    w, x = rng.exponential(1, 1500), rng.random((1500, 2)) ** 2
    rows = Means(("mae", "rmse"), x, w, roots=("rmse",))
    mean, (mae, rmse) = np.average(x, 0, w), rows.weighted(np.ones(1500))
    assert (mae, rmse) == pytest.approx((mean[0], mean[1] ** 0.5))
    error = np.sqrt((w[:, None] ** 2 * (x - mean) ** 2).sum(0)) / w.sum() / (1, 2 * rmse)
    off = deviations([rows], 1000, 0)[:, 0]
    assert off.std(0) == pytest.approx(error, rel=0.07)
    assert interval(mae, off[:, 0]) == pytest.approx((mae - 1.96 * error[0], mae + 1.96 * error[0]), abs=0.3 * error[0])
    unweighted = deviations([Means(("mae", "rmse"), x, None, ("rmse",))], 1000, 0)[:, 0]
    assert (off.std(0) > 1.2 * unweighted.std(0)).all(), "weights of unequal size cost precision"


def test_the_interval_of_a_weighted_auc_is_the_delta_methods() -> None:
    """Rows' parts of a weighted AUC are weighted means, over positives and over negatives (DeLong et al. 1988)."""
    rng = np.random.default_rng(8)
    label, p, _ = scores(rng, 1200)
    w = rng.exponential(1, 1200)
    rows = Predictions(p, label, w)
    auc, n = rows.weighted(np.ones(1200))[0], ~label
    assert auc == pytest.approx(roc_auc_score(label, p, sample_weight=w), abs=1e-12)
    above = (p[label][:, None] > p[n][None, :]) + 0.5 * (p[label][:, None] == p[n][None, :])
    parts = (above @ w[n] / w[n].sum(), w[label]), (w[label] @ above / w[label].sum(), w[n])
    error = np.sqrt(sum((own**2 * (v - auc) ** 2).sum() / own.sum() ** 2 for v, own in parts))
    assert deviations([rows], 800, 0)[:, 0, 0].std() == pytest.approx(error, rel=0.08)


@pytest.mark.parametrize("kind", ["binary", "means"])
def test_weights_are_repetitions(kind: str) -> None:
    """Weights of 1 change nothing, a common factor nothing either, and a weight of 3 is the same as three rows."""
    rng = np.random.default_rng(9)
    label, p, _ = scores(rng, 400, ties=True)

    def rows(repeats: np.ndarray, weight: np.ndarray | None) -> Predictions | Means:
        own = np.repeat(np.arange(400), repeats)
        if kind == "binary":
            return Predictions(p[own], label[own], weight)
        return Means(("rmse", "mae"), np.stack([(p - label) ** 2, np.abs(p - label)], 1)[own], weight, ("rmse",))

    once, times = np.ones(400, int), rng.integers(1, 4, 400)
    none, ones, sevens = (deviations([rows(once, w)], 50, 0) for w in (None, once, 7.0 * once))
    assert (none == ones).all() and sevens == pytest.approx(none, abs=1e-12)
    weighted, repeated = rows(once, times), rows(times, None)
    assert weighted.weighted(once) == pytest.approx(repeated.weighted(np.ones(times.sum())), abs=1e-12)
    half = np.arange(0, 400, 2)
    assert weighted.take(half).weighted(np.ones(200)) == pytest.approx(weighted.weighted(once * (once.cumsum() % 2)))


def test_groups_are_drawn_whole() -> None:
    """Of groups whose rows are copies of each other, the interval is that of one row each; GAUC is a weighted mean."""
    rng, groups = np.random.default_rng(0), 400
    p, y = rng.random(groups), rng.random(groups) < 0.4
    owner = np.repeat(np.arange(groups), 5)
    auc, share = rng.random((groups, 1)), rng.integers(0, 9, (groups, 1)).astype(float)
    grouped = Groups(Predictions(p[owner], y[owner]), owner, ("gauc",), auc, share)
    assert grouped.names[-1] == "gauc" and (len(grouped), grouped.rows) == (groups, 5 * groups)
    found, single = (deviations([x], 400, 0)[:, 0] for x in (grouped, Predictions(p, y)))
    assert found[:, :5] == pytest.approx(single, rel=1e-9, abs=1e-12)
    mean = float((auc * share).sum() / share.sum())
    influence = share * (auc - mean) / share.mean()
    assert found[:, 5].std() == pytest.approx(influence.std() / np.sqrt(groups), rel=0.1)
    part = grouped.take(np.arange(0, groups, 2))
    assert part.rows == 5 * len(part) == 1000 and part.weighted(np.ones(200))[0] == pytest.approx(
        Predictions(p[::2], y[::2]).weighted(np.ones(200))[0]
    )


def test_equal_runs_do_not_differ() -> None:
    label, a, _ = scores(np.random.default_rng(5), 500)
    off = deviations([Predictions(a, label)] * 2, 100, 0)
    assert (off[:, 0] == off[:, 1]).all()
    found = difference(0.0, [(float((off[:, 0] - off[:, 1]).var()), float("inf"))])
    assert (found.low, found.high, found.p) == (0.0, 0.0, 1.0)


def test_students_t() -> None:
    for freedom, bound in ((1, 12.706), (2, 4.3027), (10, 2.2281), (30, 2.0423), (float("inf"), 1.96)):
        assert student_bound(freedom) == pytest.approx(bound, rel=1e-4)
        assert student_p(bound, freedom) == pytest.approx(0.05, rel=1e-3)
    welch = difference(1.0, [(0.02, 2), (0.03, 4)])  # df = 0.05^2 / (0.02^2 / 2 + 0.03^2 / 4)
    assert welch.p == pytest.approx(student_p(1 / 0.05**0.5, 0.0025 / 0.000425), rel=1e-9)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_hanley_and_mcneils_example() -> None:
    """Hanley & McNeil 1982: theta 0.893, 51 abnormal and 58 normal images, 0.032."""
    assert hanley_mcneil(0.893, 51, 58) == pytest.approx(0.032, abs=0.0006)


def test_query_metrics_are_what_ranking_metrics_averages() -> None:
    query, greater, ties = np.array([0, 0, 1, 3]), np.array([0, 4, -1, 7]), np.array([0, 2, 0, 5])
    each, mean = query_metrics(query, greater, ties, (5, 10)), ranking_metrics(query, greater, ties, (5, 10))
    assert {n: v.mean() for n, v in each.items()} == pytest.approx(mean)
    assert all(len(v) == 3 for v in each.values())


# --- what is compared ----------------------------------------------------------------------------------


def test_comparison(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a", 1.0), write_run(tmp_path / "b", 1.3, noise=1)
    same = shutil.copytree(a, tmp_path / "same")
    [group] = compare(read([str(a), str(b), str(same)]).runs, 200, 0)
    first, better, copy = group.lines
    assert first.measures["auc"].difference is None
    found = better.measures["auc"]
    saved = json.loads((b / "metrics.json").read_text())["test"]["auc"]
    assert found.value == saved and found.low < saved < found.high
    assert found.difference is not None and found.difference.low > 0
    assert better.delong["auc"] < 0.01
    equal = copy.measures["auc"].difference
    assert equal is not None and (equal.value, equal.low, equal.high, equal.p) == (0, 0, 0, 1)
    assert copy.delong == {"auc": 1}
    assert verdict(group, group.main).startswith("b is best: AUC 0.")
    assert "adjusted for 2 comparisons" in verdict(group, group.main)
    for runs in ([a, same], [a, same, shutil.copytree(a, tmp_path / "third")]):
        [group] = compare(read([*map(str, runs)]).runs, 200, 0)
        assert "best" not in verdict(group, group.main)
        table = comparison(group, {line: Paint(line.name, "c") for line in group.lines})["tables"][0][2]
        assert isinstance(table, PageTable) and "best" not in table.kinds


def test_models_that_do_not_beat_a_baseline_beyond_chance_are_named(tmp_path: Path) -> None:
    def run(name: str, skill: float, noise: int, model: str) -> str:
        return str(write_run(tmp_path / name, skill, noise=noise, **{MODEL: model}))

    deep, trees = "recsys.models.dlrm.DLRM", "recsys.models.gbm.GBM"
    better, equal, worse = run("better", 1.5, 1, deep), run("equal", 1.0, 2, deep), run("worse", 0.5, 3, deep)
    weak, strong = run("weak", 0.2, 4, trees), run("strong", 1.0, 5, trees)

    def sentence(*runs: str) -> str | None:
        [group] = compare(read([*runs]).runs, 200, 0)
        return beaten_by_baseline(group, "auc")

    assert sentence(better, strong) is None and sentence(better, equal) is None and sentence(strong, weak) is None
    found = "By AUC, equal and worse do not beat the baseline strong beyond chance."
    assert sentence(better, equal, worse, weak, strong) == found
    assert str(sentence(worse, strong)).startswith("By AUC, worse does not beat the baseline strong beyond chance: −0.")


@pytest.mark.parametrize("weighted", [False, True])
def test_every_label_has_intervals_and_a_verdict(tmp_path: Path, weighted: bool) -> None:
    """Those of the rows that have the label; p-values are adjusted for the labels, and lower errors are better."""
    a, b = (write_labels(tmp_path / n, s, noise=s > 1, weighted=weighted) for n, s in (("a", 0.5), ("b", 1.0)))
    [group] = compare(read([str(a), str(b)]).runs, 200, 0)
    assert group.mains == ["click/auc", "buy/auc", "rating/rmse", "colour/logloss"]
    measures = group.lines[1].measures
    for name in ("auc", "ne", "logloss"):
        assert {f"click/{name}", f"buy/{name}"} <= measures.keys()
    for name, m in measures.items():
        if not name.endswith("/ece"):
            assert m.low is not None and m.low < m.value < m.high, name
            assert m.difference is not None and m.difference.low < m.value - group.lines[0].measures[name].value
    assert {"rating/mae", "colour/accuracy"} <= measures.keys()
    frame = pl.read_parquet(b / "test_predictions_rating.parquet")
    off = (frame["prediction"] - frame["label"]).to_numpy()
    w = frame["weight"].to_numpy() if weighted else np.ones(len(off))
    error = np.sqrt((w**2 * (np.abs(off) - np.average(np.abs(off), weights=w)) ** 2).sum()) / w.sum()
    assert measures["rating/mae"].high - measures["rating/mae"].low == pytest.approx(2 * 1.96 * error, rel=0.25)
    clicks = pl.read_parquet(a / "test_predictions.parquet")["label"].sum()
    assert group.about_rows("buy/auc") == f"{clicks:,} of 2,000 test rows"
    assert group.about_rows("click/auc") == "2,000 test rows"
    assert group.best_first("rating/rmse") == [1, 0] and measures["rating/rmse"].difference.value < 0
    sentences = [verdict(group, main) for main in group.mains]
    assert all("adjusted for 4 comparisons" in s for s in sentences)
    assert sentences[2].startswith("b is best: rating RMSE 1.")
    assert (set(group.lines[1].delong) == set()) == weighted, "DeLong's test is for rows without weights"
    assert "nan" not in page(read([str(a), str(b)]), [group], 200, 0)


def test_runs_are_compared_by_the_labels_that_both_have(tmp_path: Path) -> None:
    a, b = write_labels(tmp_path / "a"), write_labels(tmp_path / "b", 1.5, noise=1, without="click")
    [group] = compare(read([str(a), str(b)]).runs, 100, 0)
    measures = group.lines[1].measures
    assert "click/auc" not in measures and measures["rating/rmse"].difference is not None
    assert verdict(group, "click/auc").startswith("a, the first run, is best")
    assert group.best_first("click/auc") == [0, 1]
    weighted = write_labels(tmp_path / "w", 1.5, weighted=True)
    groups = compare(read([str(a), str(weighted), str(write_run(tmp_path / "one", data="tasks"))]).runs, 100, 0)
    assert [g.why for g in groups][1:] == [
        "other labels or weights, or another order of rows",
        "test rows 4000, not 2000",
    ]


def test_a_label_without_predictions_has_no_intervals(tmp_path: Path) -> None:
    a, b = write_labels(tmp_path / "a", 0.5), write_labels(tmp_path / "b")
    (b / "test_predictions_rating.parquet").unlink()
    empty = b / "test_predictions_colour.parquet"
    pl.read_parquet(empty).head(0).write_parquet(empty)
    [group] = compare(read([str(a), str(b)]).runs, 100, 0)
    measures = group.lines[1].measures
    assert measures["rating/rmse"].low is None and measures["colour/logloss"].low is None
    assert measures["click/auc"].difference is not None
    assert "because not all predictions were kept" in verdict(group, "rating/rmse")


def test_retrieval(tmp_path: Path) -> None:
    a, b = write_retriever(tmp_path / "a"), write_retriever(tmp_path / "b", 1.5, noise=1)
    [group] = compare(read([str(a), str(b)]).runs, 200, 0)
    assert group.main == "ndcg@10" and group.metrics("ndcg@10")[0] == "ndcg@10"
    found = group.lines[1].measures["ndcg@10"]
    assert found.low < found.value < found.high and found.difference.p < 0.001
    frames = (pl.read_parquet(p / "test_ranks.parquet") for p in (a, b))
    columns = ((f[c].to_numpy() for c in ("query", "greater_full", "ties_full")) for f in frames)
    values = [query_metrics(*c, (10,))["ndcg@10"] for c in columns]
    off = values[1] - values[0]
    half = 1.96 * off.std() / len(off) ** 0.5
    assert found.difference.low == pytest.approx(off.mean() - half, abs=0.2 * half)
    assert "b is best: NDCG@10" in verdict(group, group.main)


def test_seeds_of_one_config_are_one_line(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", 1.0, optim__sparse__lr=0.2)
    seeds = [write_run(tmp_path / f"s/seed-{s}", 1 + s / 10, noise=s, seed=s) for s in range(3)]
    [group] = compare(read([str(a), *map(str, seeds)]).runs, 200, 0)
    assert [line.name for line in group.lines] == ["a", "s"]
    values = [json.loads((s / "metrics.json").read_text())["test"]["auc"] for s in seeds]
    found = group.lines[1].measures["auc"]
    assert found.value == pytest.approx(np.mean(values)) and found.deviation == pytest.approx(np.std(values, ddof=1))
    alone = compare(read([str(a), str(seeds[1])]).runs, 200, 0)[0].lines[1].measures["auc"]
    wide = lambda m: m.difference.high - m.difference.low  # noqa: E731
    assert wide(found) > wide(alone), "what seeds do is in it"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"rows": 500}, "test rows 500, not 4000"),
        ({"data": "avazu"}, "data avazu, not criteo"),
        ({"labels": 1}, "other labels or weights, or another order of rows"),
    ],
)
def test_other_rows_are_not_compared(tmp_path: Path, other: dict[str, int], why: str) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", noise=1, **other)
    groups = compare(read([str(a), str(b)]).runs, 100, 0)
    assert [[line.name for line in g.lines] for g in groups] == [["a"], ["b"]]
    assert groups[1].lines[0].measures["auc"].difference is None
    assert not_compared(groups) == [f"b: not compared with a, which was tested on other rows ({why})"]


def test_curves_end_with_training(tmp_path: Path) -> None:
    """The last validation in metrics.csv is of the best checkpoint again, and no point of a curve."""
    [found] = read([str(write_run(tmp_path / "a"))]).runs
    assert found.history["validation/auc"][-1][0] == 1999 and found.history["test/auc"] == [(2000, 0.1)]


def test_without_predictions_there_are_no_intervals(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", 1.5, noise=1)
    (b / "test_predictions.parquet").unlink()
    (a / "curves.json").write_text("{")
    found = read([str(a), str(b)])
    groups = compare(found.runs, 100, 0)
    assert groups[0].lines[1].measures["auc"].low is None
    assert "the difference has no interval" in verdict(groups[0], "auc")
    assert "<html" in page(found, groups, 100, 0)


def test_names_have_what_differs(tmp_path: Path) -> None:
    """Settings are in words; of trials, what all share is not in their names, and of runs, what changes no metric."""
    values = [{"lr": "0.1", "clip": None, "a.dim": 8}, {"lr": "0.2", "clip": None, "a.dim": None}]
    for i in range(2):
        write_run(tmp_path / "s" / str(i), optim__sparse__lr=i / 10)
    trials = [{"number": i, "values": v, "runs": [{"folder": str(i)}]} for i, v in enumerate(values)]
    (tmp_path / "s" / "sweep.json").write_text(json.dumps({"trials": trials}))
    assert [r.name for r in read([str(tmp_path / "s")]).runs] == ["0: lr 0.1, a dim 8", "1: lr 0.2, a dim unset"]
    plain = {"checkpoint": {"every_n_steps": 5}, "dims": 4}
    a = write_run(tmp_path / "a", **plain)
    b, c = (write_run(tmp_path / n, checkpoint={"every_n_steps": None}, dims=d) for n, d in (("b", None), ("c", 4)))
    first, *others = read([str(a), str(b), str(c)]).runs
    assert [differences(run, first) for run in others] == ["dims unset", "checkpoint every n steps unset"]


def test_what_of_a_sweep_is_read(tmp_path: Path) -> None:
    """The old form, a list, and the new one, with seeds."""
    old, new = tmp_path / "old", tmp_path / "new"
    write_run(old / "0")
    trials = [
        {"number": i, "overrides": ["model=dlrm", f"optim.sparse.lr={i}"], "run_dir": "gone", "status": i}
        for i in (0, 1)
    ]
    (old / "sweep.json").write_text(json.dumps(trials))
    for s in range(2):
        write_run(new / f"0/seed-{s}", seed=s, noise=s, optim__sparse__lr=0.3)
    runs = [{"folder": f"0/seed-{s}", "status": "ok"} for s in range(2)]
    one = {"number": 0, "values": {"optim.sparse.lr": "0.3"}, "overrides": ["optim.sparse.lr=0.3"], "runs": runs}
    two = one | {"number": 1, "values": {"optim.sparse.lr": "0.4"}, "runs": [{"folder": "1", "status": "killed"}]}
    (new / "sweep.json").write_text(json.dumps({"metric": "validation/auc", "trials": [one, two]}))
    found = read([str(old), str(new)])
    assert [r.name for r in found.runs] == [
        "old/0: sparse lr 0",
        "new/0/seed-0: sparse lr 0.3",
        "new/0/seed-1: sparse lr 0.3",
    ]
    assert [(t.status, t.values) for t in found.sweeps[0].trials] == [
        ("ok", {"optim.sparse.lr": "0"}),
        ("failed (1)", {"optim.sparse.lr": "1"}),
    ]
    assert [(t.status, len(t.runs)) for t in found.sweeps[1].trials] == [("ok", 2), ("killed", 0)]
    compared = compare(found.runs, 100, 0)
    assert [line.name for line in compared[0].lines] == ["old/0: sparse lr 0", "new/0: sparse lr 0.3"]
    assert "killed" in page(found, compared, 100, 0)


# --- lists of users ------------------------------------------------------------------------------------


def test_rows_are_ordered_by_difference_in_turn() -> None:
    """As a loop that takes the largest of what is left on each side."""
    values = np.random.default_rng(0).integers(0, 5, (2, 60)) / 4
    first, second = (dict(enumerate(v.tolist())) for v in values)
    left, expected = dict(enumerate((values[0] - values[1]).tolist())), []
    while any(left.values()):
        for sign in (1, -1):
            side = [row for row, d in left.items() if sign * d > 0]
            if side:
                expected.append(max(side, key=lambda row: (sign * left[row], -row)))
                del left[expected[-1]]
    assert by_difference(first, second) == [*expected, *left]
    assert 10 < len(left) < 30


def test_ranks_that_differ_from_the_evaluations_are_told(tmp_path: Path) -> None:
    [run] = read([str(write_retriever(tmp_path / "a"))]).runs
    of_runs = [RunList(["x", "y"], {"y": (1, 0), "z": (4, 2)}, {"y": (1, 0), "z": kept}) for kept in ((4, 2), (7, 0))]
    users = [UserLists(i, str(i), [], ["z", "unknown", "y"], [x]) for i, x in enumerate(of_runs)]
    assert UserSection([run], users[:1], "", {}).differing == ""
    told = UserSection([run], users, "", {"y": ["The Why"]})
    assert told.differing.startswith("1 of 4 ranks are up to 3 places off those of the evaluation: ")
    assert told.followed(users[0]) == "The Why (rank 2 in a) · z (rank 5 to 7 in a) · unknown (rank none in a)"
    assert told.followed(users[0], 1) == "The Why (rank 2 in a) and 2 more"
    assert told.before(users[0]) == "History, oldest first: nothing"


# --- the page ------------------------------------------------------------------------------------------

NASTY = "<script>alert(1)</script>\"'&"


def whole_page(tmp_path: Path, many: int = 0) -> str:
    """Everything that a page can have, with values that are no HTML."""
    a = write_run(tmp_path / "a", sliced=True)
    folders = [a, write_run(tmp_path / NASTY.replace("/", ""), 1.2, noise=1, sliced=True, **{MODEL: NASTY})]
    folders += [write_run(tmp_path / f"seed-{s}", noise=2 + s, seed=s, optim__sparse__lr=0.1) for s in range(2)]
    folders += [write_run(tmp_path / f"m{i}", noise=5 + i, rows=300, optim__sparse__lr=i) for i in range(many)]
    folders.append(write_retriever(tmp_path / "sasrec"))
    crashed = write_run(tmp_path / "crashed")
    (crashed / "metrics.json").unlink()
    (crashed / "train.log").write_text(f"error: {NASTY}\n")
    sweep = tmp_path / "sweep"
    for i in range(3):
        write_run(sweep / str(i), 1 + i / 10, noise=i, optim__sparse__lr=10.0**-i)
    trials = [
        {"number": i, "overrides": [f"optim.sparse.lr={10.0**-i}", f"model={NASTY if i else 'b'}"], "status": 0}
        for i in range(3)
    ]
    (sweep / "sweep.json").write_text(json.dumps(trials))
    found = read([*map(str, folders), str(crashed), str(sweep)])
    return page(found, compare(found.runs, 100, 0), 100, 0)


def test_values_are_escaped(tmp_path: Path) -> None:
    shown = whole_page(tmp_path)
    assert "<script>alert" not in shown and "<site" not in shown and "&lt;site 0&gt;" in shown
    assert shown.count("<script>") == 1 and "<svg" in shown
    assert "not compared with" in shown and "error: " in shown and "nan" not in shown.lower().replace("nancy", "")


# --- the command ---------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["recsys.report", *arguments])
    monkeypatch.setattr(command_line, "exit_process", sys.exit)
    with pytest.raises(SystemExit) as done:
        command.main()
    return int(done.value.code or 0)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "it's [b], c=1"):
        write_run(tmp_path / name, len(name) / 10, rows=400)
    assert run(monkeypatch, "a", "it's [b], c=1", "resamples=100", "output=out/r.html") == 0
    out, err = capsys.readouterr()
    assert "it's [b], c=1 is best: AUC" in out and "400 test rows" in out and "wrote out/r.html" in err
    assert "it's [b], c=1" in unescape((tmp_path / "out/r.html").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gone", "gone: no such folder"),
        (".", ".: not a run (it has no config.yaml); its subfolders are runs: use ./*"),
        ("a users=5", "users: only retrieval runs that have finished have lists"),
        ("a lists users=5", "users: lists: not compared with a, which was tested on other rows (task retrieval"),
        ("lists fewer users=5", "users: fewer: not compared with lists, which was tested on other rows (test"),
        ("lists ranks users=5", "users: ranks kept no ranks"),
        ("broken", "broken/config.yaml: cannot be read: "),
        ("texts", "texts/metrics.json: test.auc='x' is not a number"),
        ("odd", "odd/sweep.json: has no list of trials"),
        ("young", "young: no trial of this sweep has a folder yet"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("a"), rows=200)
    files = {"broken/config.yaml": "a: [", "odd/sweep.json": "3", "young/sweep.json": '{"trials": []}'}
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    for name, queries in (("lists", 600), ("fewer", 500), ("ranks", 600)):
        write_retriever(Path(name), queries=queries, optim__sparse__lr=len(name))
    Path("ranks/test_ranks.parquet").unlink()
    write_run(Path("texts"), rows=200)
    metrics = json.loads(Path("texts/metrics.json").read_text())
    Path("texts/metrics.json").write_text(json.dumps(metrics | {"test": metrics["test"] | {"auc": "x"}}))
    Path("texts/manifest.json").unlink(missing_ok=True)
    assert run(monkeypatch, *arguments.split()) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and lines[0].startswith(f"error: {message}")
