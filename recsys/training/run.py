"""A run from its config to metrics.json: check, prepare, fit, test."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from recsys.base import interrupts, metrics_page
from recsys.base.console import log_to, say
from recsys.base.cores import allowed_cores, threads_taken
from recsys.config.compose import load_config
from recsys.distributed.ranks import Ranks, process_group, started_by_torchrun
from recsys.files import manifest, starts
from recsys.job.check import check_late
from recsys.job.check_early import check_early, check_vector_widths, learns_all_rows
from recsys.job.resumed import AUTO, check_start, names_a_run, run_to_resume, run_to_start_from
from recsys.job.run_config import RunConfig, device_of
from recsys.job.unread_keys import unread_line

if TYPE_CHECKING:
    from recsys.data.prepare.check_data import SplitFiles
    from recsys.data.prepare.prepared import Prepared
    from recsys.training.run_dir import RunFolder

FIRST_LOOK = 25  # epochs of a built-in sample that take about a minute


@dataclass(frozen=True)
class Run:
    """A finished run."""

    path: Path

    @property
    def metrics(self) -> dict[str, Any]:
        metrics = json.loads((self.path / "metrics.json").read_text(encoding="utf-8"))
        assert isinstance(metrics, dict)
        return metrics


def train(composed: DictConfig) -> Run:
    """Train as the config says: in this process, in `trainer.devices` processes on this machine, or in torchrun's."""
    from recsys.training import run_lock

    log_to(None)  # an earlier run in this process (a notebook) may have set its log file
    try:
        if names_a_run(composed) or composed.run_dir is not None:  # before slow imports, and before ranks meet
            key = "resume" if names_a_run(composed) else "run_dir"
            run_lock.check_free(Path(str(composed[key])), key)
        if (ranks := started_by_torchrun()) is not None:
            return _train_as_rank(composed, ranks)
        cfg, files = check_raw_files(composed)
        folder, prepared = begin(cfg, files, cfg.trainer.devices)
        from recsys.training.mirror import mirrored

        with mirrored(cfg.checkpoint.mirror, folder.path):
            if cfg.trainer.devices > 1:
                from recsys.distributed.launch import spawn

                job = {"run": str(folder.path), "prepared": str(prepared.folder), "resumed": folder.resumed}
                minutes = cfg.trainer.timeout_minutes
                patience = {"patience_seconds": int(60 * minutes)} if cfg.trainer.save_on_interrupt else {}
                metrics_page.close()
                spawn(cfg.trainer.devices, "recsys.training.run:train_rank", job, **patience)  # in each process
            else:
                with process_group(cfg.accelerator, cfg.trainer.threads) as alone:
                    fit(cfg, folder, prepared, alone)
        return Run(folder.path)
    finally:
        starts.end(sys.exception())
        run_lock.release()


def _train_as_rank(composed: DictConfig, ranks: Ranks) -> Run:
    """Train as one of torchrun's ranks: rank 0 checks, prepares and opens the folder, and the others follow it."""
    from recsys.distributed.ranks import check_shared, first_decides, most_restarts
    from recsys.training.mirror import mirrored
    from recsys.training.run_dir import RunFolder

    def begin_on_rank_0() -> tuple[Path, Prepared, bool]:
        """Return what the other ranks need; each of them reads the checkpoint's state itself."""
        cfg, files = check_raw_files(composed)
        cfg = cfg.changed({"trainer.devices": ranks.local_world_size})
        folder, prepared = begin(cfg, files, ranks.world_size, restarts)
        return folder.path, prepared, folder.resumed

    t = composed.trainer
    with process_group(device_of(t.accelerator), t.threads, ranks, t.timeout_minutes):
        restarts = most_restarts(ranks)
        path, prepared, resumed = first_decides(ranks, begin_on_rank_0)
        check_shared(ranks, {"run_dir": path, "data.prepared": prepared.folder})
        folder = RunFolder(path, resumed, restarts=restarts)
        cfg = RunConfig.of(load_config(path / "config.yaml", ours=True))
        with mirrored(cfg.checkpoint.mirror if ranks.rank == 0 else None, path):
            fit(cfg, folder, prepared, ranks)
    return Run(path)


def train_rank(run: str, prepared: str, resumed: bool) -> None:
    """Run one rank of a training run that `train` has checked, prepared and spawned."""
    from recsys.data.prepare.prepared import Prepared
    from recsys.training.run_dir import RunFolder

    path = Path(run)
    log_to(path / "train.log")
    cfg = RunConfig.of(load_config(path / "config.yaml", ours=True))
    started = started_by_torchrun()
    group = process_group(cfg.accelerator, cfg.trainer.threads, started, cfg.trainer.timeout_minutes)
    with metrics_page.heard(cfg), group as ranks:
        fit(cfg, RunFolder(path, resumed), Prepared(Path(prepared)), ranks)


def begin(cfg: RunConfig, files: SplitFiles | None, world_size: int, restarts: int = 0) -> tuple[RunFolder, Prepared]:
    """Check the config, prepare the data and open the run's folder. One process calls this before training begins.

    Args:
        cfg: the config that `check_raw_files` returned.
        files: the raw files that it returned; None if the data names no files.
        world_size: number of processes of the job.
        restarts: how often torchrun has restarted this job.
    """
    check_late(cfg, world_size)
    data = cfg.data
    if data.root is None and data.sample is not None:
        say(f"data.root is not set: using the built-in sample ({data.sample.rows:,} rows, seed {data.sample.seed})")
        if cfg.trainer.max_epochs > FIRST_LOOK:
            say(
                f"trainer.max_epochs is {cfg.trainer.max_epochs}, as in the paper; for a first look, "
                f"trainer.max_epochs={FIRST_LOOK} is enough"
            )
    from recsys.data.features import Fitted
    from recsys.data.features.label_columns import check_known
    from recsys.data.prepare.engine import open_engine
    from recsys.data.prepare.prepared import prepare
    from recsys.training import mirror
    from recsys.training.run_data import prepare_to_go_on, prepare_to_resume
    from recsys.training.run_data import save as save_run_data
    from recsys.training.run_dir import allow_restarts, open_run_dir, write_manifest
    from recsys.training.run_lock import hold

    cfg = allow_restarts(cfg, restarts)
    if cfg.checkpoint.mirror is not None and cfg.resume == AUTO and cfg.run_dir is not None:
        path = Path(cfg.run_dir)
        path.mkdir(parents=True, exist_ok=True)
        hold(path)
        mirror.fetch(cfg.checkpoint.mirror, path)
    folder = open_run_dir(cfg)
    path = folder.path
    if cfg.checkpoint.mirror is not None:
        mirror.check(cfg.checkpoint.mirror, path, folder.resumed)
    log_to(path / "train.log")
    say(f"run folder: {path}")
    if cfg.trainer.threads is None and (cores := allowed_cores()).why:
        say(f"CPU cores: {cores}")
    interrupts.advise(f"go on with resume={path}")
    with open_engine(cfg.engine, data) as engine:
        if folder.resumed:
            prepared = prepare_to_resume(path, data, engine, files, cfg.resume_on_changed_data)
        elif (start := run_to_start_from(cfg)) is not None:
            prepared = prepare_to_go_on(start, data, engine, files)
        else:
            prepared = prepare(data, engine, files)
    if not folder.resumed and learns_all_rows(cfg):
        check_known(data, prepared.fitted.labels)
    if not folder.resumed or not (path / manifest.FILE).exists():  # a resumed run keeps its transforms unchanged
        Fitted.copy(prepared.folder, path)
    save_run_data(path, prepared)
    write_manifest(path)
    starts.begin(path, _facts(cfg, folder, prepared, world_size))
    rows = prepared.info["rows"]
    say(f"data: {prepared.folder}: " + ", ".join(f"{n:,} {split}" for split, n in rows.items()) + " rows")
    return folder, prepared


def _facts(cfg: RunConfig, folder: RunFolder, prepared: Prepared, world_size: int) -> dict[str, Any]:
    """Return what an entry of starts.json has of the training itself."""
    return {
        "resumed": folder.resumed,
        "changed": folder.changed,
        "processes": world_size,
        "processes_of_host": cfg.trainer.devices,
        "threads": threads_taken(cfg.trainer.threads, cfg.trainer.devices),
        "accelerator": cfg.accelerator,
        "precision": cfg.precision,
        "tf32": cfg.tf32,
        "data": prepared.info.get("contents"),
    }


def check_raw_files(composed: DictConfig) -> tuple[RunConfig, SplitFiles | None]:
    """Run the checks that need no slow import: the config, the raw files, and the columns that the model needs.

    Returns:
        The config of the run, and its raw files, or None if the data names no files.
    """
    from recsys.data.prepare.check_data import check_files, check_root, names_files

    say("checking the config")
    cfg = check_early(composed)
    run_to_resume(cfg)
    cfg = check_start(cfg)
    if (line := unread_line(cfg, composed)) is not None:
        say(line)
    check_root(cfg.data)
    if not names_files(cfg.data):
        return cfg, None
    files = check_files(cfg.data)
    check_vector_widths(cfg)
    return cfg, files


def fit(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks) -> None:
    """Train or fit the model, measure the held-out splits, and write the results. Collective.

    Args:
        folder: the run's folder, and the state to go on from.
    """
    from recsys.training.results import write_results

    if cfg.kind.fitted_at_once:
        from recsys.training.fit_at_once import fit_at_once

        results = fit_at_once(cfg, folder.path, prepared)
    else:
        from recsys.training.train_steps import train_steps

        results = train_steps(cfg, folder, prepared, ranks)
    if ranks.rank == 0:
        write_results(cfg, folder.path, prepared, results)
