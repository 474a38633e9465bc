"""The loggers of a run: metrics.csv, those of `logger=`, and what machines hear; and what they get of its results."""

import csv
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger

from recsys.base.console import emit, is_heard
from recsys.base.errors import UserError
from recsys.config.compose import without_secrets
from recsys.distributed.ranks import Ranks
from recsys.files import starts
from recsys.job.build import make
from recsys.job.run_config import RunConfig
from recsys.training.run_state import RunState

MAX_TAG_LENGTH = 64  # characters, that W&B takes
WANDB_ID = "wandb_id"  # a resumed run keeps its id, so that `wandb sync --append` continues it


def build_loggers(cfg: RunConfig, path: Path, ranks: Ranks, start: RunState | None) -> list[Logger]:
    """Return the CSV logger and the loggers of `logger=`; none on ranks other than 0.

    Args:
        start: the state that training resumes from, whose steps the CSV file keeps; None for a new run.
    """
    if ranks.rank != 0:
        return []
    loggers: list[Logger] = [csv_logger(path, start.batches if start else None)]
    hyperparams = without_secrets(cfg.plain) | {"made_by": starts.line(path)}
    for name, node in cfg.logger.items():
        options = _wandb_options(cfg, path, node, start) if name == "wandb" else {}
        of_mlflow = path / "mlflow_id"  # a resumed run goes on with its run of MLflow, whose parameters cannot change
        resumes = name == "mlflow" and start is not None and of_mlflow.exists()
        if resumes:
            options = {"run_id": of_mlflow.read_text(encoding="utf-8")}
        try:
            logger: Logger = make(node, f"logger.{name}")(save_dir=str(path), **options)
            if not resumes:
                logger.log_hyperparams(hyperparams)
        except Exception as e:
            if not isinstance(e, ModuleNotFoundError) and not type(e).__module__.startswith("mlflow"):
                raise
            raise UserError(f"logger.{name}: {str(e).strip().splitlines()[0]}") from e
        if name == "mlflow":
            of_mlflow.write_text(str(logger.version), encoding="utf-8")
        loggers.append(logger)
    if is_heard():
        loggers.append(EventLogger())
    return loggers


def _wandb_options(cfg: RunConfig, path: Path, node: Mapping[str, Any], start: RunState | None) -> dict[str, Any]:
    """Return the tags and the id of a run of W&B."""
    file = path / WANDB_ID
    if start is None or not file.exists():
        file.write_text(uuid.uuid4().hex[:8])
    model = str(cfg.model["_target_"]).rpartition(".")[2]
    own = [tag for tag in os.environ.get("WANDB_TAGS", "").split(",") if tag]  # W&B's own, if it is given none
    tags = node.get("tags") or own or [tag[:MAX_TAG_LENGTH] for tag in (cfg.data.name, model)]
    return {"tags": tags, "id": file.read_text(encoding="utf-8"), "resume": "allow"}


def end_loggers(
    loggers: Sequence[Logger], checkpoint: Path | None, metrics: dict[str, Any], curves: dict[str, Any] | None
) -> None:
    """Log the results of a run, and close its loggers."""
    if any(type(logger).__name__ == "WandbLogger" for logger in loggers):
        from recsys.training.wandb_artifacts import track_results  # wandb takes a while to import

        track_results(loggers, checkpoint, metrics, curves)
    for logger in loggers:
        logger.finalize("success")


@contextmanager
def closed_wandb_run(path: Path) -> Iterator[None]:
    """End the run of W&B that a training begins, so that the next training of this process begins its own.

    A run that the caller began, such as an agent of W&B, stays open.
    """
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        run, file = getattr(sys.modules.get("wandb"), "run", None), path / WANDB_ID
        if run is not None and file.exists() and run.id == file.read_text(encoding="utf-8"):
            run.finish(exit_code=exit_code)


class EventLogger(Logger):
    """Tells machines (logging=json, metrics_port) the metrics that metrics.csv gets."""

    @property
    def name(self) -> str:
        return "events"

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        found: dict[str, Any] = {name: float(value) for name, value in metrics.items()}
        emit("metrics", step=step, **found)

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """Do nothing: config.yaml has them."""


def csv_logger(run_dir: Path, batches: int | None) -> CSVLogger:
    """Return the logger of metrics.csv; a resumed run keeps the history of the batches that it has trained."""
    path = run_dir / "metrics.csv"
    kept: list[dict[str, float]] = []
    if batches is not None and path.exists():
        whole = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]  # the last row may be torn
        kept = [r for r in map(_numbers, csv.DictReader(whole.splitlines())) if r.get("step", batches) < batches]
    path.unlink(missing_ok=True)
    logger = CSVLogger(run_dir, name="", version="", flush_logs_every_n_steps=50)
    for row in kept:
        logger.experiment.log_metrics({k: v for k, v in row.items() if k != "step"}, step=int(row["step"]))
    return logger


def _numbers(row: dict[Any, Any]) -> dict[str, float]:
    """Return the cells of a row of metrics.csv that hold numbers; what damaged the others, such as a disk, is lost."""
    found = {}
    for name, cell in row.items():
        with suppress(ValueError, TypeError):
            found[name] = float(cell)
    return found
