"""Comparison of runs with the first of them, metric by metric, if they were tested on the same rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import numpy as np

from recsys.evaluation import metrics_table
from recsys.report.resampling import (
    Difference,
    Measured,
    Predictions,
    Queries,
    delong,
    deviations,
    difference,
    holm,
    interval,
)
from recsys.report.runs import UNCOMPARED, Run

PREDICTIONS, RANKS = "test_predictions.parquet", "test_ranks.parquet"


@dataclass
class Line:
    """A run, or the seeds of one config, whose metrics are means over seeds."""

    runs: list[Run]
    name: str
    detail: str = ""  # its config's differences from the first line's; the last log line of an unfinished run
    measures: dict[str, "Measure"] = field(default_factory=dict)
    delong: float | None = None  # p-value of the difference of AUCs, for single runs

    @property
    def first(self) -> Run:
        return self.runs[0]


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
    holm: dict[int, float] = field(default_factory=dict)  # line -> adjusted p-value of the main metric

    @property
    def retrieves(self) -> bool:
        return self.lines[0].first.retrieves

    @property
    def metrics(self) -> list[str]:
        """All metrics, the main one first."""
        return list(dict.fromkeys(m for line in self.lines for m in line.measures))

    @property
    def main(self) -> str:
        return main_metric(self.lines[0].first)

    def best_first(self) -> list[int]:
        """Return the indices of the lines, the best by the main metric first."""
        value = [line.measures[self.main].value if self.main in line.measures else -np.inf for line in self.lines]
        return sorted(range(len(value)), key=lambda i: -value[i])


def main_metric(run: Run) -> str:
    """Return the metric by which a run is compared."""
    return metrics_table.main_metric(run.test)


def compare(runs: Sequence[Run], resamples: int, seed: int) -> list[Group]:
    """Return groups of finished runs; the first run is in the first group."""
    lines = _lines([r for r in runs if r.metrics is not None])
    groups: list[tuple[dict[str, Any], bytes | None, list[Line], list[Measured | None]]] = []
    for line in lines:
        rows, measured = _rows(line)
        protocol = _protocol(line.first)
        for known, other, inside, data in groups:
            if known == protocol and (rows is None or other is None or rows == other):
                inside.append(line)
                data += measured
                break
        else:
            groups.append((protocol, rows, [line], measured))
    made: list[Group] = []
    for protocol, _, inside, data in groups:
        why = _why(groups[0][0], protocol) if made else ""
        for line in inside[1:]:
            line.detail = differences(line.first, inside[0].first)
        group = Group(inside, int(inside[0].first.test.get("rows") or 0), why)
        _measure(group, data, resamples, seed)
        made.append(group)
    return made


def _lines(runs: Sequence[Run]) -> list[Line]:
    """Join the seeds of each config into a line."""
    lines: dict[tuple[Any, ...], list[Line]] = {}
    order: list[Line] = []
    for run in runs:
        lines_of_config = lines.setdefault(run.config_key, [])
        line = next((x for x in lines_of_config if run.seed not in [r.seed for r in x.runs]), None)
        if line is None:
            line = Line([], run.name)
            lines_of_config.append(line)
            order.append(line)
        line.runs.append(run)
    for line in order:
        if len(line.runs) > 1:
            line.name = _common(line.runs)
    return order


def _common(runs: list[Run]) -> str:
    parents = {str(Path(r.name).parent) for r in runs}
    parent = parents.pop()
    return runs[0].name if parents or parent == "." else parent


def differences(run: Run, first: Run) -> str:
    """Return the keys and values of a run's config that differ from the first run's, the model first."""
    differ = [k for k in differing([run, first]) if not k.startswith("model.") or k.count(".") == 1]
    parts = [run.model] if "model._target_" in differ else []
    keys = [k for k in differ if k in run.config and not k.startswith("model._target_")]
    if parts:
        keys = [k for k in keys if not k.startswith("model.") or k in first.config]
    return ", ".join([*parts, *(f"{k}={_short(run.config[k])}" for k in keys)])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the keys whose values differ, without the run's folder and the seed."""
    keys = dict.fromkeys(k for r in runs for k in r.config if k not in UNCOMPARED)
    return [k for k in keys if any(r.config.get(k) != runs[0].config.get(k) for r in runs)]


def _protocol(run: Run) -> dict[str, Any]:
    """Return everything that must be equal for test metrics to be comparable."""
    p = (run.metrics or {}).get("protocol") or {}
    ranking = {k: v for k, v in (p.get("ranking") or {}).items() if k != "k"}
    return {
        "task": "retrieval" if run.retrieves else "prediction",
        "data": p.get("data"),
        "split": p.get("split"),
        "test rows": run.test.get("rows"),
        "label": p.get("label"),
        "metrics": p.get("metrics"),
        "ranking": json.dumps(ranking, sort_keys=True, default=str),
        "candidates": run.test.get("candidates"),
    }


def _why(first: dict[str, Any], other: dict[str, Any]) -> str:
    for key, value in other.items():
        if value != first[key]:
            return f"{key} {value}, not {first[key]}"
    return "other labels, or another order of rows"


def _rows(line: Line) -> tuple[bytes | None, list[Measured | None]]:
    """Return a hash of the test rows, and the rows of each run; None if they were not kept or differ between seeds."""
    tested = [_read(run) for run in line.runs]
    keys = {key for key, _ in tested}
    if len(keys) > 1 or None in keys:
        return None, [None] * len(tested)
    return keys.pop(), [measured for _, measured in tested]


def _read(run: Run) -> tuple[bytes | None, Measured | None]:
    from hashlib import sha256

    import polars as pl

    try:
        frame = pl.read_parquet(run.path / (RANKS if run.retrieves else PREDICTIONS))
        if not run.retrieves:
            rows, label = frame["row"].to_numpy(), frame["label"].to_numpy()
            key = sha256(rows.astype(np.int64).tobytes() + label.astype(np.uint8).tobytes()).digest()
            return key, Predictions(frame["probability"].to_numpy(), label)
        query = frame["query"].to_numpy().astype(np.int64)
        return sha256(query.tobytes()).digest(), _queries(run, query, frame)
    except (OSError, pl.exceptions.PolarsError):
        return None, None


def _queries(run: Run, query: np.ndarray, frame: Any) -> Queries:
    """Return metrics of each query under the names of metrics.json, where those of the full protocol have no suffix."""
    from recsys.evaluation.retrieval import query_metrics

    k = tuple(sorted({int(m.rpartition("@")[2]) for m in run.test if m.startswith("ndcg@") and "_" not in m}))
    k = k or tuple(sorted({int(m.split("@")[1].split("_")[0]) for m in run.test if m.startswith("ndcg@")}))
    columns: dict[str, np.ndarray] = {}
    for name in (c.removeprefix("greater_") for c in frame.columns if c.startswith("greater_")):
        greater, ties = (frame[f"{c}_{name}"].to_numpy().astype(np.int64) for c in ("greater", "ties"))
        metrics = query_metrics(query, greater, ties, k, one_list=name == "full")
        columns |= {metrics_table.under(m, name): v for m, v in metrics.items()}
    return Queries(tuple(columns), np.stack(list(columns.values()), 1))


def _measure(group: Group, data: list[Measured | None], resamples: int, seed: int) -> None:
    """Set values, intervals and differences of all lines."""
    runs = [run for line in group.lines for run in line.runs]
    resampled_runs = [i for i, rows in enumerate(data) if rows is not None]
    names: list[str] = []
    place: dict[int, int] = {}
    resampled_deviations = np.zeros((0, 0, 0))
    if resampled_runs:
        kept = [rows for rows in data if rows is not None]
        names = [m for m in kept[0].names if all(m in rows.names for rows in kept)]
        resampled_deviations = deviations(kept, resamples, seed)
        columns = [[rows.names.index(m) for m in names] for rows in kept]
        resampled_deviations = np.stack([resampled_deviations[:, i, c] for i, c in enumerate(columns)], 1)
        place = {id(runs[i]): k for k, i in enumerate(resampled_runs)}
    shown = _shown(group.lines[0].first)

    def resampled(line: Line, metric: str) -> np.ndarray | None:
        at = [place[id(run)] for run in line.runs if id(run) in place]
        if metric not in names or len(at) < len(line.runs):
            return None
        mean: np.ndarray = resampled_deviations[:, at, names.index(metric)].mean(1)
        return mean

    reference = group.lines[0]
    for line in group.lines:
        for metric in shown:
            values = [float(v) for run in line.runs if (v := run.test.get(metric)) is not None]
            if len(values) < len(line.runs):
                continue
            value, own, base = fmean(values), resampled(line, metric), resampled(reference, metric)
            low, high = (None, None) if own is None else interval(value, own)
            versus = None
            if line is not reference and own is not None and base is not None and metric in reference.measures:
                seeds = [*_seeds(line, metric), *_seeds(reference, metric)]
                rows = (float(np.nanvar(own - base)), float("inf"))
                versus = difference(value - reference.measures[metric].value, [rows, *seeds])
            spread = stdev(values) if len(values) > 1 else None
            line.measures[metric] = Measure(value, low, high, spread, versus)
    main = [line.measures.get(group.main) for line in group.lines]
    tested = [(i, m.difference.p) for i, m in enumerate(main) if m is not None and m.difference is not None]
    group.holm = dict(zip([i for i, _ in tested], holm([p for _, p in tested]), strict=True))
    _delong(group, {id(runs[i]): data[i] for i in resampled_runs})


def _seeds(line: Line, metric: str) -> list[tuple[float, float]]:
    """Return the variance of the mean over seeds, and its degrees of freedom; an empty list for one seed."""
    n = len(line.runs)
    return [(variance(run.test[metric] for run in line.runs) / n, n - 1.0)] if n > 1 else []


def _delong(group: Group, data: dict[int, Any]) -> None:
    """Set DeLong's p-value of single runs, in addition to the bootstrap's."""
    reference = data.get(id(group.lines[0].first))
    if not isinstance(reference, Predictions) or not 0 < reference.label.sum() < len(reference):
        return
    for line in group.lines[1:]:
        own = data.get(id(line.first))
        if len(line.runs) == len(group.lines[0].runs) == 1 and isinstance(own, Predictions):
            auc, c = delong(np.stack([own.probability, reference.probability]), own.label)
            line.delong = difference(auc[0] - auc[1], [(c[0, 0] + c[1, 1] - 2 * c[0, 1], float("inf"))]).p


def _shown(run: Run) -> list[str]:
    """Return the metrics of the table, the main one first."""
    if not run.retrieves:
        own = [m for m in metrics_table.METRICS if m in run.test]
        others = [m for m in run.test if "/" in m and metrics_table.metric(m) and not m.endswith("_uncalibrated")]
        return list(dict.fromkeys([main_metric(run), *own, *others]))
    several = (run.test.get("targets") or 0) > (run.test.get("rows") or 0)  # else recall = hit rate
    full = metrics_table.by_protocol(run.test).get("full", {})
    shown = [m for names in metrics_table.shown_tables(full, several).values() for m in names]
    main = main_metric(run)
    sampled = [m for m in run.test if m.startswith((f"{main.split('_')[0]}_", "hr@10_"))]
    return list(dict.fromkeys([main, *shown, *sampled]))
