"""What is measured of a run, by name, and how its metrics are named, compared and shown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from recsys.evaluation.metrics import (
    BINARY,
    CLASSES,
    LIST_METRICS,
    NUMBERS,
    TARGET_METRICS,
    WITHIN_GROUPS,
    Metric,
    RetrievalMetric,
    RowMetric,
    ScoresMetric,
)

METRICS = {m.name: m for m in (*CLASSES, *BINARY, *NUMBERS, *WITHIN_GROUPS, *TARGET_METRICS, *LIST_METRICS)}
LISTS = tuple(m.name for m in LIST_METRICS)
BY_GROUP = ("gndcg", "gmrr")  # measured if data.group.together is set
# reported next to the metrics
COUNTS = ("rows", "gauc_rows", "groups", "cold_rows", "targets", "cold_targets", "repeat_targets", "candidates")
TARGETS = "targets"  # among the slices of retrieval models: the metrics of cold and of warm targets
MAIN_K = 10


@dataclass(frozen=True)
class LabelMetrics:
    """The metrics of labels of one kind.

    metrics: measured in all cases, the main one first
    more: measured if no label is negative
    by_group: whether BY_GROUP is measured
    gauc: whether AUC within groups is measured
    are_grades: whether the order within groups is the main metric wherever batches keep groups together
    """

    metrics: tuple[ScoresMetric | RowMetric, ...]
    more: tuple[str, ...] = ()
    by_group: bool = True
    gauc: bool = False
    are_grades: bool = False

    @property
    def always(self) -> tuple[str, ...]:
        """The names of the metrics that are measured in all cases."""
        return tuple(m.name for m in self.metrics)


LABEL_METRICS = {
    "binary": LabelMetrics(BINARY, gauc=True),
    "regression": LabelMetrics(NUMBERS, more=("calibration",), are_grades=True),
    "classes": LabelMetrics(CLASSES, by_group=False),
}
MAIN = {of.always[0] for of in LABEL_METRICS.values()}  # the main metric of each kind of label
MAIN_RANKING = LABEL_METRICS["binary"].always[0]


def metric(name: str) -> Metric | None:
    """Return the entry of a metric name such as `validation/ndcg@10_uniform`; None if it is not in the table."""
    bare = name.rpartition("/")[2]
    if bare in METRICS:
        return METRICS[bare]
    if "@" in bare:
        return METRICS.get(bare.partition("@")[0])
    whole = next((m for m in TARGET_METRICS if m.whole and bare.startswith(f"{m.name}_")), None)  # mrr_uniform
    return whole or METRICS.get(bare.partition("_")[0])


def label(name: str) -> str:
    """Return the label of a metric name: ndcg@10_uniform -> NDCG@10_uniform, click/auc -> click AUC."""
    entry = metric(name)
    if entry is None:
        return name
    of_label, _, own = name.removeprefix("test/").removeprefix("validation/").rpartition("/")
    return f"{of_label} {entry.label}".lstrip() + own.removeprefix(entry.name)


def lower_is_better(name: str) -> bool:
    """Return whether a smaller value of this metric is better.

    >>> lower_is_better("test/logloss"), lower_is_better("test/auc")
    (True, False)
    """
    entry = metric(name)
    return entry is not None and entry.better == "lower"


def mode_of(name: str) -> Literal["min", "max"]:
    """Return the `mode` that Lightning and PyTorch take for this metric."""
    return "min" if lower_is_better(name) else "max"


def monitored(metrics: Mapping[str, Any], name: str) -> tuple[str, float]:
    """Return the metric that compares validations, and its value: `name`, or the log loss where that is not defined.

    The value is better in the same direction as that of `name`: where more is better, it is the likelihood of a row,
    exp(-log loss), which is positive, so that schedules with relative thresholds take it.

    >>> monitored({"validation/auc": float("nan"), "validation/logloss": 0.0}, "validation/auc")
    ('validation/logloss', 1.0)
    """
    value, other = float(metrics[name]), f"{name.rpartition('/')[0]}/logloss"
    if not math.isnan(value) or other not in metrics:
        return name, value
    loss = float(metrics[other])
    return other, loss if lower_is_better(name) else math.exp(-loss)


def is_better(name: str, difference: float) -> bool | None:
    """Return whether this difference is an improvement; None if it is 0, or if neither direction is better.

    >>> is_better("auc", 0.01), is_better("ne", 0.01)
    (True, False)
    """
    entry = metric(name)
    if difference == 0 or (entry is not None and entry.better is None):
        return None
    return (difference < 0) == lower_is_better(name)


def under(name: str, protocol: str) -> str:
    """Return a metric's name for a protocol: unchanged for `full`, otherwise with the suffix _PROTOCOL."""
    return name if protocol == "full" else f"{name}_{protocol}"


def label_names(kinds: Mapping[str, str], *, gauc: bool, group_ks: Sequence[int] = ()) -> list[str]:
    """Return the names of all metrics of labels of these kinds, with the label's name in front if there are several.

    gauc: whether a feature's values group the rows for GAUC of the first binary label
    group_ks: values of k of metrics within data.group; empty if the data has none

    >>> label_names({"click": "binary"}, gauc=False)[:3]
    ['auc', 'pr_auc', 'logloss']
    """
    names = []
    first = next((label for label, kind in kinds.items() if LABEL_METRICS[kind].gauc), None)
    for label, kind in kinds.items():
        of = LABEL_METRICS[kind]
        with_gauc = of.gauc and (group_ks or (gauc and label == first))
        by_group = (f"{name}@{k}" for name in BY_GROUP for k in group_ks if of.by_group)
        label_metrics = [*of.always, *(["gauc"] if with_gauc else []), *of.more, *by_group]
        names += label_metrics if len(kinds) == 1 else [f"{label}/{name}" for name in label_metrics]
    return names


def main_label(kinds: Mapping[str, str], group_ks: Sequence[int] = (), *, within_groups: bool = False) -> str:
    """Return the default main metric of rows with labels of these kinds, by name: that of the first label.

    group_ks: values of k of metrics within data.group, by which grades are measured; empty if the data has none
    within_groups: whether the loss compares the rows of a group
    """
    label, kind = next(iter(kinds.items()))
    of = LABEL_METRICS[kind]
    main = of.always[0]
    if group_ks and of.by_group and (of.are_grades or within_groups):
        main = f"gndcg@{main_k(tuple(group_ks))}"
    return main if len(kinds) == 1 else f"{label}/{main}"


def retrieval_names(ks: tuple[int, ...], protocols: tuple[str, ...], lists: tuple[str, ...] = ()) -> list[str]:
    """Return the names of all retrieval metrics, for each protocol. lists: measured metrics of lists."""
    names = [n for m in TARGET_METRICS for n in [m.name] * m.whole + [f"{m.name}@{k}" for k in ks]]
    of_lists = list_metric_names(lists, ks) if "full" in protocols else []
    return [under(n, p) for p in protocols for n in names] + of_lists


def list_metric_names(lists: Iterable[str], ks: Iterable[int]) -> list[str]:
    """Return the names of these metrics of lists for every k for which they are defined."""
    return [f"{name}@{k}" for name in lists for k in ks if k >= METRICS[name].least_k]


def by_protocol(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return retrieval metrics by protocol: ndcg@10_uniform becomes the metric ndcg@10 of the protocol uniform.

    Counts are omitted.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        entry = metric(name)
        if isinstance(entry, RetrievalMetric):
            k, _, protocol = name.removeprefix(entry.name).partition("_")
            found.setdefault(protocol or "full", {})[entry.name + k] = value
    return found


def shown_tables(names: Iterable[str], several_targets: bool) -> dict[str, list[str]]:
    """Return the retrieval metrics (without protocols) that tables show, by title; metrics.json has all of them.

    several_targets: whether any query has more than one target
    """
    entries = {name: entry for name in names if isinstance(entry := metric(name), RetrievalMetric)}
    entries = {name: entry for name, entry in entries.items() if several_targets or not entry.repeats}
    ks = tuple(dict.fromkeys(int(name.partition("@")[2]) for name in entries if "@" in name))
    first = [name for name, entry in entries.items() if entry.every_k or "@" not in name]
    others = [name for name in entries if ks and name not in first and name.endswith(f"@{main_k(ks)}")]
    return {"metrics": first} | ({f"metrics of the best {main_k(ks)}": others} if others else {})


def main_k(ks: tuple[int, ...]) -> int:
    """Return the k of the main metric: 10, or the first one if 10 is not measured."""
    return MAIN_K if MAIN_K in ks else ks[0]


def main_retrieval(ks: tuple[int, ...], protocols: tuple[str, ...]) -> str:
    """Return the default main metric: NDCG@10, or NDCG at the first k if 10 is not measured.

    It is the metric of full ranking if that is measured, otherwise of the first protocol.
    """
    return under(f"ndcg@{main_k(ks)}", "full" if "full" in protocols else protocols[0])


def is_retrieval(measured: Mapping[str, object]) -> bool:
    """Return whether metrics of these names rank items, instead of predicting labels."""
    return any(isinstance(metric(name), RetrievalMetric) for name in measured)


def of_label(measured: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metrics of each label under their own names: click/auc becomes the metric auc of the label click.

    If there is one label, or none, its name is the empty string.
    """
    labels: dict[str, dict[str, Any]] = {}
    for name, value in measured.items():
        label, _, own = name.rpartition("/")
        labels.setdefault(label, {})[own] = value
    return {label: own for label, own in labels.items() if label or len(labels) == 1}


def main_metrics(measured: Mapping[str, Any]) -> list[str]:
    """Return the main metric of each label of a run, the first label's first."""
    return [f"{label}/{main_metric(own)}".lstrip("/") for label, own in of_label(measured).items()]


def main_metric(measured: Mapping[str, object]) -> str:
    """Return the main metric of a run whose metrics.json has these names."""
    if MAIN_RANKING in measured:
        return MAIN_RANKING
    if of_groups := [name for name in measured if name.startswith("gndcg@")]:
        return f"gndcg@{MAIN_K}" if f"gndcg@{MAIN_K}" in of_groups else of_groups[0]
    labels = [name for name in measured if "@" not in name and name.rpartition("/")[2] in MAIN]
    if labels:
        return labels[0]
    ranked = [name for name in measured if name.startswith("ndcg@")]
    return f"ndcg@{MAIN_K}" if f"ndcg@{MAIN_K}" in ranked else next(iter(ranked), "mrr")
