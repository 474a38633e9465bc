"""Start a sweep from the command line.

The overrides and settings are checked before the sweep's folder is created.
"""

import os
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recsys.base.console import log_to, say
from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.cli import command_line
from recsys.config.compose import compose_sweep, object_of
from recsys.distributed import failures
from recsys.evaluation import metrics_table
from recsys.job.check_built import check_job
from recsys.job.check_config import check_leads, monitor_of
from recsys.job.run_config import RunConfig
from recsys.schema.run_schema import SweepConfig
from recsys.sweep import record, show
from recsys.sweep.processes import Machine
from recsys.sweep.record import FAILED, Sweep
from recsys.sweep.schedule import Schedule
from recsys.sweep.search import FixedTrials, Study, check_method
from recsys.sweep.slurm import Cluster
from recsys.sweep.space import Space, composed, read_space


def begin(arguments: list[str]) -> int:
    """Run `python -m recsys.train -m ARGUMENTS` and return its exit status."""
    code = 0

    def work() -> None:
        nonlocal code
        log_to(None)
        if "RANK" in os.environ:
            raise UserError("-m: a sweep starts its own processes; run it without torchrun and set trainer.devices=N")
        space = read_space(arguments)
        cfg, default = _config(space, arguments)
        settings = object_of(SweepConfig, cfg.sweep, "sweep")
        check_sweep_settings(settings)
        check_method(space, settings)
        for key in ("checkpoint.mirror", *(["metrics_port"] if settings.jobs > 1 else [])):
            if OmegaConf.select(cfg, key) is not None:
                raise UserError(f"{key}: is of one run, and a sweep has several; leave it out, or set it to null")
        folder = Path(cfg.run_dir or default)
        if (folder / record.FILE).exists():
            hint = f"resume it with python -m recsys.sweep resume {folder}, or choose another run_dir"
            raise UserError(f"run_dir={folder}: already has a sweep; {hint}")
        if settings.launcher == "local":  # not on other machines than this one
            _check_trials(cfg, composed(space.overrides(space.ends()[1])))
        metric = metric_of(RunConfig.of(cfg), settings)
        direction = settings.direction or ("minimize" if metrics_table.lower_is_better(metric) else "maximize")
        seeds, wanted = list(space.seeds), settings.trials or 0
        sweep = Sweep(
            arguments, os.getcwd(), asdict(settings), metric, direction, seeds, wanted, repeated=space.repeated
        )
        runner = launcher(space, settings, folder)
        folder.mkdir(parents=True, exist_ok=True)
        with record.lock(folder):
            code = run(sweep, space, folder, runner)

    return command_line.call(work, "train", arguments) or code


def run(sweep: Sweep, space: Space, folder: Path, runner: Machine | Cluster) -> int:
    """Run the remaining trials of a sweep, whose lock the caller holds, and return the exit status.

    It is 0 if no trial failed, otherwise the worst of the failed runs, of which 1 is the worst.
    """
    log_to(folder / "sweep.log")
    optuna = sweep.settings["method"] == "optuna"
    search = Study(sweep, space, folder) if optuna else FixedTrials(sweep, space)
    sweep.save(folder)
    say(f"sweep {folder}: {sweep.wanted} trials, method {sweep.settings['method']}, {sweep.direction} {sweep.metric}")
    Schedule(folder, sweep, search, runner).run()
    show.table(sweep, folder)
    show.summary(sweep, folder)
    failed = [r.exit or failures.OURS for t in sweep.trials for r in t.runs if r.status in FAILED]
    return failures.OURS if failures.OURS in failed else max(failed, default=0)


def _config(space: Space, arguments: list[str]) -> tuple[DictConfig, str]:
    """Return the config of the first trial with the sweep's own settings, and the default folder."""
    own = [a for a in arguments if a.lstrip("+").startswith(("sweep.", "sweep=", "run_dir=", "hydra."))]
    overrides = [*space.overrides(space.ends()[0]), *own]
    with command_line.explained(overrides):
        return compose_sweep(overrides)


def check_sweep_settings(s: SweepConfig) -> None:
    """Raise UserError for values that the schema accepts but a sweep does not."""
    if s.launcher == "slurm":
        check_extra("slurm", "sweep.launcher=slurm")
    elif s.slurm:
        raise UserError("sweep.slurm: only used with sweep.launcher=slurm")


def _check_trials(first: DictConfig, last: DictConfig) -> None:
    """Raise UserError for a mistake that the first and the last trial have.

    Mistakes in the values of a single trial are reported by that trial.
    """
    try:
        check_job(first)
    except UserError as e:
        try:
            check_job(last)
        except UserError as other:
            if str(other) == str(e):
                raise


def metric_of(cfg: RunConfig, settings: SweepConfig) -> str:
    """Return the metric that ranks the trials, of which `cfg` is one. Raises UserError if they do not have it."""
    metric = settings.metric or monitor_of(cfg, cfg.checkpoint.monitor)
    held_out = {"validation": cfg.data.split.validates, "test": cfg.data.split.test}
    if metric.startswith("validation/") and not held_out["validation"]:
        test = f"sweep.metric={metric.replace('validation', 'test', 1)} or " if held_out["test"] else ""
        raise UserError(f"sweep.metric={metric}: no rows validate; set {test}data.split.validation above 0")
    valid = [f"{split}/{m}" for split, rows in held_out.items() if rows for m in cfg.kind.metric_names(cfg)]
    check_leads("sweep.metric", metric, valid)
    entry = metrics_table.metric(metric)
    if settings.prune and (metric.startswith("test/") or (entry is not None and entry.of_lists)):
        raise UserError(
            f"sweep.metric={metric}: known only at the end of a run, too late to prune; "
            "set sweep.prune=false, or use a metric of validation"
        )
    return metric


def launcher(space: Space, settings: SweepConfig, folder: Path) -> Machine | Cluster:
    """Return the machine or cluster that runs the trials. Raises UserError if it is unavailable or too small."""
    if settings.launcher == "slurm":
        return Cluster(folder, settings.slurm)
    if settings.jobs == 1:
        return Machine(1, [])
    first, last = space.ends()
    most = next((max(a.choices, key=int) for a in space.axes if a.key == "trainer.devices"), None)
    widest = {} if most is None else {"trainer.devices": most}
    return Machine.for_trials(settings.jobs, [composed(space.overrides(v | widest)) for v in (first, last)])
