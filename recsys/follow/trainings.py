"""Train, measure and export the models of a cycle, by the same functions as the commands of these names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.console import hidden
from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.prepare.check_data import check_raw_files
from recsys.data.prepare.plan_build import plan_build
from recsys.data.prepare.prepared import finish
from recsys.export.exported import ExportSource, Form
from recsys.export.write_artefact import write_artefact
from recsys.export.write_delta import export_delta
from recsys.follow.follow_settings import FollowConfig
from recsys.follow.follow_state import RESTORE
from recsys.follow.gate import QueryWindow, RowWindow
from recsys.follow.row_columns import MISSING, clusters, read_columns
from recsys.job.resumed import AUTO
from recsys.job.run_config import RunConfig
from recsys.training.evaluate_run import evaluate
from recsys.training.run import Run, train
from recsys.training.run_dir import choose_checkpoint, open_run

PREDICTIONS, RANKS = "test_predictions.parquet", "test_ranks.parquet"


def train_on(cfg: RunConfig, run_dir: Path, start: Path | None) -> Run:
    """Train, or go on with the training of `run_dir` if it was interrupted. start: a run; None for random weights

    Raises UserError if the folder has a training on other files, or from another run.
    """
    mirror = cfg.checkpoint.mirror and f"{cfg.checkpoint.mirror}/{run_dir.name}"  # each run has a place of its own
    begins = {"run_dir": str(run_dir), "resume": AUTO, "start_from": None if start is None else str(start)}
    cfg = cfg.changed(begins | {"checkpoint.mirror": mirror})
    if (run_dir / "metrics.json").exists():
        there, files = open_run(str(run_dir))[0], [*cfg.data.split.train_files]
        if there.start_from != cfg.start_from or [*there.data.split.train_files] != files:
            is_now = f"{there.start_from} and {', '.join(there.data.split.train_files)}"
            wanted = f"{cfg.start_from} and {', '.join(files)}"
            raise UserError(f"{run_dir}: was trained from {is_now}, and this cycle trains from {wanted}; {RESTORE}")
        return Run(run_dir)
    with hidden():
        return train(cfg)


def measure(run: Path, cfg: RunConfig, output: Path) -> dict[str, float]:
    """Return the metrics of a run on the test rows of a config, and write its predictions or ranks to `output`.

    The rows are prepared with the run's own transforms, and ranked by the protocol of the config, so that two runs are
    measured in the same way.
    """
    output.mkdir(parents=True, exist_ok=True)
    saved, _ = open_run(str(run))
    own = RunConfig.of(saved.plain | {key: cfg.plain[key] for key in ("data", "protocol")})
    with hidden():
        prepared = finish(plan_build(own.data, None, check_raw_files(own.data)).with_transforms(run))
        found = evaluate(str(run), "test", cfg=own, prepared=prepared, output=output)
    return {n: float(v) for n, v in found["test"].items() if isinstance(v, int | float)}


def window_of(
    challenger: Path, champion: Path | None, slices: Collection[str] = (), cluster: str | None = None
) -> RowWindow | QueryWindow:
    """Return what both models have predicted for the rows of a window.

    Args:
        challenger: a folder that `measure` has written to and, with slices or a cluster, `write_columns`.
        champion: the same of the champion; None if there is none.
        slices, cluster: columns; without a champion, they are not read.
    """
    ours = _read(challenger)
    theirs = None if champion is None else _read(champion)
    key = ["row"] if "row" in ours.columns else ["query"]
    if theirs is not None and not ours.select(key).equals(theirs.select(key)):
        raise UserError(f"{challenger} and {champion}: hold other rows; remove both, and they are written again")
    if key == ["query"]:
        name = next(n.removeprefix("greater_") for n in ours.columns if n.startswith("greater_"))
        frames = [ours] if theirs is None else [ours, theirs]
        pairs = [(f[f"greater_{name}"].to_numpy(), f[f"ties_{name}"].to_numpy()) for f in frames]
        queries = ours["query"].unique(maintain_order=True)
        owners, values = _columns(challenger, theirs, slices, cluster, queries, None)
        return QueryWindow(ours["query"].to_numpy(), pairs[0], None if theirs is None else pairs[1], owners, values)
    owners, values = _columns(challenger, theirs, slices, cluster, ours["row"], ours["label"])
    if owners is None and "group" in ours.columns:
        owners = ours["group"].to_numpy()
    return RowWindow(
        ours["label"].to_numpy().astype(np.float64),
        ours["probability"].to_numpy(),
        None if theirs is None else theirs["probability"].to_numpy(),
        ours["weight"].to_numpy() if "weight" in ours.columns else None,
        owners,
        values,
    )


def _columns(
    folder: Path,
    champion: pl.DataFrame | None,
    slices: Collection[str],
    cluster: str | None,
    rows: pl.Series,
    label: pl.Series | None,
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """Return the cluster of each row, and the values of the slices' columns."""
    names = dict.fromkeys([*slices, *([] if cluster is None else [cluster])])
    if champion is None or not names:
        return None, {}
    found = read_columns(folder, [*names], rows, label)
    owners = None if cluster is None else clusters(found[cluster])
    return owners, {c: found[c].fill_null(MISSING).to_numpy() for c in slices}


def export(settings: FollowConfig, run: Path, output: Path, events_until: str | None, base: Path | None) -> str:
    """Export a run's model as the command `recsys.export` does with the overrides of the settings.

    Return why a full artefact was written though a base was given, otherwise "".

    events_until: time of the newest training event
    base: the artefact of which a delta is to be written; None writes a full artefact
    """
    cfg, path = open_run(str(run))
    given = compose("export", ["run=run", "output=output", *settings.export])
    index = given.index, given.index_url, given.recall_target
    form = Form(settings.name, "1", given.precision, given.tables, (), None, *index, events_until)
    source = ExportSource(path, cfg, choose_checkpoint(path, "best"))
    with hidden():
        if base is not None:
            return export_delta(source, form, base, output).why
        write_artefact(source, form, output)
    return ""


def _read(folder: Path) -> pl.DataFrame:
    for name in (PREDICTIONS, RANKS):
        if (folder / name).exists():
            frame = pl.read_parquet(folder / name)
            return frame.sort("row") if "row" in frame.columns else frame.sort("query", maintain_order=True)
    raise UserError(f"{folder}: has no predictions; remove the folder, and they are written again")
