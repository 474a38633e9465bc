"""Item vectors, the queries that a retrieval model derives from a batch, and the scores of both."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from recsys.interface.batch import Batch, CandidateIds, item_rows
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings
from recsys.models.common.lists import (
    ends_of,
    from_end,
    from_start,
    keep_on_host,
    list_of_each,
    padded_length,
    true_places,
)


@dataclass(frozen=True)
class Filled:
    """How much of a QueryBatch is filled.

    rows: number of lists
    inputs: of all lists
    targets: number of targets
    longest: at least the length of the longest list, also of those that fill up
    """

    rows: int
    inputs: int
    targets: int
    longest: int


def rounded(number: int, sizes: int = 8) -> int:
    """Return the next of so many sizes between two powers of two; of eight, 4 % more on average.

    >>> [rounded(n) for n in (1, 7, 17, 1000, 1100)]
    [1, 7, 18, 1024, 1152]
    """
    step = max((1 << (number - 1).bit_length()) // (2 * sizes), 1)
    return -(-number // step) * step


@dataclass
class QueryBatch(Pipelineable):
    """The items that a model reads from a batch, and the items that it must predict.

    inputs: (P,) items whose vectors the model reads, list after list; empty if it reads other features
    lengths: (B,) number of inputs of each row
    places: (P,) index of each input among the values of the batch's own lists
    at: (Q,) for each query, the index of the input whose state becomes the query; -1 if there is none. Masked models
        mask these inputs
    targets: (T,) chosen items; empty if they are not known
    query_of_target: (T,) index of the query that each target answers
    in_order: whether each query has one target, in the order of the queries
    filled: how much of the tensors is filled; None if all is
    """

    inputs: Tensor
    lengths: Tensor
    places: Tensor
    at: Tensor
    targets: Tensor
    query_of_target: Tensor
    in_order: bool = False
    filled: "Filled | None" = None

    def to(self, device: torch.device, non_blocking: bool = False) -> "QueryBatch":
        copied = self._each(lambda x: x.to(device, non_blocking=non_blocking))
        keep_on_host(copied.lengths, self.lengths)
        return copied

    def pin_memory(self) -> "QueryBatch":
        return self._each(Tensor.pin_memory)

    def record_stream(self, stream: torch.Stream) -> None:
        for value in vars(self).values():
            if isinstance(value, Tensor):
                value.record_stream(stream)

    def _each(self, of: Callable[[Tensor], Tensor]) -> "QueryBatch":
        return QueryBatch(
            of(self.inputs),
            of(self.lengths),
            of(self.places),
            of(self.at),
            of(self.targets),
            of(self.query_of_target),
            self.in_order,
            self.filled,
        )

    def filled_up(self) -> "QueryBatch":
        """Return queries of rounded sizes, so that few CUDA graphs fit most batches. Queries must be in order.

        Lists of item 0 follow the others, and queries of the last one, whose targets are 0 and do not count.
        """
        inputs, targets = len(self.inputs), len(self.targets)
        longest, total = rounded(max(int(self.lengths.max()), 1), sizes=4), rounded(inputs + 1)
        part = -(-total // 32)  # the share of inputs that have a target hardly varies
        room = rounded(max(-(-targets // part), 1), sizes=4) * part - targets
        missing = total - inputs
        lists = -(-(rounded(total + 1) - total) // longest)  # as many for all batches of this size
        more = (missing - longest * torch.arange(lists)).clamp(0, longest)
        return QueryBatch(
            nn.functional.pad(self.inputs, (0, missing)),
            torch.cat([self.lengths, more.to(self.lengths)]),
            nn.functional.pad(self.places, (0, missing)),
            nn.functional.pad(self.at, (0, room), value=total - 1),
            nn.functional.pad(self.targets, (0, room)),
            torch.arange(targets + room, device=self.targets.device),
            in_order=True,
            filled=Filled(len(self.lengths), inputs, targets, longest),
        )

    def without_filling(self) -> "QueryBatch":
        """Return the queries that `filled_up` took."""
        if (f := self.filled) is None:
            return self
        return QueryBatch(
            self.inputs[: f.inputs],
            self.lengths[: f.rows],
            self.places[: f.inputs],
            self.at[: f.targets],
            self.targets[: f.targets],
            self.query_of_target[: f.targets],
            self.in_order,
        )

    def chosen_keys(self, n: int) -> tuple[Tensor, Tensor]:
        """Return row * n + item of all inputs and targets, and the row (T,) of each target. n: number of item ids"""
        row_of_input = list_of_each(self.lengths, len(self.inputs))
        row_of_query = row_of_input[self.at] if len(self.at) else self.at
        rows = row_of_query[self.query_of_target]
        return torch.cat([row_of_input * n + self.inputs, rows * n + self.targets]), rows


class Items(nn.Module):
    """Item vectors: the row of the item table, plus a vector of the item's features if features.items has any.

    The latter is the sum of the pooled embeddings of sparse features and of a linear map of dense ones. An item without
    training interactions has only its feature vectors and the shared row 0. Without features.item_ids, all items share
    row 0, which is then the only row.

    Set `candidates` before the first call if features.items is set.

    Args:
        dim: width of the vectors.
        about: whether to use the features of items.
        normalise: whether to scale the vectors to length 1.
        init_std: standard deviation of the initial rows; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        dim: int,
        *,
        about: bool = True,
        normalise: bool = False,
        init_std: float | None = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if features.item is None:
            raise ValueError("this model retrieves items: set data.items.feature to the feature of the items")
        feature = features.feature(features.item)
        self.name, self.rows, self.normalise = feature.name, feature.cardinality, normalise
        self.by_features_alone = not features.item_ids
        if self.by_features_alone and not (about and features.items is not None):
            raise ValueError("this model reads only the ids of items: set data.items.ids=true, or choose another model")
        rows = 1 if self.by_features_alone else feature.cardinality
        one = replace(feature, multi_valued=True, pooling="sum", cardinality=rows)
        alone = FeatureSpec(dense=(), sparse=(one,), labels=())
        self.ids = SequenceEmbeddings(alone, dim, [feature.name], prefix="item_", init_std=init_std, device=device)
        self.about: PooledEmbeddings | None = None
        self.dense: nn.Linear | None = None
        if about and features.items is not None:
            if features.items.sparse:
                self.about = PooledEmbeddings(
                    features.items, dim, prefix="about_", vocabularies="items/", init_std=init_std, device=device
                )
            if features.items.dense:
                self.dense = nn.Linear(features.items.dense_width, dim, bias=False)
        self.candidates: Candidates | None = None

    @property
    def by_id_alone(self) -> bool:
        """Return whether an item's vector depends on its id only."""
        return self.about is None and self.dense is None

    def forward(self, ids: CandidateIds) -> Tensor:
        """Return item vectors: ids (M,) -> (M, dim)."""
        known = (torch.zeros_like(ids) if self.by_features_alone else item_rows(ids, self.rows)).int()
        vectors = self.ids(bag_of_each(self.name, known))[self.name].values()
        if not self.by_id_alone:
            assert self.candidates is not None
            distinct, index = torch.unique(ids, return_inverse=True)
            dense, sparse = self.candidates.about(distinct)
            parts = [] if self.about is None else [self.about(sparse).sum(dim=1)]
            parts += [] if self.dense is None else [self.dense(dense)]
            vectors = vectors + sum(parts[1:], parts[0])[index]
        return nn.functional.normalize(vectors, dim=1) if self.normalise else vectors


def bag_of_each(name: str, ids: Tensor) -> KeyedJaggedTensor:
    """Return a bag for each id (M,), and an empty one at the end, since TorchRec takes no batch without bags.

    FBGEMM's CUDA kernels divide their work by bags: a single bag of all ids would be read by one multiprocessor.
    """
    total = ids.shape[0]
    offsets = torch.arange(total + 2, dtype=torch.int32, device=ids.device).clamp(max=total)
    return KeyedJaggedTensor(
        [name],
        ids,
        lengths=offsets.diff(),
        offsets=offsets,
        stride=total + 1,
        length_per_key=[total],  # TorchRec would sum the lengths, and wait for the sum
        offset_per_key=[0, total],
    )


def next_items(items: Tensor, lengths: Tensor, *, every: bool) -> QueryBatch:
    """Make queries for the next item of each list: the model reads all items but the last.

    Args:
        items: (P,) items of B lists, one list after another.
        lengths: (B,).
        every: whether each item except the first is a target of the items before it, as in training, unless it is 0
            (unknown). Otherwise make one query per list, for its last item, without targets; `at` is -1 for lists of
            fewer than two items.
    """
    if (length := padded_length()) is not None and not every:
        return _padded_queries(items, (lengths - 1).clamp(min=0), length)
    has_next = from_end(lengths, len(items)) > 0
    shorter = (lengths - 1).clamp(min=0)
    if every:
        has_before = from_start(lengths, len(items)) > 0
        places, chosen = true_places(has_next, has_before & (items > 0), lengths=shorter)
        at = (has_before.cumsum(0) - 1)[chosen]
        order = torch.arange(len(at), device=items.device)
        return QueryBatch(items[places], shorter, places, at, items[chosen], order, in_order=True)
    [places] = true_places(has_next, lengths=shorter)
    at = torch.where(shorter > 0, ends_of(shorter) - 1, -1)
    nothing = items[:0]
    return QueryBatch(items[places], shorter, places, at, nothing, nothing)


class QueriesAhead:
    """Makes queries from nothing but the batch, so that a thread that loads batches can make them."""

    def queries_ahead(self, batch: Batch, draw: int) -> QueryBatch:
        """Make the queries of a training batch, in whatever mode the model is.

        draw: what is random follows from this number
        """
        raise NotImplementedError


class NextItems(QueriesAhead):
    """Makes queries for the next item of each list."""

    items: Items
    training: bool

    def make_queries(self, batch: Batch) -> QueryBatch:
        return self._next_items(batch, every=self.training)

    def queries_ahead(self, batch: Batch, draw: int) -> QueryBatch:
        return self._next_items(batch, every=True)

    def _next_items(self, batch: Batch, *, every: bool) -> QueryBatch:
        lists = batch.sparse[self.items.name]
        return next_items(lists.values().long(), lists.lengths().long(), every=every)


def masked_items(
    items: Tensor,
    lengths: Tensor,
    *,
    share: float,
    only_last: float,
    exact: bool = False,
    random: torch.Generator | None = None,
) -> QueryBatch:
    """Mask random items of each list and make them targets, as in training. Unknown items (0) do not become targets.

    Args:
        items: (P,) items of B lists, one list after another.
        lengths: (B,).
        share: probability of masking an item. If no item of a list is drawn, its last item is masked.
        only_last: probability of masking only the last item of a list instead.
        exact: whether to mask this share of each list exactly, rounded but at least one item.
        random: what draws; None for PyTorch's own generator.
    """
    query_of_target = list_of_each(lengths, len(items))
    draw = partial(torch.rand, device=items.device, generator=random)
    hidden = draw(len(items)) < share
    if exact:
        order = torch.argsort(query_of_target + draw(len(items), dtype=torch.float64))
        count = (lengths * share).round().clamp(min=1).long()
        hidden[order] = from_start(lengths, len(items)) < count[query_of_target]
    alone = draw(len(lengths)) < only_last
    hidden &= ~alone[query_of_target]
    none = (
        torch.zeros(len(lengths), dtype=torch.long, device=items.device).index_add(0, query_of_target, hidden.long())
        == 0
    )
    hidden |= (from_end(lengths, len(items)) == 0) & none[query_of_target]
    [at] = true_places(hidden & (items > 0), lengths=lengths)
    places = torch.arange(len(items), device=items.device)
    order = torch.arange(len(at), device=items.device)
    return QueryBatch(items, lengths, places, at, items[at], order, in_order=True)


def masked_last(items: Tensor, lengths: Tensor) -> QueryBatch:
    """Mask the last item of each list, as in evaluation: one query per list, without targets."""
    if (length := padded_length()) is not None:
        return _padded_queries(items, lengths, length)
    at = torch.where(lengths > 0, ends_of(lengths) - 1, -1)
    nothing = items[:0]
    return QueryBatch(items, lengths, torch.arange(len(items), device=items.device), at, nothing, nothing)


def _padded_queries(items: Tensor, lengths: Tensor, length: int) -> QueryBatch:
    """Make a query for the last item of each list, within `padded_to(length)`: items (B * length,), lengths (B,)."""
    first = torch.arange(lengths.shape[0], device=items.device) * length
    at = torch.where(lengths > 0, first + lengths - 1, -1)
    nothing = items[:0]
    return QueryBatch(items, lengths, torch.arange(items.shape[0], device=items.device), at, nothing, nothing)


def hide(x: Tensor, query_batch: QueryBatch, mask: Tensor) -> Tensor:
    """Replace the rows of x (P, d) at the inputs of the queries by the mask (d,)."""
    at = query_batch.at
    if (length := padded_length()) is not None:
        places = torch.arange(x.shape[0], device=x.device).view(-1, length)
        return torch.where((places == at[:, None]).flatten()[:, None], mask, x)
    at = at if query_batch.in_order else at[at >= 0]
    return x.index_copy(0, at, mask.expand(len(at), -1))


def states_at(states: Tensor, at: Tensor) -> Tensor:
    """Return the states (P, d) at these indices (Q,) as (Q, d), zeros for an index of -1."""
    if not states.shape[0]:
        return states.new_zeros(len(at), states.shape[1])
    return torch.where((at >= 0)[:, None], states.index_select(0, at.clamp(min=0)), 0)


class Scorer(nn.Module):
    """Dot products of queries and item vectors."""

    def score_all(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score every item for every query: (Q, d), (M, d) -> (Q, M)."""
        return queries @ items.T

    def score_pairs(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score pairs: (..., d), (..., d) -> (...)."""
        return (queries * items).sum(dim=-1)


class InterestScorer(Scorer):
    """Scores of queries that are several vectors, one after another: the largest dot product with an item's vector.

    Args:
        count: number of vectors K of a query.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def score_all(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score every item for every query: (Q, K d), (M, d) -> (Q, M)."""
        interests = queries.unflatten(1, (self.count, -1))
        scores = interests[:, 0] @ items.T
        for i in range(1, self.count):  # one after another: all products at once take K times the memory
            scores = torch.maximum(scores, interests[:, i] @ items.T)
        return scores

    def score_pairs(self, queries: Tensor, items: Tensor) -> Tensor:
        """Score pairs: (..., K d), (..., d) -> (...)."""
        return (queries.unflatten(-1, (self.count, -1)) * items[..., None, :]).sum(-1).amax(-1)
