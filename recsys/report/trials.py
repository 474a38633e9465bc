"""Section of the page about a sweep."""

import shlex
from html import escape

from recsys.evaluation.metrics_table import MAIN_RANKING, lower_is_better
from recsys.pages.formatting import html, plain
from recsys.pages.sortable_tables import Column, table
from recsys.report import report_charts
from recsys.report.comparison import main_metric
from recsys.report.comparison_table import note
from recsys.report.runs import ReportedSweep


def trials(s: ReportedSweep) -> str:
    """Return all trials, the best first, charts of the metric over the parameters, and the best trial's command."""
    metric, values = _outcomes(s)
    sign = 1 if s.minimize or (s.metric is None and lower_is_better(metric)) else -1
    order = sorted(s.trials, key=lambda t: sign * values[t.number] if t.number in values else float("inf"))
    keys = list(dict.fromkeys(k for t in s.trials for k in t.values))
    columns = [
        Column("trial"),
        *(Column(k, left=True) for k in keys),
        Column("status", left=True),
        Column(metric),
    ]
    rows = [
        [html(t.number), *(html(t.values.get(k, ""), 60) for k in keys), html(t.status, 60),
         f"{values[t.number]:.5f}" if t.number in values else "–"] for t in order
    ]  # fmt: skip
    done = [t for t in order if t.number in values]
    best = order[0].number if done else None
    parts = [f"<h2>ReportedSweep {html(str(s.folder), 80)}</h2>"]
    bad = sum(t.status.startswith(("failed", "killed")) for t in s.trials)
    parts.append(note(f"{len(s.trials)} trials, {len(done)} with a {metric}, {bad} failed."))
    if done:
        command = shlex.join(["python", "-m", "recsys.train", *order[0].overrides])
        parts.append(f'<p>The best trial, {html(order[0].number)}:</p><pre class="wrap">{escape(command)}</pre>')
    if len(keys) > 1 and len(done) > 1:
        lines = done[::-1]  # the best is drawn last, over the others
        axes = [report_charts.ParallelAxis(k, [t.values.get(k, "–") for t in lines]) for k in keys]
        axes.append(report_charts.ParallelAxis(metric, [f"{values[t.number]:.6g}" for t in lines]))
        tips = ["\n".join([f"trial {t.number}", *(f"{k}={v}" for k, v in t.values.items())]) for t in lines]
        tips = [f"{tip}\n{metric} {values[t.number]:.5f}" for tip, t in zip(tips, lines, strict=True)]
        title = f"{len(lines)} trials: each line is a trial, the orange line the best one"
        parts.append(report_charts.parallel(title, axes, tips, len(lines) - 1))
    pictures = []
    for key in keys:
        points = []
        for t in reversed(done):
            if key in t.values:
                heading = [f"trial {t.number}", f"{metric} {values[t.number]:.5f}"]
                tip = "\n".join([*heading, *(f"{k}={v}" for k, v in t.values.items())])
                points.append((t.values[key], values[t.number], tip, "var(--c2)" if t.number == best else "var(--c0)"))
        if len(points) > 1 and len({p[0] for p in points}) > 1:
            pictures.append(report_charts.swept(f"{metric} over {plain(key, 60)}", points, key))
    if pictures:
        parts.append(f'<div class="grid">{"".join(pictures)}</div>')
        parts.append(note("Each dot is a trial, the orange dot the best one."))
    kinds = ["best" if t.number == best else "" for t in order]
    shown = table(columns, rows, kinds)
    parts.append(shown if len(rows) <= 30 else f"<details><summary>{len(rows)} trials</summary>{shown}</details>")
    return "".join(parts)


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
