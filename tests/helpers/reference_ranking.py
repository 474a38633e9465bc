"""Measure a matrix of scores, and the reference: sort every row."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.evaluation.retrieval_protocols import Protocols
from recsys.interface.batch import JaggedIds

Found = dict[str, float]


def lists(of: list[list[int]]) -> JaggedIds:
    values = [value for one in of for value in one]
    return JaggedIds(torch.tensor(values, dtype=torch.int64), torch.tensor([len(one) for one in of], dtype=torch.int64))


def columns(queries: Tensor, first: int, stop: int) -> Tensor:
    """Scores of queries that are their own scores, (b, N)."""
    return queries[:, first:stop]


def measure(
    scores: Tensor,
    targets: list[list[int]],
    history: list[list[int]] | None = None,
    sizes: tuple[int, ...] = (1000,),
    weight: list[float] | None = None,
    popularity: np.ndarray | None = None,
    **protocols: object,
) -> Found:
    """The metrics of (B, N) scores, in batches of these sizes, the last one repeated."""
    popularity = np.ones(scores.shape[1]) if popularity is None else popularity
    metrics = RetrievalMetrics(Protocols(**protocols), popularity)  # type: ignore[arg-type]
    history = history or [[] for _ in targets]
    start = 0
    for size in itertools.chain(sizes, itertools.repeat(sizes[-1])):
        stop = min(start + size, len(targets))
        part = scores[start:stop]
        w = None if weight is None else torch.tensor(weight[start:stop])
        metrics.update(part, columns, lists(targets[start:stop]), lists(history[start:stop]), start, w)
        start = stop
        if start == len(targets):
            return metrics.compute()
    raise AssertionError


def by_sorting(
    scores: np.ndarray,
    targets: list[list[int]],
    history: list[list[int]],
    k: tuple[int, ...],
    rank_repeats: bool = False,
) -> Found:
    """The reference: sort every row's candidates, look where the targets are."""
    found: dict[str, list[float]] = {}
    for row, (mine, seen) in enumerate(zip(targets, history, strict=True)):
        wanted = set(mine)
        left_out = set(seen) - (wanted if rank_repeats else set())
        ranked = [i for i in np.argsort(-scores[row]) if i and i not in left_out]
        ranks = sorted(ranked.index(item) + 1 for item in wanted if item in ranked)
        for n in k:
            hits = [rank for rank in ranks if rank <= n]
            ideal = sum(1 / math.log2(1 + i) for i in range(1, min(len(wanted), n) + 1))
            found.setdefault(f"hr@{n}", []).append(bool(hits))
            found.setdefault(f"recall@{n}", []).append(len(hits) / len(wanted))
            found.setdefault(f"ndcg@{n}", []).append(sum(1 / math.log2(1 + rank) for rank in hits) / ideal)
            found.setdefault(f"precision@{n}", []).append(len(hits) / n)
            precisions = [sum(other <= rank for other in ranks) / rank for rank in hits]
            found.setdefault(f"map@{n}", []).append(sum(precisions) / min(len(wanted), n))
            found.setdefault(f"mrr@{n}", []).append(1 / hits[0] if hits else 0)
        found.setdefault("mrr", []).append(1 / ranks[0] if ranks else 0)
    return {name: float(np.mean(values)) for name, values in found.items()}


def same(found: Found, expected: Found) -> None:
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
