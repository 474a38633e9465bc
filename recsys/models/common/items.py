"""Items as vectors, and what a model that retrieves them is asked."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.batch import segment_ids_of
from recsys.candidates import Candidates
from recsys.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings


@dataclass
class QueryBatch:
    """What a batch asks of a model: from these inputs, which items?

    inputs: (P,) items whose vectors the model reads, row after row; none where it reads other features
    lengths: (B,) how many of them are each row's
    places: (P,) where each stands among the values of the batch's own lists
    at: (Q,) the inputs whose states are the queries, -1 where there is no input; masked models hide what stands there
    targets: (T,) what was chosen; none where it is not known
    owners: (T,) the query that each target answers
    """

    inputs: Tensor
    lengths: Tensor
    places: Tensor
    at: Tensor
    targets: Tensor
    query_of_target: Tensor


class Items(nn.Module):
    """One vector an item: its row of the item table and, where features.items tells more of it, the sum of its
    features' pooled rows and of a linear map of its dense ones. An item that training has not seen has but those
    beside row 0.

    about: with those features.
    candidates: to be set before the first call, where features.items is there.

    ids (M,) -> (M, dim)
    """

    def __init__(
        self,
        features: FeatureSpec,
        dim: int,
        *,
        about: bool = True,
        init_std: float | None = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if features.item is None:
            raise ValueError(
                "this model retrieves items: data.items.feature must name the feature whose values they are"
            )
        own = features.feature(features.item)
        self.name, self.rows = own.name, own.cardinality
        alone = FeatureSpec(dense=(), sparse=(replace(own, multi_valued=True, pooling="sum"),), labels=())
        self.ids = SequenceEmbeddings(alone, dim, [own.name], prefix="item_", init_std=init_std, device=device)
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
        return self.about is None and self.dense is None

    def forward(self, ids: Tensor) -> Tensor:
        known = torch.where(ids < self.rows, ids, 0).int()
        sparse = KeyedJaggedTensor(
            [self.name], known, lengths=torch.tensor([len(ids)], dtype=torch.int32).to(ids.device)
        )
        vectors = self.ids(sparse)[self.name].values()
        if self.by_id_alone:
            return vectors
        return vectors + self._about(ids)

    def _about(self, ids: Tensor) -> Tensor:
        assert self.candidates is not None
        distinct, index = torch.unique(ids, return_inverse=True)
        dense, sparse = self.candidates.about(distinct)
        parts = [] if self.about is None else [self.about(sparse).sum(dim=1)]
        parts += [] if self.dense is None else [self.dense(dense)]
        return sum(parts[1:], parts[0])[index]


def next_items(items: Tensor, lengths: Tensor, *, every: bool) -> QueryBatch:
    """Lists of items (P,), one after another, whose last one is to be predicted: the model reads all others.

    every: each item but the first of a list is a target of those before it, as in training, unless it is unknown (0);
    else only the last is asked for. An empty list asks nothing that can be answered.
    """
    ends = lengths.cumsum(0) - 1
    some = lengths > 0
    first, last = torch.ones_like(items, dtype=torch.bool), torch.ones_like(items, dtype=torch.bool)
    last[ends[some]] = False
    first[(ends - lengths + 1)[some]] = False
    places = last.nonzero()[:, 0]
    shorter = (lengths - 1).clamp(min=0)
    if every:
        targets = items[first]
        at = targets.nonzero()[:, 0]
        return QueryBatch(items[places], shorter, places, at, targets[at], torch.arange(len(at), device=items.device))
    at = torch.where(shorter > 0, shorter.cumsum(0) - 1, -1)
    nothing = items[:0]
    return QueryBatch(items[places], shorter, places, at, nothing, nothing)


def masked_items(items: Tensor, lengths: Tensor, *, share: float, only_last: float) -> QueryBatch:
    """Lists of items whose chosen ones are hidden and asked for: each with probability `share`, the last one where
    none was chosen; of a list with probability `only_last`, the last one alone. Unknown items (0) are not asked for.
    """
    query_of_target = segment_ids_of(lengths)
    ends = (lengths.cumsum(0) - 1)[lengths > 0]
    hidden = torch.rand(len(items), device=items.device) < share
    alone = torch.rand(len(lengths), device=items.device) < only_last
    hidden &= ~alone[query_of_target]
    none = (
        torch.zeros(len(lengths), dtype=torch.long, device=items.device).index_add(0, query_of_target, hidden.long())
        == 0
    )
    hidden[ends] |= none[lengths > 0]
    at = (hidden & (items > 0)).nonzero()[:, 0]
    places = torch.arange(len(items), device=items.device)
    return QueryBatch(items, lengths, places, at, items[at], torch.arange(len(at), device=items.device))


def masked_last(items: Tensor, lengths: Tensor) -> QueryBatch:
    """Lists of items whose last one is hidden and asked for, as masked models are in the end: one query a list."""
    at = torch.where(lengths > 0, lengths.cumsum(0) - 1, -1)
    nothing = items[:0]
    return QueryBatch(items, lengths, torch.arange(len(items), device=items.device), at, nothing, nothing)


def hide(x: Tensor, at: Tensor, mask: Tensor) -> Tensor:
    """x (P, d) with the mask (d,) at these places (Q,), of which -1 is none."""
    at = at[at >= 0]
    return x.index_copy(0, at, mask.expand(len(at), -1))


def states_at(states: Tensor, at: Tensor) -> Tensor:
    """The states (P, d) at these places (Q,), zero where there is none (-1)."""
    if not len(states):
        return states.new_zeros(len(at), states.shape[1])
    return torch.where((at >= 0)[:, None], states[at.clamp(min=0)], 0)
