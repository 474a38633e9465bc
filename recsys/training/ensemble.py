"""The mean of several runs' predictions: deep ensembles (Lakshminarayanan et al. 2017,
https://arxiv.org/abs/1612.01474), and mixtures of different models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys.base.console import bar
from recsys.base.errors import UserError
from recsys.batch import Batch
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.evaluation.calibration import load as load_calibration
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.job.kinds import check_scores_rows
from recsys.labels import Label, predict
from recsys.training.fitted_ranking import restored_ranking
from recsys.training.run_data import prepare_to_measure
from recsys.training.run_dir import choose_checkpoint, open_run
from recsys.training.trainer import as_counts, loader_on_cpu

BATCH = 8192  # rows


@dataclass(frozen=True)
class Member:
    """A run of an ensemble: its model, its labels with their calibration, and its prepared rows of a split."""

    name: str
    module: Any
    labels: tuple[Label, ...]
    loader: ParquetLoader

    @classmethod
    def load(cls, run: str, split: str, checkpoint: str) -> Member:
        """Load a member. Raises UserError if its model does not score rows, or the data has no such rows."""
        cfg, path = open_run(run)
        check_scores_rows(cfg, run)
        prepared = prepare_to_measure(path, cfg.data)
        if not prepared.rows(split):
            raise UserError(f"split={split}: the data of {run} has no {split} rows; see data.split")
        cfg = cfg.changed({"debug.eval_batches": None, "trainer.eval_batch_size": BATCH})  # the same for all members
        module = restored_ranking(cfg, prepared.fitted, choose_checkpoint(path, checkpoint))
        labels = load_calibration(path, prepared.fitted.labels)
        return cls(run, module, labels, loader_on_cpu(cfg, prepared, split))

    def predictions(self, batch: Batch) -> Tensor:
        """Return the calibrated predictions of the rows of a batch, (B, L)."""
        return predict(self.module.dmp(batch)[1], self.labels)


def evaluate_ensemble(runs: Sequence[str], split: str = "test", checkpoint: str = "best") -> dict[str, dict[str, Any]]:
    """Return the metrics of each run on a split and, named `mean`, the metrics of the mean of their predictions.

    Raises:
        UserError: the runs have other labels or other rows.
    """
    members = [Member.load(run, split, checkpoint) for run in runs]
    first, *others = members
    for member in others:
        if [(x.kind, *x.columns) for x in member.labels] != [(x.kind, *x.columns) for x in first.labels]:
            raise UserError(f"run={member.name}: has other labels than {first.name}; average runs of the same data")
        if member.loader.rows != first.loader.rows:
            counts = f"{member.loader.rows:,} {split} rows, and {first.name} has {first.loader.rows:,}"
            raise UserError(f"run={member.name}: has {counts}; average runs of the same data and split")
    plain = tuple(label.uncalibrated() for label in first.labels)
    evaluators = [LabelsEvaluator(plain) for _ in range(len(members) + 1)]
    with bar(f"measuring {split}", first.loader.rows, "samples") as shown, torch.no_grad():
        for batches in zip(*(member.loader for member in members), strict=True):
            for member, batch in zip(others, batches[1:], strict=True):
                if not torch.allclose(batch.labels, batches[0].labels, equal_nan=True):
                    why = f"its rows are not the rows of {first.name}; average runs of the same data and split"
                    raise UserError(f"run={member.name}: {why}")
            predicted = [member.predictions(batch) for member, batch in zip(members, batches, strict=True)]
            for evaluator, predictions in zip(evaluators, [*predicted, torch.stack(predicted).mean(0)], strict=True):
                evaluator.add(predictions, batches[0])
            shown.advance(batches[0].rows)
    names = [Path(run).name for run in runs]
    names = names if len(set(names)) == len(names) else list(runs)
    return {name: as_counts(e.compute()) for name, e in zip([*names, "mean"], evaluators, strict=True)}
