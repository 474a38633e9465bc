"""Measure a run's checkpoint on a split, or the mean of several runs' predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys.base.console import bar, log_to, say
from recsys.base.errors import UserError
from recsys.config.compose import typed
from recsys.data.features import Fitted
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import process_group, started_by_torchrun
from recsys.evaluation.calibration import load as load_calibration
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.files.atomic import write_json
from recsys.interface.batch import Batch
from recsys.interface.labels import Label, predict
from recsys.job.check_built import check_job, check_processes
from recsys.job.run_config import RunConfig
from recsys.training.fit_at_once import FITTERS
from recsys.training.fitted_ranking import scoring_module
from recsys.training.loaders import loader_on_cpu, split_loader
from recsys.training.results import say_details, say_repeats, show_tables, show_targets, with_details, write_details
from recsys.training.run_data import prepare_to_measure
from recsys.training.run_dir import choose_checkpoint, open_run, protocol
from recsys.training.trainer import as_counts, build_module, build_trainer, metrics_of

SPLITS = ("train", "validation", "test")
BATCH = 8192  # rows


def evaluate(
    run: str,
    split: str = "test",
    checkpoint: str = "best",
    *,
    cfg: RunConfig | None = None,
    prepared: Prepared | None = None,
    output: Path | None = None,
) -> dict[str, Any]:
    """Return the metrics of a run's checkpoint on a split, in the form of metrics.json; {} on ranks other than 0.

    Collective: all ranks must call it.

    Args:
        split: train, validation or test.
        checkpoint: best, last, or a folder under the run's checkpoints/.
        cfg: the run's config with other devices, another sharding or other data; by default, the run's own config.
        prepared: rows that were prepared with the run's transforms; by default, those of the config's data.
        output: a folder to which the predictions or the ranks are written; None writes none.
    """
    _check_split(split)
    log_to(None)  # an earlier run in this process may have set its log file
    saved, path = open_run(run)
    if split not in saved.kind.splits:
        why = "retrieval models are measured on held-out queries only; set split=validation or split=test"
        raise UserError(f"split=train: {why}")
    if cfg is None:
        cfg = saved
        check_job(cfg, trains=False)  # the run may come from elsewhere
    cfg = cfg.changed({"debug.eval_batches": None})  # measure all rows, even if the run was a short one
    started = started_by_torchrun()
    check_processes(cfg, 1 if started is None else started.world_size)
    best = choose_checkpoint(path, checkpoint)
    prepared, t = prepared or prepare_to_measure(path, cfg.data), cfg.trainer
    if not prepared.rows(split):
        raise UserError(f"split={split}: the data has no {split} rows; see data.split")
    if cfg.kind.fitted_at_once:
        methods = FITTERS[type(cfg.kind)]
        with process_group("cpu", t.threads, started):
            model = methods.load(cfg, prepared.fitted, best)
            measured, details = methods.measure_split(model, cfg, prepared, split, path)
        return with_details({split: measured}, details, split) | {"protocol": protocol(cfg, prepared, best)}
    with process_group(cfg.accelerator, t.threads, started, t.timeout_minutes) as ranks:
        module = build_module(cfg, prepared.fitted, ranks, prepared.folder)
        if isinstance(module.evaluator, LabelsEvaluator):
            module.evaluator.labels = load_calibration(path, module.evaluator.labels, best)
        trainer, _ = build_trainer(cfg, path, ranks, prepared)
        loader = split_loader(cfg, prepared, split, ranks)
        [tested] = trainer.test(module, loader, ckpt_path=best, verbose=False)
        if ranks.rank != 0:
            return {}
        if output is not None:
            module.evaluator.write(output, split)
        details, _ = write_details(cfg, prepared.fitted, module.evaluator, loader, split, None)
        metrics = with_details({split: metrics_of(tested, "test")}, details, split)
        return metrics | {"protocol": protocol(cfg, prepared, best)}


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise UserError(f"split={split}: must be train, validation or test")


def evaluate_rank(run: str, split: str, checkpoint: str, config: dict[str, Any]) -> None:
    """Run one rank of an evaluation that `recsys.evaluate` has spawned. config: the run's config with overrides."""
    show(evaluate(run, split, checkpoint, cfg=RunConfig.of(typed(config))), Path(run), split)


def show(metrics: dict[str, Any], path: Path, split: str) -> None:
    """Print the metrics as a table, and write them to the run's folder."""
    if not metrics:
        return
    target = path / f"evaluate-{split}.json"
    show_tables({split: metrics[split]})  # first: the folder may be read-only
    show_targets(metrics, split)
    say_repeats(metrics, split)
    say_details(metrics, split)
    write_json(target, metrics)
    say(f"{metrics['protocol']['checkpoint']} on {metrics[split]['rows']:,} {split} rows; written to {target}")


@dataclass(frozen=True)
class Member:
    """A run of an ensemble: its model, its labels with their calibration, and its prepared rows of a split."""

    name: str
    module: Any
    labels: tuple[Label, ...]
    loader: ParquetLoader
    fitted: Fitted

    @classmethod
    def load(cls, run: str, split: str, checkpoint: str) -> Member:
        """Load a member. Raises UserError if its model does not score rows, or the data has no such rows."""
        _check_split(split)
        cfg, path = open_run(run)
        cfg.kind.check_averaged(run)
        prepared = prepare_to_measure(path, cfg.data)
        if not prepared.rows(split):
            raise UserError(f"split={split}: the data of {run} has no {split} rows; see data.split")
        cfg = cfg.changed({"debug.eval_batches": None, "trainer.eval_batch_size": BATCH})  # the same for all members
        chosen = choose_checkpoint(path, checkpoint)
        module = scoring_module(cfg, prepared.fitted, chosen)
        labels = load_calibration(path, prepared.fitted.labels, chosen)
        loader = loader_on_cpu(cfg, prepared, split)
        return cls(run, module, labels, loader, prepared.fitted)

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
