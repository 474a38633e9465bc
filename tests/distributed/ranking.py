"""Queries of some ranks, of uneven numbers, ranked: what each rank has kept of its own."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import recsys.evaluation.retrieval_counts
from recsys.evaluation.metrics_table import LISTS
from recsys.evaluation.retrieval_counts import candidate_shard
from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.evaluation.retrieval_protocols import Protocols
from recsys.interface.batch import JaggedIds

N, ROWS = 41, 23
CUTS = {1: [0, 23], 2: [0, 17, 23], 4: [0, 9, 9, 21, 23]}  # of four ranks one has no row
PROTOCOLS = Protocols(k=(1, 5), protocols=("full", "uniform", "popularity"), negatives=6, lists=LISTS)
UNFILTERED = Protocols(k=(5, 30), filter_history=False, lists=LISTS)  # 30: more than a rank's share of the candidates


def scores(kind: str) -> Tensor:
    """(ROWS, N), in whole numbers, as no product of others would round."""
    g = torch.Generator().manual_seed(1)
    found = torch.randint(0, {"distinct": 10**6, "constant": 1}.get(kind, 5), (ROWS, N), generator=g).float()
    if kind == "nan":
        found[torch.rand(found.shape, generator=g) < 0.3] = torch.nan
    return found


def _lists(of: list[np.ndarray]) -> JaggedIds:
    return JaggedIds(torch.from_numpy(np.concatenate(of)), torch.tensor([len(one) for one in of]))


def rank_all(rank: int, world_size: int, cases: list[tuple[str, int]]) -> list[Any]:
    """Of each (kind of scores, TILE): by protocols what was kept and the metrics, and which candidates were scored."""
    found = []
    for kind, tile in cases:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recsys.evaluation.retrieval_counts, "TILE", tile)
            patch.setattr(recsys.evaluation.retrieval_counts, "BLOCK", 100)
            found.append(_rank(rank, world_size, kind))
    return found


def _rank(rank: int, world_size: int, kind: str) -> tuple[list[Any], set[int]]:
    rng = np.random.default_rng(0)
    targets = [rng.integers(0, N + 2, rng.integers(1, 4)) for _ in range(ROWS)]  # some are no candidates
    history = [rng.integers(0, N + 2, rng.integers(0, 12)) for _ in range(ROWS)]
    popularity, matrix, query_batch = rng.integers(0, 9, N), scores(kind), set()
    start, stop = CUTS[world_size][rank : rank + 2]
    mine, _ = candidate_shard(N)
    vectors = torch.from_numpy(np.random.default_rng(1).normal(size=(N, 3)))[mine.start : mine.stop]

    def score(queries: Tensor, first: int, stop: int) -> Tensor:
        query_batch.update(range(first, stop))
        return queries[:, first:stop]

    found = []
    for protocols in (PROTOCOLS, UNFILTERED):
        metrics = RetrievalMetrics(protocols, popularity)
        for first in range(0, max(np.diff(CUTS[world_size])), 10):  # the same steps on all ranks
            a, b = min(start + first, stop), min(start + first + 10, stop)
            rows = [*range(a, b), 0]  # the last one only fills up
            wanted = _lists([targets[r] for r in rows[:-1]] + [targets[0][:0]])
            seen, weight = _lists([history[r] for r in rows]), torch.tensor([1.0] * (b - a) + [0])
            metrics.update(matrix[rows], score, wanted, seen, a, weight, vectors)
        kept = np.concatenate(metrics._kept)[:, 1:]
        found.append((kept, metrics.compute()))
    assert query_batch <= set(mine)
    return found, query_batch
