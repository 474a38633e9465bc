"""The results of a run: its metrics on the held-out splits, the files that hold them, and tables for the terminal."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytorch_lightning.loggers import Logger

from recsys.base import job_time
from recsys.base.console import results, say
from recsys.data.features import Fitted
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.evaluators import Evaluator
from recsys.evaluation.metrics import WITHIN_GROUPS
from recsys.evaluation.metrics_table import (
    TARGETS,
    by_protocol,
    is_retrieval,
    lower_is_better,
    main_metrics,
    metric,
    of_label,
    shown_tables,
)
from recsys.files.atomic import write_json
from recsys.job.run_config import RunConfig
from recsys.training.advice import sees_the_future, too_few_steps, too_good, too_weak
from recsys.training.baselines import below_popular, best_metrics
from recsys.training.loggers import end_loggers
from recsys.training.run_dir import MISSES_REPEATS, add_results, protocol

if TYPE_CHECKING:
    from rich.table import Table

RARE = 0.1  # exposure is said of values with at least this part of an equal share of the training rows
MIN_ROWS = 100  # of a value whose metric is compared with those of others
UNCALIBRATED = "_uncalibrated"  # the end of the names of metrics before the calibration


@dataclass
class RunResults:
    """A trained model's metrics.

    splits: the metrics of test and validation, each if there are such rows
    train: rows, seconds and the like of the training
    checkpoint: the one that was measured
    loggers: of the run; none on ranks other than 0
    details: what metrics.json says of the test split beside its metrics, by section (`Evaluator.details`)
    curves: the test split's curves
    """

    splits: dict[str, dict[str, Any]]
    train: dict[str, Any]
    checkpoint: Path | None
    loggers: list[Logger] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Any] | None = None


def write_results(cfg: RunConfig, path: Path, prepared: Prepared, results: RunResults) -> None:
    """Write metrics.json, log it, and print it."""
    metrics = with_details(results.splits, results.details, "test")
    metrics["train"] = results.train | {"job": job_time.shares()}
    metrics["protocol"] = protocol(cfg, prepared, results.checkpoint)
    if bayes := best_metrics(prepared):
        metrics["bayes"] = bayes
    write_json(path / "metrics.json", metrics)
    end_loggers(results.loggers, results.checkpoint, metrics, results.curves)
    add_results(path)
    real = cfg.data.root is not None or cfg.data.spec is not None
    show(metrics, path, real=real)
    if real and (line := sees_the_future(cfg.data.split, cfg.data.group)) is not None:
        say(line)
    if real and (line := below_popular(cfg, prepared, metrics.get("test", {}))) is not None:
        say(line)


def with_details(splits: dict[str, dict[str, Any]], details: dict[str, Any], split: str) -> dict[str, Any]:
    """Return the metrics of splits, and the sections of `Evaluator.details` for one of them, without empty ones."""
    return splits | {section: {split: found} for section, found in details.items() if found}


def write_details(
    cfg: RunConfig, fitted: Fitted, evaluator: Evaluator, loader: ParquetLoader, split: str, run: Path | None
) -> tuple[dict[str, Any], dict[str, list[Any]] | None]:
    """Return what `Evaluator.details` returns and, if `run` is a folder, write curves and predictions; and the curves.

    All describe the rows that the evaluator has measured last.

    Args:
        fitted: has the vocabularies, which name values.
        evaluator: has measured the split.
        split: validation or test.
        run: the run's folder; None writes nothing.
    """
    names = list(cfg.metrics.slices)
    details = evaluator.details(names, loader, fitted, cfg.metrics.slice_values)
    if run is None:
        return details, None
    if (curves := evaluator.curves(cfg.metrics.bins)) is not None:
        write_json(run / "curves.json", {split: curves})
    if cfg.metrics.predictions:
        evaluator.write(run, split)
    return details, curves


def say_details(metrics: dict[str, Any], split: str) -> None:
    """Say what stands out of what metrics.json says of a split beside its metrics."""
    say_gaps(metrics, split)
    for feature, parts in metrics.get("exposure", {}).get(split, {}).items():
        _say_exposure(feature, parts, split)
    if effects := metrics.get("positions", {}).get(split):
        _say_positions(effects, split)


def say_gaps(metrics: dict[str, Any], split: str) -> None:
    """Say, for each feature of metrics.slices, between which values the main metric differs most."""
    for feature, parts in (metrics.get("slices") or {}).get(split, {}).items():
        for name in main_metrics(parts[0]) if feature != TARGETS and parts else ():
            known = [
                p for p in parts if p["rows"] >= MIN_ROWS and isinstance(p.get(name), float) and p[name] == p[name]
            ]
            if len(known) > 1:
                worst, *_, best = sorted(known, key=lambda p: (-1 if lower_is_better(name) else 1) * p[name])
                ends = (f"{p[name]:.4f} ({p['value']}, {p['rows']:,} rows)" for p in (worst, best))
                gap = abs(best[name] - worst[name])
                say(f"{split}, {feature}: {name} differs by {gap:.4f}, from {' to '.join(ends)}")


def _say_exposure(feature: str, parts: list[dict[str, Any]], split: str) -> None:
    """Say which values of a feature of protocol.exposure the longest lists show most and least often."""
    k = max(int(name.removeprefix("lift@")) for name in parts[0] if name.startswith("lift@"))
    known = sorted((p for p in parts if p["training"] * len(parts) >= RARE), key=lambda p: p[f"lift@{k}"])
    if len(known) > 1:
        ends = (
            f"{p['value']} {p[f'lift@{k}']:.2f} times ({p[f'share@{k}']:.1%} of the places, {p['training']:.1%} of the "
            "training rows)"
            for p in (known[-1], known[0])
        )
        say(f"{split}, {feature}: lists of {k} show {' and '.join(ends)} as often as users chose them")


def _say_positions(effects: dict[str, Any], split: str) -> None:
    """Say how much of a split's label the positions of its rows explain; see PositionEffects."""
    each, with_positions = effects["positions"], effects["at_positions"]
    rates = ", ".join(f"{p['rate']:.1%} at {p['position']}" for p in (each[0], each[-1]))
    say(
        f"{split}: positions alone explain {effects['explains']:.1%} of the entropy of {effects['label']} ({rates}); "
        f"with them, NE is {with_positions['ne']:.5f} and calibration {with_positions['calibration']:.3f}; "
        "predictions and metrics leave positions out"
    )


def show_tables(rows: dict[str, Any]) -> None:
    """Print the metrics of splits as tables. Those that are not defined, such as diversity without lists, are left out.

    rows: the metrics of each split; the first ones say which metrics there are
    """
    rows = {split: {n: v for n, v in m.items() if v is None or v == v} for split, m in rows.items()}
    first = next(iter(rows.values()))
    if any("/" in name for name in first):
        rows = {f"{s}, {label}": metrics for s, m in rows.items() for label, metrics in of_label(m).items()}
    shown = dict.fromkeys(n for metrics in rows.values() for n in metrics if not n.endswith(UNCALIBRATED))
    within = [n for n in shown if metric(n) in WITHIN_GROUPS or n in ("gauc_rows", "groups")]
    tables = {"metrics": list(shown)}
    if "groups" in shown:
        tables = {"metrics": [n for n in shown if n not in within], "metrics within groups": within}
    if is_retrieval(first):
        several_targets = first.get("targets", 0) > first["rows"]
        rows = {f"{s}, {p}": metrics for s, m in rows.items() for p, metrics in by_protocol(m).items()}
        tables = shown_tables(list(dict.fromkeys(n for metrics in rows.values() for n in metrics)), several_targets)
    for title, names in tables.items():
        cells = [["", *names]]
        for row, metrics in rows.items():
            if any(n in metrics for n in names):
                values = [metrics.get(n) for n in names]
                cells.append(
                    [row, *("" if v is None else f"{v:,}" if isinstance(v, int) else f"{v:.5f}" for v in values)]
                )
        table = _table(title, cells)
        width = results.measure(table, options=results.options.update(max_width=1000)).maximum
        fits = width <= results.width
        results.print(table if fits else _table(title, [list(line) for line in zip(*cells, strict=True)]))


def _table(title: str, cells: list[list[str]]) -> "Table":
    """Return a table of cells, of which the first line is the head."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in cells[0]:
        table.add_column(column, justify="right" if column else "left")
    for line in cells[1:]:
        table.add_row(*line)
    return table


def show_targets(metrics: dict[str, Any], split: str) -> None:
    """Print the metrics of cold targets beside those of warm ones as a table, if a split has both."""
    parts = (metrics.get("slices") or {}).get(split, {}).get(TARGETS)
    if parts:
        show_tables({f"{split}, {p['value']} targets": {k: v for k, v in p.items() if k != "value"} for p in parts})


def say_repeats(metrics: dict[str, Any], split: str) -> None:
    """Say how many targets of a split no list can hold, because they are in the history that lists leave out."""
    m, ranking = metrics.get(split, {}), metrics["protocol"].get("ranking", {})
    if m.get("repeat_targets") and ranking["history"] == MISSES_REPEATS:
        what = "targets are in their history, which lists leave out, so they are missed; protocol.filter_history=false "
        more = "keeps the history in lists, and protocol.rank_repeats=true ranks these targets, as many papers do"
        say(f"{split}: {m['repeat_targets']:,} of {m['targets']:,} {what}{more}")


def _say_job(seconds: float, training: float = 0.0, **rest: float) -> None:
    """Say which share of a job's seconds trained the model, and what took the rest (`job_time.shares`)."""
    parts = ", ".join(f"{what} {share:.0%}" for what, share in rest.items() if share >= 0.005)
    say(f"of the job's {seconds:,.0f} s, {training:.0%} trained the model: {parts}")


def show(metrics: dict[str, Any], path: Path, *, real: bool) -> None:
    """Print the metrics of a run as tables, its speed, and the files in its folder `path`.

    real: the rows come from files, not from a built-in sample
    """
    rows: dict[str, Any] = {s: metrics[s] for s in ("test", "validation") if s in metrics}
    if "bayes" in metrics:
        rows["Bayes (test)"] = metrics["bayes"]
    if rows:
        show_tables(rows)
    show_targets(metrics, "test")
    say_details(metrics, "test")
    test = metrics.get("test", {})
    if not test:
        say("test: the data has no test rows (data.split.test=0), so that nothing is measured on them")
    for line in (too_good(test), too_weak(metrics) or too_few_steps(metrics)) if real else ():
        if line is not None:
            say(line)
    for name, value in test.items():
        if name.endswith((f"ece{UNCALIBRATED}", f"rmse{UNCALIBRATED}")):
            metric = name.removesuffix(UNCALIBRATED)
            say(f"test: calibration changes {metric} from {value:.5f} to {test[metric]:.5f}")
    for split in ("test", "validation"):
        m = metrics.get(split, {})
        if m.get("cold_targets"):
            what = "targets are cold: items that training has not seen, or less often than min_count"
            say(f"{split}: {m['cold_targets']:,} of {m['targets']:,} {what}")
        if m.get("cold_rows"):
            say(f"{split}: {m['cold_rows']:,} of {m['rows']:,} queries have no history")
    if rows:
        say_repeats(metrics, next(iter(rows)))
    t = metrics["train"]
    say(f"trained {t['samples']:,} samples in {t['seconds']:.1f} s: {t['samples_per_second']:,.0f} samples/s")
    if t.get("time"):
        parts = {**t["time"]}
        collectives = parts.pop("collectives", None)
        parts["other"] = max(1 - sum(parts.values()), 0.0)
        waited = (
            ""
            if collectives is None
            else f"; {collectives:.0%} of it in collectives, including waiting for other ranks"
        )
        say("of that time: " + ", ".join(f"{name} {share:.0%}" for name, share in parts.items()) + waited)
    _say_job(**t["job"])
    files = [
        n
        for n in ("metrics.json", "metrics.csv", "config.yaml", "features.json", "plan.json", "checkpoints")
        if (path / n).exists()
    ]
    say(f"files in {path}: {' '.join(files)} train.log")
