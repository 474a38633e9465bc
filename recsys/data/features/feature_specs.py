"""Turn a data config into the description of a model's inputs."""

from collections.abc import Callable

from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.sparse_columns import SparseColumn
from recsys.features import FeatureSpec, SparseFeature
from recsys.labels import Label


def feature_spec(
    data: ResolvedData,
    rows: Callable[[SparseColumn], int],
    width: Callable[[str], int] = lambda _: 8,
    *,
    items: bool = True,
    labels: tuple[Label, ...] | None = None,
) -> FeatureSpec:
    """Return the features that models see.

    Args:
        data: the data config.
        rows: returns the number of rows of a sparse feature's table.
        width: returns the width of a dense feature's vectors from its name.
        items: include the item table's features.
        labels: the labels with what was fitted; by default without.
    """
    items_data = data.item_table if items else None
    return FeatureSpec(
        dense=tuple(c.spec(name, width) for name, c in data.dense_columns.items()),
        sparse=tuple(
            SparseFeature(
                name,
                rows(c),
                c.table,
                c.pooling,
                c.is_list,
                data.is_ordered(name),
                frozen=c.table in data.frozen_tables,
            )
            for name, c in data.sparse_columns.items()
            if c.model
        ),
        labels=plain_labels(data) if labels is None else labels,
        item=data.item_feature,
        item_ids=data.items.ids,
        items=None if items_data is None else feature_spec(items_data, rows, width),
        weighted=data.weight_column is not None,
        grouped=data.together,
    )


def plain_labels(data: ResolvedData) -> tuple[Label, ...]:
    """Return the labels without what is fitted."""
    return tuple(c.label(name, data.sample_negatives) for name, c in data.label_kinds.items())
