"""Metrics of retrieval, exact, over all queries of all ranks: where the targets stand among the candidates.

Of every target two whole numbers are kept, greater (competitors that score higher) and ties (competitors that score
the same), and every metric is its expectation over random orders of equal scores: a constant scorer gets chance.
Equal is to the last bit: a matrix product may round equal vectors otherwise at the edge of the matrix.

Each rank scores a range of the candidates (`held`), for the queries of all ranks, and the counts are summed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from recsys.batch import JaggedIds, segment_ids_of
from recsys.evaluation.negatives import ascending, keys_of, sample_negatives, within

Score = Callable[[Tensor, int, int], Tensor]

PROTOCOLS = ("full", "uniform", "popularity")
BLOCK = 2**25  # scores that exist at once
TILE = 2**22  # candidates that are scored at once; float32 counts them exactly
CHUNK = 2**20  # scores that are compared at once: what caches hold
MISSED = -1  # greater of a target that cannot be ranked


@dataclass(frozen=True)
class Protocols:
    """What targets are ranked against, and how far down the list is looked at.

    k: the lengths of lists
    protocols: full, against every candidate; uniform and popularity, against sampled candidates that are neither in
        the history nor targets, each as likely or in proportion to its count in training. Sampled metrics are not
        estimates of the full ones and may order models otherwise (Krichene & Rendle 2020,
        https://dl.acm.org/doi/10.1145/3394486.3403226).
    negatives: how many are sampled for a row, without replacement
    filter_history: under full, leave a row's history out of its list, its targets apart
    seed: of the sampling
    """

    k: tuple[int, ...] = (5, 10, 20)
    protocols: tuple[str, ...] = ("full",)
    negatives: int = 100
    filter_history: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.k or any(k < 1 for k in self.k):
            raise ValueError(f"k: one or more whole numbers from 1 on, not {list(self.k)}")
        if not self.protocols:
            raise ValueError(f"candidates: one or more of {', '.join(PROTOCOLS)}")
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise ValueError(f"candidates: no such protocol: {name}; there are {', '.join(PROTOCOLS)}")
        if self.negatives < 1:
            raise ValueError(f"negatives: 1 or more, not {self.negatives}")


def ranking_metrics(
    query: np.ndarray, greater: np.ndarray, ties: np.ndarray, k: tuple[int, ...], one_list: bool = True
) -> dict[str, float]:
    """Means of `query_metrics` over queries; NaN where there is none."""
    found = query_metrics(query, greater, ties, k, one_list)
    return {name: float(values.mean()) if len(values) else math.nan for name, values in found.items()}


def query_metrics(
    query: np.ndarray, greater: np.ndarray, ties: np.ndarray, k: tuple[int, ...], one_list: bool = True
) -> dict[str, np.ndarray]:
    """(Q,) a metric; (P,) targets, those of a query side by side; greater is MISSED where unranked.

    A target's rank is uniform over greater + 1 ... greater + ties + 1. Of a query with the targets R:

    hr@k: P(any of R in the top k)
    recall@k: |top k and R| / |R|
    ndcg@k: sum over R in the top k of 1 / log2(1 + rank), over that of the best order, of min(|R|, k) targets
        (Järvelin & Kekäläinen 2002)
    mrr: 1 / rank of the best of R

    recall and ndcg are sums over targets, so that their expectations are exact. Of several targets hr and mrr take the
    expectation of the best one (that of least greater), which is exact unless it is tied with another target.
    one_list=False: each target is ranked in a list of its own, where it is the only one; ndcg is their mean.
    """
    if not len(query):
        return {name: np.zeros(0) for n in k for name in (f"hr@{n}", f"ndcg@{n}", f"recall@{n}")} | {"mrr": np.zeros(0)}
    first = np.flatnonzero(np.append(True, query[1:] != query[:-1]))
    size = np.diff(np.append(first, len(query)))
    ranked = greater != MISSED
    lower = np.where(ranked, greater, 0)
    width = ties + 1
    gains = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, max(k) + 2))))
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, (lower + width).max() + 1)))
    found: dict[str, np.ndarray] = {}
    for n in k:
        hit = np.where(ranked, np.clip(n - lower, 0, width) / width, 0.0)
        gain = np.where(ranked, (gains[np.minimum(lower + width, n)] - gains[np.minimum(lower, n)]) / width, 0.0)
        ideal = gains[np.minimum(size, n)] if one_list else size
        found[f"hr@{n}"] = np.maximum.reduceat(hit, first)
        found[f"ndcg@{n}"] = np.add.reduceat(gain, first) / ideal
        found[f"recall@{n}"] = np.add.reduceat(hit, first) / size
    reciprocal = np.where(ranked, (harmonic[lower + width] - harmonic[lower]) / width, 0.0)
    return found | {"mrr": np.maximum.reduceat(reciprocal, first)}


def candidate_shard(n: int) -> tuple[range, int]:
    """Which of 0 ... n - 1 this rank scores, and how many of them a rank has at most."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return range(n * rank // ranks, n * (rank + 1) // ranks), -(-n // ranks)


class RankingMetrics:
    """Collects where a rank's targets stand and computes over those of all ranks: nothing is averaged.

    popularity: (N,) how often each candidate is in the training data. Candidates are 1 ... N - 1; 0 stands for the
    items outside the vocabulary and is never one.
    """

    def __init__(self, protocols: Protocols, popularity: np.ndarray) -> None:
        if "popularity" in protocols.protocols and not np.any(popularity[1:] > 0):
            raise ValueError("candidates: popularity needs the candidates' counts in the training data")
        self.protocols, self.popularity, self.candidates = protocols, popularity, len(popularity)
        weights = {"uniform": np.ones(len(popularity), np.int64), "popularity": popularity}
        self._cumulative = {
            name: np.cumsum(np.append(0, weights[name][1:])).astype(np.int64)
            for name in protocols.protocols
            if name != "full"
        }
        self.ranks = np.zeros((0, 2 + 2 * len(protocols.protocols)), np.int64)  # of the last `compute`, all ranks'
        self._kept: list[np.ndarray] = []  # (P, 2 + 2 x protocols): query, unseen, then greater and ties by protocol
        self._queries = self._cold_rows = 0

    def update(
        self,
        queries: Tensor,
        score: Score,
        targets: JaggedIds,
        history: JaggedIds,
        first_row: int,
        weight: Tensor | None = None,
    ) -> None:
        """Collective; ranks may have different numbers of rows, or none.

        queries: (B, ...), whatever score reads of a row
        score(queries (b, ...), first, stop): (b, stop - first) scores of candidates, which this rank has `held`
        targets, history: B lists of candidates; of targets one or more a row, counted once each
        first_row: the place of the batch's first row in its split; negatives depend on that place and the seed alone
        weight: (B,); rows of weight 0 only filled a batch up and are left out

        A target of NaN ranks last and a competitor of NaN below all others: no model gains by it.
        """
        numbers = first_row + np.arange(len(targets))
        if weight is not None:
            keep = weight.cpu() > 0
            numbers, queries = numbers[keep.numpy()], queries[keep.to(queries.device)]
            targets, history = _some(targets, keep), _some(history, keep)
        row, item = _pairs(targets)
        counts = np.tile(np.array([MISSED, 0]), (len(row), len(self.protocols.protocols)))
        ranked = (item > 0) & (item < self.candidates)
        rows, items = (torch.from_numpy(x[ranked]).to(queries.device) for x in (row, item))
        lists = self._jagged_ids(row[ranked], item[ranked], history, numbers)
        ranked_queries = _RankedQueries(queries, rows, items, [one.to(queries.device) for one in lists])
        counts[ranked] = self._counts(ranked_queries, score).cpu().numpy()
        self._kept.append(np.column_stack([numbers[row], self._unseen(item), counts]))
        self._queries += len(numbers)
        self._cold_rows += int((history.lengths == 0).sum())

    def _unseen(self, item: np.ndarray) -> np.ndarray:
        """Which of these the training data lacks, whether or not they can be ranked."""
        unknown = (item < 1) | (item >= self.candidates)
        return unknown | (self.popularity[np.where(unknown, 0, item)] == 0)

    def _jagged_ids(
        self, row: np.ndarray, item: np.ndarray, history: JaggedIds, numbers: np.ndarray
    ) -> list[JaggedIds]:
        """By protocol a list a row: of full those that do not compete, of the others those that do."""
        n, rows = self.candidates, len(history)
        targets, known = ascending(row * n + item), keys_of(history, n)
        excluded = _jagged_ids(ascending(np.append(known, targets)), n, rows)
        made: list[JaggedIds] = []
        for name in self.protocols.protocols:
            if name == "full":
                left_out = known[~within(known, targets)] if self.protocols.filter_history else known[:0]
                made.append(_jagged_ids(left_out, n, rows))
            else:
                count, seed = self.protocols.negatives, self.protocols.seed
                made.append(sample_negatives(numbers, excluded, self._cumulative[name], count, seed))
        return made

    def _counts(self, ranked_queries: "_RankedQueries", score: Score) -> Tensor:
        """Collective: (P, 2 x protocols) greater and ties of this rank's targets, by protocol."""
        mine, most = candidate_shard(self.candidates)
        full = [name == "full" for name in self.protocols.protocols]
        ranked_queries, own = _gather_queries(ranked_queries)
        step = max(1, BLOCK // max(1, min(most, TILE)))
        counts = [ranked_queries.item.new_zeros(0, 2 * len(full))]
        for start in range(0, len(ranked_queries.queries), step):  # as many blocks on each rank
            counts.append(_block_counts(ranked_queries.slice(start, start + step), score, mine, full))
        found = torch.cat(counts)
        if _ranks() > 1:
            dist.all_reduce(found)
        return found[own]

    def compute(self) -> dict[str, float]:
        """Collective: every rank gets the metrics of all queries; then starts anew.

        Of full the names are bare, as ndcg@10; of the others they end in the protocol, as ndcg@10_uniform. Moreover:
        rows (queries), cold_rows (without a history), targets, cold_targets (items that the training data lacks; where
        no candidate stands for them they are missed), and candidates.
        """
        names = self.protocols.protocols
        table = np.concatenate([np.zeros((0, 2 + 2 * len(names)), np.int64), *self._kept])
        parts: list[Any] = [(table, self._queries, self._cold_rows)]
        self._kept, self._queries, self._cold_rows = [], 0, 0
        if _ranks() > 1:
            parts, own = [None] * _ranks(), parts[0]
            dist.all_gather_object(parts, own)
        tables, queries, cold_rows = zip(*parts, strict=True)
        table = np.concatenate(tables)
        self.ranks = table = table[np.argsort(table[:, 0], kind="stable")]
        found: dict[str, float] = {}
        for i, name in enumerate(names):
            full = name == "full"
            one = ranking_metrics(
                table[:, 0], table[:, 2 + 2 * i], table[:, 3 + 2 * i], self.protocols.k, one_list=full
            )
            found |= one if full else {f"{metric}_{name}": value for metric, value in one.items()}
        return found | {
            "rows": sum(queries),
            "cold_rows": sum(cold_rows),
            "targets": len(table),
            "cold_targets": int(table[:, 1].sum()),
            "candidates": self.candidates - 1,
        }


@dataclass
class _RankedQueries:
    """What is to be counted of R rows.

    queries: (R, ...)
    row, item: (P,) targets, row after row
    lists: by protocol, R lists of those that do not compete (full) or that do (the others)
    """

    queries: Tensor
    row: Tensor
    item: Tensor
    lists: list[JaggedIds]

    def slice(self, start: int, stop: int) -> "_RankedQueries":
        """Rows start to stop."""
        first, last = torch.searchsorted(self.row, self.row.new_tensor([start, stop])).tolist()
        lists = [one.slice(start, stop) for one in self.lists]
        return _RankedQueries(self.queries[start:stop], self.row[first:last] - start, self.item[first:last], lists)


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _gather_queries(ranked_queries: _RankedQueries) -> tuple[_RankedQueries, slice]:
    """Collective: what all ranks ask, one after another, and which targets are this rank's."""
    if _ranks() == 1:
        return ranked_queries, slice(None)
    numbers = [
        ranked_queries.row,
        ranked_queries.item,
        *(x for one in ranked_queries.lists for x in (one.values, one.lengths)),
    ]
    sizes = ranked_queries.row.new_tensor([len(ranked_queries.queries), *map(len, numbers)])
    shape = torch.stack(_gathered(sizes, [len(sizes)] * _ranks())).tolist()
    queries = _gathered(ranked_queries.queries, [of[0] for of in shape])
    whole = _gathered(torch.cat(numbers), [sum(of[1:]) for of in shape])
    parts = [one.split(of[1:]) for one, of in zip(whole, shape, strict=True)]
    firsts = [sum(of[0] for of in shape[:rank]) for rank in range(_ranks())]
    row = torch.cat([part[0] + first for part, first in zip(parts, firsts, strict=True)])
    item, *lists = (torch.cat([part[i] for part in parts]) for i in range(1, len(numbers)))
    before = sum(of[1] for of in shape[: dist.get_rank()])
    made = [JaggedIds(values, lengths) for values, lengths in zip(lists[::2], lists[1::2], strict=True)]
    return _RankedQueries(torch.cat(queries), row, item, made), slice(before, before + len(ranked_queries.row))


def _gathered(x: Tensor, sizes: list[int]) -> list[Tensor]:
    """Collective: the x of each rank, of these sizes in their first dimension."""
    padded = x.new_zeros(max(sizes), *x.shape[1:])
    padded[: len(x)] = x
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded)
    return [one[:size] for one, size in zip(found, sizes, strict=True)]


def _some(lists: JaggedIds, keep: Tensor) -> JaggedIds:
    """Those of the lists that are to be kept (B,)."""
    return JaggedIds(lists.values[keep[lists.segment_ids]], lists.lengths[keep])


def _pairs(targets: JaggedIds) -> tuple[np.ndarray, np.ndarray]:
    """(P,) rows, ascending, and (P,) items of the targets, each once.

    Those of 0 stay as they are: unknown items that need not be the same.
    """
    assert (targets.lengths > 0).all(), "every query has a target"
    row, item = targets.segment_ids.cpu().numpy(), targets.values.cpu().numpy()
    order = np.lexsort((item, row))
    row, item = row[order], item[order]
    new = np.ones(len(row), bool)
    new[1:] = (row[1:] != row[:-1]) | (item[1:] != item[:-1]) | (item[1:] == 0)
    return row[new], item[new]


def _jagged_ids(keys: np.ndarray, n: int, rows: int) -> JaggedIds:
    """What keys_of makes, back as lists."""
    lengths = np.bincount(keys // n, minlength=rows)
    return JaggedIds(torch.from_numpy(keys % n), torch.from_numpy(lengths))


def _block_counts(ranked_queries: _RankedQueries, score: Score, mine: range, full: list[bool]) -> Tensor:
    """Collective: (P, 2 x protocols) greater and ties among the candidates of mine.

    Where they make several tiles, those with targets are scored twice: what targets score is known only then, and
    has to come from the product that their competitors come from.
    """
    row, item = ranked_queries.row, ranked_queries.item

    @lru_cache(maxsize=1)
    def tile(first: int) -> tuple[int, Tensor]:
        """Which candidate is the first, and the scores; 0, which is none, is left out after the product: without it
        few products have rows of whole cache lines, which takes a third longer."""
        stop = min(first + TILE, mine.stop)
        scores = score(ranked_queries.queries, first, stop).detach()
        if scores.shape != (len(ranked_queries.queries), stop - first):
            raise ValueError(f"scores are {tuple(scores.shape)}, not ({len(ranked_queries.queries)}, {stop - first})")
        after = max(first, 1)
        return after, scores[:, after - first :]

    own = torch.zeros(len(row), dtype=torch.float64, device=row.device)
    for first in mine[::TILE]:
        here = ((item >= first) & (item < min(first + TILE, mine.stop))).nonzero()[:, 0]
        if len(here):
            after, scores = tile(first)
            own[here] = scores[row[here], item[here] - after].double()
    if _ranks() > 1:
        dist.all_reduce(own)  # of all but one rank 0
    counts = row.new_zeros(len(row), 2 * len(full))
    for first in mine[::TILE]:
        after, scores = tile(first)
        lists = [_within(one, after, after + scores.shape[1]) for one in ranked_queries.lists]
        counts += _counts(scores, row, item - after, own.to(scores.dtype), lists, full)
    return counts


def _within(lists: JaggedIds, first: int, stop: int) -> JaggedIds:
    """What the lists hold of first ... stop - 1, counted from first."""
    here = (lists.values >= first) & (lists.values < stop)
    lengths = torch.bincount(lists.segment_ids[here], minlength=len(lists))
    return JaggedIds(lists.values[here] - first, lengths)


def _counts(scores: Tensor, row: Tensor, item: Tensor, own: Tensor, lists: list[JaggedIds], full: list[bool]) -> Tensor:
    """(P, 2 x protocols) greater and ties of (P,) items that score own among the columns of scores (b, n)."""
    step = max(1, CHUNK // max(1, scores.shape[1]))
    one_each = torch.equal(row, torch.arange(len(scores), device=row.device))  # then no copy is compared
    parts = [row.new_zeros(0, 2 * len(full))]
    for start in range(0, len(row), step):
        rows, items, mine = (x[start : start + step] for x in (row, item, own))
        columns = [_among(scores, rows, mine, one) for one in lists]
        if any(full):
            every = _among_all(scores[start : start + step] if one_each else scores[rows], items, mine)
            columns = [every - found if of_all else found for found, of_all in zip(columns, full, strict=True)]
        parts.append(torch.cat(columns, 1))
    return torch.cat(parts)


def _among_all(scores: Tensor, item: Tensor, own: Tensor) -> Tensor:
    """(P, 2) greater and ties of (P,) items that score own, among the others of their row of scores (P, n)."""
    compared = torch.empty(scores.shape, device=scores.device)  # as numbers: sums of bool take five times as long
    greater = torch.gt(scores, own[:, None], out=compared).sum(1).long()
    ties = torch.eq(scores, own[:, None], out=compared).sum(1).long()
    itself, nan = ((item >= 0) & (item < scores.shape[1])).long(), own.isnan()
    greater = torch.where(nan, scores.shape[1] - itself, greater)
    return torch.stack([greater, torch.where(nan, 0, ties - itself)], 1)


def _among(scores: Tensor, row: Tensor, own: Tensor, lists: JaggedIds) -> Tensor:
    """(P, 2) greater and ties of (P,) targets that score own, among the row's list."""
    starts = (lists.lengths.cumsum(0) - lists.lengths)[row]
    lengths = lists.lengths[row]
    owner = segment_ids_of(lengths)
    place = torch.arange(len(owner), device=row.device) + (starts - lengths.cumsum(0) + lengths)[owner]
    other, mine = scores[row[owner], lists.values[place]], own[owner]
    greater = torch.bincount(owner[(other > mine) | mine.isnan()], minlength=len(row))
    return torch.stack([greater, torch.bincount(owner[other == mine], minlength=len(row))], 1)
