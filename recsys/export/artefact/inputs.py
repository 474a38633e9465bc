"""The inputs and outputs of an artefact: the arrays of its graph, their signature, and checks of clients' inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.arrays import Arrays, single_valued
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import Number
from recsys.interface.features import FeatureSpec
from recsys.online.servable import Datatype, TensorSpec

Feed = dict[str, np.ndarray]
TYPES = {"FP32": np.dtype(np.float32), "INT32": np.dtype(np.int32)}


@dataclass(frozen=True)
class GraphInputs:
    """The inputs of a graph for `rows` rows."""

    feed: Feed
    rows: int


def graph_inputs(arrays: Arrays, features: FeatureSpec, *, one_length: bool = False) -> GraphInputs:
    """Return the inputs of a graph: lists are padded with -1 to the longest.

    one_length: whether to pad all features to the same length
    """
    feed: Feed = {}
    if features.dense:
        feed["dense"] = arrays.dense
    if arrays.ids.shape[1]:
        feed["ids"] = arrays.ids
    longest = {n: int(x.max(initial=1)) for n, x in arrays.lengths.items()}
    most = max(longest.values(), default=1)
    for name, values in arrays.values.items():
        lengths, length = arrays.lengths[name], most if one_length else longest[name]
        feed[name] = np.full((len(lengths), length), -1, np.int32)
        feed[name][np.arange(length) < lengths[:, None]] = values
    return GraphInputs(feed, arrays.rows)


def longest_lists(data: ResolvedData) -> dict[str, int]:
    """Return the length of the longest list that the transforms make of each feature, if there is one."""
    own = {n: c.longest for n, c in data.sparse_columns.items()}
    whole = None if data.sequences is None else data.sequences.max_length + 1
    return {n: length for n, c in own.items() if (length := c or whole) is not None}


def check_feed(
    tensors: Mapping[str, np.ndarray], specs: tuple[TensorSpec, ...], features: FeatureSpec, longest: Mapping[str, int]
) -> GraphInputs:
    """Check features that a client has computed. longest: see `longest_lists`

    Raises UserError if a name, shape, type or id is wrong, or a list is longer than those that the model is made for:
    the memory of attention grows with its square.
    """
    names = [s.name for s in specs]
    if missing := [n for n in names if n not in tensors]:
        raise UserError(f"input {missing[0]}: is missing; the inputs are {', '.join(names)}")
    feed, rows = {}, len(tensors[names[0]])
    for spec in specs:
        x = np.ascontiguousarray(tensors[spec.name])
        wanted = [rows if i == 0 else n for i, n in enumerate(spec.shape)]
        if x.ndim != len(wanted) or any(n not in (-1, m) for n, m in zip(wanted, x.shape, strict=True)):
            shown = ["rows" if i == 0 else "any" if n < 0 else n for i, n in enumerate(spec.shape)]
            shape = ", ".join(map(str, shown))
            raise UserError(f"input {spec.name}: has shape {list(x.shape)}, and the model takes [{shape}]")
        if 0 in x.shape[1:]:
            raise UserError(f"input {spec.name}: has shape {list(x.shape)}; pad empty lists with -1")
        if spec.shape[1:] == (-1,) and x.shape[1] > longest.get(spec.name, x.shape[1]):
            most = longest[spec.name]
            raise UserError(f"input {spec.name}: has lists of {x.shape[1]:,}; the longest are of {most:,}")
        if x.dtype != TYPES[spec.datatype]:
            raise UserError(f"input {spec.name}: has type {x.dtype}, and the model takes {spec.datatype}")
        feed[spec.name] = x
    # an id that is not a row of its table would let the graph read beyond the table
    singles = [f for f in features.sparse if not f.multi_valued]
    if singles and len(ids := feed["ids"]):
        table_rows = np.array([f.cardinality for f in singles])
        if ids.min() < 0 or (ids.max(axis=0) >= table_rows).any():  # which one is looked for only then
            for i, f in enumerate(singles):
                _check_range(f.name, ids[:, i], 0, f.cardinality)
    for f in features.sparse:
        if f.multi_valued and f.name in feed:  # retrieval models need not read all
            _check_range(f.name, feed[f.name], -1, f.cardinality)
    if "dense" in feed and not np.isfinite(feed["dense"]).all():
        raise UserError("input dense: holds NaN or infinite numbers; fill missing values as the transforms do")
    return GraphInputs(feed, rows)


def _check_range(name: str, ids: np.ndarray, low: int, rows: int) -> None:
    if ids.size and not (low <= ids.min() and ids.max() < rows):
        wrong = ids[(ids < low) | (ids >= rows)].flat[0]
        raise UserError(f"feature {name}: has the id {wrong}; ids are from 0 to {rows - 1}")


Signature = dict[str, tuple[TensorSpec, ...]]


def raw_inputs(types: pl.Schema, data: ResolvedData) -> tuple[TensorSpec, ...]:
    """Return a tensor of the rows' values for each raw column; times, lists and the like are text.

    Whole numbers are FP64, so that NaN is a missing value, unless they may be ids, of which FP64 would lose digits.
    """
    read = {column for column, of_column in data.column_reads.items() if of_column == {Number}}
    sparse = {column for c in data.sparse_columns.values() for column in c.source.columns}
    group = set() if data.group is None else {data.group.by, data.group.order}
    numbers = read - sparse - group  # which dense features alone read
    specs = []
    for name, dtype in types.items():
        datatype: Datatype = "BOOL" if dtype == pl.Boolean else "BYTES"
        if dtype.is_integer() or dtype.is_float():
            datatype = "INT64" if dtype.is_integer() and name not in numbers else "FP64"
        specs.append(TensorSpec(name, datatype, (-1, 1), optional=True))
    return tuple(specs)


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
