"""Comparison of runs with the first of them, metric by metric, if they were tested on the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import TYPE_CHECKING, Any

import numpy as np

from recsys.evaluation import metrics_table
from recsys.evaluation.metrics import CLASSES, NUMBERS
from recsys.evaluation.resampling import (
    Difference,
    Groups,
    Means,
    Measured,
    Predictions,
    delong,
    deviations,
    difference,
    half_width,
    holm,
    interval,
)
from recsys.report.runs import UNCOMPARED, ReportedRun, in_words

if TYPE_CHECKING:
    import polars as pl

BASELINES = ("GBM", "LogisticRegression", "Popularity")  # models that every other model should beat
UNTELLING = ("checkpoint.", "logger", "debug.", "trainer.log_every_n_steps")  # they do not change a run's metrics
PREDICTIONS, RANKS = "test_predictions", "test_ranks"


@dataclass(eq=False)
class Line:
    """A run, or the seeds or folds of one config, whose metrics are means over them."""

    runs: list[ReportedRun]
    name: str
    detail: str = ""  # its config's differences from the first line's; the last log line of an unfinished run
    measures: dict[str, Measure] = field(default_factory=dict)
    delong: dict[str, float] = field(default_factory=dict)  # p-value of the difference of AUCs, for single runs
    over_baseline: dict[str, Difference] = field(default_factory=dict)  # by main metric, from the best baseline

    @property
    def first(self) -> ReportedRun:
        return self.runs[0]

    @property
    def repetitions(self) -> str:
        """Return '3 seeds' or '4 folds'; empty for one run."""
        unit = "folds" if len(self.folds) > 1 else "seeds"
        return f"{len(self.runs)} {unit}" if len(self.runs) > 1 else ""

    @property
    def folds(self) -> list[str]:
        return sorted({str(run.repetition[1]) for run in self.runs})

    @property
    def is_baseline(self) -> bool:
        return self.first.model in BASELINES


@dataclass(frozen=True)
class Measure:
    """A metric of a line."""

    value: float
    low: float | None = None  # 95 % interval over test rows
    high: float | None = None
    deviation: float | None = None  # sample deviation over seeds
    difference: Difference | None = None  # from the first line


@dataclass
class Group:
    """Lines whose runs were tested on the same rows. The others are compared with the first line."""

    lines: list[Line]
    rows: int
    why: str = ""  # difference of its test rows from the first group's
    label_rows: dict[str, int] = field(default_factory=dict)  # number of test rows that have a label
    holm: dict[tuple[str, int], float] = field(default_factory=dict)  # main metric, line -> adjusted p-value

    @property
    def retrieves(self) -> bool:
        return self.lines[0].first.retrieves

    @property
    def mains(self) -> list[str]:
        """The main metric of each label, the first label's first."""
        return metrics_table.main_metrics(self.lines[0].first.test)

    @property
    def main(self) -> str:
        return self.mains[0]

    def about_rows(self, main: str) -> str:
        """Return the number of test rows, and of those that have the label of a main metric if these are fewer."""
        rows = self.label_rows.get(main.rpartition("/")[0], 0)
        whole = max(self.label_rows.values(), default=0) == self.rows  # no sample of them
        return f"{rows:,} of {self.rows:,} test rows" if whole and rows < self.rows else f"{self.rows:,} test rows"

    def metrics(self, main: str) -> list[str]:
        """Return all metrics of the label of this main metric, the main one first."""
        label = main.rpartition("/")[0]
        names = dict.fromkeys(m for line in self.lines for m in line.measures)
        return [m for m in names if m.rpartition("/")[0] == label]

    def best_first(self, main: str) -> list[int]:
        """Return the indices of the lines, the best by a main metric first; lines without it are last."""
        sign = 1 if metrics_table.lower_is_better(main) else -1
        value = [sign * line.measures[main].value if main in line.measures else np.inf for line in self.lines]
        return sorted(range(len(value)), key=lambda i: value[i])

    def are_equal(self, main: str) -> bool:
        """Return whether several lines all have the same value of a main metric, so that none is best."""
        values = {line.measures[main].value if main in line.measures else None for line in self.lines}
        return len(self.lines) > 1 and len(values) == 1

    def baseline(self, main: str) -> Line | None:
        """Return the best baseline by a main metric, or None."""
        lines = [self.lines[i] for i in self.best_first(main)]
        return next((line for line in lines if line.is_baseline and main in line.measures), None)


def compare(runs: Sequence[ReportedRun], resamples: int, seed: int) -> list[Group]:
    """Return groups of finished runs; the first run is in the first group."""
    groups: list[tuple[dict[str, Any], dict[str, bytes], list[Line], list[dict[str, Measured]]]] = []
    for line in _lines([r for r in runs if r.test]):
        # by label, a hash of the test rows; without labels whose rows were not kept, or differ between seeds
        tested = [_read(run) for run in line.runs]
        rows = {x: key for x, (key, _) in tested[0].items() if all(x in t and t[x][0] == key for t in tested)}
        measured = [{x: t[x][1] for x in rows} for t in tested]
        p = (line.first.metrics or {}).get("protocol") or {}
        ranking = {k: v for k, v in (p.get("ranking") or {}).items() if k != "k"}
        protocol = {  # all that must be equal for test metrics to be comparable
            "task": "retrieval" if line.first.retrieves else "prediction",
            "data": p.get("data"),
            "split": p.get("split"),
            "test rows": line.first.test.get("rows"),
            "folds": line.folds if len(line.folds) > 1 else None,
            "label": p.get("label"),
            "metrics": p.get("metrics"),
            "ranking": json.dumps(ranking, sort_keys=True, default=str),
            "candidates": line.first.test.get("candidates"),
        }
        labels = metrics_table.of_label(line.first.test).keys()
        for known, other, inside, data in groups:
            # the lines have labels in common, and the same rows of each of them, as far as they were kept
            common = labels & metrics_table.of_label(inside[0].first.test).keys()
            if known == protocol and common and all(rows[x] == other[x] for x in rows.keys() & other.keys()):
                inside.append(line)
                data += measured
                break
        else:
            groups.append((protocol, rows, [line], measured))
    made: list[Group] = []
    for protocol, _, inside, data in groups:
        why = "other labels or weights, or another order of rows" if made else ""
        if differ := [key for key, value in protocol.items() if value != groups[0][0][key]]:
            why = f"{differ[0]} {protocol[differ[0]]}, not {groups[0][0][differ[0]]}"
        for line in inside[1:]:
            line.detail = differences(line.first, inside[0].first)
        group = Group(inside, int(inside[0].first.test.get("rows") or 0), why)
        _measure(group, data, resamples, seed)
        made.append(group)
    return made


def _lines(runs: Sequence[ReportedRun]) -> list[Line]:
    """Join the seeds of each config into a line."""
    lines: dict[tuple[Any, ...], list[Line]] = {}
    order: list[Line] = []
    for run in runs:
        config = tuple(sorted((k, repr(v)) for k, v in run.config.items() if k not in UNCOMPARED))
        lines_of_config = lines.setdefault(config, [])
        line = next((x for x in lines_of_config if run.repetition not in [r.repetition for r in x.runs]), None)
        if line is None:
            line = Line([], run.name)
            lines_of_config.append(line)
            order.append(line)
        line.runs.append(run)
    for line in order:
        if len(line.runs) > 1:  # the folder that has all runs names them, with the values of their trial: 0: lr=0.1
            _, colon, values = line.name.partition(": ")
            parent, *others = {str(Path(r.name.partition(": ")[0]).parent) for r in line.runs}
            line.name = line.name if others or parent == "." else f"{parent}{colon}{values}"
    return order


def differences(run: ReportedRun, first: ReportedRun) -> str:
    """Return in words what differs between the configs of a run and of the first one, the model first."""
    differ = [k for k in differing([run, first]) if not k.startswith("model.") or k.count(".") == 1]
    parts = [run.model] if "model._target_" in differ else []
    keys = [k for k in differ if k in run.config and not k.startswith("model._target_")]
    if parts:
        keys = [k for k in keys if not k.startswith("model.") or k in first.config]
    telling = [k for k in keys if not k.startswith(UNTELLING)]
    shown = telling if parts or telling else keys
    return ", ".join([*parts, *(in_words(k, run.config[k]) for k in shown)])


def differing(runs: Sequence[ReportedRun]) -> list[str]:
    """Return the keys whose values differ, without the run's folder and the seed."""
    keys = dict.fromkeys(k for r in runs for k in r.config if k not in UNCOMPARED)
    return [k for k in keys if any(r.config.get(k) != runs[0].config.get(k) for r in runs)]


def _read(run: ReportedRun) -> dict[str, tuple[bytes, Measured]]:
    """Return a hash of the test rows, and the rows, by label."""
    import polars as pl

    found: dict[str, tuple[bytes, Measured]] = {}
    for i, label in enumerate(metrics_table.of_label(run.test)):
        name = RANKS if run.retrieves else f"{PREDICTIONS}_{label}" if i else PREDICTIONS
        try:
            frame = pl.read_parquet(run.path / f"{name}.parquet", glob=False)
            if frame.height:
                found[label] = row_metrics(run, frame) if run.retrieves else _predictions(frame)
                if "group" in frame.columns:
                    key, rows = found[label]
                    found[label] = key, _groups(metrics_table.of_label(run.test)[label], rows, frame)
        except (OSError, pl.exceptions.PolarsError):
            continue
    return found


def _predictions(frame: pl.DataFrame) -> tuple[bytes, Measured]:
    label, rows = frame["label"].to_numpy(), frame["row"].to_numpy().astype(np.int64).tobytes()
    weight = frame["weight"].to_numpy() if "weight" in frame.columns else None
    own = b"" if weight is None else weight.tobytes()
    if "probability" in frame.columns:
        key = sha256(rows + label.astype(np.uint8).tobytes() + own).digest()
        return key, Predictions(frame["probability"].to_numpy(), label, weight)
    if "prediction" in frame.columns:
        rows_of, predicted = NUMBERS, frame["prediction"].to_numpy()
    else:
        classes = [c for c in frame.columns if c.startswith("probability_")]
        of_class = {c.removeprefix("probability_"): i for i, c in enumerate(classes)}
        label = frame["label"].replace_strict(of_class).to_numpy()
        rows_of, predicted = CLASSES, frame.select(classes).to_numpy()
    key = sha256(rows + label.astype(np.float64).tobytes() + own).digest()
    return key, Means.of_rows(rows_of, predicted, label, weight)


def _groups(measured: Mapping[str, Any], single: Measured, frame: pl.DataFrame) -> Groups:
    """Return the rows with their groups, and the metrics of groups among those that were measured."""
    from recsys.evaluation.binary import group_aucs
    from recsys.evaluation.group_metrics import group_values

    group, label = frame["group"].to_numpy(), frame["label"].to_numpy()
    weight = frame["weight"].to_numpy() if "weight" in frame.columns else None
    owner = np.unique(group, return_inverse=True)[1]
    values: dict[str, np.ndarray] = {}
    weights: list[np.ndarray] = []
    if "gauc" in measured:
        values["gauc"], own, _ = group_aucs(group, frame["probability"].to_numpy(), label, weight)
        weights.append(own)
    if ks := [int(name.partition("@")[2]) for name in measured if name.startswith("gndcg@")]:
        score = frame["probability" if "probability" in frame.columns else "prediction"].to_numpy()
        of_group, own = group_values(group, score, label, ks, weight)
        values |= of_group
        weights += [own] * len(of_group)
    columns = np.stack([*values.values()], 1) if values else np.zeros((int(owner.max()) + 1, 0))
    return Groups(single, owner, tuple(values), columns, np.stack(weights, 1) if weights else columns)


def row_metrics(run: ReportedRun, frame: pl.DataFrame) -> tuple[bytes, Means]:
    """Return metrics of each query, named as in metrics.json, where metrics of the full protocol have no suffix."""
    from recsys.evaluation.retrieval_metrics import query_metrics

    query = frame["query"].to_numpy().astype(np.int64)
    k = tuple(sorted({int(m.rpartition("@")[2]) for m in run.test if m.startswith("ndcg@") and "_" not in m}))
    k = k or tuple(sorted({int(m.split("@")[1].split("_")[0]) for m in run.test if m.startswith("ndcg@")}))
    columns: dict[str, np.ndarray] = {}
    for name in (c.removeprefix("greater_") for c in frame.columns if c.startswith("greater_")):
        greater, ties = (frame[f"{c}_{name}"].to_numpy().astype(np.int64) for c in ("greater", "ties"))
        metrics = query_metrics(query, greater, ties, k, one_list=name == "full")
        columns |= {metrics_table.under(m, name): v for m, v in metrics.items()}
    return sha256(query.tobytes()).digest(), Means(tuple(columns), np.stack(list(columns.values()), 1))


def _measure(group: Group, data: list[dict[str, Measured]], resamples: int, seed: int) -> None:
    """Set values, intervals and differences of all lines."""
    runs = [run for line in group.lines for run in line.runs]
    resampled_deviations: dict[str, dict[ReportedRun, np.ndarray]] = {}  # metric -> run -> (resamples,)
    for label in dict.fromkeys(x for rows in data for x in rows):
        kept = {run: rows[label] for run, rows in zip(runs, data, strict=True) if label in rows}
        if not all(isinstance(rows, Groups) for rows in kept.values()):  # all runs draw the same units
            kept = {run_id: rows.single if isinstance(rows, Groups) else rows for run_id, rows in kept.items()}
        found = deviations(list(kept.values()), resamples, seed)
        for k, (run_id, rows) in enumerate(kept.items()):
            for i, name in enumerate(rows.names):
                metric = f"{label}/{name}" if label else name
                resampled_deviations.setdefault(metric, {})[run_id] = found[:, k, i]
        group.label_rows[label] = next(iter(kept.values())).rows

    def resampled(line: Line, metric: str) -> np.ndarray | None:
        of_run = resampled_deviations.get(metric, {})
        if not all(run in of_run for run in line.runs):
            return None
        mean: np.ndarray = np.stack([of_run[run] for run in line.runs], 1).mean(1)
        return mean

    reference = group.lines[0]
    shown = _shown(reference.first)
    for line in group.lines:
        for metric in shown:
            values = [float(v) for run in line.runs if (v := run.test.get(metric)) is not None]
            if len(values) < len(line.runs):
                continue
            value, own = fmean(values), resampled(line, metric)
            low, high = (None, None) if own is None else interval(value, own)
            versus = None if line is reference else _paired(line, value, reference, metric, resampled)
            spread = stdev(values) if len(values) > 1 else None
            if own is None and spread is not None:  # of folds, which have other test rows
                half = half_width(spread, len(values))
                low, high = value - half, value + half
            line.measures[metric] = Measure(value, low, high, spread, versus)
    pairs = [(main, i) for main in group.mains for i in range(len(group.lines))]
    measured = [(main, i, m.difference) for main, i in pairs if (m := group.lines[i].measures.get(main))]
    tested = [(main, i, d.p) for main, i, d in measured if d is not None]
    adjusted = holm([p for *_, p in tested])
    group.holm = {(main, i): p for (main, i, _), p in zip(tested, adjusted, strict=True)}
    for main in group.mains:
        if (best := group.baseline(main)) is None:
            continue
        for line in group.lines:
            if line.is_baseline or main not in line.measures:
                continue
            over = _paired(line, line.measures[main].value, best, main, resampled)
            if over is not None:
                line.over_baseline[main] = over
    for main in group.mains:
        _delong(group, main, {run: rows.get(main.rpartition("/")[0]) for run, rows in zip(runs, data, strict=True)})


def _paired(
    line: Line, value: float, reference: Line, metric: str, resampled: Callable[[Line, str], np.ndarray | None]
) -> Difference | None:
    """Return the difference of a line's value from the reference's; None if either has no resamples."""
    own, base = resampled(line, metric), resampled(reference, metric)
    if own is None or base is None or metric not in reference.measures:
        return None
    parts = [(float(np.nanvar(own - base)), float("inf"))]  # of rows, then of the means over seeds
    for runs in (line.runs, reference.runs):
        if (n := len(runs)) > 1:
            parts.append((variance(run.test[metric] for run in runs) / n, n - 1.0))
    return difference(value - reference.measures[metric].value, parts)


def _delong(group: Group, main: str, data: dict[ReportedRun, Any]) -> None:
    """Set DeLong's p-value of single runs, in addition to the bootstrap's. It is for rows without weights."""
    reference = data.get(group.lines[0].first)
    if not isinstance(reference, Predictions) or not 0 < reference.label.sum() < len(reference):
        return
    for line in group.lines[1:]:
        own = data.get(line.first)
        if len(line.runs) == len(group.lines[0].runs) == 1 and isinstance(own, Predictions) and own.weight is None:
            auc, c = delong(np.stack([own.probability, reference.probability]), own.label)
            variance_ = c[0, 0] + c[1, 1] - 2 * c[0, 1]
            line.delong[main] = difference(auc[0] - auc[1], [(variance_, float("inf"))]).p


def _shown(run: ReportedRun) -> list[str]:
    """Return the metrics of the table, the main one first."""
    if not run.retrieves:
        known = [(m, entry) for m in run.test if (entry := metrics_table.metric(m)) is not None]
        own = [m for m, entry in known if m.rpartition("/")[2].partition("@")[0] == entry.name]  # no counts, no errors
        return list(dict.fromkeys([*metrics_table.main_metrics(run.test), *own]))
    several = (run.test.get("targets") or 0) > (run.test.get("rows") or 0)  # else recall = hit rate
    full = metrics_table.by_protocol(run.test).get("full", {})
    shown = [m for names in metrics_table.shown_tables(full, several).values() for m in names]
    main = metrics_table.main_metric(run.test)
    sampled = [m for m in run.test if m.startswith((f"{main.split('_')[0]}_", "hr@10_"))]
    return list(dict.fromkeys([main, *shown, *sampled]))
