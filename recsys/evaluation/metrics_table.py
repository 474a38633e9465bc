"""Every metric: its name, how people write it, which way is better, what it means, what it can be used for.

A metric is one entry here and one function in `binary.py` or `retrieval.py`. Checkpoints, sweeps,
reports, dashboards and terminals read this table, and name no metric that is not in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A metric of one split.

    name: as metrics.json has it, without `@k` and protocol
    label: as people write it
    better: which way is better; None where neither is, so that it can lead neither a checkpoint nor a sweep
    meaning: one line
    of: the kind of task that it measures
    at_k: whether it is measured for lists of length k, as name@k
    interval: whether recsys.report resamples it; others are shown without an interval
    curve: whether recsys.report draws it over the validations
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None
    meaning: str
    of: Literal["ranking", "retrieval"]
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
        Metric("hr", "HR", "higher", "queries with a target among the best k", "retrieval", at_k=True),
        Metric("ndcg", "NDCG", "higher", "discounted gain over the largest possible", "retrieval", at_k=True),
        Metric("recall", "recall", "higher", "share of a query's targets among the best k", "retrieval", at_k=True),
    )
}  # fmt: skip
RANKING = tuple(m.name for m in METRICS.values() if m.of == "ranking" and m.name != "gauc")  # always measured
COUNTS = ("rows", "gauc_rows", "cold_rows", "targets", "cold_targets", "candidates")  # whole numbers beside metrics
MAIN_RANKING = "auc"
MAIN_K = 10


def metric(name: str) -> Metric | None:
    """Return the entry of `validation/ndcg@10_uniform` and the like; None where the table has none."""
    bare = name.rpartition("/")[2]
    if bare in METRICS:
        return METRICS[bare]
    stem = bare.partition("@")[0]
    return METRICS.get(stem if "@" in bare else bare.partition("_")[0])


def label(name: str) -> str:
    """Return a metric as people write it: ndcg@10_uniform -> NDCG@10_uniform."""
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
    """Return whether this difference is an improvement; None where neither way is better, or there is none."""
    entry = metric(name)
    if difference == 0 or (entry is not None and entry.better is None):
        return None
    return (difference < 0) == lower_is_better(name)


def under(name: str, protocol: str) -> str:
    """Return a metric's name under a protocol: those of `full` are bare, others end in _PROTOCOL."""
    return name if protocol == "full" else f"{name}_{protocol}"


def retrieval_names(ks: tuple[int, ...], protocols: tuple[str, ...]) -> list[str]:
    """Return the names of all retrieval metrics, under each protocol."""
    stems = [m for m in METRICS.values() if m.of == "retrieval"]
    names = [f"{m.name}@{k}" if m.at_k else m.name for m in stems for k in (ks if m.at_k else (0,))]
    return [under(n, p) for p in protocols for n in names]


def main_retrieval(ks: tuple[int, ...], protocols: tuple[str, ...]) -> str:
    """Return the metric that leads by default: NDCG@10, or of the first k, of full ranking or the first protocol."""
    k = MAIN_K if MAIN_K in ks else ks[0]
    return under(f"ndcg@{k}", "full" if "full" in protocols else protocols[0])


def main_metric(measured: Mapping[str, object]) -> str:
    """Return the metric that leads a run whose metrics.json has these names."""
    if MAIN_RANKING in measured:
        return MAIN_RANKING
    ranked = [name for name in measured if name.startswith("ndcg@")]
    return f"ndcg@{MAIN_K}" if f"ndcg@{MAIN_K}" in ranked else next(iter(ranked), "mrr")
