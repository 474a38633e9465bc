"""Exact metrics of retrieval over all queries of all processes: the rank of each target among the candidates.

Two integers are stored for each target: greater, the number of competitors with a higher score, and ties, the number
with the same score. Every metric is its expected value over random orders of ties, so that a constant scorer gets the
result of chance. Scores tie only if they are bitwise equal; a matrix product may round equal vectors differently at the
edge of the matrix.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from recsys.distributed.ranks import gather_values
from recsys.evaluation.list_metrics import ListMetrics, similarities
from recsys.evaluation.metrics import TARGET_METRICS, RankedTargets
from recsys.evaluation.metrics_table import retrieval_names, under
from recsys.evaluation.negatives import ascending, keys_of, sample_negatives, within
from recsys.evaluation.retrieval_counts import RankedQueries, Score, count_competitors
from recsys.evaluation.retrieval_protocols import Protocols
from recsys.interface.batch import JaggedIds

MISSED = -1  # value of `greater` for a target that cannot be ranked


def ranking_metrics(
    query: np.ndarray, greater: np.ndarray, ties: np.ndarray, k: tuple[int, ...], one_list: bool = True
) -> dict[str, float]:
    """Return the means of `query_metrics`, which has the same parameters, over queries; NaN without queries."""
    found = query_metrics(query, greater, ties, k, one_list)
    return {name: float(values.mean()) if len(values) else math.nan for name, values in found.items()}


def query_metrics(
    query: np.ndarray, greater: np.ndarray, ties: np.ndarray, k: tuple[int, ...], one_list: bool = True
) -> dict[str, np.ndarray]:
    """Return (Q,) values of each metric.

    For a query with the targets R:

    hr@k: P(any of R in the top k)
    recall@k: |top k and R| / |R|
    precision@k: |top k and R| / k
    ndcg@k: sum over R in the top k of 1 / log2(1 + rank), divided by the same sum for an ideal order of min(|R|, k)
        targets
    map@k: sum over R in the top k of the precision at the target's rank, divided by min(|R|, k) (McFee et al., The
        Million Song Dataset Challenge, 2012); other definitions divide by |R|, or by the number of R in the top k
    mrr: 1 / rank of the best of R; mrr@k is 0 if that rank is greater than k

    recall, precision, ndcg and map are sums over targets, so that their expectations are exact. With several targets,
    hr and mrr take the expectation of the best target (the one with the smallest `greater`), which is exact unless it
    is tied with another target.

    Args:
        query: (P,) index of the query of each target; targets of a query are consecutive.
        greater, ties: (P,) counts; greater is MISSED for a target that is not ranked.
        k: lengths of lists.
        one_list: whether all targets of a query are ranked in one list. If False, each target has its own list, and
            ndcg, map and precision are means over these lists.
    """
    if not len(query):
        return {name: np.zeros(0) for name in retrieval_names(k, ("full",))}
    at = _ranked(query, greater, ties, max(k), one_list)
    values = {f"{m.name}@{n}": m.of_targets(targets) for n in k for targets in [at(n)] for m in TARGET_METRICS}
    whole = at(None)
    return values | {m.name: m.of_targets(whole) for m in TARGET_METRICS if m.whole}


def _ranked(
    query: np.ndarray, greater: np.ndarray, ties: np.ndarray, longest: int, one_list: bool
) -> Callable[[int | None], RankedTargets]:
    """Return the function from the length of a list, None for the whole ranking, to the ranked targets."""
    first = np.flatnonzero(np.append(True, query[1:] != query[:-1]))
    size = np.diff(np.append(first, len(query)))
    ranked = greater != MISSED
    lower = np.where(ranked, greater, 0)
    width = ties + 1
    above, tied = _other_targets(np.repeat(np.arange(len(first)), size), greater) if one_list else (0, 0)
    slope = tied / np.maximum(ties, 1)  # targets per competitor of the same score
    gains = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, longest + 2))))
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, (lower + width).max() + 1)))

    def at(n: int | None) -> RankedTargets:
        inside = width if n is None else np.clip(n - lower, 0, width)  # ranks in the list that the target may have
        n = longest if n is None else n  # gains are of lists
        hit = np.where(ranked, inside / width, 0.0)
        gain = np.where(ranked, (gains[np.minimum(lower + width, n)] - gains[np.minimum(lower, n)]) / width, 0.0)
        reciprocal = np.where(ranked, (harmonic[lower + inside] - harmonic[lower]) / width, 0.0)
        # precision at the rank lower + j is (above + 1 + slope (j - 1)) / (lower + j), summed over j = 1 ... inside
        precision = (above + 1) * reciprocal + slope * (hit - (lower + 1) * reciprocal)
        most, places = (np.minimum(size, n), np.full(len(size), n)) if one_list else (size, n * size)
        largest = gains[most] if one_list else size
        return RankedTargets(first, size, hit, gain, reciprocal, precision, most, largest, places)

    return at


def _other_targets(query: np.ndarray, greater: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each target, how many targets of its query have a higher score and how many others the same.

    Args:
        query: (P,) indices of queries, ascending.
        greater: (P,) counts of candidates with a higher score, which are equal for equal scores.
    """
    order = np.lexsort((np.where(greater == MISSED, np.iinfo(np.int64).max, greater), query))
    new_query = np.append(True, query[order][1:] != query[order][:-1])
    new = new_query | np.append(True, greater[order][1:] != greater[order][:-1])
    start, at = np.flatnonzero(new), np.cumsum(new) - 1
    above, tied = np.empty_like(greater), np.empty_like(greater)
    above[order] = start[at] - np.flatnonzero(new_query)[np.cumsum(new_query) - 1]
    tied[order] = np.diff(np.append(start, len(query)))[at] - 1
    return above, tied


class RetrievalMetrics:
    """Retrieval metrics.

    Collects the positions of this process's targets and computes the metrics over the targets of all processes
    together.

    Args:
        popularity: (N,) counts of the candidates in the training data. Candidates are 1 ... N - 1; 0 stands for items
            outside the vocabulary and is not a candidate.

    Attributes:
        with_lists: whether to measure the metrics of lists that the protocols name.
        not_finite: whether a score was NaN or infinite at the last `compute`, on any process. Only minus infinity is
            allowed: the score of a candidate that the model does not know.
        ranks: (P, 2 + 2 x protocols) table of the last `compute`, over all processes. Columns: query, whether the
            target is cold, then greater and ties for each protocol.
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
        self.ranks = np.zeros((0, 2 + 2 * len(protocols.protocols)), np.int64)
        self._kept: list[np.ndarray] = []  # parts of `ranks`
        self.not_finite = False
        self._highest: Tensor | None = None  # the highest score so far; NaN if one was
        self._queries = self._cold_rows = self._repeats = 0
        self.with_lists = True
        self._lists = ListMetrics(protocols.lists, protocols.k, popularity)

    def update(
        self,
        queries: Tensor,
        score: Score,
        targets: JaggedIds,
        history: JaggedIds,
        first_row: int,
        weight: Tensor | None = None,
        vectors: Tensor | None = None,
    ) -> None:
        """Count the competitors of a batch's targets, and add the lists of its best candidates. Collective.

        Processes may have different numbers of rows, or none. A target whose score is NaN is ranked last, and a
        competitor whose score is NaN is ranked below all others, so that NaN never improves a metric.

        Args:
            queries: (B, ...) inputs of `score`, one per row.
            score: (queries (b, ...), first, stop) -> (b, stop - first) scores of candidates in this rank's shard.
            targets: B lists of candidates, at least one for each row, counted once each.
            history: B lists of candidates.
            first_row: number of the batch's first row in the split; the sampled negatives depend on row numbers and the
                seed.
            weight: (B,) row weights; rows of weight 0 are padding and are ignored.
            vectors: (n, ...) vectors of the candidates in this rank's shard, which diversity needs.
        """
        numbers = first_row + np.arange(len(targets))
        if weight is not None:
            keep = weight.cpu() > 0
            numbers, queries = numbers[keep.numpy()], queries[keep.to(queries.device)]
            targets, history = _select(targets, keep), _select(history, keep)
        assert (targets.lengths > 0).all(), "every query has a target"
        row, item = targets.segment_ids.cpu().numpy(), targets.values.cpu().numpy()
        order = np.lexsort((item, row))
        row, item = row[order], item[order]
        new = np.ones(len(row), bool)  # each pair once, but items 0 several times: unknown items may differ
        new[1:] = (row[1:] != row[:-1]) | (item[1:] != item[:-1]) | (item[1:] == 0)
        row, item = row[new], item[new]
        counts = np.tile(np.array([MISSED, 0]), (len(row), len(self.protocols.protocols)))
        ranked = (item > 0) & (item < self.candidates)
        rows, items = (torch.from_numpy(x[ranked]).to(queries.device) for x in (row, item))
        known, wanted = keys_of(history, self.candidates), row[ranked] * self.candidates + item[ranked]
        jagged = self._jagged_ids(wanted, known, numbers)
        *lists, left_out = (one.to(queries.device) for one in jagged)
        names = self.protocols.protocols
        counted, best, own_queries = count_competitors(
            RankedQueries(queries, rows, items, lists, left_out),
            self._watched(score),
            self.candidates,
            names,
            max(self.protocols.k) if self._measures_lists else 0,
        )
        counts[ranked] = counted.cpu().numpy()
        repeats = np.flatnonzero(ranked)[within(wanted, known)]
        if self.protocols.filter_history and not self.protocols.rank_repeats and "full" in names:
            i = 2 * names.index("full")
            counts[repeats, i : i + 2] = MISSED, 0
        self._repeats += len(repeats)
        if self._measures_lists:
            similarity = None
            if "diversity" in self.protocols.lists:
                if vectors is None:
                    raise ValueError("lists: diversity needs vectors of the candidates")
                similarity = similarities(best, vectors, self.protocols.k, self.candidates)[own_queries]
            self._lists.update(best[own_queries], history, similarity, targets=targets, left_out=jagged[-1])
        # of a target that can be ranked, its count in training says whether it is cold
        cold = ~ranked | (self.popularity[np.where(ranked, item, 0)] == 0)
        self._kept.append(np.column_stack([numbers[row], cold, counts]))
        self._queries += len(numbers)
        self._cold_rows += int((history.lengths == 0).sum())

    @property
    def _measures_lists(self) -> bool:
        asked = self.protocols.lists or self.protocols.exposure
        return self.with_lists and bool(asked) and "full" in self.protocols.protocols

    @property
    def listed(self) -> dict[int, np.ndarray]:
        """For each k, (N,) how many lists of the last `compute` contain each candidate; empty without such lists."""
        return self._lists.listed

    def _watched(self, score: Score) -> Score:
        """Return `score`, which also notes the highest score."""

        def watched(queries: Tensor, first: int, stop: int) -> Tensor:
            scores = score(queries, first, stop)
            if scores.numel():
                highest = scores.amax()  # NaN if any score is
                self._highest = highest if self._highest is None else torch.maximum(self._highest, highest)
            return scores

        return watched

    def _jagged_ids(self, targets: np.ndarray, known: np.ndarray, numbers: np.ndarray) -> list[JaggedIds]:
        """Return, for each protocol, one list of candidates per row; then the lists of the history that is left out.

        The lists have the excluded candidates for `full`, and the sampled competitors for the other protocols. The
        history is empty if it is not filtered, or if no lists of the best candidates are measured.

        Args:
            targets, known: ascending keys of the rows' targets and histories (`keys_of`).
            numbers: numbers of the rows in the split.
        """
        n, rows = self.candidates, len(numbers)
        excluded = _jagged_ids(ascending(np.append(known, targets)), n, rows)
        lists: list[JaggedIds] = []
        for name in self.protocols.protocols:
            if name == "full":
                left_out = known[~within(known, targets)] if self.protocols.rank_repeats else known
                lists.append(_jagged_ids(left_out if self.protocols.filter_history else known[:0], n, rows))
            else:
                count, seed = self.protocols.negatives, self.protocols.seed
                lists.append(sample_negatives(numbers, excluded, self._cumulative[name], count, seed))
        filtered = self.protocols.filter_history and self._measures_lists
        return [*lists, _jagged_ids(known if filtered else known[:0], n, rows)]

    def compute(self) -> dict[str, float]:
        """Return the metrics of all queries, on every rank, and reset. Collective.

        Metrics of the protocol full have no suffix (ndcg@10); others end in the protocol (ndcg@10_uniform). Counts are
        included: rows (queries), cold_rows (queries without a history), targets, cold_targets (targets that training
        has not seen, or less often than min_count; they count as missed if they are not candidates), repeat_targets
        (targets that are in their query's history) and candidates.
        """
        names = self.protocols.protocols
        table = np.concatenate([np.zeros((0, 2 + 2 * len(names)), np.int64), *self._kept])
        not_finite = self._highest is not None and not bool(self._highest < math.inf)
        parts = gather_values((table, self._queries, self._cold_rows, self._repeats, not_finite))
        self._kept, self._queries, self._cold_rows, self._repeats, self._highest = [], 0, 0, 0, None
        tables, queries, cold_rows, repeats, not_finite_parts = zip(*parts, strict=True)
        self.not_finite = any(not_finite_parts)
        table = np.concatenate(tables)
        self.ranks = table = table[np.argsort(table[:, 0], kind="stable")]
        lists = self._lists.compute() if self._measures_lists else {}
        counts = {
            "rows": sum(queries),
            "cold_rows": sum(cold_rows),
            "targets": len(table),
            "cold_targets": int(table[:, 1].sum()),
            "repeat_targets": sum(repeats),
            "candidates": self.candidates - 1,
        }
        return self.measure(table) | lists | counts

    def measure(self, ranks: np.ndarray) -> dict[str, float]:
        """Return the metrics of some rows of `ranks`, which must include all targets of each of their queries."""
        metrics: dict[str, float] = {}
        for i, name in enumerate(self.protocols.protocols):
            greater, ties = ranks[:, 2 + 2 * i], ranks[:, 3 + 2 * i]
            means = ranking_metrics(ranks[:, 0], greater, ties, self.protocols.k, one_list=name == "full")
            metrics |= {under(metric, name): value for metric, value in means.items()}
        return metrics


def _select(lists: JaggedIds, keep: Tensor) -> JaggedIds:
    """Return the lists that `keep` (B,) selects."""
    return JaggedIds(lists.values[keep[lists.segment_ids]], lists.lengths[keep])


def _jagged_ids(keys: np.ndarray, n: int, rows: int) -> JaggedIds:
    """Return the lists that `keys_of` made these keys from."""
    lengths = np.bincount(keys // n, minlength=rows)
    return JaggedIds(torch.from_numpy(keys % n), torch.from_numpy(lengths))
