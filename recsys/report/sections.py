"""Sections of the page that are tables: slices, time, plans, configs."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from recsys.evaluation import metrics_table
from recsys.pages.charts import Paint, legend
from recsys.pages.formatting import html, plain, tail
from recsys.pages.sortable_tables import Column, table
from recsys.report.cells import Dot, bar, dots
from recsys.report.comparison import Line, differing
from recsys.report.comparison_table import (
    bounds_of,
    collapsible_table,
    note,
    run_cell,
    signed,
)
from recsys.report.resampling import Z, hanley_mcneil
from recsys.report.runs import ReportedRun

PARTS = {"loader": "--c1", "forward": "--c0", "backward": "--c6", "optimizer": "--c3", "other": "--other"}
DELTAS = 4  # number of runs whose differences a table of slices shows
SHORT = 12  # number of rows up to which a plan is not collapsed


def slices(lines: Sequence[Line], paints: dict[int, Paint]) -> str:
    """Return a heading, and tables of the main metric of each label for each value of a feature.

    The tables show the first run of each line. AUC has intervals by Hanley and McNeil, unless rows have weights.
    """
    kept = [line for line in lines if ((line.first.metrics or {}).get("slices") or {}).get("test")]
    kept = [line for line in kept if not paints[id(line)].faded]
    measured = lines[0].first.test
    if kept:  # slices lack metrics of groups, which may be the main ones
        measured = next((e for t in (kept[0].first.metrics or {})["slices"]["test"].values() for e in t), measured)
    first, *others = metrics_table.main_metrics(measured)
    heading = f"<h2>{html(metrics_table.label(first), 60)} by slice</h2>"
    if not kept:
        return heading + note("No slices: train with metrics.slices=[FEATURE,...] to get them.")
    parts = [heading, legend([paints[id(line)] for line in kept]), _slices(kept, paints, first)]
    for main in others:
        summary = f"{html(metrics_table.label(main), 60)} by slice"
        parts.append(f"<details><summary>{summary}</summary>{_slices(kept, paints, main)}</details>")
    return "".join(parts)


def _slices(kept: Sequence[Line], paints: dict[int, Paint], main: str) -> str:
    sliced = {id(line): (line.first.metrics or {})["slices"]["test"] for line in kept}
    of_label, _, own = main.rpartition("/")
    ranking = own == metrics_table.MAIN_RANKING
    between = ranking and not any(line.first.weight for line in kept)
    title = f"{metrics_table.label(main)}{', 95 % interval' if between else ''}"
    chance, tooltip = (0.5, "dashed line: 0.5, chance") if ranking else (None, "")
    count = "positives" if ranking else "targets" if kept[0].first.retrieves else None
    out = []
    for feature in dict.fromkeys(f for line in kept for f in sliced[id(line)]):
        having = [line for line in kept if feature in sliced[id(line)]]
        others = having[1 : 1 + DELTAS]
        by = {
            id(line): {str(e.get("value")): _of_label(e, of_label) for e in sliced[id(line)][feature]}
            for line in having
        }
        values = list(dict.fromkeys(v for line in having for v in by[id(line)]))
        cells: list[list[Dot]] = []
        for value in values:
            there = [(paints[id(x)], by[id(x)][value]) for x in having if value in by[id(x)]]
            cells.append([_slice(paint, e, own, between) for paint, e in there if e.get(own) is not None])
        spread = [v for row in cells for _, value, ends, _ in row for v in (value, *(ends or ()))]
        bounds = bounds_of([max(v, 0.0) for v in spread]) if spread else (0.0, 1.0)
        rows = []
        for value, row in zip(values, cells, strict=True):
            e = next(by[id(line)][value] for line in having if value in by[id(line)])
            base, last, size = by[id(having[0])].get(value, {}).get(own), row, e.get("rows") or 0
            counted = e.get(count) if count else None
            missing = "one class only" if size else "no rows"
            rows.append([
                html(value), f"{size:,}", *(["–" if counted is None else f"{counted:,}"] if count else []),
                f'<td class="l">{dots(last, bounds, chance, 340) if last else missing}</td>',
                "–" if base is None else f"{base:.4f}",
                *(_delta(by[id(line)].get(value, {}).get(own), base) for line in others),
            ])  # fmt: skip
        columns = [
            Column(feature, left=True), Column("rows"), *([Column(count)] if count else []),
            Column(title, left=True, tooltip=tooltip),
            Column(tail(having[0].name, 13)), *(Column(f"Δ {tail(x.name, 13)}") for x in others),
        ]  # fmt: skip
        out.append(f'<h3>{html(feature, 60)}</h3><div class="mid">{table(columns, rows)}</div>')
    return "".join(out)


def _of_label(e: dict[str, Any], label: str) -> dict[str, Any]:
    """Return the metrics of one label of a slice, under their own names, and its number of rows."""
    if not label:
        return e
    return {"rows": e.get("rows")} | {n.removeprefix(f"{label}/"): v for n, v in e.items() if n.startswith(f"{label}/")}


def _slice(paint: Paint, e: dict[str, float], main: str, between: bool) -> Dot:
    value, positives, rows = e[main], e.get("positives"), int(e.get("rows") or 0)
    tip = f"{paint.name}\n{metrics_table.label(main)} {value:.4f}"
    if not between or positives is None:
        return paint, value, None, tip
    half = Z * hanley_mcneil(value, int(positives), rows - int(positives))
    return paint, value, (value - half, min(value + half, 1.0)), f"{tip}, 95 %: ± {half:.4f}"


def _delta(value: float | None, base: float | None) -> str:
    return "–" if value is None or base is None else signed(value - base)


def times(lines: Sequence[Line], paints: dict[int, Paint]) -> str:
    """Return a table of samples per second, and of the shares of a step's time."""
    rows, top = [], max((t.get("samples_per_second") or 0 for x in lines if (t := _train(x.first))), default=0) or 1
    for line in lines:
        t, paint = _train(line.first), paints[id(line)]
        if not t:
            continue
        speed, shares = t.get("samples_per_second") or 0.0, dict(t.get("time") or {})
        collectives = shares.pop("collectives", None)
        shares["other"] = max(1 - sum(shares.values()), 0.0)
        whole = sum(shares.values())
        parts = [(s / whole, f"var({PARTS.get(n, '--c8')})", f"{n}: {s:.1%}") for n, s in shares.items()]
        rows.append([
            run_cell(line, paint),
            f"{speed:,.0f}",
            f'<td class="l">{bar([(speed / top, paint.colour, f"{speed:,.0f} samples/s")], 160)}</td>',
            f"{t.get('seconds') or 0:,.1f}",
            f'<td class="l">{bar(parts) if len(parts) > 1 else "<small>not measured</small>"}</td>',
            "–" if collectives is None else f"{collectives:.0%}",
        ])  # fmt: skip
    if not rows:
        return note("No run has finished.")
    columns = [
        Column("run", left=True), Column("samples/s"), Column("", left=True), Column("seconds"),
        Column("share of time", left=True),
        Column("collectives", tooltip="share of the steps' time in collectives, including waiting for other ranks; "
               "it is part of forward, backward and optimizer"),
    ]  # fmt: skip
    marks = "".join(f'<span><i style="background:var({c})"></i>{n}</span>' for n, c in PARTS.items())
    return f'<div class="legend">{marks}</div><div class="mid">{collapsible_table(columns, rows)}</div>'


def _train(run: ReportedRun) -> dict[str, Any]:
    return (run.metrics or {}).get("train") or {}


def plans(runs: Sequence[ReportedRun]) -> str:
    """Return each plan once, with the runs that used it."""
    by: dict[str, list[ReportedRun]] = {}
    for run in runs:
        if run.plan and run.plan.get("tables"):
            by.setdefault(json.dumps(run.plan, sort_keys=True), []).append(run)
    if not by:
        return note("No plans: these models have no sharded tables.")
    out = []
    for runs_with_plan in by.values():
        plan = runs_with_plan[0].plan or {}
        entries = sorted(plan["tables"], key=lambda e: -(e.get("rows") or 0) * (e.get("dim") or 0))
        names = ", ".join(r.name for r in runs_with_plan[:4]) + (
            f" and {len(runs_with_plan) - 4} more" if len(runs_with_plan) > 4 else ""
        )
        shards = lambda e: str(len(set(e.get("ranks") or [])) or 1)  # noqa: E731
        rows = [
            [escape(plain(str(e.get("table")))), f"{e.get('rows') or 0:,}", str(e.get("dim")),
             *(escape(str(e.get(k))) for k in ("type", "kernel")), shards(e)] for e in entries
        ]  # fmt: skip
        columns = [
            Column("table", left=True), Column("rows"), Column("dim"), Column("type", left=True),
            Column("kernel", left=True), Column("devices"),
        ]  # fmt: skip
        world = plan.get("world_size") or 1
        summary = f"{len(rows)} tables on {world} process{'' if world == 1 else 'es'}: {names}"
        opened = " open" if len(rows) <= SHORT and len(by) == 1 else ""
        out.append(f"<details{opened}><summary>{escape(summary)}</summary>{table(columns, rows)}</details>")
    return "".join(out)


def configs(lines: Sequence[Line], paints: dict[int, Paint]) -> str:
    """Return the keys that differ, one per row, or one per column if there are many runs; then each config,
    collapsed.
    """
    keys = differing([line.first for line in lines])
    out = []
    if len(lines) > 1 and not keys:
        out.append(note("All configs are equal except for the seed and the folder."))
    if keys:
        value = lambda x, k: html(_text(x.first.config.get(k)), 60) if k in x.first.config else "–"  # noqa: E731
        cell = lambda x, k: f'<td class="l value">{value(x, k)}</td>'  # noqa: E731
        if len(lines) <= 5:
            rows = [[f"<code>{html(k, 60)}</code>", *(cell(x, k) for x in lines)] for k in keys]
            columns = [Column("key", left=True), *(Column(tail(x.name, 28), left=True) for x in lines)]
        else:
            rows = [[run_cell(x, paints[id(x)]), *(cell(x, k) for k in keys)] for x in lines]
            columns = [Column("run", left=True), *(Column(plain(k, 40), left=True) for k in keys)]
        shown = table(columns, rows)
        many = len(keys) > 24
        out.append(f"<details><summary>{len(keys)} keys differ</summary>{shown}</details>" if many else shown)
    for line in lines:
        summary = f"{paints[id(line)].mark}{html(line.name, 80)}: config.yaml"
        out.append(f"<details><summary>{summary}</summary><pre>{escape(line.first.text)}</pre></details>")
    return "".join(out)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
