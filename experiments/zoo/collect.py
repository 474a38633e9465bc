"""python experiments/zoo/collect.py SWEEP ...: add the runs of `recsys.train -m model=zoo` to results.csv.

The seeds of a model may be trials of one sweep or of several. Test metrics are compared with those of the best model of
the same data, by the paired bootstrap of recsys.report. Data sets that are collected again replace their lines.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from recsys.evaluation import metrics_table
from recsys.report.comparison import compare
from recsys.report.runs import ReportedRun, read

FILE = Path(__file__).parent / "results.csv"
RESAMPLES = 1000


def lines_of(data: str, runs: dict[str, list[ReportedRun]]) -> list[dict[str, object]]:
    """Return a line for each model on a data set, the best first. runs: by model"""
    main = metrics_table.main_metric(next(iter(runs.values()))[0].test)
    best_first = sorted(runs, key=lambda m: -fmean(run.test[main] for run in runs[m]))
    [group] = compare([run for m in best_first for run in runs[m]], RESAMPLES, seed=0)
    result = []
    for model, line in zip(best_first, group.lines, strict=True):
        measure = line.measures[main]
        train = [run.metrics["train"] for run in runs[model] if run.metrics]
        versus = measure.difference
        result.append(
            {
                "data": data,
                "model": model,
                "seeds": len(runs[model]),
                "metric": main,
                "test": f"{measure.value:.6f}",
                "deviation": "" if measure.deviation is None else f"{measure.deviation:.6f}",
                "difference": "" if versus is None else f"{versus.value:.6f}",
                "low": "" if versus is None else f"{versus.low:.6f}",
                "high": "" if versus is None else f"{versus.high:.6f}",
                "cpu_seconds": f"{fmean(t.get('cpu_seconds', t['seconds']) for t in train):.1f}",
                "rows": f"{fmean(t.get('samples') or 0 for t in train):.0f}",
                "epochs": f"{fmean(t.get('epochs') or 0 for t in train):.1f}",
            }
        )
    return result


def main(folders: list[str]) -> None:
    """Collect sweeps."""
    runs: dict[str, dict[str, list[ReportedRun]]] = defaultdict(lambda: defaultdict(list))
    for sweep in read(folders).sweeps:
        for trial in sweep.trials:
            for run in trial.runs:
                if run.metrics is not None:
                    runs[run.metrics["protocol"]["data"]][str(trial.values["model"])].append(run)
    known = list(csv.DictReader(FILE.open(newline=""))) if FILE.is_file() else []
    lines: list[dict[str, object]] = [dict(line) for line in known if line["data"] not in runs]
    for data, of in runs.items():
        lines += lines_of(data, of)
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
