"""python docs/make_results.py: write docs/benchmarks/results_*.md.

They follow from experiments/published.yaml and the results of experiments.
"""

import csv
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from recsys.evaluation.resampling import student_bound

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments"
PAGES = {kind: ROOT / "docs" / "benchmarks" / f"results_{kind}.md" for kind in ("retrieval", "ranking")}
INTRODUCTION = """# Published figures of {kind} models, and ours

`python docs/make_results.py` writes this page from `experiments/published.yaml` and the results of each run in
`experiments/`. Each table compares figures of one protocol. *Ours* is the mean over seeds, their number in brackets,
with the 95 % interval of the mean (Student's t over seeds; it does not include the noise of the test rows). Differences
of AUCs are absolute, all others relative to the published figure; a lower logloss is better. Where only the best of
several published runs is known, the figure is in brackets: expect a mean to be lower. `DIR` is the folder of the data.

Names of metrics: with one target for each query, what papers call R@k, recall@k or hit@k is `hr@k` in metrics.json.
What papers on sessions call P@20 is `hr@20`, too; `precision@20` is that divided by 20.
"""


def interval(values: Sequence[float]) -> float | None:
    """Return half the width of the interval of the mean, or None for a single value."""
    if len(values) < 2:
        return None
    return student_bound(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5


def found(table: Mapping[str, Any], row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the lines of the results that belong to a row of a table."""
    with (EXPERIMENTS / table["results"]).open(newline="") as file:
        lines = list(csv.DictReader(file))
    chosen = [line for line in lines if all(line[k] == str(v) for k, v in row["where"].items())]
    if not chosen and not row.get("not_run"):
        raise SystemExit(
            f"experiments/published.yaml: {table['title']}, {row['model']}: no such lines in {table['results']}"
        )
    return chosen


def cells(table: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the published figure, ours and the difference for each metric."""
    lines = found(table, row)
    for metric, column in table["metrics"].items():
        value, best = row.get("published", {}).get(metric), row.get("best", {}).get(metric)
        published = f"{value:.4f}" if value is not None else f"({best:.4f})" if best is not None else ""
        if not lines:
            yield published, "not run", ""
            continue
        ours = [float(line[column]) for line in lines]
        mean, half = statistics.mean(ours), interval(ours)
        shown = f"{mean:.4f}" + ("" if half is None else f" ± {half:.4f}") + f" ({len(ours)})"
        against = value if value is not None else best
        is_auc = "AUC" in metric
        apart = "" if against is None else f"{mean - against:+.4f}" if is_auc else f"{mean / against - 1:+.1%}"
        yield published, shown, apart


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
        figures = [c for of_metric in cells(table, row) for c in of_metric]
        lines.append(f"| {row['model']} | {' | '.join(figures)} | {row.get('note', '')} |")
    commands = dict.fromkeys(row["command"] for row in table["rows"])
    lines += ["", *(f"    {command}" for command in commands)]
    folder = table["results"].split("/")[0]
    return "\n".join([*lines, "", f"More in [experiments/{folder}](../../experiments/{folder}/README.md)."])


def page(kind: str) -> str:
    """Return the page of ranking models, whose tables have an AUC, or of retrieval models."""
    tables = yaml.safe_load((EXPERIMENTS / "published.yaml").read_text())
    chosen = [t for t in tables if ("ranking" if any("AUC" in m for m in t["metrics"]) else "retrieval") == kind]
    return "\n\n".join([INTRODUCTION.format(kind=kind).rstrip(), *map(section, chosen)]) + "\n"


if __name__ == "__main__":
    for kind, file in PAGES.items():
        file.write_text(page(kind))
