"""Progress and outcome of a run, read from its folder while another process may write there."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from recsys.base.json_log import messages

OUTPUT = "output.log"  # output of all processes of the run, including what they print before train.log exists


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the complete rows of metrics.csv; an empty list if it does not exist yet."""
    try:
        text = (folder / "metrics.csv").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = text.splitlines(keepends=True)
    header = next(csv.reader(lines[:1]), [])
    whole = (next(csv.reader([line])) for line in lines[1:] if line.endswith("\n"))
    return [dict(zip(header, r, strict=True)) for r in whole if len(r) == len(header)]


def validations(folder: Path, metric: str) -> Iterator[float]:
    """Return the metric at each validation of training, in order, without the validation after the test."""
    for row in rows(folder):
        if any(value for name, value in row.items() if name.startswith("test/")):
            return
        if row.get(metric):
            yield float(row[metric])


def progress(folder: Path, metric: str) -> str:
    """Return 'epoch 1, step 300, validation/auc 0.71234', or the known part of it."""
    logged = rows(folder)
    if not logged:
        return ""
    last = logged[-1]
    parts = [f"{name} {last[name]}" for name in ("epoch", "step") if last.get(name)]
    values = [float(r[metric]) for r in logged if r.get(metric)]
    return ", ".join(parts + [f"{metric} {v:.5f}" for v in values[-1:]])


def outcome(folder: Path) -> dict[str, float] | None:
    """Return a finished run's validation and test metrics; None if it has not finished."""
    try:
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    splits = {s: metrics.get(s) or {} for s in ("validation", "test")}
    return {f"{s}/{k}": v for s, m in splits.items() for k, v in m.items() if isinstance(v, int | float)}


def last_error(folder: Path) -> str:
    """Return the last error in train.log, else the last line of the run's output."""
    log: list[str] = []
    for name in ("train.log", OUTPUT):
        if (folder / name).exists():
            log = [line.strip() for line in messages((folder / name).read_text(errors="replace"))]
        if errors := [line.partition("error: ")[2] for line in log if "error: " in line]:
            return errors[-1]
    return log[-1] if log else ""
