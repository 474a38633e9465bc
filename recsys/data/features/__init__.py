"""Transforms: fitted on the training split, applied by the same code when preparing and when predicting.

`parse_rows` turns raw columns into label, numbers, times and text, and returns the rows that cannot be parsed. `fit`
learns from the parsed rows of the training split. `Fitted.apply` turns parsed rows into model inputs: dense Float32 and
ids Int32 (lists if multi-valued). `fit` and `Fitted.apply_codes` also take text as integer codes, one for each value.
"""

from recsys.data.features.blocks import GROUP, LABEL
from recsys.data.features.fitted import Fitted
from recsys.data.features.parse import parse_rows
from recsys.data.features.resolved_data import ResolvedData

__all__ = ["GROUP", "LABEL", "Fitted", "ResolvedData", "parse_rows"]
