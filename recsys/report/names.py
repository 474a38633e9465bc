"""Metrics as people write them, and which way is better."""

NAMES = {"auc": "AUC", "gauc": "GAUC", "pr_auc": "PR-AUC", "ne": "NE", "ece": "ECE"}
LOWER = {"logloss", "ne", "ece"}  # is better


def called(metric: str) -> str:
    """A metric as people write it."""
    name, at, rest = metric.partition("@")
    return NAMES.get(name, name.upper() if at or name == "mrr" else name) + at + rest


def is_better(metric: str, difference: float) -> bool | None:
    """None where neither is."""
    if metric == "calibration" or difference == 0:
        return None
    return (difference < 0) == (metric in LOWER)
