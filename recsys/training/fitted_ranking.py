"""Fit, save, load and measure ranking models that are fitted at once, in one process: boosted trees."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recsys.base.console import bar, say_once
from recsys.base.errors import NotFinite, UserError
from recsys.data.features import Fitted
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.calibration import load as load_calibration
from recsys.evaluation.calibration import save as save_calibration
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.evaluation.group_metrics import group_metrics
from recsys.evaluation.metrics_table import main_k
from recsys.files import manifest
from recsys.interface.batch import Batch
from recsys.job.build import build_model
from recsys.job.run_config import RunConfig
from recsys.models.common.boosters import GroupOrder
from recsys.training.checkpoints import write_fitted_checkpoint
from recsys.training.loaders import loader_on_cpu
from recsys.training.module import RecsysModule
from recsys.training.results import write_details
from recsys.training.trainer import as_counts, restored_module


@dataclass(frozen=True)
class FittedModule:
    """A fitted model that a Predictor calls as it calls a RecsysModule."""

    model: nn.Module

    def dmp(self, batch: Batch) -> tuple[None, Tensor]:
        """Return no loss, and the logits (B, L)."""
        return None, self.model(batch.dense, batch.sparse)


def fit_model(cfg: RunConfig, prepared: Prepared) -> Any:
    """Return the model, fitted to all training rows."""
    model = build_model(cfg, prepared.fitted.features, torch.device("cpu"))
    validation = loader_on_cpu(cfg, prepared, "validation") if prepared.rows("validation") else None
    training = loader_on_cpu(cfg, prepared, "train", thinned=True)
    if cfg.loss is not None:
        model.order_groups(_order(main_k(tuple(cfg.metrics.k))))
    model.fit(training, validation, seed=cfg.seed, threads=torch.get_num_threads())
    return model


def _order(k: int) -> GroupOrder:
    """Return what a model that orders the rows of groups is stopped by: NDCG@k within groups, as it is reported."""
    metric = f"gndcg@{k}"
    return GroupOrder(
        metric, lambda group, score, label, weight: group_metrics(group, score, label, [k], weight)[metric]
    )


def save(model: Any, path: Path) -> Path:
    """Write the model as a checkpoint of the run, and return its folder."""
    return write_fitted_checkpoint(path, model.save)


def load(cfg: RunConfig, fitted: Fitted, checkpoint: Path) -> Any:
    """Load the model that `save` wrote. Raises DamagedFile if it is not as it was written."""
    manifest.check(checkpoint)
    model = build_model(cfg, fitted.features, torch.device("cpu"))
    try:
        model.load(checkpoint)
    except FileNotFoundError as e:
        raise UserError(f"{checkpoint}: is not a checkpoint of the model in the run's config.yaml") from e
    return model


def scoring_module(cfg: RunConfig, fitted: Fitted, checkpoint: Path) -> FittedModule | RecsysModule:
    """Return the ranking model of a checkpoint as a module that scores batches: `module.dmp`."""
    if cfg.kind.fitted_at_once:
        return FittedModule(load(cfg, fitted, checkpoint))
    return restored_module(cfg, fitted, checkpoint)


def calibrate(model: Any, cfg: RunConfig, prepared: Prepared, run: Path) -> None:
    """Fit the calibration on the validation rows, and write it to the run's folder.

    Args:
        model: the fitted model, whose logits are calibrated.
    """
    evaluator = cfg.kind.evaluator(cfg, prepared.fitted.features, None)
    assert isinstance(evaluator, LabelsEvaluator)
    _measure(model, evaluator, loader_on_cpu(cfg, prepared, "validation"), "validation")
    evaluator.calibrate(cfg.calibration)
    save_calibration(run, evaluator.labels)


def measure_split(
    model: Any, cfg: RunConfig, prepared: Prepared, split: str, run: Path, *, write: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metrics of a split, and what `Evaluator.details` returns.

    Args:
        run: the run's folder, whose calibration is applied.
        write: write curves and predictions of the rows to it.
    """
    evaluator = cfg.kind.evaluator(cfg, prepared.fitted.features, None)
    assert isinstance(evaluator, LabelsEvaluator)
    evaluator.labels = load_calibration(run, evaluator.labels)
    loader = loader_on_cpu(cfg, prepared, split)
    measured = _measure(model, evaluator, loader, split)
    details, _ = write_details(cfg, prepared.fitted, evaluator, loader, split, run if write else None)
    return measured, details


def _measure(model: Any, evaluator: LabelsEvaluator, loader: ParquetLoader, split: str) -> dict[str, Any]:
    """Return the metrics of a split's rows."""
    evaluator.begin(None, loader)
    with bar(f"measuring {split}", loader.rows, "samples") as shown, torch.no_grad():
        for batch in loader:
            evaluator.update(None, model(batch.dense, batch.sparse), batch)
            shown.advance(batch.rows)
    try:
        metrics = evaluator.compute()
    except NotFinite as e:
        raise NotFinite(f"{split}: {e}; try other values of model.*") from e
    if (why := evaluator.undefined(metrics)) is not None:
        say_once(f"{split}: {why}")
    return as_counts(metrics)
