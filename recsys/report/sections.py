"""Sections of the page: slices, time, plans, configs, and the trials of a sweep."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from recsys.evaluation import metrics_table
from recsys.evaluation.metrics_table import MAIN_RANKING, lower_is_better, main_metric
from recsys.evaluation.resampling import Z, hanley_mcneil
from recsys.pages.charts.axes import axis_of_texts
from recsys.pages.charts.bars import Part, bar
from recsys.pages.charts.plots import LEFT, PLOT_WIDTH, RIGHT, Dot, dots, dots_in_cell, figure, parallel, upwards
from recsys.pages.elements import plain, tail
from recsys.pages.page_table import Cell, Cells, Column, PageTable, Paint, columns, cut
from recsys.report.comparison import Line, differing
from recsys.report.comparison_table import TOP, bounds_of, run_cell, signed
from recsys.report.runs import ReportedRun, ReportedSweep, ReportedTrial, value_text

PARTS = tuple(  # of a step, in greys: a colour is a run
    Paint(name, f"var(--g{i})") for i, name in enumerate(("loader", "forward", "backward", "optimizer", "other"))
)
DELTAS = 4  # number of runs whose differences a table of slices shows
MAX_OPEN_ROWS = 12  # number of rows up to which a plan is not collapsed
MANY = 24  # number of keys above which a table of configs is collapsed
COLUMNS = 5  # number of runs up to which a table of configs has a column for each

Sliced = dict[str, dict[str, Any]]  # feature: value: metrics


def slices(lines: Sequence[Line], paints: dict[Line, Paint]) -> dict[str, Any]:
    """Return, for each label, tables of its main metric for each value of a feature, of the lines with a colour.

    AUC has intervals by Hanley and McNeil, unless rows have weights.
    """
    kept = [line for line in lines if ((line.first.metrics or {}).get("slices") or {}).get("test")]
    kept = [line for line in kept if not paints[line].faded]
    measured = lines[0].first.test
    if kept:  # slices lack metrics of groups, which may be the main ones
        measured = next((e for t in (kept[0].first.metrics or {})["slices"]["test"].values() for e in t), measured)
    mains = metrics_table.main_metrics(measured)
    tables = [(metrics_table.label(main), _slices(kept, paints, main)) for main in mains] if kept else []
    return {"metric": metrics_table.label(mains[0]), "legend": [paints[line] for line in kept], "tables": tables}


def _slices(kept: Sequence[Line], paints: dict[Line, Paint], main: str) -> list[tuple[str, PageTable]]:
    of_label, _, own = main.rpartition("/")
    between = own == metrics_table.MAIN_RANKING and not any(line.first.weight for line in kept)
    by: dict[Line, Sliced] = {}
    for line in kept:
        by[line] = {}
        for feature, entries in (line.first.metrics or {})["slices"]["test"].items():
            found = by[line][feature] = {}
            for e in entries:
                inside = {n.removeprefix(f"{of_label}/"): v for n, v in e.items() if n.startswith(f"{of_label}/")}
                found[str(e.get("value"))] = {"rows": e.get("rows")} | inside if of_label else e
    tables = []
    for feature in dict.fromkeys(f for line in kept for f in by[line]):
        having = [(line, paints[line], by[line][feature]) for line in kept if feature in by[line]]
        tables.append((feature, _slices_of_feature(feature, having, main, between)))
    return tables


def _slices_of_feature(
    feature: str, having: Sequence[tuple[Line, Paint, dict[str, Any]]], main: str, between: bool
) -> PageTable:
    """Return the table of one feature. having: the lines, and their metrics by the feature's value"""
    own = main.rpartition("/")[2]
    ranking = own == metrics_table.MAIN_RANKING
    count = "positives" if ranking else "targets" if having[0][0].first.retrieves else None
    values = list(dict.fromkeys(v for *_, found in having for v in found))
    measured = {v: [(p, e[v]) for _, p, e in having if v in e and e[v].get(own) is not None] for v in values}
    dots = {v: [_slice(p, e, own, between) for p, e in pairs] for v, pairs in measured.items()}
    ends = [x for row in dots.values() for d in row for x in (d.value, d.low, d.high) if x is not None]
    bounds = bounds_of([max(x, 0.0) for x in ends]) if ends else (0.0, 1.0)
    others = having[1 : 1 + DELTAS]
    rows: list[Cells] = []
    for v in values:
        e = next(found[v] for *_, found in having if v in found)
        base, n = having[0][2].get(v, {}).get(own), e.get("rows") or 0
        picture = dots_in_cell(dots[v], bounds, 0.5 if ranking else None, 340) if dots[v] else None
        own_values = [found.get(v, {}).get(own) for *_, found in others]
        deltas = ["–" if x is None or base is None else signed(x - base) for x in own_values]
        rows.append(
            [
                cut(v),
                f"{n:,}",
                *(["–" if e.get(count) is None else f"{e[count]:,}"] if count else []),
                picture or ("one class only" if n else "no rows"),
                "–" if base is None else f"{base:.4f}",
                *deltas,
            ]
        )
    title = f"{metrics_table.label(main)}{', 95 % interval' if between else ''}"
    heads = columns([feature, "rows", *([count] if count else [])], left=[feature])
    heads.append(Column(title, left=True, tooltip="dashed line: 0.5, chance" if ranking else ""))
    names = [tail(having[0][0].name, 13), *(f"Δ {tail(line.name, 13)}" for line, *_ in others)]
    return PageTable([*heads, *columns(names)], rows)


def _slice(paint: Paint, e: dict[str, float], main: str, between: bool) -> Dot:
    value, positives, rows = e[main], e.get("positives"), int(e.get("rows") or 0)
    tip = f"{paint.name}\n{metrics_table.label(main)} {value:.4f}"
    if not between or positives is None:
        return Dot(value, paint.colour, tip, number=paint.number)
    half = Z * hanley_mcneil(value, int(positives), rows - int(positives))
    tip += f", 95 %: ± {half:.4f}"
    return Dot(value, paint.colour, tip, value - half, min(value + half, 1.0), number=paint.number)


def times(lines: Sequence[Line], paints: dict[Line, Paint]) -> PageTable | str:
    """Return a table of samples per second, and of the shares of a step's time; a note if no run has finished."""
    timed = [(line, t) for line in lines if (t := (line.first.metrics or {}).get("train"))]
    if not timed:
        return "No run has finished."
    top, colours = max(t.get("samples_per_second") or 0 for _, t in timed) or 1, {p.name: p.colour for p in PARTS}
    rows: list[Cells] = []
    for line, t in timed:
        paint, speed, shares = paints[line], t.get("samples_per_second") or 0.0, dict(t.get("time") or {})
        collectives = shares.pop("collectives", None)
        whole = shares | {"other": max(1 - sum(shares.values()), 0.0)}
        total = sum(whole.values())
        parts = [Part(s / total, colours.get(n, "var(--hatch)"), tip=f"{n}: {s:.1%}") for n, s in whole.items()]
        rows.append(
            [
                run_cell(line, paint),
                f"{speed:,.0f}",
                bar([Part(speed / top, paint.colour, tip=f"{speed:,.0f} samples/s")], 120, 14),
                f"{t.get('seconds') or 0:,.1f}",
                bar(parts, 220, 14) if shares else Cell(below=[Cell("not measured")]),
                "–" if collectives is None else f"{collectives:.0%}",
                *_job_cells(t.get("job") or {}),
            ]
        )
    what = "share of the steps' time in collectives, with the wait for other ranks; in forward, backward and optimizer"
    names = columns(("run", "samples/s", "", "seconds", "share of time"), left=("run", "", "share of time"))
    of_job = "training steps, without the wait for data; all else is in the bar"
    more = [Column("collectives", tooltip=what), Column("of the job", tooltip=of_job), Column("", left=True)]
    return PageTable([*names, *more], rows, first=TOP)


def _job_cells(job: dict[str, float]) -> list[Cell | Markup | str]:
    """Return the share of a job's time that trained, and a bar of all its parts; dashes for runs that have none."""
    if not job:
        return ["–", "–"]
    shares = [(what, share) for what, share in job.items() if what != "seconds"]
    ordered = sorted(shares, key=lambda x: x[0] != "training")
    greys = ["var(--c0)", *(f"var(--g{i % 5})" for i in range(len(ordered)))]
    parts = [Part(x, paint, tip=f"{what}: {x:.1%}") for (what, x), paint in zip(ordered, greys, strict=False)]
    return [f"{job.get('training', 0.0):.0%}", bar(parts, 160, 14)]


def plans(runs: Sequence[ReportedRun]) -> list[tuple[str, bool, PageTable]]:
    """Return each plan once: the runs that used it, whether it is open, and its tables."""
    by: dict[str, list[ReportedRun]] = {}
    for run in runs:
        if run.plan and run.plan.get("tables"):
            by.setdefault(json.dumps(run.plan, sort_keys=True), []).append(run)
    out = []
    for users in by.values():
        plan = users[0].plan or {}
        rows: list[Cells] = []
        for e in sorted(plan["tables"], key=lambda e: -(e.get("rows") or 0) * (e.get("dim") or 0)):
            words = [str(e.get(k)) for k in ("dim", "type", "kernel")]
            devices = str(len(set(e.get("ranks") or [])) or 1)
            rows.append([plain(str(e.get("table"))), f"{e.get('rows') or 0:,}", *words, devices])
        names = ("table", "rows", "dim", "type", "kernel", "devices")
        table = PageTable(columns(names, left=("table", "type", "kernel")), rows)
        world = plan.get("world_size") or 1
        more = f" and {len(users) - 4} more" if len(users) > 4 else ""
        used_by = ", ".join(r.name for r in users[:4]) + more
        summary = f"{len(rows)} tables on {world} process{'' if world == 1 else 'es'}: {used_by}"
        out.append((summary, len(rows) <= MAX_OPEN_ROWS and len(by) == 1, table))
    return out


def configs(lines: Sequence[Line], paints: dict[Line, Paint]) -> dict[str, Any]:
    """Return the keys that differ, one per row, or one per column if there are many runs; and each config."""
    keys = differing([line.first for line in lines])
    texts = [(line.name, paints[line].colour, line.first.text) for line in lines]
    cell = lambda x, k: cut(value_text(x.first.config[k]), 60, "wrap") if k in x.first.config else "–"  # noqa: E731
    table = None
    if keys and len(lines) <= COLUMNS:
        names = ["key", *(tail(x.name, 28) for x in lines)]
        by_key = [[cut(k, 60, "code"), *(cell(x, k) for x in lines)] for k in keys]
        table = PageTable(columns(names, left=names), by_key, first=len(keys))
    elif keys:
        names = ["run", *(plain(k, 40) for k in keys)]
        by_run = [[run_cell(x, paints[x]), *(cell(x, k) for k in keys)] for x in lines]
        table = PageTable(columns(names, left=names), by_run)
    return {"differing": len(keys), "collapsed": len(keys) > MANY, "table": table, "texts": texts}


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
    x, places = axis_of_texts([t.values[key] for t in having], LEFT, PLOT_WIDTH - RIGHT)
    points = []
    for t, place in zip(having, places, strict=True):
        colour = "var(--c2)" if t is found.done[0] else "var(--c0)"
        points.append(Dot(found.of(t), colour, found.tip(t), place=place))
    picture = dots(points, x, upwards([d.value for d in points]), "" if x.names else key)
    return figure(f"{found.metric} over {plain(key, 60)}", picture)
