"""What a rank does to measure rows that it reads of a split (tests/distributed/test_metrics.py)."""

from pathlib import Path
from typing import Any

import torch

from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.evaluation.binary import BinaryMetrics
from recsys.interface.features import FeatureSpec


def measure(
    rank: int, world_size: int, file: Path, features: FeatureSpec, sizes: list[tuple[int, bool]]
) -> list[dict[str, Any]]:
    """With each of these as exact_rows, and with weights 1, 2, 3, 1, ... or without.

    The dense feature is the logit; `user`, which models do not see, groups rows.
    """
    loader = ParquetLoader([file], features, batch_size=7, rank=rank, world_size=world_size)
    results = []
    for exact_rows, weighted in sizes:
        metrics = BinaryMetrics(exact_rows=exact_rows)
        metrics.groups = lambda start, stop: loader.column("user", start, stop).to_numpy()
        for _ in range(2):  # two validations: nothing is left of the first
            for batch in loader:
                p = torch.sigmoid(batch.dense[:, 0])
                weight = 1 + (batch.first_row + torch.arange(len(p))) % 3 if weighted else batch.weight
                metrics.update(p, batch.labels[:, 0], weight, batch.first_row)
            found = metrics.compute()
        results.append({**found, "kept": None if metrics.rows is None else metrics.rows.place.tolist()})
    return results
