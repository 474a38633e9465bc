"""Comparison of runs: as a sentence, as tables of the page, and on the terminal."""

from collections.abc import Sequence
from typing import Any

from recsys.evaluation import metrics_table
from recsys.evaluation.metrics_table import is_better, label
from recsys.evaluation.resampling import Difference, holm
from recsys.pages.charts.plots import Dot, dots_in_cell
from recsys.pages.elements import plain, tail
from recsys.pages.page_table import Cell, Cells, Column, PageTable, Paint
from recsys.report.comparison import Group, Line, Measure

TOP = 20  # number of rows before the rest is collapsed
Interval = tuple[float, float]


def signed(value: float) -> str:
    """Format a number with its sign and four decimals."""
    return f"{value:+.4f}".replace("-", "−")


def _p_value(p: float) -> str:
    """Format a p-value."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1995 else f"p = {p:.2f}"


def run_cell(line: Line, paint: Paint) -> Cell:
    """Return a cell with a line's name, its seeds or folds, and the differences of its config."""
    what = line.detail or line.first.model
    below = Cell(plain(what, 90), tip=what if len(what) > 90 else "")
    name, tip = tail(line.name, 26), plain(line.name, 200)
    return Cell(name, "run", tip, paint.colour, paint.number, chip=line.repetitions, below=[below])


def bounds_of(values: Sequence[float]) -> Interval:
    """Return bounds around the values, with a margin."""
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.01 or 1.0
    return low - room, high + room


def verdict(group: Group, main: str) -> str:
    """Return a sentence that names the best run by a main metric, and its difference from the first run."""
    order, lines = group.best_first(main), group.lines
    best, first = lines[order[0]], lines[0]
    m = best.measures.get(main)
    if m is None:
        return f"No run has {label(main)}."
    value = f"{label(main)} {m.value:.4f}" + (f" ({m.low:.4f} to {m.high:.4f}, 95\u00a0%)" if m.low is not None else "")
    value += f", mean over {best.repetitions}" if best.repetitions else ""
    if len(lines) == 1:
        return f"{best.name}: {value}."
    if group.are_equal(main):
        return f"{'Both' if len(lines) == 2 else f'All {len(lines)}'} runs are equal: {value}."
    if best is first:
        second = lines[order[1]]
        other = second.measures.get(main)
        sentence = f"{best.name}, the first run, is best: {value}."
        d = other.difference if other else None
        return sentence + (f" {second.name} is second, {_significance(d, group, main, order[1])}" if d else "")
    d = m.difference
    if d is None:
        base = first.measures.get(main)
        if base is None:
            return f"{best.name} is best: {value}; {first.name} has no {label(main)}."
        entry = metrics_table.metric(main)
        why = "not all predictions were kept" if entry and entry.interval else f"{label(main)} has none"
        reason = f"the difference has no interval, because {why}"
        return f"{best.name} is best: {value}, {signed(m.value - base.value)} over {first.name}; {reason}."
    return f"{best.name} is best: {value}, against {first.name} {_significance(d, group, main, order[0])}"


def beaten_by_baseline(group: Group, main: str) -> str | None:
    """Return a sentence that names the models that do not beat the best baseline beyond chance; None if all do.

    p-values are adjusted for the number of models that are compared with the baseline.
    """
    baseline, compared = group.baseline(main), [line for line in group.lines if main in line.over_baseline]
    if baseline is None or not compared:
        return None
    over = [line.over_baseline[main] for line in compared]
    sure = [is_better(main, d.value) and p < 0.05 for d, p in zip(over, holm([d.p for d in over]), strict=True)]
    failed = [(line, d) for line, d, beats in zip(compared, over, sure, strict=True) if not beats]
    if not failed:
        return None
    names = [line.name for line, _ in failed[:4]] + ([f"{len(failed) - 4} more"] if len(failed) > 4 else [])
    who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    d = failed[0][1]
    own = f": {signed(d.value)} ({signed(d.low)} to {signed(d.high)}, 95\u00a0%; {_p_value(d.p)})"
    do = "does" if len(failed) == 1 else "do"
    what = f"{label(main)}, {who} {do} not beat the baseline {baseline.name} beyond chance"
    return f"By {what}{own if len(failed) == 1 else ''}."


def _significance(d: Difference, group: Group, main: str, line: int) -> str:
    """Return a line's difference with its interval and significance, adjusted for the number of comparisons."""
    p = group.holm.get((main, line), d.p)
    sure = "significant" if p < 0.05 else "not significant"
    many = f" adjusted for {len(group.holm)} comparisons" if len(group.holm) > 1 else ""
    return f"{signed(d.value)} ({signed(d.low)} to {signed(d.high)}, 95\u00a0%; {_p_value(p)}{many}): {sure}."


def comparison(group: Group, paints: dict[Line, Paint]) -> dict[str, Any]:
    """Return the comparison of a group for the template, with a table (or a note) for each label."""
    names = [main.rpartition("/")[0] if len(group.mains) > 1 else "" for main in group.mains]
    tables = [(n, group.about_rows(m), _comparison(group, m, paints)) for n, m in zip(names, group.mains, strict=True)]
    weight = group.lines[0].first.weight
    return {"why": group.why, "sentences": sentences(group), "weight": weight, "tables": tables}


def sentences(group: Group) -> list[str]:
    """Return the verdict by each main metric, and the models that do not beat a baseline."""
    verdicts = [verdict(group, main) for main in group.mains]
    return verdicts + [text for main in group.mains if (text := beaten_by_baseline(group, main)) is not None]


def _comparison(group: Group, main: str, paints: dict[Line, Paint]) -> PageTable | str:
    """Return a table of values, their intervals or deviations, and their differences from the first run."""
    order, metrics = group.best_first(main), group.metrics(main)
    short = lambda name: label(name.rpartition("/")[2])  # noqa: E731
    measures = [line.measures[main] for line in group.lines if main in line.measures]
    if not measures:
        return f"No run has {label(main)}."
    bounds = bounds_of([v for m in measures for v in (m.value, m.low, m.high) if v is not None])
    versus = [m.difference for m in measures if m.difference is not None]
    versus_bounds = bounds_of([0.0, *(v for d in versus for v in (d.low, d.high))])
    rows: list[Cells] = []
    for i in order:
        line = group.lines[i]
        paint, m = paints[line], line.measures.get(main)
        cells: list[str | Cell] = [run_cell(line, paint), "", *([""] if versus else [])]
        if m is not None:
            tip = f"{line.name}\n{label(main)} {m.value:.5f}"
            tip += f"\n95\u00a0%: {m.low:.5f} to {m.high:.5f}" if m.low is not None and m.high is not None else ""
            dot = Dot(m.value, paint.colour, tip, m.low, m.high, number=paint.number)
            cells[1] = dots_in_cell([dot], bounds, wide=150)
            if versus:
                cells[2] = _versus(line, m, paint, versus_bounds, main, group.holm.get((main, i)))
        rows.append([*cells, *(_cell(n, line.measures.get(n)) for n in metrics)])
    columns = [Column("run", left=True), Column(f"{short(main)}, 95\u00a0% interval", left=True)]
    if versus:
        columns.append(Column(f"difference from {tail(group.lines[0].name, 18)}", left=True))
    for n in metrics:
        meaning = ""
        if (entry := metrics_table.metric(n)) is not None:
            direction = f"; {entry.better} is better" if entry.better else ""
            meaning = f"{entry.meaning}{direction}{'' if entry.interval else '; no interval'}"
        columns.append(Column(short(n), tooltip=meaning))
    kinds = ["best" if i == order[0] and len(order) > 1 and not group.are_equal(main) else "" for i in order]
    return PageTable(columns, rows, kinds, "plain", TOP, order.index(0))


def _versus(line: Line, m: Measure, paint: Paint, bounds: Interval, main: str, adjusted: float | None) -> str | Cell:
    """Draw a line's difference from the first one, with its p-values."""
    d, p = m.difference, line.delong.get(main)
    if d is None:
        return "" if line.detail else Cell(below=[Cell("the first run")])
    tip = f"{signed(d.value)}, 95\u00a0%: {signed(d.low)} to {signed(d.high)}\npaired bootstrap: {_p_value(d.p)}"
    tip += f"\nDeLong's test: {_p_value(p)}" if p is not None else ""
    tip += f"\nadjusted by Holm's method: {_p_value(adjusted)}" if adjusted is not None else ""
    picture = dots_in_cell([Dot(d.value, paint.colour, tip, d.low, d.high, number=paint.number)], bounds, 0.0, 160)
    delong = f"; DeLong {_p_value(p)}" if p is not None else ""
    return Cell(picture, below=[Cell(f"{_p_value(d.p)}{delong}")])


def _cell(metric: str, m: Measure | None) -> str | Cell:
    if m is None:
        return "–"
    below = [Cell(f"sd {m.deviation:.4f}")] if m.deviation is not None else []
    if m.low is not None and m.high is not None:
        below.append(Cell(f"{m.low:.4f}–{m.high:.4f}"))
    if (d := m.difference) is not None:
        better = is_better(metric, d.value) if d.p < 0.05 else None
        kind = "" if better is None else "good" if better else "bad"
        tip = f"95\u00a0%: {signed(d.low)} to {signed(d.high)}\n{_p_value(d.p)}"
        below.append(Cell(signed(d.value), kind, tip))
    return Cell(f"{m.value:.4f}", below=below)


def terminal(group: Group, main: str) -> Any:
    """Return the comparison by the metrics of a label as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    shown = group.metrics(main)[:5]
    rich_table = Table(title=group.about_rows(main), title_justify="left")
    for name in ("run", *map(label, shown), f"difference in {label(main)}", "p"):
        rich_table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for i in group.best_first(main):
        line = group.lines[i]
        m = line.measures.get(main)
        d = m.difference if m else None
        seeds = f" ({line.repetitions})" if line.repetitions else ""
        versus = "" if d is None else f"{signed(d.value)} ({signed(d.low)} to {signed(d.high)})"
        values = [f"{line.measures[n].value:.5f}" if n in line.measures else "" for n in shown]
        p = "" if d is None else _p_value(d.p).removeprefix("p ").removeprefix("= ")
        rich_table.add_row(escape(plain(line.name, 60) + seeds), *values, versus, p)
    return rich_table
