"""Lines about metrics that no finished model should have, and what to try."""

import math
from collections.abc import Iterator
from typing import Any

from recsys.evaluation.metrics_table import of_label

SUSPICIOUS = 0.98  # AUC on real data from which a feature may give the label away
FEWEST = 20  # rows of the rarer class, below which an AUC says little
FEW_STEPS = 200  # of an optimizer, in which no model is trained
OFF = 2.0  # ratio of predictions and labels, or its inverse, that is not calibrated


def too_good(test: dict[str, Any]) -> str | None:
    """Return a line about test metrics that are better than real data usually allow, or None."""
    for label, own in of_label(test).items():
        shown = {"auc": "AUC", "gauc": "GAUC"} if "auc" in own else {"accuracy": "accuracy"}  # of classes
        few = _rarer(own, test.get("rows", 0)) < FEWEST
        for name in shown:
            if own.get(name, 0.0) >= SUSPICIOUS and not few:
                of = f" of {label}" if label else ""
                return f"test {shown[name]}{of} {own[name]:.3f}: check that no feature is known only after the label"
    return None


def too_weak(metrics: dict[str, Any]) -> str | None:
    """Return a line about a model that predicts worse than a constant, or is far from calibrated, and what to try.

    metrics: the metrics of a run; None is returned for models without binary labels
    """
    weakness = next(_weaknesses(metrics["test"]), None)
    if weakness is None:
        return None
    steps, epochs = metrics["train"].get("steps"), metrics["train"].get("epochs")
    if steps is None:  # fitted at once
        return f"{weakness}; check the label and the features"
    if steps < FEW_STEPS:
        return f"{weakness}, after {steps:,} steps only; try trainer=until_best, or a smaller trainer.batch_size"
    if epochs == 1:
        return f"{weakness}, after one epoch; try trainer=until_best"
    return f"{weakness}; try model=gbm, or a larger min_count of the features (pip install 'recsys[gbm]')"


def _weaknesses(test: dict[str, Any]) -> Iterator[str]:
    for label, own in of_label(test).items():
        of, ratio = f" of {label}" if label else "", own.get("calibration")
        if own.get("ne", 0.0) >= 1:
            yield f"test NE{of} {own['ne']:.3f}: the mean of the label predicts better than this model"
        elif ratio is not None and not 1 / OFF <= ratio <= OFF and math.isfinite(ratio):
            yield f"test calibration{of} {ratio:.3g}: predictions sum to {ratio:.3g} times the labels"


def _rarer(own: dict[str, Any], rows: int) -> float:
    """Return the number of rows of the rarer of two classes, by the entropy of the mean label, which NE divides by."""
    ne, logloss = own.get("ne", math.nan), own.get("logloss", math.nan)
    if not (math.isfinite(ne) and math.isfinite(logloss) and ne > 0):
        return math.inf
    low, high = 0.0, 0.5
    for _ in range(50):
        p = (low + high) / 2
        entropy = -p * math.log(p) - (1 - p) * math.log1p(-p)
        low, high = (p, high) if entropy < logloss / ne else (low, p)
    return own.get("rows", rows) * low
