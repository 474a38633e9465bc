"""Tensors of the open inference protocol: from JSON or bytes to NumPy arrays, raw columns, and back."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from recsys.base.errors import did_you_mean
from recsys.online.servable import TensorSpec
from recsys.server.request_error import RequestError

NUMPY = {
    "BOOL": np.dtype(np.bool_),
    **{f"INT{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"UINT{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    **{f"FP{n}": np.dtype(f"float{n}") for n in (16, 32, 64)},
}
DATATYPES = {dtype: name for name, dtype in NUMPY.items()}
MAX_DIMENSIONS = 8
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
LENGTH = struct.Struct("<I")  # of a value of BYTES, before it


class V2Tensor(NamedTuple):
    """An input of a request.

    values: a flat array; for BYTES a list of bytes, str or None; for whole numbers and truth values, a list if a value
        is missing (None)
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Any


def bad(message: str) -> RequestError:
    """Return the error for a request that does not follow the protocol."""
    return RequestError(400, message)


def checked_shape(name: object, datatype: object, shape: object) -> tuple[int, ...]:
    """Return the shape of an input, after checks of its name, type and dimensions."""
    if not isinstance(name, str) or not name:
        raise bad("inputs: each input needs a name, a text")
    if type(datatype) is not str or (datatype not in NUMPY and datatype != "BYTES"):
        raise bad(f"input {name[:80]}: datatype {str(datatype)[:40]!r} is not one of BYTES, {', '.join(NUMPY)}")
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise bad(f"input {name[:80]}: shape must be a list of 1 to {MAX_DIMENSIONS} dimensions, such as [2, 1]")
    if any(type(n) is not int or n < 0 for n in shape):
        raise bad(f"input {name[:80]}: the dimensions of a shape are whole numbers from 0")
    return tuple(shape)


def from_json(name: Any, datatype: Any, shape: Any, data: object) -> V2Tensor:
    """Return an input whose values are a list of JSON or of gRPC, flat or nested; null is a missing value.

    Args:
        name, datatype, shape, data: as in the request, unchecked.

    Raises:
        RequestError: the values do not fit the type or the shape.
    """
    dimensions = checked_shape(name, datatype, shape)
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise bad(f"input {name[:80]}: data must be a list")
    values = list(data)
    while values and type(values[0]) is list:
        if any(type(part) is not list for part in values):
            raise bad(f"input {name[:80]}: data mixes lists and values")
        values = [value for part in values for value in part]
    if math.prod(dimensions) != len(values):
        takes = f"shape {list(dimensions)} takes {math.prod(dimensions)}"
        raise bad(f"input {name[:80]}: has {len(values)} values, but {takes}")
    kinds = set(map(type, values))
    has_missing = NoneType in kinds
    kinds.discard(NoneType)
    if datatype == "BYTES":
        if kinds - {str, bytes}:
            raise bad(f"input {name[:80]}: BYTES takes texts; null or an empty text is a missing value")
        return V2Tensor(name, datatype, dimensions, values)
    dtype = NUMPY[datatype]
    if wrong := kinds - _JSON_TYPES[dtype.kind]:
        raise bad(f"input {name[:80]}: {datatype} does not take a value of the type {wrong.pop().__name__}")
    try:
        if not has_missing or dtype.kind == "f":  # NumPy reads None as NaN
            return V2Tensor(name, datatype, dimensions, np.array(values, dtype))
        np.array([v for v in values if v is not None], dtype)  # checks the range
        return V2Tensor(name, datatype, dimensions, values)
    except OverflowError as e:
        raise bad(f"input {name[:80]}: a value is out of the range of {datatype}") from e


def from_bytes(name: Any, datatype: Any, shape: Any, raw: bytes | memoryview) -> V2Tensor:
    """Return an input whose values are bytes: little-endian numbers, or BYTES with a length of 4 bytes before each.

    Args:
        name, datatype, shape: as in the request, unchecked.
        raw: the bytes of the values.

    Raises:
        RequestError: the values do not fit the type or the shape.
    """
    dimensions = checked_shape(name, datatype, shape)
    count = math.prod(dimensions)
    if datatype == "BYTES":
        return V2Tensor(name, datatype, dimensions, _split_bytes(name, bytes(raw), count))
    dtype = NUMPY[datatype]
    if len(raw) != count * dtype.itemsize:
        expected = f"shape {list(dimensions)} of {datatype} takes {count * dtype.itemsize}"
        raise bad(f"input {name[:80]}: has {len(raw)} bytes, but {expected}")
    return V2Tensor(name, datatype, dimensions, np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype, copy=False))


def _split_bytes(name: str, raw: bytes, count: int) -> list[bytes]:
    if count * LENGTH.size > len(raw):
        raise bad(f"input {name[:80]}: {len(raw)} bytes cannot hold {count} values with a length of 4 bytes each")
    values, at = [], 0
    for _ in range(count):
        start = at + LENGTH.size
        if start > len(raw) or (at := start + LENGTH.unpack_from(raw, start - LENGTH.size)[0]) > len(raw):
            raise bad(f"input {name[:80]}: a length goes beyond the end of the data")
        values.append(raw[start:at])
    if at != len(raw):
        raise bad(f"input {name[:80]}: {len(raw) - at} bytes are left over after {count} values")
    return values


def rows_of(tensors: Sequence[V2Tensor]) -> int:
    """Return the number of rows of raw columns of the shape [rows] or [rows, 1]."""
    rows = tensors[0].shape[0]
    for t in tensors:
        if t.shape[0] != rows:
            raise bad(f"input {t.name[:80]}: has {t.shape[0]} rows, but {tensors[0].name[:80]} has {rows}")
        if math.prod(t.shape[1:]) != 1:
            raise bad(f"input {t.name[:80]}: shape {list(t.shape)} is not [rows] or [rows, 1]")
    return rows


def to_columns(tensors: Sequence[V2Tensor]) -> dict[str, list[Any]]:
    """Return raw columns as lists of Python values. Empty BYTES become None, a missing value."""
    columns: dict[str, list[Any]] = {}
    for t in tensors:
        numbers = t.values if type(t.values) is list else t.values.tolist()
        columns[t.name] = _texts(t) if t.datatype == "BYTES" else numbers
    return columns


def _texts(tensor: V2Tensor) -> list[str | None]:
    try:
        return [v.decode() or None if type(v) is bytes else v or None for v in tensor.values]
    except UnicodeDecodeError as e:
        raise bad(f"input {tensor.name[:80]}: a value is not UTF-8 text") from e


def to_arrays(tensors: Sequence[V2Tensor]) -> dict[str, np.ndarray]:
    """Return feature tensors as arrays of the shapes of the request; BYTES become arrays of objects."""
    arrays = {}
    for t in tensors:
        values = np.array(_texts(t), dtype=object) if t.datatype == "BYTES" else t.values
        if type(values) is list:
            raise bad(f"input {t.name[:80]}: a feature of the type {t.datatype} cannot be null")
        arrays[t.name] = values.reshape(t.shape)
    return arrays


def check_input_names(tensors: Sequence[V2Tensor], specs: Sequence[TensorSpec], model: str) -> None:
    """Check that the inputs have the names in `specs`. Raises RequestError for unknown, repeated and missing names."""
    names = {t.name for t in tensors}
    if len(names) < len(tensors):
        raise bad(f"model {model}: an input is given twice")
    known = {s.name for s in specs}
    if unknown := sorted(names - known):
        raise bad(f"input {unknown[0][:80]}: model {model} has no such input{did_you_mean(unknown[0][:80], known)}")
    if missing := next((s.name for s in specs if not s.optional and s.name not in names), None):
        raise bad(f"input {missing}: is missing; model {model} needs it")


def datatype_of(array: np.ndarray) -> str:
    """Return the protocol's name of an array's type."""
    return DATATYPES.get(array.dtype, "BYTES")


def to_bytes(array: np.ndarray) -> bytes:
    """Return an output as bytes, as `from_bytes` reads them."""
    if array.dtype in DATATYPES:
        return np.ascontiguousarray(array).tobytes()
    parts = [v if isinstance(v, bytes) else str(v).encode() for v in array.ravel().tolist()]
    return b"".join(LENGTH.pack(len(p)) + p for p in parts)


def to_json(array: np.ndarray) -> list[Any]:
    """Return an output as a flat list for JSON."""
    values = array.ravel().tolist()
    if array.dtype in DATATYPES:
        return values
    return [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in values]


def selected(outputs: Mapping[str, np.ndarray], names: Sequence[str], model: str) -> dict[str, np.ndarray]:
    """Return the outputs that a request names, all if it names none."""
    for name in names:
        if name not in outputs:
            hint = did_you_mean(name[:80], outputs)
            raise bad(f"output {name[:80]}: model {model} has no such output{hint}")
    return {n: outputs[n] for n in names} if names else dict(outputs)
