"""Transforms: fitted on the training split, applied by one code when preparing and when predicting.

`typed` turns raw columns into label, numbers, times and text, and tells unparsable rows; `fit` learns from those of the
training split; `Fitted.apply` turns them into what models read: dense Float32, ids Int32 (lists where multi-valued).
Both take text as codes, too, of which each stands for one value.
"""

from recsys.data.transforms.column_names import (
    GROUP,
    HISTORY,
    KEY,
    LABEL,
    ORDER,
    PLACE,
    ROW,
    SPLIT,
    TARGETS,
    TIME,
)
from recsys.data.transforms.columns import (
    column_reads,
    dense_columns,
    differences,
    feature_spec,
    is_bag,
    is_sequence,
    item_feature,
    items_config,
    known_rows,
    label_column,
    query_columns,
    raw_columns,
    sparse_columns,
    text_columns,
)
from recsys.data.transforms.fit import InMemory, PartialStatistics, StatisticsPass, Training, fit, summed
from recsys.data.transforms.fitted import Fitted
from recsys.data.transforms.parse import typed
from recsys.data.transforms.steps import TRANSFORMS

__all__ = [
    "GROUP",
    "HISTORY",
    "KEY",
    "LABEL",
    "ORDER",
    "PLACE",
    "ROW",
    "SPLIT",
    "TARGETS",
    "TIME",
    "TRANSFORMS",
    "Fitted",
    "InMemory",
    "PartialStatistics",
    "StatisticsPass",
    "Training",
    "column_reads",
    "dense_columns",
    "differences",
    "feature_spec",
    "fit",
    "is_bag",
    "is_sequence",
    "item_feature",
    "items_config",
    "known_rows",
    "label_column",
    "query_columns",
    "raw_columns",
    "sparse_columns",
    "summed",
    "text_columns",
    "typed",
]
