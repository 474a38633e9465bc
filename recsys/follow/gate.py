"""The gate: decide whether a challenger may replace the champion, by one look at the rows of a window.

Both models predict the same rows. The window is resampled (paired bootstrap: both models get the same resamples), whole
clusters at a time if rows have clusters such as users, and each metric's change gets an interval: the change ± z times
the standard deviation of the resamples' changes. Intervals of slices are wider, by Bonferroni over all of them.

    mode: not_worse     a challenger passes unless it is worse than the limit beyond chance: unless the whole interval
                        of a change is beyond the limit
    mode: better        the first metric of `change` must also be better beyond chance: its whole interval on the
                        better side of 0

The level holds for one decision on one window. Look at a window once: a test that is repeated as rows come in finds a
difference where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from recsys.base.errors import did_you_mean
from recsys.base.parsing import StrictSettings
from recsys.evaluation import metrics_table
from recsys.evaluation.metrics import TARGET_METRICS
from recsys.evaluation.resampling import Groups, Means, Measured, Predictions, deviations, normal_bound

ROWS = ("auc", "pr_auc", "logloss", "ne", "calibration", "ece")  # metrics of rows with labels
CALIBRATION_BINS = 20
MIN_CLUSTERS = 30  # with fewer, the spread between clusters is not known
DEFAULT_CHANGE = {"rows": {"auc": -0.001, "ne": 0.002}, "queries": {"ndcg@10": -0.001}}
Floats = np.ndarray


class GateConfig(StrictSettings):
    """Settings of the gate.

    at_least, at_most: limits of the challenger's own metrics, by name
    change: the largest worsening of each metric, with its sign: {auc: -0.001, ne: 0.002}; of calibration, the largest
        growth of its distance from 1. null: auc and ne, or ndcg@10
    slices: the same for each value of a column: {country: {auc: -0.01}}
    mode: not_worse | better; see the module
    confidence: level of the intervals
    resamples, seed: of the bootstrap
    min_rows: fewer rows (or queries) than these do not pass
    min_slice_rows: values with fewer rows are not judged
    max_values: most values of a column that are judged, the most frequent first
    latency_ms, size_mb: limits of the artefact (`check_artefact`); null: none
    """

    at_least: dict[str, float] = Field(default_factory=dict)
    at_most: dict[str, float] = Field(default_factory=dict)
    change: dict[str, float] | None = None
    slices: dict[str, dict[str, float]] = Field(default_factory=dict)
    mode: Literal["not_worse", "better"] = "not_worse"
    confidence: float = Field(0.95, ge=0.5, lt=1)
    resamples: int = Field(500, ge=100, le=100_000)
    seed: int = Field(0, ge=0)
    min_rows: int = Field(1000, ge=1)
    min_slice_rows: int = Field(500, ge=1)
    max_values: int = Field(20, ge=1)
    latency_ms: float | None = Field(None, gt=0)
    size_mb: float | None = Field(None, gt=0)

    @field_validator("at_least", "at_most", "change")
    @classmethod
    def _metrics_exist(cls, limits: dict[str, float] | None) -> dict[str, float] | None:
        for name in limits or ():
            _check_metric(name)
        return limits

    @model_validator(mode="after")
    def _changes_are_worsenings(self) -> GateConfig:
        for where, limits in (("change", self.change or {}), *((f"slices.{c}", s) for c, s in self.slices.items())):
            for name, limit in limits.items():
                _check_metric(name)
                wrong = limit > 0 if _higher(name) else limit < 0
                if wrong or not np.isfinite(limit):
                    side = "0 or below, such as -0.001" if _higher(name) else "0 or above, such as 0.002"
                    raise ValueError(f"{where}.{name}={limit}: is the largest worsening, which must be {side}")
        return self


def _check_metric(name: str) -> None:
    known = TARGET_METRICS
    base, at, k = name.partition("@")
    if name in ROWS or any(m.name == base and (m.whole if not at else k.isdecimal() and int(k) > 0) for m in known):
        return
    names = [*ROWS, *(f"{m.name}@10" for m in known)]
    raise ValueError(f"{name}: is not a metric of the gate{did_you_mean(name, names)}")


def _higher(name: str) -> bool:
    """Return whether more is better. Of calibration, the distance from 1 is judged, of which less is better."""
    about = metrics_table.METRICS[name.partition("@")[0]]
    return about.better == "higher"


@dataclass(frozen=True)
class RowWindow:
    """Rows with binary labels: (R,) each.

    label: 0 or 1
    challenger, champion: predicted probabilities; champion is None if there is none yet
    weight: weights; None: all are 1
    cluster: what rows of a user or a group have in common; None: rows are independent
    slices: values of columns, by the column's name
    """

    label: Floats
    challenger: Floats
    champion: Floats | None = None
    weight: Floats | None = None
    cluster: np.ndarray | None = None
    slices: Mapping[str, np.ndarray] = field(default_factory=dict)
    kind: Literal["rows", "queries"] = "rows"

    @property
    def size(self) -> int:
        return len(self.label)

    def problem(self) -> str | None:
        """Return what is wrong with the predictions, None if nothing is."""
        for name, scores in (("champion", self.champion), ("challenger", self.challenger)):
            wrong = 0 if scores is None else int((~np.isfinite(scores) | (scores < 0) | (scores > 1)).sum())
            if wrong:
                return f"{wrong:,} of {self.size:,} predictions of the {name} are not probabilities"
        return None

    def measured(self, names: Sequence[str], units: np.ndarray | None) -> list[Measured]:
        """Return the rows of the champion, if there is one, and of the challenger. units: rows; None: all"""
        at = slice(None) if units is None else units
        weight = None if self.weight is None else self.weight[at]
        scores = [s[at] for s in (self.champion, self.challenger) if s is not None]
        runs: list[Measured] = [Predictions(s, self.label[at], weight) for s in scores]
        if "ece" in names:
            runs = [_WithEce(run, s, self.label[at], weight) for run, s in zip(runs, scores, strict=True)]
        return runs


@dataclass(frozen=True)
class QueryWindow:
    """Targets of queries and their ranks among the candidates: (T,) each; see recsys.evaluation.retrieval_metrics.

    query: index of each target's query, ascending
    challenger, champion: (greater, ties) of each target: the number of candidates with a higher, and with the same,
        score; -1 for a target that cannot be ranked. champion is None if there is none yet
    cluster: (Q,) what queries of a user have in common, in ascending order of the queries; None: they are independent
    slices: (Q,) values of columns, by the column's name
    """

    query: np.ndarray
    challenger: tuple[np.ndarray, np.ndarray]
    champion: tuple[np.ndarray, np.ndarray] | None = None
    cluster: np.ndarray | None = None
    slices: Mapping[str, np.ndarray] = field(default_factory=dict)
    kind: Literal["rows", "queries"] = "queries"

    @property
    def size(self) -> int:
        return len(np.unique(self.query))

    def problem(self) -> str | None:
        """Return None: ranks are whole numbers, which cannot be wrong as predictions can."""
        return None

    def measured(self, names: Sequence[str], units: np.ndarray | None) -> list[Measured]:
        """Return the queries of the champion, if there is one, and of the challenger. units: queries; None: all"""
        from recsys.evaluation.retrieval_metrics import query_metrics  # torch: settings are checked without it

        ks = tuple(sorted({int(n.partition("@")[2]) for n in names if "@" in n} or {metrics_table.MAIN_K}))
        at = slice(None) if units is None else units
        runs: list[Measured] = []
        for ranks in (self.champion, self.challenger):
            if ranks is not None:
                values = query_metrics(self.query, *ranks, ks)
                runs.append(Means(tuple(values), np.stack([v[at] for v in values.values()], 1)))
        return runs


Window = RowWindow | QueryWindow  # what both models have predicted


class _WithEce:
    """Predictions with the calibration error, whose bins are the same for all resamples."""

    def __init__(self, single: Measured, probability: Floats, label: Floats, weight: Floats | None) -> None:
        self._single, self._probability, self._label, self._weight = single, probability, label, weight
        self.names = (*single.names, "ece")
        order = np.argsort(probability, kind="stable")
        total = np.ones(len(label)) if weight is None else weight[order].astype(np.float64)
        middle = (np.cumsum(total) - total / 2) * CALIBRATION_BINS / max(total.sum(), 1e-300)
        _, group = np.unique(probability, return_inverse=True)  # equal scores are in one bin
        of_score = np.bincount(group[order], middle * total) / np.maximum(np.bincount(group[order], total), 1e-300)
        self._bin = np.clip(of_score.astype(np.int64), 0, CALIBRATION_BINS - 1)[group]
        self._off = (probability.astype(np.float64) - (label > 0)) * (1.0 if weight is None else weight)

    def __len__(self) -> int:
        return len(self._single)

    @property
    def rows(self) -> int:
        return self._single.rows

    def take(self, units: np.ndarray) -> _WithEce:
        weight = None if self._weight is None else self._weight[units]
        return _WithEce(self._single.take(units), self._probability[units], self._label[units], weight)

    def weighted(self, count: np.ndarray) -> np.ndarray:
        total = count.sum() if self._weight is None else np.einsum("i,i->", count, self._weight)
        ece = np.abs(np.bincount(self._bin, count * self._off, CALIBRATION_BINS)).sum() / total
        return np.append(self._single.weighted(count), ece)


@dataclass(frozen=True)
class GateCheck:
    """One line of a decision.

    value: the challenger's metric, or the change of it
    interval: of the change; None if the check has none
    text: one sentence
    """

    name: str
    passed: bool
    text: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class GateResult:
    """A decision: whether all checks pass, and the checks."""

    checks: tuple[GateCheck, ...]

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.checks)

    @property
    def why(self) -> str:
        """The sentences of the checks that fail; if none does, of the first change."""
        failed = [c.text for c in self.checks if not c.passed]
        return "; ".join(failed) or next((c.text for c in self.checks if c.interval is not None), "all checks pass")


def decide(window: Window, config: GateConfig) -> GateResult:
    """Judge the challenger of a window; `GateConfig` says how.

    Without a champion, only `at_least`, `at_most` and the size of the window count.
    """
    what = window.kind
    if window.size < config.min_rows:
        text = f"the window has {window.size:,} {what}, fewer than {config.min_rows:,}: too few to decide"
        return GateResult((GateCheck(what, False, text, window.size, None, config.min_rows),))
    if problem := window.problem():
        return GateResult((GateCheck("predictions", False, problem),))
    change = DEFAULT_CHANGE[what] if config.change is None else config.change
    names = [*config.at_least, *config.at_most, *change]
    own = window.measured(names, None)[-1]
    metrics = dict(zip(own.names, own.weighted(np.ones(len(own))), strict=True))
    checks = [GateCheck(what, True, f"the window has {window.size:,} {what}", window.size, None, config.min_rows)]
    for sign, side, limits in ((1, "at least", config.at_least), (-1, "at most", config.at_most)):
        for name, limit in limits.items():
            value, label = metrics.get(name, np.nan), metrics_table.label(name)
            passed = bool(sign * (value - limit) >= 0)  # a NaN does not pass
            text = f"{label} is {value:.5g} and {'' if passed else 'not '}{side} {limit:g}"
            if np.isnan(value):
                why = "which may have one class alone, or another kind of rows"
                text = f"{label} cannot be computed from this window, {why}"
            checks.append(GateCheck(f"{name} {side}", passed, text, float(value), None, limit))
    if len(window.measured(names, None)) == 2:
        checks += _compared(window, None, change, config, "", config.confidence, better=config.mode == "better")
        checks += _sliced(window, config)
    return GateResult(tuple(checks))


def _sliced(window: Window, config: GateConfig) -> list[GateCheck]:
    judged: list[tuple[str, dict[str, float], np.ndarray]] = []
    checks = []
    for column, limits in config.slices.items():
        if column not in window.slices:
            hint = did_you_mean(column, window.slices) or "; the window has no columns"
            checks.append(GateCheck(f"slices {column}", False, f"the window has no column {column}{hint}"))
            continue
        values, place, count = np.unique(window.slices[column].astype(str), return_inverse=True, return_counts=True)
        for i in np.argsort(-count, kind="stable")[: config.max_values]:
            if count[i] >= config.min_slice_rows:
                judged.append((f"{column}={values[i]}", limits, np.flatnonzero(place == i)))
    intervals = sum(len(limits) for _, limits, _ in judged)
    for where, limits, units in judged:
        level = 1 - (1 - config.confidence) / intervals
        checks += _compared(window, units, limits, config, where, level)
    return checks


def _compared(
    window: Window,
    units: np.ndarray | None,
    limits: Mapping[str, float],
    config: GateConfig,
    where: str,
    level: float,
    *,
    better: bool = False,
) -> list[GateCheck]:
    """Return a check of each metric's change. where: the slice. better: the first one must be better beyond chance"""
    if not limits:
        return []
    runs = window.measured(list(limits), units)
    if window.cluster is not None:
        owner = np.unique(window.cluster if units is None else window.cluster[units], return_inverse=True)[1]
        clusters = int(owner.max()) + 1
        if clusters < MIN_CLUSTERS:
            text = f"{_at(where)}the window has {clusters} clusters, fewer than {MIN_CLUSTERS}: too few to decide"
            return [GateCheck(f"clusters {where}".strip(), False, text, clusters, None, MIN_CLUSTERS)]
        none = np.zeros((clusters, 0))
        runs = [Groups(run, owner, (), none, none) for run in runs]
    points = np.stack([run.weighted(np.ones(len(run))) for run in runs])
    spread = deviations(runs, config.resamples, config.seed)
    checks = []
    for i, (name, limit) in enumerate(limits.items()):
        if name not in runs[0].names:
            text = f"{name} is not a metric of this window, whose {window.kind} have {', '.join(runs[0].names)}"
            checks.append(GateCheck(name, False, text, None, None, limit))
            continue
        at = runs[0].names.index(name)
        before, after = judged = points[:, at]
        resampled = judged + spread[:, :, at]
        if name == "calibration":  # the distance of predicted over observed positives from 1
            judged, resampled = np.abs(judged - 1), np.abs(resampled - 1)
        change = float(judged[1] - judged[0])
        deviation = resampled[:, 1] - resampled[:, 0]
        half = normal_bound(level) * float(np.nanstd(deviation)) if np.isfinite(deviation).any() else np.nan
        checks.append(_changed(name, where, before, after, change, half, limit, better=better and i == 0))
    return checks


def _changed(
    name: str, where: str, before: float, after: float, change: float, half: float, limit: float, *, better: bool
) -> GateCheck:
    label, low, high = metrics_table.label(name), change - half, change + half
    title = f"{name} {where}".strip()
    if not np.isfinite([change, half]).all():
        text = f"{_at(where)}{label} cannot be computed: the rows may have one class alone"
        return GateCheck(title, False, text, None, None, limit)
    sign = 1 if _higher(name) else -1
    best, worst = (high, low) if sign > 0 else (low, high)
    if sign * (best - limit) < 0:
        reading, passed = "worse than the limit beyond chance", False
    elif better and not sign * worst > 0:
        reading, passed = "not better beyond chance", False
    elif sign * worst > 0:
        reading, passed = "better beyond chance", True
    elif sign * (worst - limit) >= 0:
        reading, passed = "within the limit", True
    else:
        reading, passed = "not worse than the limit beyond chance", True
    text = (
        f"{_at(where)}{label} was {before:.5g} and is {after:.5g}, a change of {change:+.4g} ({low:+.4g} to "
        f"{high:+.4g}; limit {limit:+g}): {reading}"
    )
    return GateCheck(title, passed, text, change, (low, high), limit)


def _at(where: str) -> str:
    return f"{where}: " if where else ""
