"""Read raw rows, and write them as tensors of the open inference protocol v2."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from recsys.base.errors import UserError, did_you_mean
from recsys.files.user_files import problem_of

Row = dict[str, Any]
History = list[Row]  # of a query of a retrieval model

MAX_ROWS = 20_000  # number of rows that are read; requests repeat them
EXAMPLES = "examples.json"  # in the folder of an exported model
NUMPY = {
    "BOOL": np.dtype(np.bool_),
    **{f"INT{n}": np.dtype(f"<i{n // 8}") for n in (8, 16, 32, 64)},
    **{f"UINT{n}": np.dtype(f"<u{n // 8}") for n in (8, 16, 32, 64)},
    **{f"FP{n}": np.dtype(f"<f{n // 8}") for n in (16, 32, 64)},
}
WORDS = {"true": True, "1": True, "false": False, "0": False}  # of BOOL in text files


def read_rows(path: Path) -> list[Row]:
    """Return at most MAX_ROWS rows of a CSV, JSON lines or Parquet file, or the examples of an exported model.

    Raises:
        UserError: the file is missing, empty, of another kind, or cannot be read.
    """
    if path.is_dir():
        path = path / EXAMPLES
        if not path.is_file():
            raise UserError(f"rows={path.parent}: has no {EXAMPLES}; name a file, or the folder of an exported model")
    if problem := problem_of(path):
        raise UserError(f"rows={path}: {problem}; name a CSV, JSON lines or Parquet file, or an exported model")
    reader = _examples if path.name == EXAMPLES else READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"rows={path}: must end in {', '.join(READERS)}, or be the folder of an exported model")
    try:
        rows = reader(path)
    except (ValueError, csv.Error) as e:
        raise UserError(f"rows={path}: cannot be read ({' '.join(str(e).split())[:200]})") from e
    if not rows:
        raise UserError(f"rows={path}: is empty; requests are made of rows")
    return rows


def read_histories(path: Path) -> list[History]:
    """Return the histories in the examples of a retrieval model, none for other rows, which `read_rows` has read."""
    path = path / EXAMPLES if path.is_dir() else path
    if path.name != EXAMPLES:
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [history for history in rows if history] if isinstance(rows[0], list) else []


def _csv(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as f:
        return [{k: v for k, v in row.items() if k is not None} for row in islice(csv.DictReader(f), MAX_ROWS)]


def _json_lines(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as f:
        rows = [json.loads(line) for line in islice(f, MAX_ROWS) if line.strip()]
    return _checked(rows)


def _parquet(path: Path) -> list[Row]:
    import polars as pl
    from polars.exceptions import PolarsError

    try:
        return pl.scan_parquet(path, glob=False).head(MAX_ROWS).collect().to_dicts()
    except (PolarsError, OSError) as e:
        raise ValueError(str(e)) from e


def _examples(path: Path) -> list[Row]:
    value = json.loads(path.read_text(encoding="utf-8"))
    rows = value.get("rows") if isinstance(value, dict) else None
    if not isinstance(rows, list):
        raise ValueError('it has no list "rows"')
    if rows and isinstance(rows[0], list):  # retrieval: a history of rows for each query
        rows = [row for history in rows for row in history]
    return _checked(rows[:MAX_ROWS])


def _checked(rows: list[Any]) -> list[Row]:
    if wrong := next((i for i, row in enumerate(rows, 1) if not isinstance(row, dict)), None):
        raise ValueError(f"row {wrong} is not an object of columns and values")
    return rows


READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".csv": _csv,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}


@dataclass(frozen=True)
class InputSpec:
    """An input of a model. shape: with -1 for the number of rows, and for other free dimensions"""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def batched(self) -> bool:
        """Return whether the first dimension is the number of rows; it is fixed to 1 otherwise."""
        return self.shape[0] == -1

    @property
    def width(self) -> int:
        """Return the number of values of a row, -1 if the input takes any number."""
        rest = self.shape[1:]
        return -1 if -1 in rest else int(np.prod(rest, dtype=np.int64))


@dataclass(frozen=True)
class EncodedTensor:
    """An input of a request. values: Python numbers, truth values or texts, flat"""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[Any]

    def described(self) -> dict[str, Any]:
        """Return all but the values, as in JSON."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def to_json(self) -> list[Any]:
        """Return the values for JSON, which has no NaN: 0 instead."""
        return [0.0 if v != v else v for v in self.values] if self.datatype.startswith("FP") else self.values

    def to_bytes(self) -> bytes:
        """Return the values in the binary form of the protocol."""
        if self.datatype != "BYTES":
            return np.array(self.values, NUMPY[self.datatype]).tobytes()
        texts = [v.encode() for v in self.values]
        return b"".join(struct.pack("<I", len(t)) + t for t in texts)


def check_rows(specs: Sequence[InputSpec], rows: Sequence[Row], model: str) -> None:
    """Check that rows have the columns of a model, and that its inputs take values of raw columns.

    Raises:
        UserError: a column is missing, or an input has a type or a shape that is not supported.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    for spec in specs:
        if spec.name not in columns:
            hint = did_you_mean(spec.name, columns)
            raise UserError(f"rows: no column {spec.name}, which is an input of the model {model}{hint}")
        if spec.datatype != "BYTES" and spec.datatype not in NUMPY:
            raise UserError(f"input {spec.name} of the model {model}: the type {spec.datatype} is not supported")
        if not spec.shape or spec.shape[0] not in (-1, 1):
            raise UserError(f"input {spec.name} of the model {model}: the shape {list(spec.shape)} has no rows")


def check_batch_sizes(specs: Sequence[InputSpec], batch_sizes: Iterable[int], model: str) -> None:
    """Raise UserError if a request with several rows is impossible."""
    single = next((s for s in specs if not s.batched), None)
    if single is not None and any(size > 1 for size in batch_sizes):
        why = f"input {single.name} of the model {model} has the shape {list(single.shape)}, which is one row"
        raise UserError(f"batch_sizes: {why}; use batch_sizes=[1]")


def make_tensors(specs: Sequence[InputSpec], rows: Sequence[Row]) -> list[EncodedTensor]:
    """Return the inputs of a request with these rows. Missing texts are empty, missing floats NaN, others 0."""
    tensors = []
    for spec in specs:
        values: list[Any] = []
        width = spec.width
        for row in rows:
            value = row.get(spec.name)
            items = list(value) if isinstance(value, (list, tuple)) else [value]
            if width == -1:
                width = len(items)
            if len(items) != width:
                problem = f"a row has {len(items)} values, and the request needs {width} in each row"
                raise UserError(f"rows: column {spec.name}: {problem}")
            values += [_converted(item, spec) for item in items]
        rest = list(spec.shape[1:])
        if -1 in rest:  # the first free dimension is filled
            rest[rest.index(-1)] = width
        shape = (len(rows), *(1 if n == -1 else n for n in rest))
        tensors.append(EncodedTensor(spec.name, spec.datatype, shape, values))
    return tensors


def _converted(value: Any, spec: InputSpec) -> Any:
    """Return a value of a raw column as the type of the input."""
    if spec.datatype == "BYTES":
        return "" if value is None else value if isinstance(value, str) else str(value)
    dtype = NUMPY[spec.datatype]
    as_type = bool if dtype == np.bool_ else float if np.issubdtype(dtype, np.floating) else int
    if value is None or value == "":
        return float("nan") if as_type is float else as_type(0)
    try:
        return WORDS[value.strip().lower()] if as_type is bool and isinstance(value, str) else as_type(value)
    except (KeyError, TypeError, ValueError) as e:
        shown = repr(value)[:40]
        raise UserError(f"rows: column {spec.name}: {shown} is not a value of the type {spec.datatype}") from e


def missing_numbers(specs: Sequence[InputSpec], rows: Sequence[Row], in_json: bool) -> Mapping[str, int]:
    """Return how many values of each column of numbers or truth values are missing, and are sent as 0.

    in_json: whether the tensors are sent in JSON, which has no NaN
    """
    names = [
        s.name
        for s in specs
        if s.datatype != "BYTES" and (in_json or not np.issubdtype(NUMPY[s.datatype], np.floating))
    ]
    counts = {name: sum(row.get(name) in (None, "") for row in rows) for name in names}
    return {name: n for name, n in counts.items() if n}
