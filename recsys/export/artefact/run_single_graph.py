"""Run an artefact's single graph: raw values in, predictions out, without the transforms in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys.export.artefact.session import open_session
from recsys.online.servable import Outputs, Row


class SingleGraph:
    """The graph in a file single_graph.onnx. Threads may share it."""

    def __init__(self, file: Path, threads: int = 1) -> None:
        self.session = open_session(file, threads)
        self._inputs = [(i.name, i.type == "tensor(string)") for i in self.session.get_inputs()]
        self._outputs = [o.name for o in self.session.get_outputs()]

    def feed(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Return the graph's inputs for raw rows, (rows, 1) each. Raises ValueError for text that is not a number."""
        return {
            name: _texts(rows, name) if is_text else _numbers(rows, name) for name, is_text in self._inputs
        }  # fmt: skip

    def __call__(self, rows: Sequence[Row]) -> Outputs:
        """Return the predictions of raw rows, (rows,) each."""
        return dict(zip(self._outputs, self.session.run(self._outputs, self.feed(rows)), strict=True))


def _texts(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([["" if (x := row.get(name)) is None else str(x)] for row in rows], object)


def _numbers(rows: Sequence[Row], name: str) -> np.ndarray:
    def number(x: Any) -> float:
        return np.nan if x is None or x == "" else float(x)

    return np.array([[number(row.get(name))] for row in rows], np.float64)
