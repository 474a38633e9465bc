"""Models for tests of the server: a scorer of two columns and a recommender, in NumPy, loaded from a manifest."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recsys.base.errors import UserError
from recsys.online.row_error import RowError
from recsys.online.servable import Query, Row, TensorSpec

TABLE = "table.bin"


@dataclass(frozen=True)
class FakeFeatures:
    values: np.ndarray  # (rows, 2)

    @property
    def rows(self) -> int:
        return len(self.values)


def write_model(folder: Path, name: str = "ctr", version: str = "1", **more: Any) -> Path:
    """Write a manifest, and return its folder.

    more: bias, seconds, context, kind, outputs, inputs as NAME, NAME:DATATYPE or NAME:DATATYPE:needed, fails (true, or
        the share of batches that fail), and table_rows, the number of rows of a table that the model maps and reads
    """
    folder.mkdir(parents=True, exist_ok=True)
    if rows := more.get("table_rows"):
        np.zeros(rows, np.float32).tofile(folder / TABLE)
    (folder / "manifest.json").write_text(json.dumps({"name": name, "version": version, **more}))
    return folder


def load(folder: Path, threads: int = 1, before: object = None) -> Scorer | Recommender:
    """Load a model that `write_model` has written."""
    manifest = json.loads((folder / "manifest.json").read_text())
    if manifest.pop("broken", False):
        raise UserError(f"{folder}: the model is damaged; export it again")
    kind, rows = manifest.pop("kind", "ranking"), manifest.pop("table_rows", None)
    model = Scorer(**manifest) if kind == "ranking" else Recommender(**manifest)
    if rows is not None:
        model.table = _mapped(folder / TABLE, rows)
    return model


def _mapped(file: Path, rows: int) -> np.ndarray:
    if (size := file.stat().st_size) != 4 * rows:
        raise UserError(f"{file}: is damaged; it has {size} bytes and was written with {4 * rows}")
    return np.memmap(file, np.float32, "r", shape=(rows,))


class Scorer:
    """probability = sigmoid(a + b + bias); a is a number, b the number in a text such as "b7"."""

    kind = "ranking"
    context = ()
    inputs = (TensorSpec("a", "FP64", (-1, 1), optional=True), TensorSpec("b", "BYTES", (-1, 1), optional=True))
    tensors = (TensorSpec("values", "FP32", (-1, 2)),)
    columns = frozenset({"a", "b"})
    example: Sequence[Row] = ({"a": 0.5, "b": "b7"},)
    rows_depend_on_others = False

    def __init__(
        self,
        name: str,
        version: str,
        bias: float = 0.0,
        seconds: float = 0.0,
        outputs: Sequence[str] = ("p",),
        fails: float = False,
        inputs: Sequence[str] | None = None,
    ) -> None:
        self.name, self.version, self._bias, self._seconds, self._fails = name, version, bias, seconds, fails
        self.outputs = tuple(TensorSpec(o, "FP32", (-1,)) for o in outputs)
        self.batches: list[int] = []
        self.table = np.zeros(1, np.float32)
        if inputs is not None:
            self.inputs = tuple(_spec(text, {s.name: s for s in self.inputs}) for text in inputs)

    def features(self, rows: Sequence[Row], shared: Row | None = None) -> FakeFeatures:
        rows = [{**(shared or {}), **row} for row in rows]
        values = [(_number(r.get("a"), "a", i), _code(r.get("b"), i)) for i, r in enumerate(rows)]
        return FakeFeatures(np.array(values, np.float32).reshape(-1, 2))

    def features_of_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> FakeFeatures:
        a, b = (columns.get(n) or [None] * rows for n in ("a", "b"))
        return self.features([{"a": x, "b": y} for x, y in zip(a, b, strict=True)])

    def run(self, features: FakeFeatures) -> dict[str, np.ndarray]:
        return self.run_tensors({"values": features.values})

    def run_tensors(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = tensors["values"]
        if values.ndim != 2 or values.shape[1] != 2 or values.dtype != np.float32:
            raise UserError(f"input values: has shape {list(values.shape)} of {values.dtype}; send FP32 of [rows, 2]")
        self.batches.append(len(values))
        values = values + self.table[-1]
        if self._seconds:
            time.sleep(self._seconds)
        if random.random() < self._fails:
            raise RuntimeError("a secret detail")
        p = 1 / (1 + np.exp(-(values.sum(1) + np.float32(self._bias))))
        return {o.name: (p / (i + 1)).astype(np.float32) for i, o in enumerate(self.outputs)}

    def unknown_shares(self, features: FakeFeatures) -> dict[str, float]:
        return {"b": float((features.values[:, 1] == 0).mean())}

    def known_items(self, query: Query) -> None:
        return None

    def recommend(self, queries: Sequence[Query]) -> list[tuple[list[Any], list[float]]]:
        raise UserError("this model scores rows; use predict")


class Recommender(Scorer):
    """Recommends item0, item1, ... with the scores 1, 1/2, ..., without those in the history."""

    kind = "retrieval"
    context = ()
    inputs = (TensorSpec("item", "BYTES", (-1, 1)),)
    tensors = ()
    columns = frozenset({"item"})
    example = ({"item": "item1"},)

    def __init__(
        self, name: str, version: str, items: int = 100, seconds: float = 0.0, context: Sequence[str] = ()
    ) -> None:
        super().__init__(name, version, seconds=seconds)
        self.context = tuple(context)  # type: ignore[assignment]
        self.outputs = (TensorSpec("items", "BYTES", (-1,)), TensorSpec("scores", "FP32", (-1,)))
        self._items = [f"item{i}" for i in range(items)]

    def features(self, rows: Sequence[Row], shared: Row | None = None) -> FakeFeatures:
        raise UserError("this model recommends items; use recommend")

    def recommend(self, queries: Sequence[Query]) -> list[tuple[list[Any], list[float]]]:
        self.batches.append(len(queries))
        time.sleep(self._seconds * len(queries))
        return [self._list(q) for q in queries]

    def _list(self, query: Query) -> tuple[list[Any], list[float]]:
        for i, row in enumerate(query.rows):
            if not isinstance(row.get("item"), str):
                raise RowError("item", row.get("item"), "is not an item", i)
        seen = {r["item"] for r in query.rows} if query.filter_history is not False else set()
        allowed = self._items if query.candidates is None else query.candidates
        items = [i for i in allowed if i not in seen and i not in query.exclude][: query.k or 10]
        return items, [1 / (n + 1) for n in range(len(items))]


def _spec(text: str, known: Mapping[str, TensorSpec]) -> TensorSpec:
    name, *more = text.split(":")
    return TensorSpec(name, more[0], (-1, 1), optional=len(more) < 2) if more else known[name]  # type: ignore[arg-type]


def _number(value: Any, column: str, row: int) -> float:
    if value is None or value == "":
        return 0.0
    try:
        number = float(value)
    except (TypeError, ValueError) as e:
        raise RowError(column, value, "is not a number", row) from e
    return number if abs(number) < 1e6 else 0.0


def _code(value: Any, row: int) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, str) or not value.startswith("b") or not value[1:].isdigit() or len(value) > 9:
        raise RowError("b", value, "is not a code such as b7", row)
    return float(value[1:]) / 10
