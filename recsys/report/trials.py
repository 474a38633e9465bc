"""Section of the page about a sweep."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from recsys.evaluation.metrics_table import MAIN_RANKING, lower_is_better, main_metric
from recsys.pages.charts.axes import axis_of_texts
from recsys.pages.charts.parallel import parallel
from recsys.pages.charts.plots import LEFT, RIGHT, WIDE, Dot, dots, figure, upwards
from recsys.pages.formatting import plain
from recsys.pages.page_table import Cells, Column, PageTable, cut
from recsys.report.comparison_table import TOP
from recsys.report.runs import ReportedSweep, ReportedTrial


@dataclass(frozen=True)
class RankedTrials:
    """The values of a metric by trial. order: all trials, the best first; done: those that have a value"""

    metric: str
    values: dict[str, float]
    order: Sequence[ReportedTrial]
    done: Sequence[ReportedTrial]

    def of(self, t: ReportedTrial) -> float:
        """Return the value of a trial that has one."""
        return self.values[t.number]

    def tip(self, t: ReportedTrial) -> str:
        """Return the tooltip of a trial that has a value."""
        head = [f"trial {t.number}", f"{self.metric} {self.of(t):.5f}"]
        return "\n".join([*head, *(f"{k}={v}" for k, v in t.values.items())])


def trials(s: ReportedSweep) -> dict[str, Any]:
    """Return all trials, the best first, charts of the metric over the parameters, and the best trial's command."""
    found = _outcomes(s)
    keys = list(dict.fromkeys(k for t in s.trials for k in t.values))
    failed = sum(t.status.startswith(("failed", "killed")) for t in s.trials)
    best = found.done[0] if found.done else None
    across = None
    if len(keys) > 1 and len(found.done) > 1:
        drawn = found.done[::-1]  # the best is drawn last, over the others
        axes = {k: [t.values.get(k, "–") for t in drawn] for k in keys}
        axes[found.metric] = [f"{found.of(t):.6g}" for t in drawn]
        title = f"{len(drawn)} trials: each line is a trial, the orange line the best one"
        across = parallel(title, axes, [found.tip(t) for t in drawn], len(drawn) - 1)
    rows: list[Cells] = []
    for t in found.order:
        value = f"{found.of(t):.5f}" if t in found.done else "–"
        rows.append([cut(t.number), *(cut(t.values.get(k, ""), 60) for k in keys), cut(t.status, 60), value])
    names = [Column("trial"), *(Column(k, left=True) for k in [*keys, "status"]), Column(found.metric)]
    marks = ["best" if t is best else "" for t in found.order]
    return {
        "folder": str(s.folder),
        "counts": f"{len(s.trials)} trials, {len(found.done)} with a {found.metric}, {failed} failed.",
        "best": best.number if best else "",
        "command": shlex.join(["python", "-m", "recsys.train", *best.overrides]) if best else "",
        "across": across,
        "charts": [chart for key in keys if (chart := _over(key, found)) is not None],
        "table": PageTable(names, rows, marks, first=TOP),
    }


def _outcomes(s: ReportedSweep) -> RankedTrials:
    """Return the mean over seeds, by trial, of the sweep's own metric, else of the main metric of the test rows."""
    finished = [run for t in s.trials for run in t.runs if run.metrics is not None]
    metric = s.metric or f"test/{main_metric(finished[0].test) if finished else MAIN_RANKING}"
    split, _, name = metric.rpartition("/")
    means: dict[str, float] = {}
    for t in s.trials:
        values = [(r.metrics or {}).get(split or "test", {}).get(name) for r in t.runs]
        there = [v for v in values if v is not None]
        if there and len(there) == len(values):
            means[t.number] = sum(there) / len(there)
    sign = 1 if s.minimize or (s.metric is None and lower_is_better(metric)) else -1
    order = sorted(s.trials, key=lambda t: sign * means[t.number] if t.number in means else float("inf"))
    return RankedTrials(metric, means, order, [t for t in order if t.number in means])


def _over(key: str, found: RankedTrials) -> Markup | None:
    """Draw the metric over one parameter; None if it has one value only."""
    having = [t for t in reversed(found.done) if key in t.values]
    if len({t.values[key] for t in having}) < 2:
        return None
    x, places = axis_of_texts([t.values[key] for t in having], LEFT, WIDE - RIGHT)
    points = []
    for t, place in zip(having, places, strict=True):
        colour = "var(--c2)" if t is found.done[0] else "var(--c0)"
        points.append(Dot(found.of(t), colour, found.tip(t), place=place))
    picture = dots(points, x, upwards([d.value for d in points]), "" if x.names else key)
    return figure(f"{found.metric} over {plain(key, 60)}", picture)
