"""Comparison of runs as one self-contained HTML page."""

from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path
from typing import Any

from recsys.data.profile.drift import wilson
from recsys.evaluation import metrics_table
from recsys.evaluation.metrics_table import METRICS, label
from recsys.pages import document, footer
from recsys.pages.charts import Paint, Series, legend
from recsys.pages.formatting import html
from recsys.pages.sortable_tables import Column, table
from recsys.report import report_charts, sections
from recsys.report.cells import BRIGHT
from recsys.report.comparison import Group, Line
from recsys.report.comparison_table import beaten_by_baseline, comparison, note, verdict
from recsys.report.resampling import ROWS
from recsys.report.runs import RunSet
from recsys.report.trials import trials

VALIDATION = [f"{m.name}@10" if m.at_k and not m.whole else m.name for m in METRICS.values() if m.curve]
NOTES = (
    "Intervals: 95 %, percentiles of {resamples:,} resamples of the test rows (for retrieval models, of queries) with "
    "replacement, seed {seed} (bootstrap, Efron & Tibshirani 1993). Only rows that have a label are resampled for its "
    "metrics, and rows keep their weights. AUC and average precision are exact: rows are sorted once by score, and "
    "equal scores count half. If there are more than {rows:,} rows, a random sample of that size is resampled, and "
    "deviations are scaled by the root of its share (Bickel, Götze & van Zwet 1997).",
    "Differences: paired, since all runs get the same resamples. Interval and p-value are Student's t: the difference "
    "over its standard error. Its variance is that of the resamples plus, with several seeds, that of the mean over "
    "seeds (degrees of freedom: Welch, Satterthwaite). With one seed the result is about these weights, not about the "
    "config: another seed may give another result.",
    "DeLong: the closed form for two AUCs over the same rows without weights (DeLong, DeLong & Clarke-Pearson 1988). "
    "The p-values at the top are adjusted by Holm's method (1979) for the number of runs and labels that are compared; "
    "p in a table is not.",
    "The best of many runs on the test rows looks better than it is: choose the run by validation, then test it.",
    "Slices: intervals by Hanley & McNeil (1982), from AUC, positives and negatives. Reliability: bins "
    "with about the same number of rows, Wilson's intervals (1927). Neither is shown if rows have weights.",
)


def page(run_set: RunSet, groups: Sequence[Group], resamples: int, seed: int) -> str:
    """Return the page."""
    unfinished = [Line([run], run.name, run.last) for run in run_set.runs if run.metrics is None]
    compared = [line for group in groups for line in group.lines]
    lines = [*compared, *unfinished]
    paints = _paints(groups, unfinished)
    every = [paints[id(line)] for line in lines]
    count = len(run_set.runs)
    title = run_set.runs[0].name if count == 1 else f"Comparison of {count} runs"
    parts = [f"<h1>{escape(title)}</h1>", *_top(groups), _cards(groups, count)]
    for group in groups:
        if group is not groups[0]:
            parts.append(f"<h3>Tested on other rows: {escape(group.why)}</h3>{_verdicts(group)}")
        parts.append(comparison(group, paints))
    if unfinished:
        rows = [[html(x.name, 80), f'<td class="l value">{html(x.detail, 200)}</td>'] for x in unfinished]
        parts.append("<h3>Not finished or failed (no metrics.json)</h3>")
        parts.append(table([Column("run", left=True), Column("last line of its log", left=True)], rows))
    parts += ["<h2>Training</h2>", legend(every), _training(lines, paints)]
    parts += ["<h2>Validation</h2>", _validation(lines, paints, every)]
    predicting = [line for line in compared if not line.first.retrieves]
    if predicting:
        parts += ["<h2>ROC and precision over recall</h2>", _rates(predicting, paints)]
        parts += ["<h2>Calibration</h2>", _calibration(predicting, paints)]
    else:
        parts.append(note("ROC and calibration exist for ranking models only; none of these runs has one."))
    for sliced in (predicting, [line for line in compared if line.first.retrieves]):
        if sliced:
            parts.append(sections.slices(sliced, paints))
    parts += ["<h2>Throughput and time</h2>", sections.times(compared, paints)]
    parts += [trials(sweep) for sweep in run_set.sweeps]
    parts += ["<h2>Sharding plan</h2>", sections.plans(run_set.runs)]
    parts += ["<h2>Configs</h2>", sections.configs(lines, paints)]
    notes = tuple(n.format(resamples=resamples, seed=seed, rows=ROWS) for n in NOTES)
    return document(title, "\n".join(parts) + footer("", notes), Path(__file__).parent, charts=True)


def _paints(groups: Sequence[Group], unfinished: Sequence[Line]) -> dict[int, Paint]:
    """Return the paint of each line, by id. With more than BRIGHT lines, only the first of each group and the best
    have a colour.
    """
    lines = [line for group in groups for line in group.lines] + list(unfinished)
    chosen = [id(line) for line in lines]
    if len(lines) > BRIGHT:
        firsts = [id(group.lines[0]) for group in groups]
        ranks = range(max((len(group.lines) for group in groups), default=0))
        best = [id(g.lines[g.best_first(g.main)[k]]) for k in ranks for g in groups if k < len(g.lines)]
        chosen = list(dict.fromkeys([*firsts, *best]))[:BRIGHT]
    colour = {line: f"var(--c{i})" for i, line in enumerate(sorted(chosen, key=[id(x) for x in lines].index))}
    return {
        id(x): Paint(i, x.name, colour[id(x)]) if id(x) in colour else Paint(i, x.name, faded=True)
        for i, x in enumerate(lines)
    }


def not_compared(groups: Sequence[Group]) -> list[str]:
    """Return a message for each group that was tested on other rows than the first."""
    first = groups[0].lines[0].name if groups else ""
    messages = []
    for group in groups[1:]:
        names = ", ".join(line.name for line in group.lines[:4])
        more = f" and {len(group.lines) - 4} more" if len(group.lines) > 4 else ""
        messages.append(f"{names}{more}: not compared with {first}, which was tested on other rows ({group.why})")
    return messages


def _verdicts(group: Group) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in sentences(group))


def sentences(group: Group) -> list[str]:
    """Return the verdict by each main metric, and the models that do not beat a baseline."""
    verdicts = [verdict(group, main) for main in group.mains]
    return verdicts + [text for main in group.mains if (text := beaten_by_baseline(group, main)) is not None]


def _top(groups: Sequence[Group]) -> list[str]:
    if not groups:
        return ['<p class="verdict">No run has finished.</p>']
    lines = [f'<p class="verdict"><b>{escape(text)}</b></p>' for text in sentences(groups[0])]
    return lines + [f'<p class="warn">{escape(text)}</p>' for text in not_compared(groups)]


def _cards(groups: Sequence[Group], count: int) -> str:
    if not groups:
        return ""
    group = groups[0]
    best = group.lines[group.best_first(group.main)[0]]
    cards = [(f"{count}", "run" if count == 1 else "runs")]
    cards.append((f"{group.rows:,}", "test queries" if group.retrieves else "test rows"))
    for main in group.mains:
        if (m := group.lines[group.best_first(main)[0]].measures.get(main)) is not None:
            cards.append((f"{m.value:.4f}", f"best {label(main)}"))
            if m.difference is not None:
                what = f"{label(main)}, " if len(group.mains) > 1 else ""
                cards.append((f"{m.difference.value:+.4f}", f"{what}from {group.lines[0].name}"))
    speed = ((best.first.metrics or {}).get("train") or {}).get("samples_per_second")
    if speed:
        whose = "best run" if len(group.mains) == 1 else f"best run by {label(group.main)}"
        cards.append((f"{speed:,.0f}", f"samples per second in training, {whose}"))
    inside = "".join(f"<div><b>{escape(b)}</b><span>{escape(s)}</span></div>" for b, s in cards)
    return f'<div class="cards">{inside}</div>'


def _series(lines: Sequence[Line], paints: dict[int, Paint], name: str) -> list[Series]:
    """Return a series for each seed of each line."""
    series = []
    for line in lines:
        p = paints[id(line)]
        for run in line.runs:
            if points := run.history.get(name):
                name_of_seed = run.name if len(line.runs) > 1 else p.name
                series.append(Series(Paint(p.number, name_of_seed, p.colour, p.faded), points))
    return series


def _training(lines: Sequence[Line], paints: dict[int, Paint]) -> str:
    made = []
    for name, title in (("train/loss", "training loss"), ("train/lr_factor", "factor of the learning rate")):
        series = _series(lines, paints, name)
        if any(len(s.points) > 1 for s in series):
            made.append(report_charts.lines(title, series, linear=name == "train/lr_factor"))
    if not made:
        why = "these models are fitted at once, or trainer.log_every_n_steps exceeds the number of steps"
        return note(f"No curves: {why}.")
    averaged = any(len(s.points) > report_charts.POINTS for s in _series(lines, paints, "train/loss"))
    remark = (
        note(f"With more than {report_charts.POINTS} logged steps, each point is the mean of its neighbours.")
        if averaged
        else ""
    )
    return f'<div class="grid">{"".join(made)}</div>{remark}'


def _validation(lines: Sequence[Line], paints: dict[int, Paint], every: Sequence[Paint]) -> str:
    labels: dict[str, Any] = {}
    for line in lines:
        measured = [name.partition("/")[2] for name in line.first.history if name.startswith("validation/")]
        names = dict.fromkeys([*line.first.test, *measured])  # the test's are in the labels' order
        labels |= metrics_table.of_label(names)
    parts = []
    for of_label in labels:
        made = []
        for name in (f"{of_label}/{own}".lstrip("/") for own in VALIDATION):
            series = _series(lines, paints, f"validation/{name}")
            if any(len(s.points) > 1 for s in series):
                made.append(report_charts.lines(label(name), series))
        if made:
            parts.append(f'{_heading(of_label, labels)}<div class="grid">{"".join(made)}</div>')
    if parts:
        return legend(every) + "".join(parts)
    if any(name.startswith("validation/") for line in lines for name in line.first.history):
        fix = "Set trainer.validate_every_n_steps=N, or train more epochs, to get one."
        return note(f"No curve: there was only one validation. {fix}")
    why = "there are no validation rows, or the model was fitted at once"
    return note(f"No run has validations in its history: {why}.")


def _rates(lines: Sequence[Line], paints: dict[int, Paint]) -> str:
    parts = []
    for of_label, heading in _headings(lines):

        def series(name: str, of_label: str = of_label) -> list[Series]:
            return [Series(paints[id(x)], [(p[0], p[1]) for p in x.first.curve(of_label, name)]) for x in lines]

        if any(s.points for s in series("roc")):
            roc = report_charts.rates("ROC: true positive rate", series("roc"), "false positive rate", True)
            pr = report_charts.rates("precision", series("pr"), "recall", False)
            parts.append(f'{heading}<div class="grid">{roc}{pr}</div>')
    if not parts:
        return note("No run has curves.json.")
    return legend([paints[id(x)] for x in lines]) + "".join(parts)


def _headings(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return each label of the lines with its heading."""
    labels = dict.fromkeys(x for line in lines for x in metrics_table.of_label(line.first.test))
    return [(x, _heading(x, labels)) for x in labels]


def _heading(of_label: str, labels: Collection[str]) -> str:
    """Return the heading of a label if there are several; the label of a run that has only one has no name."""
    return f"<h3>{html(of_label, 60) or 'runs with one label'}</h3>" if len(labels) > 1 else ""


def _calibration(lines: Sequence[Line], paints: dict[int, Paint]) -> str:
    parts = []
    for of_label, heading in _headings(lines):
        made = []
        for line in lines:
            bins = [(float(p), float(y), int(n)) for p, y, n in line.first.curve(of_label, "calibration")]
            if not bins or paints[id(line)].faded:
                continue
            own = metrics_table.of_label(line.first.test)[of_label]
            caption = [f"ECE {v:.4f}" for v in [own.get("ece")] if v is not None]
            caption += [f"predicted / observed {v:.3f}" for v in [own.get("calibration")] if v is not None]
            least, most = min(n for *_, n in bins), max(n for *_, n in bins)
            rows = f"{f'{least:,} to ' if least < most else ''}{most:,} rows"
            weighted = line.first.weight is not None
            caption.append(f"{len(bins)} bins of {'equal weight' if weighted else rows}")
            bounds = [None if weighted else wilson(y * n, n) for _, y, n in bins]
            made.append((paints[id(line)], ", ".join(caption), bins, bounds))
        if made:
            tops = [max(p, y, *(between or ())) for _, _, *b in made for (p, y, _), between in zip(*b, strict=True)]
            drawn = "".join(report_charts.reliability(*one, max(tops)) for one in made)
            parts.append(f'{heading}<div class="small">{drawn}</div>')
    return "".join(parts) or note("No run has curves.json.")
