"""Turn a data config into the description of a model's inputs."""

from collections.abc import Callable

from recsys.data.transforms.resolved_data import ResolvedData, is_bag
from recsys.features import DenseFeature, FeatureSpec, Label, SparseFeature
from recsys.schema.data_schema import SparseConfig


def feature_spec(
    data: ResolvedData,
    rows: Callable[[str, SparseConfig], int],
    width: Callable[[str], int] = lambda _: 8,
    *,
    items: bool = True,
    labels: tuple[Label, ...] | None = None,
) -> FeatureSpec:
    """Return the features that models see.

    Args:
        data: the data config.
        rows: returns the number of rows of a sparse feature's table from its name and config.
        width: returns the width of a dense feature's vectors from its name.
        items: include the item table's features.
        labels: the labels with what was fitted; by default without.
    """
    items_data = data.item_table if items else None
    return FeatureSpec(
        dense=tuple(
            DenseFeature(n, c.row_vector.width if c.row_vector else 1, unit=c.is_unit)
            if c.vectors is None
            else DenseFeature(n, width(n), True)
            for n, c in data.dense_columns.items()
        ),
        sparse=tuple(
            SparseFeature(
                n,
                rows(n, c),
                c.table or n,
                "mean" if c.pooling == "mean" else "sum",
                is_bag(c),
                data.is_ordered(c),
                frozen=(c.table or n) in data.frozen_tables,
            )
            for n, c in data.sparse_columns.items()
            if c.model is not False
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
    return tuple(
        Label(name, c.kind, tuple(c.classes), c.log, sampled=data.sample_negatives)  # type: ignore[arg-type]
        for name, c in data.label_configs.items()
    )
