"""What a run's folder tells of it. Another process writes there at the same time."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

OUTPUT = "output.log"  # beside train.log: all that the run's processes say, also before the run has a log


def rows(folder: Path) -> list[dict[str, str]]:
    """Complete rows of metrics.csv; none where it is not there yet."""
    try:
        text = (folder / "metrics.csv").read_text()
    except FileNotFoundError:
        return []
    lines = text.splitlines(keepends=True)
    header = next(csv.reader(lines[:1]), [])
    whole = (next(csv.reader([line])) for line in lines[1:] if line.endswith("\n"))
    return [dict(zip(header, r, strict=True)) for r in whole if len(r) == len(header)]


def validations(folder: Path, metric: str) -> Iterator[float]:
    """The metric at each validation of training, in order, without the one that follows the test."""
    for row in rows(folder):
        if any(value for name, value in row.items() if name.startswith("test/")):
            return
        if row.get(metric):
            yield float(row[metric])


def progress(folder: Path, metric: str) -> str:
    """'epoch 1, step 300, validation/auc 0.71234', as far as it is known."""
    found = rows(folder)
    if not found:
        return ""
    last = found[-1]
    told = [f"{name} {last[name]}" for name in ("epoch", "step") if last.get(name)]
    values = [float(r[metric]) for r in found if r.get(metric)]
    return ", ".join(told + [f"{metric} {v:.5f}" for v in values[-1:]])


def outcome(folder: Path) -> dict[str, float] | None:
    """A finished run's metrics of validation and test, one number each; None where it has not finished."""
    try:
        found = json.loads((folder / "metrics.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    splits = {s: found.get(s) or {} for s in ("validation", "test")}
    return {f"{s}/{k}": v for s, m in splits.items() for k, v in m.items() if isinstance(v, int | float)}


def last_error(folder: Path) -> str:
    """The last line of train.log that tells an error, else the last line of all that the run said."""
    said: list[str] = []
    for name in ("train.log", OUTPUT):
        if (folder / name).exists():
            said = [line.strip() for line in (folder / name).read_text(errors="replace").splitlines() if line.strip()]
        if errors := [line.partition("error: ")[2] for line in said if "error: " in line]:
            return errors[-1]
    return said[-1] if said else ""
