"""The behaviour of a user: a history of items with their side features, and the item that a row shows (the target)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recsys.base.errors import UserError, did_you_mean
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings, SequenceEmbeddings
from recsys.models.common.lists import padded_length

DOCS = "see docs/how_to/train/behaviour.md#models-of-a-users-behaviour"


class Behaviour(NamedTuple):
    """The inputs of B rows for a model of behaviour; P values of histories, one history after another.

    target: (B, W) vectors of the target's features, side by side
    history: (P, W) vectors of the same features of each item of the histories
    lengths: (B,)
    others: (B, R) dense features, and the pooled embeddings of all other features
    """

    target: Tensor
    history: Tensor
    lengths: Tensor
    others: Tensor


def history_pairs(features: FeatureSpec, history: Mapping[str, str] | None, model: str) -> dict[str, str]:
    """Return the history of each feature of the target: the pairs of `history` or, if that is None, all pairs of a list
    whose order matters (`sequence`) and the only single-valued feature that shares its table.

    Raises ValueError if there is no such pair, if a feature has several histories, or if a pair is wrong.
    """
    pairs = dict(history or {})
    for users in features.tables.values() if history is None else ():
        singles = [f.name for f in users if not f.multi_valued]
        lists = [f.name for f in users if f.multi_valued and f.sequence]
        if len(singles) == 1 and len(lists) > 1:
            raise ValueError(
                f"{model} reads one history, and {' and '.join(lists)} are histories of {singles[0]}; choose with "
                f"model.history='{{{singles[0]}: {lists[0]}}}'"
            )
        if len(singles) == 1 and lists:
            pairs[singles[0]] = lists[0]
    if not pairs:
        raise ValueError(
            f"{model} needs the history of a feature: a list that shares the table of a single-valued feature, such as "
            f"the items that a user saw before; add one with data.group and last, {DOCS}"
        )
    named = {f.name: f for f in features.sparse}
    for target, past in pairs.items():
        for name in (target, past):
            if name not in named:
                raise ValueError(f"history: no sparse feature is named {name}{did_you_mean(name, named)}")
        if named[target].multi_valued:
            why = "has a list of values in each row, so it is not a feature of the target"
            raise ValueError(f"history: {target} {why}")
        if not named[past].multi_valued:
            raise ValueError(f"history: {past} has one value in each row, so it is not a history")
        if named[target].table != named[past].table:
            table = named[target].table
            raise ValueError(f"history: {past} and {target} do not share a table; set data.sparse.{past}.table={table}")
    if twice := [name for name, count in Counter(pairs.values()).items() if count > 1]:
        raise ValueError(f"history: {twice[0]} is the history of several features; name it once")
    return pairs


class BehaviourEmbeddings(nn.Module):
    """Embeddings of the target, of its history, and of all other features.

    Target and history share the rows of unpooled tables. All other features are pooled; one that uses the table of a
    pair, such as a second history, has another copy of that table.

    Args:
        history: the history of each feature of the target; None for the pairs that `history_pairs` finds.
        dim: width of the embeddings.
        model: name of the model, for error messages.
        init_std: as for PooledEmbeddings.

    pairs: the history of each feature of the target
    width: W, the width of the vectors of the target and of each item of its history
    other_width: R, the width of dense features and pooled embeddings
    """

    def __init__(
        self,
        features: FeatureSpec,
        history: Mapping[str, str] | None,
        dim: int,
        *,
        model: str,
        init_std: float | None,
        device: torch.device | None,
    ) -> None:
        super().__init__()
        self.pairs = history_pairs(features, history, model)
        names = [*self.pairs, *self.pairs.values()]
        self.rows = SequenceEmbeddings(features, dim, names, device=device, init_std=init_std)
        rest = replace(features, sparse=tuple(f for f in features.sparse if f.name not in names), item=None)
        self.pooled = PooledEmbeddings(rest, dim, device=device, init_std=init_std) if rest.sparse else None
        self.width = len(self.pairs) * dim
        self.other_width = features.dense_width + len(rest.sparse) * dim

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Behaviour:
        """Look up the embeddings of B rows: dense (B, D), sparse with F keys of B bags.

        Raises UserError if the features of a history have different lengths.
        """
        rows = self.rows(sparse)
        others = dense if self.pooled is None else torch.cat([dense, self.pooled(sparse).flatten(1)], dim=1)
        return _side_by_side(rows, self.pairs, others)


@torch.fx.wrap  # type: ignore[misc]  # keep TorchRec's train pipeline from tracing into it
def _side_by_side(rows: dict[str, JaggedTensor], pairs: dict[str, str], others: Tensor) -> Behaviour:
    first, *sides = pairs.values()
    lengths = rows[first].lengths().long()
    for name in sides:
        check_lengths(rows[first], rows[name], first, name)
    target = torch.cat([rows[name].values() for name in pairs], dim=1)
    history = torch.cat([rows[name].values() for name in pairs.values()], dim=1)
    return Behaviour(target, history, lengths, others)


def check_lengths(one: JaggedTensor, other: JaggedTensor, one_name: str, other_name: str) -> None:
    """Check that the lists of two features of a history have the same lengths.

    On GPUs, which would have to wait for the answer, only their sums are compared; in an exported graph, nothing is.

    Args:
        one, other: ids or rows of the two features.
        one_name, other_name: names of the two features, for the error message.

    Raises:
        UserError: the lengths differ.
    """
    if padded_length() is not None:
        return
    same = one.values().shape[0] == other.values().shape[0]
    if same and one.lengths().device.type == "cpu":
        same = torch.equal(one.lengths(), other.lengths())
    if not same:
        raise UserError(
            f"features {one_name} and {other_name} are the history of one target, but their lists have different "
            "lengths; both must come from the same rows (with the same `last`), or name the pairs in model.history"
        )
