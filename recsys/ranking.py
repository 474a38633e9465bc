"""Metrics of retrieval, exact, over all queries of all ranks: where the targets stand among the candidates.

Of every target two whole numbers are kept, greater (competitors that score higher) and ties (competitors that score
the same), and every metric is its expectation over random orders of equal scores: a constant scorer gets chance.
Equal is to the last bit: a matrix product may round equal vectors otherwise at the edge of the matrix.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from recsys.batch import Lists, owners_of

PROTOCOLS = ("full", "uniform", "popularity")
BLOCK = 2**25  # scores that exist at once
CHUNK = 2**20  # scores that are compared at once: what caches hold
DRAWS = 2**22  # draws that exist at once
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
            raise ValueError(f"protocols: one or more of {', '.join(PROTOCOLS)}")
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise ValueError(f"protocols: no such protocol: {name}; there are {', '.join(PROTOCOLS)}")
        if self.negatives < 1:
            raise ValueError(f"negatives: 1 or more, not {self.negatives}")


def ranking_metrics(
    query: np.ndarray, greater: np.ndarray, ties: np.ndarray, k: tuple[int, ...], one_list: bool = True
) -> dict[str, float]:
    """Means over queries; (P,) targets, those of a query side by side; greater is MISSED where unranked.

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
        return {name: math.nan for n in k for name in (f"hr@{n}", f"ndcg@{n}", f"recall@{n}")} | {"mrr": math.nan}
    first = np.flatnonzero(np.append(True, query[1:] != query[:-1]))
    size = np.diff(np.append(first, len(query)))
    ranked = greater != MISSED
    lower = np.where(ranked, greater, 0)
    width = ties + 1
    gains = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, max(k) + 2))))
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, (lower + width).max() + 1)))
    found: dict[str, float] = {}
    for n in k:
        hit = np.where(ranked, np.clip(n - lower, 0, width) / width, 0.0)
        gain = np.where(ranked, (gains[np.minimum(lower + width, n)] - gains[np.minimum(lower, n)]) / width, 0.0)
        ideal = gains[np.minimum(size, n)] if one_list else size
        found[f"hr@{n}"] = float(np.maximum.reduceat(hit, first).mean())
        found[f"ndcg@{n}"] = float((np.add.reduceat(gain, first) / ideal).mean())
        found[f"recall@{n}"] = float((np.add.reduceat(hit, first) / size).mean())
    reciprocal = np.where(ranked, (harmonic[lower + width] - harmonic[lower]) / width, 0.0)
    return found | {"mrr": float(np.maximum.reduceat(reciprocal, first).mean())}


class RankingMetrics:
    """Collects where a rank's targets stand and computes over those of all ranks: nothing is averaged.

    popularity: (N,) how often each candidate is in the training data. Candidates are 1 ... N - 1; 0 stands for the
    items outside the vocabulary and is never one.
    """

    def __init__(self, protocols: Protocols, popularity: np.ndarray | None = None) -> None:
        if "popularity" in protocols.protocols and (popularity is None or not np.any(popularity[1:] > 0)):
            raise ValueError("protocols: popularity needs the candidates' counts in the training data")
        self.protocols = protocols
        self.popularity = popularity
        self._candidates = 0 if popularity is None else len(popularity)
        self._kept: list[np.ndarray] = []  # (P, 1 + 2 x protocols): query, then greater and ties by protocol
        self._queries = self._cold_rows = 0

    def update(
        self,
        rate: Callable[[int, int], Tensor],
        targets: Lists,
        history: Lists,
        first_row: int,
        weight: Tensor | None = None,
    ) -> None:
        """rate(start, stop): (stop - start, N) scores of rows start to stop; called in blocks of rows.

        targets, history: B lists of candidates; of targets one or more a row, counted once each
        first_row: the place of the batch's first row in its split; negatives depend on that place and the seed alone
        weight: (B,); rows of weight 0 only filled a batch up and are left out

        A target of NaN ranks last and a competitor of NaN below all others: no model gains by it. Every row is rated,
        those of weight 0 too, so that all ranks make the same calls.
        """
        rows = len(targets)
        if not self._candidates and rows:
            self._candidates = rate(0, 1).shape[1]  # once: how many rows make a block is not known before
        kept = np.arange(rows) if weight is None else np.flatnonzero((weight > 0).cpu().numpy())
        row, item = _pairs(targets, kept)
        against = self._lists(row, item, history, kept, first_row)
        counts = np.full((len(row), 2 * len(against)), MISSED)
        counts[:, 1::2] = 0
        ranked = np.flatnonzero((item > 0) & (item < self._candidates))
        step = max(1, BLOCK // max(1, self._candidates))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            scores = rate(start, stop).detach()
            if scores.shape != (stop - start, self._candidates):
                raise ValueError(f"scores are {tuple(scores.shape)}, not ({stop - start}, {self._candidates})")
            here = ranked[slice(*np.searchsorted(row[ranked], (start, stop)))]
            lists = [(full, names.slice(start, stop).to(scores.device)) for full, names in against]
            counts[here] = _counts(scores, row[here] - start, item[here], lists)
        query = self._queries + np.searchsorted(kept, row)
        self._queries += len(kept)
        self._cold_rows += int((history.lengths.cpu().numpy()[kept] == 0).sum())
        self._kept.append(np.column_stack([query, self._unseen(item), counts]))

    def _unseen(self, item: np.ndarray) -> np.ndarray:
        """Which of these the training data lacks, whether or not they can be ranked."""
        unknown = (item < 1) | (item >= self._candidates)
        return unknown if self.popularity is None else unknown | (self.popularity[np.where(unknown, 0, item)] == 0)

    def _lists(
        self, row: np.ndarray, item: np.ndarray, history: Lists, kept: np.ndarray, first_row: int
    ) -> list[tuple[bool, Lists]]:
        """By protocol: whether all candidates compete, and a list a row of those that do not, or of those that do."""
        n, protocols, rows = self._candidates, self.protocols, len(history)
        targets = _ascending((row * n + item)[(item > 0) & (item < n)])
        known = _keys(history, n)
        known = known[np.isin(known // n, kept)] if len(kept) < rows else known
        made: list[tuple[bool, Lists]] = []
        for name in protocols.protocols:
            if name == "full":
                left_out = known[~_within(known, targets)] if protocols.filter_history else known[:0]
                made.append((True, _lists(left_out, n, rows)))
                continue
            weights = np.ones(n, np.int64) if name == "uniform" else self.popularity
            assert weights is not None
            cumulative = np.cumsum(np.append(0, weights[1:])).astype(np.int64)
            excluded = _lists(_ascending(np.append(known, targets)), n, rows)
            some = Lists(excluded.values, excluded.lengths[torch.from_numpy(kept)])  # the others are empty
            drawn = sample_negatives(first_row + kept, some, cumulative, protocols.negatives, protocols.seed)
            lengths = torch.zeros(rows, dtype=torch.int64)
            lengths[torch.from_numpy(kept)] = drawn.lengths
            made.append((False, Lists(drawn.values, lengths)))
        return made

    def compute(self) -> dict[str, float]:
        """Collective: every rank gets the metrics of all queries; then starts anew.

        Of full the names are bare, as ndcg@10; of the others they end in the protocol, as ndcg@10_uniform. Moreover:
        rows (queries), cold_rows (without a history), targets, cold_targets (items that the training data lacks; where
        no candidate stands for them they are missed), and candidates.
        """
        names = self.protocols.protocols
        table = np.concatenate([np.zeros((0, 2 + 2 * len(names)), np.int64), *self._kept])
        parts: list[Any] = [(table, self._queries, self._candidates, self._cold_rows)]
        self._kept, self._queries, self._cold_rows = [], 0, 0
        if dist.is_initialized() and dist.get_world_size() > 1:
            parts, own = [None] * dist.get_world_size(), parts[0]
            dist.all_gather_object(parts, own)
        tables, queries, candidates, cold_rows = zip(*parts, strict=True)
        offsets = np.cumsum([0, *queries])
        table = np.concatenate(tables)
        query = np.concatenate([part[:, 0] + offset for part, offset in zip(tables, offsets, strict=False)])
        found: dict[str, float] = {}
        for i, name in enumerate(names):
            full = name == "full"
            one = ranking_metrics(query, table[:, 2 + 2 * i], table[:, 3 + 2 * i], self.protocols.k, one_list=full)
            found |= one if full else {f"{metric}_{name}": value for metric, value in one.items()}
        return found | {
            "rows": int(offsets[-1]),
            "cold_rows": sum(cold_rows),
            "targets": len(table),
            "cold_targets": int(table[:, 1].sum()),
            "candidates": max(0, max(candidates) - 1),
        }


def _pairs(targets: Lists, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P,) rows, ascending, and (P,) items of the targets of the rows kept, each once.

    Those of 0 stay as they are: unknown items that need not be the same.
    """
    row, item = targets.owners.cpu().numpy(), targets.values.cpu().numpy()
    mine = np.isin(row, kept)
    row, item = row[mine], item[mine]
    assert len(np.unique(row)) == len(kept), "every query has a target"
    order = np.lexsort((item, row))
    row, item = row[order], item[order]
    new = np.ones(len(row), bool)
    new[1:] = (row[1:] != row[:-1]) | (item[1:] != item[:-1]) | (item[1:] == 0)
    return row[new], item[new]


def _keys(lists: Lists, n: int) -> np.ndarray:
    """list * n + id of all ids 1 ... n - 1, ascending, each once."""
    owner, value = lists.owners.cpu().numpy(), lists.values.cpu().numpy()
    return _ascending((owner * n + value)[(value > 0) & (value < n)])


def _ascending(keys: np.ndarray) -> np.ndarray:
    """Each once, ascending; np.unique hashes whole numbers since NumPy 2.3, which took 30 times as long here."""
    keys = np.sort(keys)
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def _within(keys: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Which of the keys are among the ascending ones; fast where they ascend themselves."""
    if not len(ascending):
        return np.zeros(keys.shape, bool)
    return ascending[np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)] == keys


def _lists(keys: np.ndarray, n: int, rows: int) -> Lists:
    """What _keys makes, back as lists."""
    lengths = np.bincount(keys // max(1, n), minlength=rows)
    return Lists(torch.from_numpy(keys % max(1, n)), torch.from_numpy(lengths))


def _counts(scores: Tensor, row: np.ndarray, item: np.ndarray, against: list[tuple[bool, Lists]]) -> np.ndarray:
    """(P, 2 x protocols) greater and ties of (P,) items in the rows of (b, N) scores."""
    rows, items = torch.from_numpy(row).to(scores.device), torch.from_numpy(item).to(scores.device)
    own = scores[rows, items]
    step = max(1, CHUNK // scores.shape[1])
    parts = [torch.zeros((0, 2 * len(against)), dtype=torch.int64)]
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        columns = [
            _among_all(scores, rows[part], own[part], lists) if full else _among(scores, rows[part], own[part], lists)
            for full, lists in against
        ]
        parts.append(torch.cat(columns, 1).cpu())
    return torch.cat(parts).numpy()


def _among_all(scores: Tensor, row: Tensor, own: Tensor, left_out: Lists) -> Tensor:
    """(P, 2) greater and ties of (P,) targets that score own, among all candidates but the row's left_out."""
    others, mine = scores[row, 1:], own[:, None]
    held = torch.empty(others.shape, device=scores.device)  # as numbers: sums of bool take five times as long
    exact = torch.float32 if others.shape[1] < 2**24 else torch.float64
    greater = torch.gt(others, mine, out=held).sum(1, dtype=exact).long()
    ties = torch.eq(others, mine, out=held).sum(1, dtype=exact).long() - 1  # itself
    greater = torch.where(own.isnan(), scores.shape[1] - 2, greater)
    counts = torch.stack([greater, ties.clamp(min=0)], 1)
    return counts - _among(scores, row, own, left_out)


def _among(scores: Tensor, row: Tensor, own: Tensor, lists: Lists) -> Tensor:
    """(P, 2) greater and ties of (P,) targets that score own, among the row's list."""
    starts = (lists.lengths.cumsum(0) - lists.lengths)[row]
    lengths = lists.lengths[row]
    owner = owners_of(lengths)
    place = torch.arange(len(owner), device=row.device) + (starts - lengths.cumsum(0) + lengths)[owner]
    other, mine = scores[row[owner], lists.values[place]], own[owner]
    greater = torch.bincount(owner[(other > mine) | mine.isnan()], minlength=len(row))
    return torch.stack([greater, torch.bincount(owner[other == mine], minlength=len(row))], 1)


def sample_negatives(rows: np.ndarray, excluded: Lists, cumulative: np.ndarray, count: int, seed: int) -> Lists:
    """For each of (R,) rows count different candidates outside its list in excluded, in the order they were drawn.

    cumulative: (N,) whole numbers, the sums of the candidates' weights up to each; the first, of no candidate, is 0.
        np.arange(N) makes all as likely. A candidate of weight 0 is never drawn.

    Where fewer than count can be drawn, all of them are. What a row gets depends on its number in rows, its excluded
    and the other arguments alone: draw i of a row is a hash of (seed, row, i), and the first count draws that are
    neither excluded nor repeated are taken. Rows that are still short after many draws draw the rest by a key for
    every candidate (Efraimidis & Spirakis 2006), which is the same distribution.
    """
    n = len(cumulative)
    rounds = [draws for draws in (2 * count + 16, 8 * count, 32 * count) if draws < n]
    step = max(1, DRAWS // max(rounds, default=n))
    parts = [Lists(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))]
    for start in range(0, len(rows), step):
        banned = _keys(excluded.slice(start, start + step), n)
        parts.append(_sample(rows[start : start + step], banned, cumulative, count, seed, rounds))
    return Lists(torch.cat([part.values for part in parts]), torch.cat([part.lengths for part in parts]))


def _sample(
    rows: np.ndarray, banned: np.ndarray, cumulative: np.ndarray, count: int, seed: int, rounds: list[int]
) -> Lists:
    """Rounds draw anew from the first draw on, more each time, for the rows that were short: nothing is carried."""
    n, short = len(cumulative), np.arange(len(rows))
    owners, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for draws in rounds:
        ids, taken = _draw(rows, short, banned, cumulative, count, draws, seed)
        enough = taken.sum(1) == count
        if draws < rounds[-1]:
            taken &= enough[:, None]
        owners.append(short[np.nonzero(taken)[0]])
        values.append(ids[taken])
        short = short[~enough]
    drawn = np.concatenate(owners) * n + np.concatenate(values)
    banned = _ascending(np.append(banned, drawn[np.isin(drawn // n, short)]))
    missing = count - np.bincount(drawn // n, minlength=len(rows))
    step = max(1, DRAWS // n)
    for start in range(0, len(short), step):
        some = short[start : start + step]
        owner, ids = _draw_rest(rows, some, banned, cumulative, missing[some], seed)
        owners.append(owner)
        values.append(ids)
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    lengths = np.bincount(owner, minlength=len(rows))
    return Lists(torch.from_numpy(np.concatenate(values)[order]), torch.from_numpy(lengths))


def _draw(
    rows: np.ndarray, some: np.ndarray, banned: np.ndarray, cumulative: np.ndarray, count: int, draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(len(some), draws) candidates, and which of them are taken: the first count that are new and not banned."""
    n = len(cumulative)
    point = (_uniform(seed, rows[some], np.arange(draws)) * cumulative[-1]).astype(np.int64)
    ids = np.searchsorted(cumulative, point, side="right")
    by_id, draw = np.divmod(np.sort(ids * draws + np.arange(draws), axis=1), draws)
    new = np.ones(ids.shape, bool)
    new[:, 1:] = by_id[:, 1:] != by_id[:, :-1]
    new &= ~_within(some[:, None] * n + by_id, banned)
    taken = np.empty_like(new)
    np.put_along_axis(taken, draw, new, axis=1)
    return ids, taken & (np.cumsum(taken, axis=1) <= count)


def _draw_rest(
    rows: np.ndarray, some: np.ndarray, banned: np.ndarray, cumulative: np.ndarray, missing: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Owners and candidates: the missing ones of each row, those of the least exponential variables / weight."""
    n = len(cumulative)
    weight = np.diff(cumulative, prepend=0)
    possible = np.broadcast_to(weight > 0, (len(some), n)).copy()
    owner = np.searchsorted(some, banned // n)
    mine = (owner < len(some)) & (some[np.minimum(owner, len(some) - 1)] == banned // n)
    possible[owner[mine], banned[mine] % n] = False
    uniform = _uniform(seed, rows[some], 2**32 + np.arange(n))
    key = np.where(possible, -np.log1p(-uniform) / np.maximum(weight, 1), np.inf)
    width = min(n, int(missing.max()))
    least = np.argpartition(key, width - 1, axis=1)[:, :width]
    key = np.take_along_axis(key, least, axis=1)
    order = np.argsort(key, axis=1)
    least, key = np.take_along_axis(least, order, axis=1), np.take_along_axis(key, order, axis=1)
    taken = (key < np.inf) & (np.arange(width) < missing[:, None])
    return some[np.nonzero(taken)[0]], least[taken]


def _uniform(seed: int, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(R, D) numbers in [0, 1), each a hash of (seed, row, draw) (SplitMix64; Steele, Lea & Flood 2014)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    start = _mix(np.array([seed % 2**64], np.uint64) + golden)
    start = _mix(start + rows.astype(np.uint64) * golden)
    return (_mix(start[:, None] + (draws.astype(np.uint64) + np.uint64(1)) * golden) >> np.uint64(11)) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
