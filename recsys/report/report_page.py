"""Comparison of runs as one self-contained HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from recsys.data.profile.data_profile import wilson
from recsys.evaluation import metrics_table
from recsys.evaluation.metrics_table import METRICS, label
from recsys.evaluation.resampling import ROWS
from recsys.pages import render
from recsys.pages.charts.axes import Axis, line
from recsys.pages.charts.bars import colour
from recsys.pages.charts.plots import (
    POINTS,
    Dot,
    Series,
    across,
    circle,
    dots,
    figure,
    lines,
    thinned,
    unit_square,
    upwards,
)
from recsys.pages.elements import tail
from recsys.pages.page_table import Cells, Column, PageTable, Paint, cut
from recsys.report import scaling, sections
from recsys.report.comparison import Group, Line
from recsys.report.comparison_table import comparison
from recsys.report.explanations import explanations
from recsys.report.runs import RunSet
from recsys.report.sections import trials

BRIGHT = 8  # number of lines with a colour of their own
VALIDATION = [f"{m.name}@10" if m.at_k and not m.whole else m.name for m in METRICS.values() if m.curve]
BILLION = 1e9
CALIBRATION_PIXELS = 250  # width and height of a chart of calibration


Scaling = Mapping[str, Sequence[scaling.ScalingRun]]  # model -> runs
Scalings = Sequence[Scaling]


@dataclass(frozen=True)
class Charts:
    """A section of charts.

    by_label: the name of each label, None if there is only one, and its charts
    note: text below the charts, or in their place
    kind: the class of the grid in page.css
    """

    heading: str
    by_label: Sequence[tuple[str | None, Sequence[Markup]]] = ()
    note: str = ""
    legend: Sequence[Paint] = ()
    kind: str = "grid"


def page(
    run_set: RunSet,
    groups: Sequence[Group],
    resamples: int,
    seed: int,
    scalings: Scalings = (),
    users: object = None,
    similar: object = None,
) -> str:
    """Return the page.

    Args:
        scalings: the runs of each sweep of sizes.
        users, similar: a UserSection and a SimilarSection, or None.
    """
    unfinished = [Line([run], run.name, run.last) for run in run_set.runs if not run.test]
    heads = [Column("run", left=True), Column("last line of its log", left=True)]
    logs: list[Cells] = [[cut(x.name, 80), cut(x.detail, 200, "wrap")] for x in unfinished]
    compared = [run_line for group in groups for run_line in group.lines]
    paints = _paints(groups, unfinished)
    predicting = [run_line for run_line in compared if not run_line.first.retrieves]
    retrieving = [run_line for run_line in compared if run_line.first.retrieves]
    of_rows = [_rates(predicting, paints), _calibration(predicting, paints)] if predicting else []
    times = sections.times(compared, paints)
    count = len(run_set.runs)
    return render(
        "report/report_page.html",
        title=run_set.runs[0].name if count == 1 else f"Comparison of {count} runs",
        warnings=not_compared(groups),
        facts=_facts(groups[0], count) if groups else [],
        groups=[comparison(group, paints) for group in groups],
        unfinished=PageTable(heads, logs) if unfinished else None,
        users=users,
        similar=similar,
        charts=[
            *(_scaling(of_models) for of_models in scalings),
            *(_training([*compared, *unfinished], paints), _validation([*compared, *unfinished], paints), *of_rows),
        ],
        slices=[sections.slices(some, paints) for some in (predicting, retrieving) if some],
        explanations=explanations([run_line.first for run_line in compared]),
        times=times,
        parts=() if isinstance(times, str) else sections.PARTS,
        ranking=bool(predicting),
        sweeps=[trials(sweep) for sweep in run_set.sweeps],
        plans=sections.plans(run_set.runs),
        configs=sections.configs([*compared, *unfinished], paints),
        method={"resamples": resamples, "seed": seed, "rows": ROWS},
    )


def _paints(groups: Sequence[Group], unfinished: Sequence[Line]) -> dict[Line, Paint]:
    """Return the paint of each line. Of more than BRIGHT lines, each group's first and the best get a colour."""
    every = [run_line for group in groups for run_line in group.lines] + list(unfinished)
    chosen = list(every)
    if len(every) > BRIGHT:
        firsts = [group.lines[0] for group in groups]
        ranks = range(max((len(group.lines) for group in groups), default=0))
        best = [g.lines[g.best_first(g.main)[k]] for k in ranks for g in groups if k < len(g.lines)]
        chosen = list(dict.fromkeys([*firsts, *best]))[:BRIGHT]
    chosen = [x for x in every if x in chosen]
    colour = {x: f"var(--c{i})" for i, x in enumerate(chosen)}
    return {
        x: Paint(x.name, colour[x], i) if x in colour else Paint(x.name, number=i, faded=True)
        for i, x in enumerate(every)
    }


def not_compared(groups: Sequence[Group]) -> list[str]:
    """Return a message for each group that was tested on other rows than the first."""
    first = groups[0].lines[0].name if groups else ""
    messages = []
    for group in groups[1:]:
        names = ", ".join(run_line.name for run_line in group.lines[:4])
        more = f" and {len(group.lines) - 4} more" if len(group.lines) > 4 else ""
        messages.append(f"{names}{more}: not compared with {first}, which was tested on other rows ({group.why})")
    return messages


def _facts(group: Group, count: int) -> list[tuple[str, str]]:
    best = group.lines[group.best_first(group.main)[0]]
    facts = [(f"{count}", "run" if count == 1 else "runs")]
    facts.append((f"{group.rows:,}", "test queries" if group.retrieves else "test rows"))
    for main in group.mains:
        if (m := group.lines[group.best_first(main)[0]].measures.get(main)) is not None:
            facts.append((f"{m.value:.4f}", f"best {label(main)}"))
            if m.difference is not None:
                what = f"{label(main)}, " if len(group.mains) > 1 else ""
                facts.append((f"{m.difference.value:+.4f}", f"{what}from {group.lines[0].name}"))
    speed = ((best.first.metrics or {}).get("train") or {}).get("samples_per_second")
    if speed:
        whose = "best run" if len(group.mains) == 1 else f"best run by {label(group.main)}"
        facts.append((f"{speed:,.0f}", f"samples per second in training, {whose}"))
    return facts


def _series(run_lines: Sequence[Line], paints: dict[Line, Paint], name: str) -> list[Series]:
    """Return a series for each seed of each line."""
    series = []
    for run_line in run_lines:
        p = paints[run_line]
        for run in run_line.runs:
            if points := run.history.get(name):
                of_seed = run.name if len(run_line.runs) > 1 else p.name
                series.append(Series(Paint(of_seed, p.colour, p.number, p.faded), thinned(points)))
    return series


def _curve(title: str, series: Sequence[Series], linear: bool = False) -> list[Markup]:
    """Draw a value over steps; nothing if no line has two points."""
    if not any(len(s.points) > 1 for s in series):
        return []
    y = upwards([v for s in series for _, v in s.points]) if linear else None
    return [lines(title, series, "step", y=y)]


def _scaling(runs: Scaling) -> Charts:
    """Draw the logloss above the teacher's over the compute of each run, and the power law of each model."""
    every = [run for of_model in runs.values() for run in of_model if run.excess > 0]
    if not every:
        return Charts("Loss against compute", note="No run has a test logloss above the teacher's.")
    paints = {model: Paint(model, colour(i), i) for i, model in enumerate(runs)}
    x, y = across([r.compute / BILLION for r in every], log=True), upwards([r.excess for r in every], log=True)
    under, series = [], []
    for model, paint in paints.items():
        tips = [f"{r.name}\n{r.compute:.3g} operations\nexcess {r.excess:.4g}" for r in runs[model]]
        shown = [(r, tip) for r, tip in zip(runs[model], tips, strict=True) if r.excess > 0]
        under += [circle(x.at(r.compute / BILLION), y.at(r.excess), paint.colour, tip) for r, tip in shown]
        if (law := scaling.fit(runs[model])) is not None:
            ends = (law.frontier[0].compute, law.frontier[-1].compute)
            series.append(Series(paint, [(c / BILLION, law.at(c)) for c in ends]))
    what = "billions of operations of the training"
    picture = lines("test logloss above the teacher's", series, what, x=x, y=y, under=under)
    return Charts("Loss against compute", [(None, [picture])], scaling.ABOUT, list(paints.values()))


def _training(run_lines: Sequence[Line], paints: dict[Line, Paint]) -> Charts:
    losses, factors = (_series(run_lines, paints, f"train/{name}") for name in ("loss", "lr_factor"))
    made = _curve("training loss", losses) + _curve("factor of the learning rate", factors, linear=True)
    every = [paints[run_line] for run_line in run_lines]
    if not made:
        why = "these models are fitted at once, or trainer.log_every_n_steps exceeds the number of steps"
        return Charts("Training", note=f"No curves: {why}.", legend=every)
    averaged = any(len(run.history.get("train/loss", ())) > POINTS for run_line in run_lines for run in run_line.runs)
    remark = f"With more than {POINTS} logged steps, each point is the mean of its neighbours."
    return Charts("Training", [(None, made)], remark if averaged else "", every)


def _validation(run_lines: Sequence[Line], paints: dict[Line, Paint]) -> Charts:
    labels: dict[str, Any] = {}
    for run_line in run_lines:
        measured = [name.partition("/")[2] for name in run_line.first.history if name.startswith("validation/")]
        names = dict.fromkeys([*run_line.first.test, *measured])  # the test's are in the labels' order
        labels |= metrics_table.of_label(names)
    groups = []
    for label_name in labels:
        names_of_label = [f"{label_name}/{own}".lstrip("/") for own in VALIDATION]
        made = [c for n in names_of_label for c in _curve(label(n), _series(run_lines, paints, f"validation/{n}"))]
        if made:
            groups.append((label_name if len(labels) > 1 else None, made))
    if groups:
        return Charts("Validation", groups, legend=[paints[run_line] for run_line in run_lines])
    if any(name.startswith("validation/") for run_line in run_lines for name in run_line.first.history):
        fix = "Set trainer.validate_every_n_steps=N, or train more epochs, to get one."
        return Charts("Validation", note=f"No curve: there was only one validation. {fix}")
    why = "there are no validation rows, or the model was fitted at once"
    return Charts("Validation", note=f"No run has validations in its history: {why}.")


def _labels(run_lines: Sequence[Line]) -> list[tuple[str, str | None]]:
    """Return each label, and its name if there are several."""
    labels = dict.fromkeys(x for run_line in run_lines for x in metrics_table.of_label(run_line.first.test))
    return [(x, x if len(labels) > 1 else None) for x in labels]


def _rates(run_lines: Sequence[Line], paints: dict[Line, Paint]) -> Charts:
    """Draw ROC and precision-recall curves, whose axes are from 0 to 1."""
    x, y = unit_square()
    chance = line(x.start, y.start, x.stop, y.stop, "dashed")
    groups = []
    for label_name, heading in _labels(run_lines):
        roc, pr = (
            [Series(paints[x], [(p[0], p[1]) for p in x.first.curve(label_name, name)]) for x in run_lines]
            for name in ("roc", "pr")
        )
        if any(s.points for s in roc):
            first = lines("ROC: true positive rate", roc, "false positive rate", x=x, y=y, under=[chance])
            groups.append((heading, [first, lines("precision", pr, "recall", x=x, y=y)]))
    legend = [paints[run_line] for run_line in run_lines] if groups else []
    return Charts("ROC and precision over recall", groups, "" if groups else "No run has curves.json.", legend)


def _calibration(run_lines: Sequence[Line], paints: dict[Line, Paint]) -> Charts:
    """Draw the share of positives over the mean probability of bins, of all runs on the same scale."""
    groups = []
    for label_name, heading in _labels(run_lines):
        made = [(x, _bins(x, label_name, paints[x])) for x in run_lines if not paints[x].faded]
        drawn = [(run_line, bins) for run_line, bins in made if bins]
        if drawn:
            top = max(x for _, bins in drawn for d in bins for x in (d.place, d.value, d.high or 0.0)) * 1.04 or 1.0
            charts = [_reliability(run_line, label_name, bins, paints[run_line], top) for run_line, bins in drawn]
            groups.append((heading, charts))
    return Charts("Calibration", groups, "" if groups else "No run has curves.json.", kind="small")


def _bins(run_line: Line, label_name: str, paint: Paint) -> list[Dot]:
    """Return the bins of a run's probabilities, with intervals unless rows have weights."""
    bins = []
    for p, share, n in run_line.first.curve(label_name, "calibration"):
        dot = Dot(float(share), paint.colour, f"predicted {p:.4g}\nobserved {share:.4g}", place=float(p))
        if run_line.first.weight is None:
            low, high = wilson(share * n, n)
            tip = f"{dot.tip} (95 %: {low:.4g} to {high:.4g})\n{int(n):,} rows"
            dot = replace(dot, tip=tip, low=low, high=high)
        bins.append(dot)
    return bins


def _reliability(run_line: Line, label_name: str, bins: Sequence[Dot], paint: Paint, top: float) -> Markup:
    own = metrics_table.of_label(run_line.first.test)[label_name]
    caption = [f"ECE {v:.4f}" for v in [own.get("ece")] if v is not None]
    caption += [f"predicted / observed {v:.3f}" for v in [own.get("calibration")] if v is not None]
    counts = [int(n) for *_, n in run_line.first.curve(label_name, "calibration")]
    rows = f"{f'{min(counts):,} to ' if min(counts) < max(counts) else ''}{max(counts):,} rows"
    caption.append(f"{len(bins)} bins of {rows if run_line.first.weight is None else 'equal weight'}")
    x, y = Axis(0, top, 44, CALIBRATION_PIXELS - 10), Axis(0, top, CALIBRATION_PIXELS - 36, 10)
    picture = dots(bins, x, y, "mean probability", diagonal=True, size=(CALIBRATION_PIXELS, CALIBRATION_PIXELS))
    return figure(tail(paint.name, 26), picture, small=", ".join(caption), mark=paint.colour)
