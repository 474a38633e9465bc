"""What models of (user, item) pairs share: who asks, and for what."""

from collections.abc import Sequence

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.batch import Batch, segment_ids_of
from recsys.features import FeatureSpec, SparseFeature
from recsys.models.common.items import QueryBatch


def chosen_items(batch: Batch, item: str) -> QueryBatch:
    """Each row asks for the items of feature `item` that it has: one where a row is an interaction, all of them where
    a row is a user's.
    """
    lists = batch.sparse[item]
    items, lengths = lists.values().long(), lists.lengths().long()
    nothing = items[:0]
    query_of_target, known = segment_ids_of(lengths), items > 0
    return QueryBatch(nothing, items.new_zeros(len(lengths)), nothing, nothing, items[known], query_of_target[known])


def beside_items(features: FeatureSpec, model: str) -> FeatureSpec:
    """What a row tells of who asks: everything but items in order. Raises ValueError where that is nothing."""
    sparse = tuple(f for f in features.sparse if f.name != features.item and not f.sequence)
    if not sparse and not features.dense:
        raise ValueError(f"{model} needs features of who asks: data names the items' alone")
    return FeatureSpec(dense=features.dense, sparse=sparse, labels=())


def user_feature(features: FeatureSpec, name: str | None, model: str) -> SparseFeature:
    """The sparse feature that tells who asks: the one named, or the only one. Raises ValueError where it is unclear."""
    found = {f.name: f for f in features.sparse if f.name != features.item and not f.multi_valued}
    if name is not None and name not in found:
        raise ValueError(f"user: no sparse feature of one value a row is named {name}: there are {', '.join(found)}")
    if name is None and len(found) != 1:
        told = f"one of {', '.join(found)}" if found else "and data names none"
        raise ValueError(f"user: {model} needs the feature that tells who asks, {told}")
    return found[name or next(iter(found))]


def only(sparse: KeyedJaggedTensor, keys: Sequence[str]) -> KeyedJaggedTensor:
    """These keys alone, in their order."""
    return sparse.permute([sparse.keys().index(key) for key in keys])
