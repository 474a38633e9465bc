"""Table of all metrics: name, label, direction, meaning and use.

A metric is one entry here and one function in `binary.py` or `retrieval.py`. Checkpoints, sweeps, reports, dashboards
and terminal output use only metrics of this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A metric of one split.

    name: name in metrics.json, without `@k` and protocol
    label: name in tables and charts
    better: which direction is better; None if neither is, so that the metric cannot select checkpoints or rank trials
    meaning: one-line description
    kind: kind of model that it measures
    at_k: whether it is computed for lists of length k, as name@k
    interval: whether recsys.report computes a confidence interval for it
    curve: whether recsys.report plots it over the validations
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None
    meaning: str
    kind: Literal["ranking", "retrieval"]
    at_k: bool = False
    interval: bool = True
    curve: bool = True


METRICS = {
    m.name: m
    for m in (
        Metric("auc", "AUC", "higher", "area under the ROC curve", "ranking"),
        Metric("pr_auc", "PR-AUC", "higher", "average precision", "ranking", curve=False),
        Metric("logloss", "logloss", "lower", "mean of −ln P(label)", "ranking"),
        Metric("ne", "NE", "lower", "normalised entropy: logloss over that of the mean label", "ranking", curve=False),
        Metric("calibration", "calibration", None, "predicted over observed positives; 1 is calibrated", "ranking"),
        Metric("ece", "ECE", "lower", "expected calibration error", "ranking", interval=False),
        Metric("gauc", "GAUC", "higher", "AUC within groups, weighted by their rows", "ranking", interval=False),
        Metric("mrr", "MRR", "higher", "mean reciprocal rank of a query's best target", "retrieval"),
        Metric("hr", "HR", "higher", "share of queries with a target among the best k", "retrieval", at_k=True),
        Metric("ndcg", "NDCG", "higher", "discounted gain divided by the largest possible", "retrieval", at_k=True),
        Metric("recall", "recall", "higher", "share of a query's targets among the best k", "retrieval", at_k=True),
    )
}  # fmt: skip
RANKING = tuple(m.name for m in METRICS.values() if m.kind == "ranking" and m.name != "gauc")  # always measured
COUNTS = ("rows", "gauc_rows", "cold_rows", "targets", "cold_targets", "candidates")  # reported next to the metrics
MAIN_RANKING = "auc"
MAIN_K = 10


def metric(name: str) -> Metric | None:
    """Return the entry of a metric name such as `validation/ndcg@10_uniform`; None if it is not in the table."""
    bare = name.rpartition("/")[2]
    if bare in METRICS:
        return METRICS[bare]
    stem = bare.partition("@")[0]
    return METRICS.get(stem if "@" in bare else bare.partition("_")[0])


def label(name: str) -> str:
    """Return the label of a metric name: ndcg@10_uniform -> NDCG@10_uniform."""
    entry = metric(name)
    if entry is None:
        return name
    return entry.label + name.rpartition("/")[2].removeprefix(entry.name)


def lower_is_better(name: str) -> bool:
    """Return whether a smaller value of this metric is better."""
    entry = metric(name)
    return entry is not None and entry.better == "lower"


def mode_of(name: str) -> Literal["min", "max"]:
    """Return the `mode` that Lightning and PyTorch take for this metric."""
    return "min" if lower_is_better(name) else "max"


def is_better(name: str, difference: float) -> bool | None:
    """Return whether this difference is an improvement; None if it is 0, or if neither direction is better."""
    entry = metric(name)
    if difference == 0 or (entry is not None and entry.better is None):
        return None
    return (difference < 0) == lower_is_better(name)


def under(name: str, protocol: str) -> str:
    """Return a metric's name for a protocol: unchanged for `full`, otherwise with the suffix _PROTOCOL."""
    return name if protocol == "full" else f"{name}_{protocol}"


def retrieval_names(ks: tuple[int, ...], protocols: tuple[str, ...]) -> list[str]:
    """Return the names of all retrieval metrics, for each protocol."""
    stems = [m for m in METRICS.values() if m.kind == "retrieval"]
    names = [f"{m.name}@{k}" if m.at_k else m.name for m in stems for k in (ks if m.at_k else (0,))]
    return [under(n, p) for p in protocols for n in names]


def main_retrieval(ks: tuple[int, ...], protocols: tuple[str, ...]) -> str:
    """Return the default main metric: NDCG@10, or NDCG at the first k if 10 is not measured.

    It is the metric of full ranking if that is measured, otherwise of the first protocol.
    """
    k = MAIN_K if MAIN_K in ks else ks[0]
    return under(f"ndcg@{k}", "full" if "full" in protocols else protocols[0])


def main_metric(measured: Mapping[str, object]) -> str:
    """Return the main metric of a run whose metrics.json has these names."""
    if MAIN_RANKING in measured:
        return MAIN_RANKING
    ranked = [name for name in measured if name.startswith("ndcg@")]
    return f"ndcg@{MAIN_K}" if f"ndcg@{MAIN_K}" in ranked else next(iter(ranked), "mrr")
