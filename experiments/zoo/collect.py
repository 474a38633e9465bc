"""Write a line for each model of sweeps over model=zoo to results.csv, the best by validation first.

python experiments/zoo/collect.py NAME=outputs/sweeps/TIME ...
"""

import csv
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from recsys.checkpoint import inspect
from recsys.files.run_files import newest_checkpoint
from recsys.report.comparison import compare
from recsys.report.runs import ReportedSweep, read
from recsys.sharding.stored_checkpoint import StoredCheckpoint

OUTPUT = Path(__file__).with_name("results.csv")
RESAMPLES, SEED = 500, 0


def sizes(run: Path) -> dict[str, int]:
    """Return the numbers of a model's dense weights and of its tables; empty for trees."""
    checkpoint = newest_checkpoint(run)
    plan = run / "plan.json"
    if checkpoint is None or not plan.exists():
        return {"dense": 0, "tables": 0}
    tables = json.loads(plan.read_text())["tables"]
    dense = inspect(StoredCheckpoint(checkpoint))["dense"]["bytes"] // 4
    return {"dense": dense, "tables": sum(t["rows"] * t["dim"] for t in tables)}


def rows_of(name: str, sweep: ReportedSweep) -> list[dict[str, Any]]:
    """Return a line for each model; differences are from the one that is best by its validation rows."""
    of_model = {str(t.values["model"]): [run for run in t.runs if run.test] for t in sweep.trials}
    of_model = {model: runs for model, runs in of_model.items() if runs}
    main = compare(next(iter(of_model.values())), 2, SEED)[0].main

    def validation(model: str) -> float:
        return fmean((run.metrics or {})["validation"][main] for run in of_model[model])

    ordered = sorted(of_model, key=validation, reverse=True)
    [group] = compare([run for model in ordered for run in of_model[model]], RESAMPLES, SEED)
    lines = []
    for i, (model, line) in enumerate(zip(ordered, group.lines, strict=True)):
        measure, apart = line.measures[main], line.measures[main].difference
        lines.append(
            {"data": name, "model": model, "seeds": len(line.runs), "validation": round(validation(model), 5)}
            | {"test": round(measure.value, 5), "deviation": round(measure.deviation or 0.0, 5)}
            | {n: "" if apart is None else round(getattr(apart, n), 5) for n in ("value", "low", "high")}
            | {"p": "" if apart is None else round(group.holm[main, i], 4)}
            | {"seconds": round(fmean((run.metrics or {})["train"]["seconds"] for run in line.runs), 1)}
            | sizes(line.first.path)
        )
    return lines


def main() -> None:
    lines = [line for given in sys.argv[1:] for line in rows_of(*_named(given))]
    with OUTPUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _named(given: str) -> tuple[str, ReportedSweep]:
    name, _, folder = given.partition("=")
    return name, read([folder]).sweeps[0]


if __name__ == "__main__":
    main()
