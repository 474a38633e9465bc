"""Print the metrics of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.base.console import results, say
from recsys.evaluation.metrics_table import TARGETS, by_protocol, is_retrieval, of_label, shown_tables
from recsys.training.advice import too_few_steps, too_good, too_weak

if TYPE_CHECKING:
    from rich.table import Table

UNCALIBRATED = "_uncalibrated"  # the end of the names of metrics before the calibration


def show_tables(rows: dict[str, Any]) -> None:
    """Print the metrics of splits as tables.

    rows: the metrics of each split; the first ones say which metrics there are
    """
    first = next(iter(rows.values()))
    if any("/" in name for name in first):
        rows = {f"{s}, {label}": metrics for s, m in rows.items() for label, metrics in of_label(m).items()}
    shown = dict.fromkeys(n for metrics in rows.values() for n in metrics if not n.endswith(UNCALIBRATED))
    within = [n for n in shown if n.startswith(("gauc", "gndcg@", "gmrr@")) or n == "groups"]
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


def show(metrics: dict[str, Any], path: Path, *, real: bool) -> None:
    """Print the metrics of a run as tables, its speed, and the files in its folder `path`.

    real: the rows come from files, not from a built-in sample
    """
    rows: dict[str, Any] = {s: metrics[s] for s in ("test", "validation") if s in metrics}
    if "bayes" in metrics:
        rows["Bayes (test)"] = metrics["bayes"]
    show_tables(rows)
    show_targets(metrics, "test")
    for line in (too_good(metrics["test"]), too_weak(metrics) or too_few_steps(metrics["train"])) if real else ():
        if line is not None:
            say(line)
    for name, value in metrics["test"].items():
        if name.endswith((f"ece{UNCALIBRATED}", f"rmse{UNCALIBRATED}")):
            metric = name.removesuffix(UNCALIBRATED)
            say(f"test: calibration changes {metric} from {value:.5f} to {metrics['test'][metric]:.5f}")
    for split in ("test", "validation"):
        m = metrics.get(split, {})
        if m.get("cold_targets"):
            what = "targets are cold: items that training has not seen, or less often than min_count"
            say(f"{split}: {m['cold_targets']:,} of {m['targets']:,} {what}")
        if m.get("cold_rows"):
            say(f"{split}: {m['cold_rows']:,} of {m['rows']:,} queries have no history")
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
    files = [
        n
        for n in ("metrics.json", "metrics.csv", "config.yaml", "features.json", "plan.json", "checkpoints")
        if (path / n).exists()
    ]
    say(f"files in {path}: {' '.join(files)} train.log")
