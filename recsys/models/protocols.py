"""Protocols that models of each kind implement.

A model declares its kind by subclassing RetrievalModel, ClosedFormModel or FittedRankingModel in addition to nn.Module;
any other module is a RankingModel. Only `model_kind` checks for this. Optional methods have defaults here, so that
callers never test for attributes.

Shapes: B rows; F sparse features; D dense columns; T labels; N ids of items, of which 0 stands for unknown items.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.ageing import Ageing
from recsys.interface.batch import Batch, Interactions, ItemLists
from recsys.interface.candidates import Candidates
from recsys.models.common.boosters import GroupOrder
from recsys.models.common.items import Items, QueryBatch, Scorer

Kind = Literal["ranking", "fitted_ranking", "retrieval", "closed_form"]
_DOT = Scorer()


class RankingModel(Protocol):
    """Predicts the labels of rows: DLRM, DCN, DeepFM. Any nn.Module with this `forward` is one."""

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        ...


class AuxiliaryLoss(ABC):
    """Ranking models that train something beside the labels: DIEN."""

    @abstractmethod
    def auxiliary_loss(self) -> Tensor:
        """Return a scalar to add to the loss of the last batch, in training."""


class Batches(Protocol):
    """The rows of a split, batch by batch and in order; each iteration starts from the first row.

    rows: R, the number of rows of all batches
    """

    rows: int

    def __iter__(self) -> Iterator[Batch]: ...


class FittedRankingModel(RankingModel, Protocol):
    """Predicts the labels of rows and is fitted by one call of `fit`, in one process: GBM.

    It reads all training rows into memory.

    orders_groups: whether it can fit the order of the rows of groups instead of labels, as the loss Pairwise does
    """

    orders_groups: bool = False

    def order_groups(self, order: GroupOrder) -> None:
        """Let `fit` fit the order of the rows of each group; called before it, if the config names the loss."""
        raise NotImplementedError

    def fit(self, training: Batches, validation: Batches | None, *, seed: int, threads: int) -> None:
        """Fit the model to the training rows.

        Args:
            validation: rows that decide when to stop, or None.
            seed: seed of all that is random.

        Raises:
            UserError: the model cannot be fitted to these rows.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write the fitted model to files of an existing folder."""
        ...

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        ...


class RetrievalModel(Protocol):
    """Ranks items for queries and is trained step by step: SASRec, TwoTower, NeuMF.

    items: module that maps item ids (M,) to vectors (M, d). It is called once a step, for inputs, targets and negatives
        together.
    reads_interactions: whether `set_interactions` must be called before training; the model then has the attribute
        `user`, the name of its user feature.
    reads_rows: whether `encode` reads the batch itself, and not only its queries.
    weighs_pairs: whether the loss must weigh its pairs by `weights`.
    generates: whether the model predicts probabilities of items, which only the loss Likelihood reads.
    wider_than_dim: whether its tables are wider than its parameter `dim`.
    """

    items: Items | Any
    reads_interactions: bool = False
    reads_rows: bool = True
    weighs_pairs: bool = False
    generates: bool = False
    wider_than_dim: bool = False

    def make_queries(self, batch: Batch) -> QueryBatch:
        """Return the items that the model reads from a batch, and the items that it must predict."""
        ...

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (Q, d): one for each index in query_batch.at or, if it has no inputs, one for each row.

        Args:
            vectors: (P, d) vectors of query_batch.inputs.
        """
        ...

    @property
    def scorer(self) -> Scorer | Any:
        """Module that scores queries against item vectors; dot products by default."""
        return _DOT

    @property
    def ranks_new_items(self) -> bool:
        """Return whether items without a row of the item table have scores of their own, and can be listed.

        By default, they have if an Items module of the model reads features of items.
        """
        return not all(m.by_id_alone for m in self.items.modules() if isinstance(m, Items))

    def penalty(self) -> Tensor | None:
        """Return a scalar to add to the loss of the last batch, such as a KL divergence; None by default."""
        return None

    def weights(self, batch: Batch, query_batch: QueryBatch, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of targets, (T,), and of their negatives, (T, n), in the loss, if `weighs_pairs`.

        Args:
            negatives: (n,) ids that all targets share, or (T, n).
        """
        raise NotImplementedError

    def set_interactions(self, interactions: Interactions) -> None:
        """Take all training interactions, once, on the model's device, before training."""

    def refresh(self) -> None:
        """Compute the buffers that evaluation reads from the weights, before an evaluation and a checkpoint."""


class ClosedFormModel(Protocol):
    """Ranks items for histories and is fitted in closed form, by one call of `fit` in one process.

    Examples are EASE, ItemKNN and Popularity.

    rows: N, the number of item ids that the model knows, including 0 (unknown items)
    relates_items: whether the scores of a history of one item say which items are like it
    ageing: how the interactions that `fit` takes count by their age, in their `weights`; None: alike
    advance: a function that a long `fit` calls with the number of items that it has fitted since the last call
    """

    rows: int
    relates_items: bool = True
    ageing: Ageing | None = None
    advance: Callable[[float], object] = staticmethod(lambda _: None)

    def set_candidates(self, candidates: Candidates) -> None:
        """Take the features of all items, once, before `fit`."""

    def fit(self, interactions: ItemLists) -> None:
        """Fit the model to the items that each group has chosen in training, one list per group."""
        ...

    def score(self, history: ItemLists) -> Tensor:
        """Return scores of all candidates for B histories, (B, N)."""
        ...

    def memory(self) -> dict[str, int]:
        """Return the bytes of each large matrix that `fit` allocates, by a description; {} by default."""
        return {}


def says(kind: type, name: str, method: str) -> bool:
    """Return whether what a class says by an attribute is about its own method: no subclass overrides that alone."""
    own = next((c for c in kind.__mro__ if name in vars(c) or method in vars(c)), kind)
    return name in vars(own)


def model_kind(target: Callable[..., Any]) -> Kind:
    """Return the kind of the model that a config's `_target_` names.

    Raises:
        TypeError: the class has the methods of a protocol that it does not subclass.
    """
    bases = inspect.getmro(target) if inspect.isclass(target) else ()
    if FittedRankingModel in bases:
        return "fitted_ranking"
    if RetrievalModel in bases:
        return "retrieval"
    if ClosedFormModel in bases:
        return "closed_form"
    for method, protocol in (("make_queries", RetrievalModel), ("score", ClosedFormModel)):
        if inspect.isclass(target) and method in vars(target) and "forward" not in vars(target):
            raise TypeError(f"{target.__name__} has {method}: subclass recsys.models.protocols.{protocol.__name__}")
    return "ranking"
