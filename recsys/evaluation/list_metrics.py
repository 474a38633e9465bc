"""Metrics of the lists of the k best candidates beside accuracy: coverage, Gini, novelty, serendipity and others."""

import math

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from recsys.evaluation.collected_rows import is_distributed
from recsys.evaluation.metrics_table import list_metric_names
from recsys.evaluation.negatives import keys_of
from recsys.evaluation.retrieval_counts import candidate_shard
from recsys.interface.batch import JaggedIds

SHORT_HEAD = 0.8  # share of the training data
VALUES = 2**22  # number of values of item vectors in memory


class ListMetrics:
    """Collects the lists of this process's queries and computes the metrics over the lists of all processes.

    Memory grows with the number of candidates, but not with the number of queries. For the lists L of the first k
    candidates, c(i) the number of lists that contain candidate i, and p(i) its count in the training data:

    coverage@k: share of the candidates with c(i) > 0 (Ge, Delgado-Battenfeld & Jannach, Beyond Accuracy, 2010)
    gini@k: Gini index of c over all n candidates, sum of (2 j - n - 1) c_j / (n sum of c) with c_j in ascending order
        (Fleder & Hosanagar, Blockbuster Culture's Next Rise or Fall, 2009)
    novelty@k: mean over lists of the mean self-information -log2(p(i) / sum of p) (Zhou et al., Solving the apparent
        diversity-accuracy dilemma of recommender systems, 2010); a candidate that training lacks counts as chosen once
    diversity@k: mean over lists of at least two items of 1 - the mean cosine similarity of all pairs of the list
        (Smyth & McClave, Similarity vs. Diversity, 2001)
    popularity_lift@k: (r - h) / h, where r is the mean over lists of the mean p(i) of the list, and h that of the
        query's history, for queries with a history: the change in group average popularity of Abdollahpouri et al.,
        The Unfairness of Popularity Bias in Recommendation, 2019, with all queries as one group; NaN if h is 0
    average_popularity@k: mean of p(i) over all places of the lists (ARP of Yin et al., Challenging the Long Tail
        Recommendation, 2012)
    long_tail@k: share of all places of the lists that candidates of the long tail have: those that are not among the
        most popular ones, the fewest of which have SHORT_HEAD of the training data together (APLT of Abdollahpouri et
        al., Managing Popularity Bias in Recommender Systems with Personalized Re-ranking, 2019)
    unexpectedness@k: mean over lists of the share of the list that a list of the k most popular candidates lacks, from
        which the same candidates are left out; candidates of equal counts are in the order of their ids
    serendipity@k: mean, over lists with such unexpected candidates, of the share of these that are targets (Ge et al.
        2010, as for coverage)

    Args:
        names: metrics to compute.
        k: lengths of lists.
        popularity: (N,) counts of the candidates in the training data. Candidates are 1 ... N - 1.

    Attributes:
        listed: for each k, (N,) how many lists of the last `compute` contain each candidate, over all processes.
    """

    def __init__(self, names: tuple[str, ...], k: tuple[int, ...], popularity: np.ndarray) -> None:
        self.names, self.k = names, tuple(dict.fromkeys(k))
        self._popularity = torch.from_numpy(np.append(0, popularity[1:]).astype(np.float64))
        share = self._popularity.clamp(min=1) / max(float(self._popularity.sum()), 1.0)
        self._information = -share.log2() if self._popularity.any() else torch.full_like(share, math.nan)
        self._place = torch.empty(len(share), dtype=torch.int64)  # of each candidate among the most popular ones
        self._place[torch.argsort(-self._popularity[1:], stable=True) + 1] = torch.arange(len(share) - 1)
        self._place[0] = len(share)
        ordered, order = self._popularity.sort(descending=True, stable=True)
        in_tail = ordered.cumsum(0) - ordered >= SHORT_HEAD * self._popularity.sum()
        self._in_tail = torch.empty_like(in_tail).index_copy_(0, order, in_tail)
        self.listed: dict[int, np.ndarray] = {}
        self._reset()

    def _reset(self) -> None:
        self._listed = torch.zeros(len(self.k), len(self._popularity), dtype=torch.int64)
        # sums over lists: information, 1 - similarity, popularity and the history's popularity; then their numbers
        self._sums = torch.zeros(9, len(self.k), dtype=torch.float64)

    def update(
        self,
        lists: Tensor,
        history: JaggedIds,
        similarity: Tensor | None = None,
        targets: JaggedIds | None = None,
        left_out: JaggedIds | None = None,
    ) -> None:
        """Add this process's lists.

        Args:
            lists: (B, max(k)) candidates, the best first; -1 where a list is shorter.
            history: B lists of candidates.
            similarity: (B, len(k)) mean similarities of pairs, NaN for lists without pairs; None without diversity.
            targets: B lists of candidates; None without unexpectedness and serendipity.
            left_out: B lists of the candidates that the lists must not have; None as above.
        """
        lists = lists.cpu()
        surprises: tuple[Tensor, Tensor] | None = None
        if targets is not None and left_out is not None:
            n = len(self._popularity)
            listed = torch.arange(len(lists))[:, None] * n + lists
            hits = torch.isin(listed, torch.from_numpy(keys_of(targets, n))) & (lists > 0)
            surprises = self._places(lists, left_out), hits
        keys = torch.from_numpy(keys_of(history, len(self._popularity)))
        row, item = keys // len(self._popularity), keys % len(self._popularity)
        past = _means(self._popularity[item], row, len(lists))
        if similarity is None:
            similarity = torch.full((len(lists), len(self.k)), math.nan)
        for i, k in enumerate(self.k):
            filled = lists[:, :k] >= 0
            row, item = filled.nonzero()[:, 0], lists[:, :k][filled]
            self._listed[i].index_add_(0, item, torch.ones_like(item))
            information = _means(self._information[item], row, len(lists))
            popularity = _means(self._popularity[item], row, len(lists))
            differs = 1 - similarity[:, i].cpu().double()
            both = ~(past.isnan() | popularity.isnan())
            summed = [information[filled.any(1)], differs[~differs.isnan()], popularity[both], past[both]]
            unexpected = filled & (surprises[0][:, :k] >= k) if surprises else torch.zeros_like(filled)
            number = unexpected.sum(1).double()
            useful = (unexpected & surprises[1][:, :k]).sum(1) if surprises else number
            summed += [(number / filled.sum(1))[filled.any(1)], (useful / number)[number > 0]]
            sums = [*(float(x.sum()) for x in summed), *(len(x) for x in summed[:2]), len(summed[-1])]
            self._sums[:, i] += torch.tensor(sums, dtype=torch.float64)

    def compute(self) -> dict[str, float]:
        """Return the metrics over the lists of all processes, and reset; NaN without lists. Collective."""
        if is_distributed():
            dist.all_reduce(self._listed)
            dist.all_reduce(self._sums)
        information, differs, popularity, past, unexpected, useful, lists, pairs, surprising = self._sums.numpy()
        listed, popular, in_tail = (x[..., 1:].numpy() for x in (self._listed, self._popularity, self._in_tail))
        with np.errstate(invalid="ignore", divide="ignore"):
            values = {
                "coverage": [(counts > 0).mean() if counts.any() else math.nan for counts in listed],
                "gini": [gini(counts) for counts in listed] if "gini" in self.names else [],
                "novelty": information / lists,
                "diversity": differs / pairs,
                "popularity_lift": popularity / np.where(past, past, math.nan) - 1,
                "average_popularity": listed @ popular / listed.sum(1),
                "long_tail": listed @ in_tail / listed.sum(1),
                "unexpectedness": unexpected / lists,
                "serendipity": useful / surprising,
            }
        self.listed = {k: counts.numpy() for k, counts in zip(self.k, self._listed, strict=True)}
        self._reset()
        at = {k: i for i, k in enumerate(self.k)}
        split_names = [name.rpartition("@") for name in list_metric_names(self.names, self.k)]
        return {f"{name}@{k}": float(values[name][at[int(k)]]) for name, _, k in split_names}

    def _places(self, lists: Tensor, left_out: JaggedIds) -> Tensor:
        """Return how many candidates that are not left out are more popular than each listed one, like `lists`."""
        n, row = len(self._popularity), torch.arange(len(lists))[:, None]
        keys = torch.from_numpy(keys_of(left_out, n))
        before = (keys // n * n + self._place[keys % n]).sort().values
        first = torch.searchsorted(before, row * n)
        place = self._place[lists.clamp(min=0)]
        return place - (torch.searchsorted(before, row * n + place) - first)


def gini(counts: np.ndarray) -> float:
    """Return the Gini index of (n,) counts: 0 if all are equal, (n - 1) / n if only one is not 0; NaN if all are 0.

    >>> gini(np.array([5, 5, 5])), gini(np.array([0, 0, 4]))
    (0.0, 0.6666666666666666)
    """
    n, total = len(counts), float(counts.sum())
    if not total:
        return math.nan
    return float((2 * np.arange(1, n + 1) - n - 1) @ np.sort(counts).astype(np.float64)) / (n * total)


def similarities(lists: Tensor, vectors: Tensor, k: tuple[int, ...], candidates: int) -> Tensor:
    """Return the mean cosine similarity (Q, len(k)) of all pairs of a list's first k items. Collective.

    It is (|sum of u|^2 - sum of |u|^2) / (m (m - 1)) for m items with the normalised vectors u. The similarity to a
    vector of zeros is 0. Lists of fewer than two items have NaN.

    Args:
        lists: (Q, K) candidates of the queries of all processes, -1 for none.
        vectors: (n, ...) vectors of the candidates in this process's shard.
        k: lengths of lists.
        candidates: N.
    """
    mine, _ = candidate_shard(candidates)
    vectors = vectors.flatten(1)
    here = (lists >= mine.start) & (lists < mine.stop)
    local = torch.where(here, lists - mine.start, 0)
    sums = torch.zeros(len(lists), len(k), vectors.shape[1] + 1, dtype=torch.float64, device=vectors.device)
    step = max(1, VALUES // max(1, lists.shape[1] * vectors.shape[1]))
    for start in range(0, len(lists) if len(mine) else 0, step):
        rows = slice(start, start + step)
        unit = nn.functional.normalize(vectors[local[rows]], dim=2) * here[rows, :, None]
        squares = unit.square().sum(2)
        for i, n in enumerate(k):
            sums[rows, i, 1:] = unit[:, :n].sum(1, dtype=torch.float64)
            sums[rows, i, 0] = squares[:, :n].sum(1, dtype=torch.float64)
    if is_distributed():
        dist.all_reduce(sums)
    sizes = torch.stack([(lists[:, :n] >= 0).sum(1) for n in k], 1)
    pairs = (sizes * (sizes - 1)).double()
    return torch.where(pairs > 0, (sums[:, :, 1:].square().sum(2) - sums[:, :, 0]) / pairs, math.nan)


def _means(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return the mean (rows,) of the values of each row; NaN for a row without values."""
    return torch.bincount(row, values, rows) / torch.bincount(row, minlength=rows)
