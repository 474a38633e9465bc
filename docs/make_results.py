"""python docs/make_results.py: write docs/benchmarks/results_*.md and zoo.md.

They follow from experiments/published.yaml and the results of experiments.
"""

import csv
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recsys.evaluation.resampling import half_width

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments"
NEAR, NEAR_AUC = 0.01, 0.001  # how much worse a figure may be than the published one
WIDE = 0.1  # of the published figure: a wider interval of ours says nothing
PAGES = {kind: ROOT / "docs" / "benchmarks" / f"results_{kind}.md" for kind in ("ranking", "sequence", "retrieval")}
ZOO = ROOT / "docs" / "benchmarks" / "zoo.md"
INTRODUCTION = """# Published figures of {kind} models, and ours

`python docs/make_results.py` writes this page from `experiments/published.yaml` and the results of each run in
`experiments/`. Each table compares figures of one protocol. *Ours* is the mean over seeds, their number in brackets,
with the 95 % interval of the mean (Student's t over seeds; it does not include the noise of the test rows). Differences
of AUCs are absolute, all others relative to the published figure; a lower logloss is better. The best of several
published runs is in brackets: expect a mean to be lower. `DIR` is the folder of the data.

Names of metrics: with one target for each query, what papers call R@k, recall@k or hit@k is `hr@k` in metrics.json.
What papers on sessions call P@20 is `hr@20`, too; `precision@20` is that divided by 20.
"""


def interval(values: Sequence[float]) -> float | None:
    """Return half the width of the interval of the mean, or None for a single value."""
    if len(values) < 2:
        return None
    return half_width(statistics.stdev(values), len(values))


def found(table: Mapping[str, Any], row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the lines of the results that belong to a row of a table; none if the table has no results."""
    if "results" not in table:
        return []
    with (EXPERIMENTS / table["results"]).open(newline="") as file:
        lines = list(csv.DictReader(file))
    chosen = [line for line in lines if all(line[k] == str(v) for k, v in row["where"].items())]
    if not chosen and not row.get("not_run"):
        raise SystemExit(
            f"experiments/published.yaml: {table['title']}, {row['model']}: no such lines in {table['results']}"
        )
    return chosen


@dataclass
class Figure:
    """A figure of a row: as published, or the best of several published runs, and those of our runs."""

    row: str  # title of the table and the model
    metric: str
    published: float | None
    is_best: bool
    ours: list[float]
    why: str | None  # it is not reached, or was not run

    @property
    def gap(self) -> float | None:
        """Return how far our mean is above the published figure: absolute for AUCs, otherwise relative to it."""
        if self.published is None or not self.ours:
            return None
        mean = statistics.mean(self.ours)
        return mean - self.published if "AUC" in self.metric else mean / self.published - 1

    @property
    def shortfall(self) -> float | None:
        """Return how much worse than published we are; 0 if not, or if our interval has the figure and is narrow."""
        if self.gap is None or self.published is None:
            return None
        half = interval(self.ours)
        if half is not None and abs(statistics.mean(self.ours) - self.published) <= half <= WIDE * self.published:
            return 0.0
        return max(0.0, self.gap if self.metric == "logloss" else -self.gap)

    def cells(self) -> tuple[str, str, str]:
        """Return the published figure, ours and the difference as text."""
        published = "" if self.published is None else f"{self.published:.4f}"
        published = f"({published})" if published and self.is_best else published
        if not self.ours:
            return published, "not run", ""
        mean, half = statistics.mean(self.ours), interval(self.ours)
        shown = f"{mean:.4f}" + ("" if half is None else f" ± {half:.4f}") + f" ({len(self.ours)})"
        apart = "" if self.gap is None else f"{self.gap:+.4f}" if "AUC" in self.metric else f"{self.gap:+.1%}"
        return published, shown, apart


def figures(table: Mapping[str, Any], row: Mapping[str, Any]) -> list[Figure]:
    """Return the figures of a row, one for each metric of its table."""
    lines = found(table, row)
    result = []
    for metric, column in table["metrics"].items():
        value, best = row.get("published", {}).get(metric), row.get("best", {}).get(metric)
        ours = [float(line[column]) for line in lines]
        name = f"{row['model']} ({table['title'].split(',')[0]})"
        result.append(Figure(name, metric, best if value is None else value, value is None, ours, row.get("why")))
    return result


def summary(tables: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of the published figures are reached, and which are not."""
    all_figures = [f for t in tables for row in t["rows"] for f in figures(t, row) if f.published is not None]
    run = [f for f in all_figures if f.ours]
    near = [f for f in run if (f.shortfall or 0) <= (NEAR_AUC if "AUC" in f.metric else NEAR)]
    short: dict[tuple[str, str], list[Figure]] = {}
    for f in all_figures:
        if f not in near:
            if f.why is None:
                raise SystemExit(f"experiments/published.yaml: {f.row}: {f.metric} is not reached: say `why`")
            short.setdefault((f.row, f.why), []).append(f)
    left = len(all_figures) - len(run)
    text = (
        f"**Of {len(all_figures)} published figures, {len(near)} are reached**: ours is better, or at most {NEAR:.0%} "
        f"({NEAR_AUC} of AUC) worse, or has the published figure in its interval. {left or 'None'} were not run. "
        f"{len(run) - len(near) or 'None'} of the others are not reached. Why, row by row:"
    )
    missed = [f"- {row}: {_missed(own)}. {why}." for (row, why), own in short.items()]
    wrapped = [textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in missed]
    return "\n".join([textwrap.fill(text, 120, break_on_hyphens=False), "", *wrapped])


def _missed(own: Sequence[Figure]) -> str:
    """Return how much worse the figures of a row are, and of how many seeds."""
    if not own[0].ours:
        return "not run"
    seeds = "1 run" if len(own[0].ours) == 1 else f"{len(own[0].ours)} seeds"
    return f"{', '.join(f'{f.metric} {f.cells()[2]}' for f in own)} ({seeds})"


def section(table: Mapping[str, Any]) -> str:
    """Return the part of the page about a table."""
    metrics = list(table["metrics"])
    head = [c for m in metrics for c in (f"{m}, published", "ours", "difference")]
    lines = [
        f"## {table['title']}",
        "",
        *textwrap.wrap(f"{table['protocol']} Published: {table['source']}.", 120),
        "",
        f"| model | {' | '.join(head)} | note |",
        f"|---|{'---|' * len(head)}---|",
    ]
    for row in table["rows"]:
        cells = [c for figure in figures(table, row) for c in figure.cells()]
        lines.append(f"| {row['model']} | {' | '.join(cells)} | {row.get('note', '')} |")
    commands = dict.fromkeys(row["command"] for row in table["rows"])
    lines += ["", *(f"    {command}" for command in commands)]
    if "results" in table:
        folder = table["results"].split("/")[0]
        lines += ["", f"More in [experiments/{folder}](../../experiments/{folder}/README.md)."]
    return "\n".join(lines)


def page(kind: str) -> str:
    """Return the page of the models of a kind."""
    chosen = [t for t in yaml.safe_load((EXPERIMENTS / "published.yaml").read_text()) if t["models"] == kind]
    parts = [INTRODUCTION.format(kind=kind).rstrip(), summary(chosen), *map(section, chosen)]
    return "\n\n".join(parts) + "\n"


def zoo_page() -> str:
    """Return the page of all ranking models on several data sets."""
    with (EXPERIMENTS / "zoo" / "results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    tables: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        tables.setdefault(line["data"], []).append(line)
    about = (EXPERIMENTS / "zoo" / "README.md").read_text().rstrip()
    worse_on = {data: [x["model"] for x in of[1:] if float(x["high"]) < 0] for data, of in tables.items()}
    everywhere = [x["model"] for x in lines if all(x["model"] in {y["model"] for y in of} for of in tables.values())]
    sound = [m for m in dict.fromkeys(everywhere) if not any(m in worse for worse in worse_on.values())]
    said = f"Level with the best on each of the {len(tables)} data sets below: {', '.join(sound) or 'none'}."
    parts = [about.replace("](../", "](../../experiments/"), textwrap.fill(said, 120, break_on_hyphens=False)]
    for data, of in tables.items():
        cheapest, worse = min(float(line["cpu_seconds"]) for line in of), worse_on[data]
        level = len(of) - 1 - len(worse)
        said = (
            f"The best mean is that of {of[0]['model']}. Of the {len(of) - 1} others, {level or 'none'} "
            f"{'is' if level <= 1 else 'are'} level with it: the interval of the difference has zero."
        )
        if level:
            said += f" {', '.join(worse) or 'None'} {'is' if len(worse) <= 1 else 'are'} worse."
        rows = [
            f"## {data}",
            "",
            textwrap.fill(said, 120, break_on_hyphens=False),
            "",
            f"| model | test {of[0]['metric']} | difference from the best | CPU time of the training |",
            "|---|---|---|---|",
        ]
        for line in of:
            spread = f" ± {float(line['deviation']):.4f}" if line["deviation"] else ""
            versus = [float(line[k]) for k in ("difference", "low", "high") if line[k]]  # none of the best itself
            apart = "{:+.4f} ({:+.4f} to {:+.4f})".format(*versus) if versus else ""
            seconds = float(line["cpu_seconds"])
            shown = f"{float(line['test']):.4f}{spread}"
            rows.append(f"| {line['model']} | {shown} | {apart} | {seconds / cheapest:.0f} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    for kind, file in PAGES.items():
        file.write_text(page(kind))
    ZOO.write_text(zoo_page())
