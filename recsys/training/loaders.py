"""The loaders of a run's prepared rows."""

from pathlib import Path

import torch

from recsys.base.console import say_once
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.loader.training_rows import untrained_unknowns
from recsys.data.prepare.prepared import Prepared
from recsys.distributed.ranks import ALONE, Ranks
from recsys.interface.labels import kept_negatives
from recsys.job.run_config import RunConfig
from recsys.training.pipelines import BASE, BATCHES_AHEAD, NONE, PIPELINES


def split_loader(
    cfg: RunConfig,
    prepared: Prepared,
    split: str,
    ranks: Ranks,
    *,
    training: bool = False,
    thinned: bool = False,
    files: list[Path] | None = None,
) -> ParquetLoader:
    """Return the loader of this rank's share of a split, or of some of its files.

    For training it is shuffled and all ranks have the same number of batches; otherwise it reads every row in order.
    Where training rows are measured, those that are left of the negatives stand for all of them.

    thinned: let negatives count once, as in training
    """
    batch_size = cfg.trainer.batch_size if training else cfg.trainer.eval_batch_size
    fitted = prepared.fitted
    files = files or prepared.files(split)
    device = local_device(cfg.accelerator, ranks.local_rank)
    pipeline = cfg.pipeline if training else BASE
    negatives = kept_negatives(fitted.labels) if split == "train" and not (training or thinned) else 1.0
    unknown = {}
    if training and cfg.loader.unknown and (names := untrained_unknowns(prepared)):
        unknown = dict.fromkeys(names, cfg.loader.unknown)
        if ranks.rank == 0:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            share = f"{100 * cfg.loader.unknown:g} %"
            say_once(f"{share} of the ids of {shown} train the vector of new values (loader.unknown)")
    return ParquetLoader(
        files,
        fitted.features,
        vectors=fitted.matrices,
        batch_size=max(batch_size // ranks.world_size, 1),
        training=training,
        shuffle=training and cfg.loader.shuffle,
        seed=cfg.seed,
        buffer_rows=cfg.loader.buffer_rows,
        balance_lists=training and cfg.loader.balance_lists,
        negatives=negatives,
        unknown=unknown,
        keep_bytes=cfg.loader.keep_mb << 20 if training else 0,
        rank=ranks.rank,
        world_size=ranks.world_size,
        epochs=cfg.trainer.max_epochs if training else None,
        limit=cfg.debug.train_batches if training else cfg.debug.eval_batches,
        check=prepared.check_in_background(files[ranks.rank :: ranks.world_size]),
        device=None if pipeline == NONE else device,
        upcoming=BATCHES_AHEAD if pipeline in PIPELINES else 0,
    )


def loader_on_cpu(cfg: RunConfig, prepared: Prepared, split: str, *, thinned: bool = False) -> ParquetLoader:
    """Return the loader of all rows of a split in order, for one process that scores them on the CPU, GPU or not.

    thinned: let negatives count once, as in training
    """
    return split_loader(cfg.changed({"trainer.accelerator": "cpu"}), prepared, split, ALONE, thinned=thinned)


def local_device(accelerator: str, local_rank: int) -> torch.device:
    """Return the CPU, or the GPU of this local rank."""
    return torch.device("cpu") if accelerator == "cpu" else torch.device("cuda", local_rank)
