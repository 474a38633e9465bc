"""Weights & Biases logging other than metrics: artifacts with their lineage, statistics of tables, curves and alerts.

Everything works offline; `wandb sync RUN_DIR/wandb/offline-run-*` uploads it later.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
import wandb
from pytorch_lightning.loggers import Logger, WandbLogger

from recsys.base.errors import NotFinite
from recsys.data.prepare.prepared import Prepared
from recsys.sharding.sharded_checkpoint import local_tables
from recsys.training.module import RecsysModule

FILES = 10**6  # largest number of files in an artifact
UPDATED = ("sum", "exp_avg_sq")  # states of an optimizer that are 0 until a row has a gradient
_AXES = {
    "roc": ("false positive rate", "true positive rate"),
    "pr": ("recall", "precision"),
    "calibration": ("mean probability", "share of positives"),
}


class Tracking(pl.Callback):
    """Logs data, tables and alerts from rank 0; all ranks collect the statistics of tables.

    Artifacts contain references to files, not copies. Their lineage is prepared data -> run -> model.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if (run := _run(trainer.loggers)) is None:
            return
        info, folder = self._prepared.info, self._prepared.folder
        data = wandb.Artifact(_name(folder.name), "dataset", metadata={k: info[k] for k in ("name", "rows", "split")})
        data.add_reference(f"file://{folder.absolute()}", checksum=False, max_objects=FILES)  # the name has the digest
        if run.offline:  # private: use_artifact needs the server; this is its offline part
            run._log_artifact(data, is_user_created=True, use_after_commit=True)
        else:
            run.use_artifact(data)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Log the norm of each table, the root mean square of its rows' norms, and the share of its rows that had a
        gradient (not with SGD, which has no state). Collective.
        """
        if trainer.state.fn != "fit":
            return
        assert isinstance(module, RecsysModule)
        weights, states = local_tables(module.sharded, module.step.optimizers.rows)
        values: dict[str, float] = {}
        for name, info in module.sharded.tables.items():
            shards = weights[info.parameter]
            measured = not shards.replicated or dist.get_rank() == 0
            squares = [float(t.double().square().sum()) for t in shards.local_tensors if measured]
            state = next((states[k] for s in UPDATED if (k := f"{info.parameter}/{s}") in states), None)
            rows = 0.0
            if state is not None and measured:
                local = zip(state.local_regions, state.local_tensors, strict=True)
                rows = sum(float((t != 0).any(1).sum()) for p, t in local if p.column == 0)
            sums = torch.tensor([sum(squares), rows], dtype=torch.float64)
            if dist.get_world_size() > 1:
                dist.all_reduce(sums)
            values[f"tables/{name}/norm"] = (float(sums[0]) / max(info.rows, 1)) ** 0.5
            if state is not None:
                values[f"tables/{name}/touched"] = float(sums[1]) / max(info.rows, 1)
        if (run := _run(trainer.loggers)) is not None:
            run.log({**values, "trainer/global_step": trainer.global_step})

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        run = _run(trainer.loggers)
        if run is not None and isinstance(exception, NotFinite):
            run.alert("the loss is not finite", str(exception), level="ERROR")


def track_results(
    loggers: Sequence[Logger], checkpoint: Path | None, metrics: dict[str, Any], curves: dict[str, Any] | None
) -> None:
    """Log the results of a tested run: metrics (in the summary), curves, and the checkpoint as a model artifact."""
    if (run := _run(loggers)) is None:
        return
    for split in ("test", "validation"):
        run.summary.update({f"best/{split}/{k}": v for k, v in metrics.get(split, {}).items()})
    for name, (x, y) in _AXES.items():
        if points := [row[:2] for row in (curves or {}).get(name, ())]:
            table = wandb.Table([x, y], points)
            run.log({f"test/{name}": wandb.plot.line(table, x, y, title=name, split_table=True)})
    if checkpoint is not None:
        model = wandb.Artifact(_name(f"model-{run.id}"), "model", metadata={**metrics.get("test", {})})
        model.add_reference(f"file://{checkpoint.absolute()}", "checkpoint", checksum=False, max_objects=FILES)
        for file in ("config.yaml", "features.json", "plan.json"):
            if (path := checkpoint.parents[1] / file).exists():
                model.add_file(str(path), skip_cache=True)
        run.log_artifact(model, aliases=["best"])


def _run(loggers: Sequence[Logger]) -> Any:
    """Return the W&B run, or None, as on ranks other than 0."""
    return next((x.experiment for x in loggers if isinstance(x, WandbLogger)), None)


def _name(text: str) -> str:
    """Return an artifact's name: letters, digits, dashes, underscores and dots."""
    return re.sub(r"[^\w.-]", "-", text)[:128]
