"""Section of the page about a sweep."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from recsys.evaluation.metrics_table import MAIN_RANKING, lower_is_better
from recsys.pages.charts.axes import axis_of_texts
from recsys.pages.charts.parallel import ParallelAxis, parallel
from recsys.pages.charts.plots import HIGH, LEFT, RIGHT, WIDE, Dot, dots, figure, upwards
from recsys.pages.formatting import plain
from recsys.pages.page_table import Cells, Column, PageTable, cut
from recsys.report.comparison import main_metric
from recsys.report.comparison_table import TOP
from recsys.report.runs import ReportedSweep, ReportedTrial


@dataclass(frozen=True)
class Trials:
    """A sweep.

    counts: a sentence about its trials
    best, command: the best trial and the command that trains it; empty if none has finished
    across: parallel coordinates, None for one parameter or one trial
    charts: the metric over each parameter
    table: all trials, the best first
    """

    folder: str
    counts: str
    best: str
    command: str
    across: Markup | None
    charts: Sequence[Markup]
    table: PageTable


def trials(s: ReportedSweep) -> Trials:
    """Return all trials, the best first, charts of the metric over the parameters, and the best trial's command."""
    metric, values = _outcomes(s)
    sign = 1 if s.minimize or (s.metric is None and lower_is_better(metric)) else -1
    order = sorted(s.trials, key=lambda t: sign * values[t.number] if t.number in values else float("inf"))
    keys = list(dict.fromkeys(k for t in s.trials for k in t.values))
    done = [t for t in order if t.number in values]
    tips = {t.number: _tip(t, metric, values[t.number]) for t in done}
    failed = sum(t.status.startswith(("failed", "killed")) for t in s.trials)
    charts = [c for key in keys if (c := _over(key, metric, done, values, tips)) is not None]
    return Trials(
        folder=str(s.folder),
        counts=f"{len(s.trials)} trials, {len(done)} with a {metric}, {failed} failed.",
        best=done[0].number if done else "",
        command=shlex.join(["python", "-m", "recsys.train", *done[0].overrides]) if done else "",
        across=_across(keys, metric, done, values, tips) if len(keys) > 1 and len(done) > 1 else None,
        charts=charts,
        table=_table(keys, metric, order, values),
    )


def _tip(t: ReportedTrial, metric: str, value: float) -> str:
    return "\n".join([f"trial {t.number}", f"{metric} {value:.5f}", *(f"{k}={v}" for k, v in t.values.items())])


def _table(keys: Sequence[str], metric: str, order: Sequence[ReportedTrial], values: dict[str, float]) -> PageTable:
    rows: list[Cells] = []
    for t in order:
        swept = [cut(t.values.get(k, ""), 60) for k in keys]
        value = f"{values[t.number]:.5f}" if t.number in values else "–"
        rows.append([cut(t.number), *swept, cut(t.status, 60), value])
    columns = [Column("trial"), *(Column(k, left=True) for k in keys), Column("status", left=True), Column(metric)]
    best = ["best" if order and t is order[0] and values else "" for t in order]
    return PageTable(columns, rows, best, first=TOP)


def _across(
    keys: Sequence[str],
    metric: str,
    done: Sequence[ReportedTrial],
    values: dict[str, float],
    tips: dict[str, str],
) -> Markup:
    """Draw all trials across their parameters and the metric."""
    lines = done[::-1]  # the best is drawn last, over the others
    axes = [ParallelAxis(k, [t.values.get(k, "–") for t in lines]) for k in keys]
    axes.append(ParallelAxis(metric, [f"{values[t.number]:.6g}" for t in lines]))
    title = f"{len(lines)} trials: each line is a trial, the orange line the best one"
    return parallel(title, axes, [tips[t.number] for t in lines], len(lines) - 1)


def _over(
    key: str, metric: str, done: Sequence[ReportedTrial], values: dict[str, float], tips: dict[str, str]
) -> Markup | None:
    """Draw the metric over one parameter; None if it has one value only."""
    having = [t for t in reversed(done) if key in t.values]
    if len({t.values[key] for t in having}) < 2:
        return None
    x, places = axis_of_texts([t.values[key] for t in having], LEFT, WIDE - RIGHT)
    points = [
        Dot(values[t.number], "var(--c2)" if t is done[0] else "var(--c0)", tips[t.number], place=place)
        for t, place in zip(having, places, strict=True)
    ]
    y = upwards([values[t.number] for t in having])
    picture = dots(points, x, y, "" if x.names else key, size=(WIDE, HIGH))
    return figure(f"{metric} over {plain(key, 60)}", picture)


def _outcomes(s: ReportedSweep) -> tuple[str, dict[str, float]]:
    """Return the metric that ranks trials and its mean over seeds, by trial.

    It is the sweep's own metric, else the main metric of the test rows.
    """
    done = [run for t in s.trials for run in t.runs if run.metrics is not None]
    metric = s.metric or f"test/{main_metric(done[0]) if done else MAIN_RANKING}"
    split, _, name = metric.rpartition("/")
    means: dict[str, float] = {}
    for t in s.trials:
        values = [(r.metrics or {}).get(split or "test", {}).get(name) for r in t.runs]
        there = [v for v in values if v is not None]
        if there and len(there) == len(values):
            means[t.number] = sum(there) / len(there)
    return metric, means
