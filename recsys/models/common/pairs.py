"""Features and targets of models that score (user, item) pairs."""

from collections.abc import Sequence

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.batch import Batch, segment_ids_of
from recsys.features import FeatureSpec, SparseFeature
from recsys.models.common.items import QueryBatch


def chosen_items(batch: Batch, item: str) -> QueryBatch:
    """Make each row a query whose targets are the known items of its feature `item`.

    That is one item if rows are interactions, and all items of a user if rows are users.
    """
    lists = batch.sparse[item]
    items, lengths = lists.values().long(), lists.lengths().long()
    nothing = items[:0]
    query_of_target, known = segment_ids_of(lengths), items > 0
    return QueryBatch(nothing, items.new_zeros(len(lengths)), nothing, nothing, items[known], query_of_target[known])


def user_features(features: FeatureSpec, model: str) -> FeatureSpec:
    """Return the user's features: all features of a row except the item and sequences.

    Raises ValueError if there are none.
    """
    sparse = tuple(f for f in features.sparse if f.name != features.item and not f.sequence)
    if not sparse and not features.dense:
        raise ValueError(
            f"{model} needs features of the user, but the data has only features of items; add features of the user "
            "to data.sparse or data.dense"
        )
    return FeatureSpec(dense=features.dense, sparse=sparse, labels=())


def user_feature(features: FeatureSpec, name: str | None, model: str) -> SparseFeature:
    """Return the user feature: the one with this name, or else the only candidate.

    Raises ValueError if there is no such feature, or more than one to choose from.
    """
    named = {f.name: f for f in features.sparse if f.name != features.item and not f.multi_valued}
    if name is not None and name not in named:
        raise ValueError(f"user={name}: no such single-valued sparse feature; there are {', '.join(named)}")
    if name is None and len(named) != 1:
        choices = f"set model.user to one of {', '.join(named)}" if named else "add one to data.sparse"
        raise ValueError(f"{model} needs the feature that identifies the user: {choices}")
    return named[name or next(iter(named))]


def only(sparse: KeyedJaggedTensor, keys: Sequence[str]) -> KeyedJaggedTensor:
    """Select these keys, in this order."""
    return sparse.permute([sparse.keys().index(key) for key in keys])
