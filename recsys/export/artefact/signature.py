"""The inputs and outputs of an artefact, in the words of the open inference protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from recsys.data.features.arrays import single_valued
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import Number
from recsys.features import FeatureSpec
from recsys.online.servable import Datatype, TensorSpec

Signature = dict[str, tuple[TensorSpec, ...]]


def raw_inputs(types: pl.Schema, data: ResolvedData) -> tuple[TensorSpec, ...]:
    """Return a tensor of the rows' values for each raw column; times, lists and the like are text.

    Whole numbers are FP64, so that NaN is a missing value, unless they may be ids, of which FP64 would lose digits.
    """
    read = {column for column, of_column in data.column_reads.items() if of_column == {Number}}
    sparse = {column for c in data.sparse_columns.values() for column in c.source.columns}
    group = set() if data.group is None else {data.group.by, data.group.order}
    numbers = read - sparse - group  # which dense features alone read
    return tuple(TensorSpec(n, _datatype(dtype, n in numbers), (-1, 1), optional=True) for n, dtype in types.items())


def _datatype(dtype: pl.DataType, is_number: bool) -> Datatype:
    if dtype.is_integer() and not is_number:
        return "INT64"
    if dtype.is_integer() or dtype.is_float():
        return "FP64"
    return "BOOL" if dtype == pl.Boolean else "BYTES"


def feature_inputs(features: FeatureSpec) -> tuple[TensorSpec, ...]:
    """Return the inputs of the graph: `dense`, `ids` and the lists of multi-valued features, padded with -1."""
    specs = [TensorSpec("dense", "FP32", (-1, features.dense_width))] if features.dense else []
    if singles := single_valued(features):
        specs.append(TensorSpec("ids", "INT32", (-1, len(singles))))
    specs += [TensorSpec(f.name, "INT32", (-1, -1)) for f in features.sparse if f.multi_valued]
    return tuple(specs)


def output_specs(names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return an output of one number a row for each name."""
    return tuple(TensorSpec(name, "FP32", (-1,)) for name in names)


def signature_json(signature: Signature) -> dict[str, Any]:
    """Return a signature as JSON values."""
    return {part: [asdict(spec) | {"shape": list(spec.shape)} for spec in specs] for part, specs in signature.items()}
