"""A run, from its config to metrics.json: check, begin, prepare, fit, measure, write."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.base import interrupts, job_time, metrics_page
from recsys.base.console import log_to, say
from recsys.base.cores import allowed_cores, threads_taken
from recsys.distributed.ranks import (
    Ranks,
    check_shared_folders,
    first_decides,
    most_restarts,
    process_group,
    started_by_torchrun,
)
from recsys.files import manifest, starts
from recsys.files.run_files import CONFIG
from recsys.job.check_built import check_built
from recsys.job.check_config import check_config, check_vector_widths, learns_all_rows
from recsys.job.resumed import AUTO, check_start, names_a_run, run_to_resume, run_to_start_from
from recsys.job.run_config import RunConfig, device_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from recsys.data.prepare.check_data import SplitFiles
    from recsys.data.prepare.prepared import Prepared
    from recsys.training.results import RunResults
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


def train(given: DictConfig | RunConfig) -> Run:
    """Train as the config says: in this process, in `trainer.devices` processes on this machine, or in torchrun's."""
    from recsys.job.mirror import mirrored
    from recsys.training import run_lock

    job_time.begin()
    log_to(None)  # an earlier run in this process (a notebook) may have set its log file
    cfg, start = RunConfig.of(given), time.monotonic()
    try:
        if cfg.resume not in (None, AUTO) or cfg.run_dir is not None:  # before slow imports, and before ranks meet
            key = "resume" if names_a_run(cfg) else "run_dir"
            run_lock.check_free(Path(str(getattr(cfg, key))), key)
        if (ranks := started_by_torchrun()) is not None:
            run = _train_as_rank(cfg, ranks)
        else:
            cfg, files = check_inputs(cfg)
            folder = begin(cfg, cfg.trainer.devices)
            prepared = prepare_data(cfg, folder, files, cfg.trainer.devices)
            run = Run(folder.path)
            with mirrored(cfg.checkpoint.mirror, run.path):
                if cfg.trainer.devices > 1:
                    _spawn(cfg, folder, prepared)
                else:
                    with process_group(cfg.accelerator, cfg.trainer.threads) as alone:
                        fit_and_write(cfg, folder, prepared, alone)
        say(f"done in {time.monotonic() - start:.0f} s")
        return run
    finally:
        starts.end(sys.exception())
        run_lock.release()


def _spawn(cfg: RunConfig, folder: RunFolder, prepared: Prepared) -> None:
    """Train in `trainer.devices` processes, and wait for them."""
    from recsys.distributed.launch import spawn

    job = {"run": str(folder.path), "prepared": str(prepared.folder), "resumed": folder.resumed}
    job["clock"] = job_time.state()
    patience = {"patience_seconds": int(60 * cfg.trainer.timeout_minutes)} if cfg.trainer.save_on_interrupt else {}
    metrics_page.close()
    spawn(cfg.trainer.devices, "recsys.training.run:train_rank", job, **patience)


def train_rank(run: str, prepared: str, resumed: bool, clock: dict[str, Any]) -> None:
    """Run one rank of a training run that `train` has checked, prepared and spawned."""
    from recsys.data.prepare.prepared import Prepared
    from recsys.training.run_dir import RunFolder

    job_time.begin(clock)
    path = Path(run)
    log_to(path / "train.log")
    cfg = RunConfig.load(path / CONFIG, ours=True)
    started = started_by_torchrun()
    group = process_group(cfg.accelerator, cfg.trainer.threads, started, cfg.trainer.timeout_minutes)
    with metrics_page.heard(cfg), group as ranks:
        fit_and_write(cfg, RunFolder(path, resumed), Prepared(Path(prepared)), ranks)


def _train_as_rank(cfg: RunConfig, ranks: Ranks) -> Run:
    """Train as one of torchrun's ranks: rank 0 begins the run, and the others follow it."""
    from recsys.job.mirror import mirrored
    from recsys.training.run_dir import RunFolder

    def begin_on_rank_0() -> tuple[Path, Prepared, bool]:
        """Return what the other ranks need; each of them reads the checkpoint's state itself."""
        checked, files = check_inputs(cfg)
        checked = checked.changed({"trainer.devices": ranks.local_world_size})
        folder = begin(checked, ranks.world_size, restarts)
        return folder.path, prepare_data(checked, folder, files, ranks.world_size), folder.resumed

    t = cfg.trainer
    with process_group(device_of(t.accelerator), t.threads, ranks, t.timeout_minutes):
        restarts = most_restarts(ranks)
        path, prepared, resumed = first_decides(ranks, begin_on_rank_0)
        check_shared_folders(ranks, {"run_dir": path, "data.prepared": prepared.folder})
        cfg = RunConfig.load(path / CONFIG, ours=True)
        with mirrored(cfg.checkpoint.mirror if ranks.rank == 0 else None, path):
            fit_and_write(cfg, RunFolder(path, resumed, restarts=restarts), prepared, ranks)
    return Run(path)


def begin(cfg: RunConfig, world_size: int, restarts: int = 0) -> RunFolder:
    """Build the parts of the run once, to see that they fit, and open its folder. One process calls this.

    Args:
        cfg: the config that `check_inputs` returned.
        world_size: number of processes of the job.
        restarts: how often torchrun has restarted this job.
    """
    check_built(cfg, world_size)
    _say_sample(cfg)
    from recsys.training.run_dir import allow_restarts, open_run_dir

    cfg = allow_restarts(cfg, restarts)
    _fetch_mirror(cfg)
    folder = open_run_dir(cfg)
    path = folder.path
    if cfg.checkpoint.mirror is not None:
        from recsys.job import mirror

        mirror.check(cfg.checkpoint.mirror, path, folder.resumed)
    log_to(path / "train.log")
    say(f"run folder: {path}")
    if cfg.trainer.threads is None and (cores := allowed_cores()).why:
        say(f"CPU cores: {cores}")
    interrupts.advise(f"go on with resume={path}")
    return folder


def check_inputs(cfg: RunConfig) -> tuple[RunConfig, SplitFiles | None]:
    """Check what needs no slow import: the config, the run to resume or to start from, and the raw files.

    Returns:
        The config, with the widths of the tables of the run that it starts from, and its raw files, or None if the
        data names no files.
    """
    from recsys.data.prepare.check_data import check_raw_files, check_root, names_files

    say("checking the config")
    check_config(cfg)
    run_to_resume(cfg)
    cfg = check_start(cfg)
    if (line := cfg.unread()) is not None:
        say(line)
    check_root(cfg.data)
    if not names_files(cfg.data):
        return cfg, None
    files = check_raw_files(cfg.data)
    check_vector_widths(cfg)
    return cfg, files


def _say_sample(cfg: RunConfig) -> None:
    sample = cfg.data.sample
    if cfg.data.root is not None or sample is None:
        return
    say(f"data.root is not set: using the built-in sample ({sample.rows:,} rows, seed {sample.seed})")
    if cfg.trainer.max_epochs > FIRST_LOOK:
        say(f"trainer.max_epochs is {cfg.trainer.max_epochs}: for a first look, {FIRST_LOOK} is enough")


def _fetch_mirror(cfg: RunConfig) -> None:
    """Fetch the copy of a run that resume=auto resumes, if the copy is newer than the run's folder."""
    if cfg.checkpoint.mirror is None or cfg.resume != AUTO or cfg.run_dir is None:
        return
    from recsys.job import mirror
    from recsys.training import run_lock

    path = Path(cfg.run_dir)
    path.mkdir(parents=True, exist_ok=True)
    run_lock.hold(path)
    mirror.fetch(cfg.checkpoint.mirror, path)


def prepare_data(cfg: RunConfig, folder: RunFolder, files: SplitFiles | None, world_size: int) -> Prepared:
    """Prepare the data of a run, keep its transforms in the run's folder, and record what the run starts with.

    Args:
        files: the raw files that `check_inputs` returned.
        world_size: number of processes of the job.
    """
    from recsys.data.features import Fitted
    from recsys.data.features.label_columns import check_known
    from recsys.data.prepare.prepared import open_engine, prepare
    from recsys.training import run_data
    from recsys.training.run_dir import write_manifest

    path, data = folder.path, cfg.data
    job_time.add_rest("start")
    with job_time.spend("preparing"), open_engine(cfg.engine, data) as engine:
        if folder.resumed:
            prepared = run_data.prepare_to_resume(path, data, engine, files, cfg.resume_on_changed_data)
        elif (start := run_to_start_from(cfg)) is not None:
            prepared = run_data.prepare_to_start_from(start, data, engine, files)
        else:
            prepared = prepare(data, engine, files)
    if not folder.resumed and learns_all_rows(cfg):
        check_known(data, prepared.fitted.labels)
    if not folder.resumed or not (path / manifest.FILE).exists():  # a resumed run keeps its transforms unchanged
        Fitted.copy(prepared.folder, path)
    run_data.save(path, prepared)
    write_manifest(path)
    starts.begin(path, _facts(cfg, folder, prepared, world_size))
    rows = prepared.info["rows"]
    say(f"data: {prepared.folder}: " + ", ".join(f"{n:,} {split}" for split, n in rows.items()) + " rows")
    return prepared


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


def fit_and_write(cfg: RunConfig, folder: RunFolder, prepared: Prepared, ranks: Ranks) -> None:
    """Fit the model, measure it on the held-out splits, and write the results. Collective.

    Args:
        folder: the run's folder, and the state to resume from.
    """
    from recsys.training.loggers import closed_wandb_run
    from recsys.training.results import write_results

    job_time.add_rest("start")  # what follows the preparation: of processes, or a wait for rank 0
    fit_and_measure = method_of(cfg)
    with closed_wandb_run(folder.path):
        results = fit_and_measure(cfg, folder, prepared, ranks)
        if ranks.rank == 0:
            write_results(cfg, folder.path, prepared, results)


def method_of(cfg: RunConfig) -> Callable[[RunConfig, RunFolder, Prepared, Ranks], RunResults]:
    """Return how a config's model is fitted and measured: step by step, or at once."""
    if cfg.kind.fitted_at_once:
        from recsys.training.fit_at_once import fit_at_once

        return fit_at_once
    from recsys.training.train_stepwise import train_stepwise

    return train_stepwise
