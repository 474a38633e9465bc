"""Calibrate probabilities and numbers on validation rows, so that they are right on average.

A run stores the result in RUN/calibration.json: {label: {"platt": [a, b]}} or {label: {"isotonic": [[...], [...]]}},
with the step of the checkpoint whose predictions it is fitted to.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from recsys.base.console import say, say_once
from recsys.evaluation.collected_rows import Rows
from recsys.files.atomic import write_json
from recsys.files.manifest import read_json
from recsys.files.run_files import CALIBRATION, best_checkpoint
from recsys.interface.labels import CALIBRATIONS, SMALLEST, Label, NumberLabel, ScalarLabel

STEPS = 100  # of Newton's method, which needs fewer than ten
STEP = "step"  # a key of calibration.json
MAX_POINTS = 1 << 16  # different probabilities that isotonic regression looks at


def calibrate(label: ScalarLabel, rows: Rows, method: str) -> ScalarLabel:
    """Return the label with a calibration that is fitted to its rows; unchanged if all rows have the same label.

    platt: logistic regression on the logit: Platt, Probabilistic Outputs for Support Vector Machines, 1999, with its
        smoothed targets
    isotonic: the best non-decreasing function, by the pool-adjacent-violators algorithm: Zadrozny & Elkan, Transforming
        Classifier Scores into Accurate Multiclass Probability Estimates, 2002

    Numbers are calibrated by the straight line (platt) or the non-decreasing function (isotonic) with the least squared
    error.
    """
    if len(kinds := np.unique(rows.label)) < 2:
        why = f"all validation rows have the label {kinds[0]:g}" if len(kinds) else "no validation row has a label"
        say(f"calibration={method}: {label.name} is not calibrated, because {why}")
        return label
    numbers = isinstance(label, NumberLabel)
    x, y = rows.probability.astype(np.float64), rows.label.astype(np.float64)
    x = x if numbers else np.clip(x, SMALLEST, 1 - SMALLEST)
    weight = rows.weights / rows.weights.mean()  # Platt's targets count rows, and the unit of weights is arbitrary
    if method == "isotonic":
        at, values = _isotonic(x, y, weight)
        values = values if numbers else np.clip(values, SMALLEST, 1 - SMALLEST)
        return replace(label, isotonic=(tuple(at.tolist()), tuple(values.tolist())))
    if not numbers:
        return replace(label, platt=_platt(np.log(x / (1 - x)), y, weight))
    root = np.sqrt(weight)
    features = np.stack([x, np.ones_like(x)], 1)
    a, b = np.linalg.lstsq(features * root[:, None], y * root, rcond=None)[0].tolist()
    return replace(label, platt=(a, b))


def _platt(logit: np.ndarray, label: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Return a and b of sigmoid(a x logit + b), by Newton's method.

    Steps are halved while they do not lower the loss: Lin, Lin & Weng, A Note on Platt's Probabilistic Outputs for
    Support Vector Machines, 2007.
    """
    positives, negatives = weight[label > 0].sum(), weight[label <= 0].sum()
    target = np.where(label > 0, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    features, x = np.stack([logit, np.ones_like(logit)], 1), np.array([1.0, 0.0])

    def loss(x: np.ndarray) -> float:
        z = features @ x
        return float((weight * (np.logaddexp(0, z) - target * z)).sum())

    for _ in range(STEPS):
        p = np.exp(-np.logaddexp(0, -features @ x))
        gradient = features.T @ (weight * (p - target))
        curvature = (features * (weight * p * (1 - p))[:, None]).T @ features + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        while loss(x - step) > loss(x) and np.abs(step).max() >= 1e-10:
            step = step / 2
        x = x - step
        if np.abs(step).max() < 1e-10:
            break
    return float(x[0]), float(x[1])


def _isotonic(p: np.ndarray, label: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of the non-decreasing step function with the least squared error: two for each step."""
    order = np.argsort(p, kind="stable")
    x, first = np.unique(p[order], return_index=True)
    if len(x) > MAX_POINTS:
        chosen = np.linspace(0, len(x), MAX_POINTS, endpoint=False).astype(np.int64)
        x, first = x[chosen], first[chosen]
    w = np.add.reduceat(weight[order], first)
    y = np.add.reduceat((weight * label)[order], first) / w
    starts: list[int] = []
    means: list[float] = []
    sizes: list[float] = []
    for i in range(len(x)):
        starts.append(i)
        means.append(float(y[i]))
        sizes.append(float(w[i]))
        while len(means) > 1 and means[-2] >= means[-1]:
            total = sizes[-2] + sizes[-1]
            means[-2:] = [(means[-2] * sizes[-2] + means[-1] * sizes[-1]) / total]
            sizes[-2:] = [total]
            starts.pop()
    stops = [*(s - 1 for s in starts[1:]), len(x) - 1]
    at = np.stack([x[starts], x[stops]], 1).ravel()
    kept = np.append(True, np.diff(at) > 0)
    return at[kept], np.repeat(means, 2)[kept]


def save(run: Path, labels: tuple[Label, ...], checkpoint: Path | None = None) -> None:
    """Write the labels' calibrations to a run's folder.

    checkpoint: the one to whose predictions they are fitted; None if the run has only one
    """
    calibrated = [x for x in labels if isinstance(x, ScalarLabel)]
    found: dict[str, dict[str, Any]] = {}
    for label in calibrated:
        found[label.name] = {k: v for k in CALIBRATIONS if (v := getattr(label, k)) is not None}
        if checkpoint is not None:
            found[label.name][STEP] = _step(checkpoint)
    write_json(run / CALIBRATION, found)


def load(run: Path, labels: tuple[Label, ...], checkpoint: Path | None = None) -> tuple[Label, ...]:
    """Return the labels with the calibrations in a run's folder, if it has any for predictions of the checkpoint.

    checkpoint: by default, the best one
    """
    if not (run / CALIBRATION).exists():
        return labels
    found, best = read_json(run / CALIBRATION), best_checkpoint(run)
    checkpoint = checkpoint or best
    of_best = "" if best is None else _step(best)  # of runs from before steps were written
    steps = {of.get(STEP, of_best) for of in found.values()}
    if checkpoint is not None and steps and steps != {_step(checkpoint)}:
        say_once(f"{run / CALIBRATION}: its calibrations are of step {steps.pop()}: {checkpoint.name} has none")
        return labels
    of_labels = [{k: _tuples(v) for k, v in found.get(x.name, {}).items() if k in CALIBRATIONS} for x in labels]
    return tuple(replace(x, **values) for x, values in zip(labels, of_labels, strict=True))


def _step(checkpoint: Path) -> str:
    """Return the step in the name of a checkpoint, whose weights are those of others of the step."""
    return checkpoint.name.rpartition("-")[2]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
