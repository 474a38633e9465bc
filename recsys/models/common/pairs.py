"""Features and targets of models that score (user, item) pairs."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.models.common.embeddings import copied_index
from recsys.models.common.items import QueryBatch
from recsys.models.common.lists import as_lists, first_kept, list_of_each, padded_length, true_places


def chosen_items(batch: Batch, item: str) -> QueryBatch:
    """Make each row a query whose targets are the known items of its feature `item`.

    That is one item if rows are interactions, and all items of a user if rows are users.
    """
    lists = batch.sparse[item]
    items, lengths = lists.values().long(), lists.lengths().long()
    nothing = items[:0]
    if padded_length() is not None:
        return QueryBatch(nothing, torch.zeros_like(lengths), nothing, nothing, nothing, nothing)
    query_of_target, [known] = list_of_each(lengths, len(items)), true_places(items > 0, lengths=lengths)
    return QueryBatch(nothing, items.new_zeros(len(lengths)), nothing, nothing, items[known], query_of_target[known])


def history_features(features: FeatureSpec) -> tuple[SparseFeature, ...]:
    """Return the histories: the features of a row, other than the item, that share the item's table."""
    if features.item is None:
        return ()
    item = features.feature(features.item)
    return tuple(
        f for f in features.sparse if f.table == item.table and f.name != item.name and not _of_items(features, f)
    )


def _of_items(features: FeatureSpec, f: SparseFeature) -> bool:
    """Return whether a feature has a value for each item of a row that is a sequence of items."""
    return f.sequence and features.item is not None and features.feature(features.item).sequence


def with_histories(
    query_batch: QueryBatch, batch: Batch, histories: Sequence[SparseFeature], item: str, *, training: bool
) -> QueryBatch:
    """Return the queries with the items of histories as inputs, one history after another: lengths (H * B,).

    In training, a row's own item is left out of its histories: a history that was logged after the choice would give
    the answer away.

    Args:
        query_batch: a query for each row, without inputs.
        histories: the H histories.
        item: the feature of the item that was chosen.
    """
    chosen = batch.sparse[item]
    inputs, lengths = [], []
    for history in histories:
        lists = batch.sparse[history.name]
        ids, sizes = lists.values().long(), lists.lengths().long()
        if not history.multi_valued:
            ids = as_lists(ids)
        keep = ids > 0
        if training and len(chosen.values()) == batch.rows:  # each row has one item
            keep &= ids != chosen.values().long()[list_of_each(sizes, len(ids))]
        kept, size = first_kept(ids, keep, sizes)
        inputs.append(kept)
        lengths.append(size)
    return replace(query_batch, inputs=torch.cat(inputs), lengths=torch.cat(lengths))


def user_features(features: FeatureSpec, model: str, *, histories: bool = False) -> FeatureSpec:
    """Return the user's features: all features of a row but the item and, if rows are sequences, the items' features.

    histories: whether the model reads histories in another way, so that they are left out

    Raises ValueError if there are none.
    """
    past = history_features(features) if histories else ()
    sparse = tuple(
        f for f in features.sparse if f.name != features.item and not _of_items(features, f) and f not in past
    )
    if not sparse and not features.dense and not past:
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
    places = [sparse.keys().index(key) for key in keys]
    if padded_length() is not None:
        return sparse.permute(places)
    return sparse.permute(places, copied_index(places, sparse.device()).int())
