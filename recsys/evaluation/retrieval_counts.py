"""Count the competitors of each target: how many score higher and how many score the same. Find the best candidates.

Each rank scores a range of the candidates for the queries of all ranks, and the counts are summed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from recsys.evaluation.collected_rows import is_distributed, world_size
from recsys.interface.batch import JaggedIds, segment_ids_of

MAX_ID = 2**32 - 1
GROUP = 64  # number of neighbouring candidates whose highest score is computed first
SCORES_SEARCHED = 2**22  # number of scores searched together, which limits the memory of intermediate results
BLOCK = 2**25  # maximum number of scores in memory
CPU_BLOCK = 2**23 - 2**12  # on CPUs, whose allocator reuses buffers of less than 32 MiB (`keep_freed_memory`)
CPU_ROWS = 32  # number of queries below which products take longer than new memory
TILE = 2**22  # maximum number of candidates scored together; float32 represents counts up to this exactly
SCORES_COMPARED = 2**20  # number of scores compared together, small enough for the CPU caches


def best_keys(scores: Tensor, first: int, left_out: JaggedIds, k: int) -> Tensor:
    """Return the keys (b, k) of the k best candidates of each row, in no order.

    Rows with fewer candidates end with keys of id -1. Candidates of score -inf or NaN do not count.

    Args:
        scores: (b, n) scores of the candidates first ... first + n - 1. They are changed and changed back.
        first: id of the first candidate.
        left_out: b lists of columns that do not count.
        k: number of keys per row.
    """
    if 0 in scores.stride():
        scores = scores.contiguous()  # an expanded tensor cannot be written to
    places = left_out.segment_ids, left_out.values
    kept = scores[places]
    scores[places] = -torch.inf
    step = max(1, SCORES_SEARCHED // max(1, scores.shape[1]))
    keys = torch.cat([left_out.values.new_empty(0, k), *(_best(part, first, k) for part in scores.split(step))])
    scores[places] = kept
    return keys


def merged(keys: list[Tensor], k: int) -> Tensor:
    """Return the k greatest of (b, any) keys of several tiles or processes: (b, k), in descending order."""
    return torch.cat(keys, 1).topk(k, 1).values


def merged_over_processes(keys: Tensor) -> Tensor:
    """Return the ids (b, k) of the best candidates over the keys (b, k) of all processes, -1 for none. Collective."""
    parts = [keys]
    if is_distributed():
        parts = [torch.empty_like(keys) for _ in range(world_size())]
        dist.all_gather(parts, keys.contiguous())
    best = merged(parts, keys.shape[1])
    lowest = _keys(best.new_tensor([-torch.inf], dtype=torch.float32), best.new_tensor([0]))
    return torch.where(best > lowest, MAX_ID - (best & MAX_ID), -1)


def _keys(scores: Tensor, ids: Tensor) -> Tensor:
    """Return the keys of candidates, int64. NaN counts as -inf."""
    bits = torch.nan_to_num(scores.float() + 0.0, -torch.inf, torch.inf, -torch.inf).view(torch.int32)  # + 0.0: no -0.0
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32) | (MAX_ID - ids)


def _best(scores: Tensor, first: int, k: int) -> Tensor:
    """Return the keys (b, k) of the best of the candidates first ... first + n - 1 by their scores (b, n).

    If there are many, the k groups of GROUP neighbours with the highest maxima are found first: they contain the k best
    candidates, because each of these groups has a candidate that is at least as good as any candidate outside of them.
    """
    n = scores.shape[1]
    if 2 * k * GROUP >= n:
        keys = _keys(scores, torch.arange(first, first + n, device=scores.device))
        missing = keys.new_full((len(keys), max(k - n, 0)), torch.iinfo(torch.int64).min)
        return torch.cat([keys, missing], 1).topk(k, 1, sorted=False).values
    whole = n // GROUP
    maxima = scores[:, : whole * GROUP].unflatten(1, (whole, GROUP)).amax(2)
    if whole * GROUP < n:
        maxima = torch.cat([maxima, scores[:, whole * GROUP :].amax(1, keepdim=True)], 1)
    groups = torch.arange(maxima.shape[1], device=scores.device)
    chosen = MAX_ID - (_keys(maxima, groups).topk(k, 1, sorted=False).values & MAX_ID)
    places = (chosen[:, :, None] * GROUP + groups.new_tensor(range(GROUP))).flatten(1)
    inside = places < n
    places = places.clamp(max=n - 1)
    block_keys = _keys(torch.where(inside, scores.gather(1, places), -torch.inf), first + places)
    return block_keys.topk(k, 1, sorted=False).values


Score = Callable[[Tensor, int, int], Tensor]


def candidate_shard(n: int) -> tuple[range, int]:
    """Return the range of candidates that this rank scores, and the largest number that any rank scores."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return range(n * rank // ranks, n * (rank + 1) // ranks), -(-n // ranks)


@dataclass
class RankedQueries:
    """R rows whose targets' competitors are counted.

    queries: (R, ...)
    row, item: (P,) targets, row after row
    lists: for each protocol, R lists of candidates: the excluded ones for `full`, the sampled competitors for others
    history: R lists of the candidates that are left out of the lists of the best candidates
    """

    queries: Tensor
    row: Tensor
    item: Tensor
    lists: list[JaggedIds]
    history: JaggedIds

    def slice(self, start: int, stop: int) -> "RankedQueries":
        """Return rows start ... stop - 1."""
        first, last = torch.searchsorted(self.row, self.row.new_tensor([start, stop])).tolist()
        row, item = self.row[first:last] - start, self.item[first:last]
        *lists, history = (one.slice(start, stop) for one in (*self.lists, self.history))
        return RankedQueries(self.queries[start:stop], row, item, lists, history)


def _gather_queries(ranked_queries: RankedQueries) -> tuple[RankedQueries, slice, slice]:
    """Return the queries of all ranks, one rank after another, and the slices of this rank's targets and queries.

    Collective.
    """
    if not is_distributed():
        return ranked_queries, slice(None), slice(None)
    numbers = [
        ranked_queries.row,
        ranked_queries.item,
        *(x for one in (*ranked_queries.lists, ranked_queries.history) for x in (one.values, one.lengths)),
    ]
    sizes = ranked_queries.row.new_tensor([len(ranked_queries.queries), *map(len, numbers)])
    sizes_of_ranks = torch.stack(_gathered(sizes, [len(sizes)] * world_size())).tolist()
    queries = _gathered(ranked_queries.queries, [sizes_of_rank[0] for sizes_of_rank in sizes_of_ranks])
    whole = _gathered(torch.cat(numbers), [sum(sizes_of_rank[1:]) for sizes_of_rank in sizes_of_ranks])
    parts = [one.split(sizes_of_rank[1:]) for one, sizes_of_rank in zip(whole, sizes_of_ranks, strict=True)]
    firsts = [sum(sizes_of_rank[0] for sizes_of_rank in sizes_of_ranks[:rank]) for rank in range(world_size())]
    row = torch.cat([part[0] + first for part, first in zip(parts, firsts, strict=True)])
    item, *lists = (torch.cat([part[i] for part in parts]) for i in range(1, len(numbers)))
    before = sum(sizes_of_rank[1] for sizes_of_rank in sizes_of_ranks[: dist.get_rank()])
    *made, history = (JaggedIds(values, lengths) for values, lengths in zip(lists[::2], lists[1::2], strict=True))
    targets = slice(before, before + len(ranked_queries.row))
    rows = slice(firsts[dist.get_rank()], firsts[dist.get_rank()] + len(ranked_queries.queries))
    return RankedQueries(torch.cat(queries), row, item, made, history), targets, rows


def _gathered(x: Tensor, sizes: list[int]) -> list[Tensor]:
    """Return x of each rank. sizes: size of x's first dimension on each rank. Collective."""
    padded = x.new_zeros(max(sizes), *x.shape[1:])
    padded[: len(x)] = x
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded)
    return [one[:size] for one, size in zip(found, sizes, strict=True)]


def count_competitors(
    ranked: RankedQueries, score: Score, candidates: int, protocols: tuple[str, ...], k: int = 0
) -> tuple[Tensor, Tensor, slice]:
    """Count the competitors of targets, and find the best candidates of queries. Collective.

    Args:
        ranked: this rank's queries and targets.
        score: (queries (b, ...), first, stop) -> (b, stop - first) scores of candidates in this rank's
            `candidate_shard`.
        candidates: N.
        protocols: the protocol of each of `ranked.lists`.
        k: number of best candidates to find for each query, without its history; 0 finds none.

    Returns:
        Greater and ties of this rank's targets for each protocol, (P, 2 x protocols); the k best candidates of the
        queries of all ranks, the best first, (Q, k), with -1 where there are fewer; and the slice of this rank's
        queries.
    """
    mine, max_candidates = candidate_shard(candidates)
    full = [name == "full" for name in protocols]
    ranked, targets, rows = _gather_queries(ranked)
    width = max(1, min(max_candidates, TILE))
    step = max(1, BLOCK // width)
    if ranked.queries.device.type == "cpu":
        step = min(step, max(CPU_BLOCK // width, CPU_ROWS))
    counts, best = [ranked.item.new_zeros(0, 2 * len(full))], [ranked.item.new_zeros(0, k)]
    for start in range(0, len(ranked.queries), step):  # all ranks have the same number of blocks
        of_block, keys = _block_counts(ranked.slice(start, start + step), score, mine, full, k)
        counts.append(of_block)
        best.append(merged_over_processes(keys) if k else keys)
    total = torch.cat(counts)
    if is_distributed():
        dist.all_reduce(total)
    return total[targets], torch.cat(best), rows


def _block_counts(
    ranked_queries: RankedQueries, score: Score, mine: range, full: list[bool], k: int
) -> tuple[Tensor, Tensor]:
    """Return (P, 2 x protocols) greater and ties and (R, k) keys of the best among this rank's candidates. Collective.

    If this rank's candidates need several tiles, tiles that contain targets are scored twice: a target's score must
    come from the same product as its competitors' scores, and all counts need it.
    """
    row, item = ranked_queries.row, ranked_queries.item

    @lru_cache(maxsize=1)
    def tile(first: int) -> tuple[int, Tensor]:
        """Return the first candidate of a tile and its scores.

        Column 0, which is not a candidate, is removed after the product: a product without it has rows that are not
        aligned to cache lines and takes a third longer.
        """
        stop = min(first + TILE, mine.stop)
        scores = score(ranked_queries.queries, first, stop).detach()
        if scores.shape != (len(ranked_queries.queries), stop - first):
            shape, expected = tuple(scores.shape), (len(ranked_queries.queries), stop - first)
            raise ValueError(f"score() returned shape {shape}; expected {expected}")
        after = max(first, 1)
        return after, scores[:, after - first :]

    target_scores = torch.zeros(len(row), dtype=torch.float64, device=row.device)
    for first in mine[::TILE]:
        here = ((item >= first) & (item < min(first + TILE, mine.stop))).nonzero()[:, 0]
        if len(here):
            after, scores = tile(first)
            target_scores[here] = scores[row[here], item[here] - after].double()
    if is_distributed():
        dist.all_reduce(target_scores)  # 0 on all ranks but one
    counts = row.new_zeros(len(row), 2 * len(full))
    best = row.new_full((len(ranked_queries.queries), k), torch.iinfo(torch.int64).min)
    for first in mine[::TILE]:
        after, scores = tile(first)
        stop = after + scores.shape[1]
        lists = [_within(one, after, stop) for one in ranked_queries.lists]
        counts += _counts(scores, row, item - after, target_scores.to(scores.dtype), lists, full)
        if k:
            keys = best_keys(scores, after, _within(ranked_queries.history, after, stop), k)
            best = merged([best, keys], k)
    return counts, best


def _within(lists: JaggedIds, first: int, stop: int) -> JaggedIds:
    """Return the ids first ... stop - 1 of the lists, counted from `first`."""
    here = (lists.values >= first) & (lists.values < stop)
    lengths = torch.bincount(lists.segment_ids[here], minlength=len(lists))
    return JaggedIds(lists.values[here] - first, lengths)


def _counts(scores: Tensor, row: Tensor, item: Tensor, own: Tensor, lists: list[JaggedIds], full: list[bool]) -> Tensor:
    """Return (P, 2 x protocols) greater and ties of items with the scores `own` (P,).

    They are compared with the other columns of their row of `scores` (b, n).
    """
    step = max(1, SCORES_COMPARED // max(1, scores.shape[1]))
    one_each = torch.equal(row, torch.arange(len(scores), device=row.device))  # then no copy is needed
    parts = [row.new_zeros(0, 2 * len(full))]
    for start in range(0, len(row), step):
        rows, items, mine = (x[start : start + step] for x in (row, item, own))
        columns = [_among(scores, rows, mine, one) for one in lists]
        if any(full):
            all_others = _among_all(scores[start : start + step] if one_each else scores[rows], items, mine)
            columns = [all_others - one if of_all else one for one, of_all in zip(columns, full, strict=True)]
        parts.append(torch.cat(columns, 1))
    return torch.cat(parts)


def _among_all(scores: Tensor, item: Tensor, own: Tensor) -> Tensor:
    """Return greater and ties (P, 2) of items with the scores `own` (P,).

    They are compared with the other columns of their row of `scores` (P, n).
    """
    compared = torch.empty(scores.shape, device=scores.device)  # floats: sums of bool take five times as long
    greater = torch.gt(scores, own[:, None], out=compared).sum(1).long()
    ties = torch.eq(scores, own[:, None], out=compared).sum(1).long()
    itself, nan = ((item >= 0) & (item < scores.shape[1])).long(), own.isnan()
    greater = torch.where(nan, scores.shape[1] - itself, greater)
    return torch.stack([greater, torch.where(nan, 0, ties - itself)], 1)


def _among(scores: Tensor, row: Tensor, own: Tensor, lists: JaggedIds) -> Tensor:
    """Return greater and ties (P, 2) of targets with the scores `own` (P,), compared with the list of their row."""
    starts = (lists.lengths.cumsum(0) - lists.lengths)[row]
    lengths = lists.lengths[row]
    owner = segment_ids_of(lengths)
    place = torch.arange(len(owner), device=row.device) + (starts - lengths.cumsum(0) + lengths)[owner]
    other, mine = scores[row[owner], lists.values[place]], own[owner]
    greater = torch.bincount(owner[(other > mine) | mine.isnan()], minlength=len(row))
    return torch.stack([greater, torch.bincount(owner[other == mine], minlength=len(row))], 1)
