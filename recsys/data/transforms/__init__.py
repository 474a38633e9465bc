"""Transforms: fitted on the training split, applied by one code when preparing and when predicting.

`typed` turns raw columns into label, numbers, times and text, and tells unparsable rows; `fit` learns from those of the
training split; `Fitted.apply` turns them into what models read: dense Float32, ids Int32 (lists where multi-valued).
"""

from recsys.data.transforms.columns import (
    dense_columns,
    feature_spec,
    is_bag,
    known_rows,
    raw_columns,
    sparse_columns,
)
from recsys.data.transforms.fit import fit
from recsys.data.transforms.fitted import Fitted
from recsys.data.transforms.names import KEY, LABEL, ROW, TIME
from recsys.data.transforms.steps import TRANSFORMS
from recsys.data.transforms.typed import typed

__all__ = [
    "KEY",
    "LABEL",
    "ROW",
    "TIME",
    "TRANSFORMS",
    "Fitted",
    "dense_columns",
    "feature_spec",
    "fit",
    "is_bag",
    "known_rows",
    "raw_columns",
    "sparse_columns",
    "typed",
]
