"""Run an artefact's single graph: raw values in, predictions out, without the transforms in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
        feed: dict[str, np.ndarray] = {}
        for name, is_text in self._inputs:
            values = [row.get(name) for row in rows]
            if is_text:
                feed[name] = np.array([["" if x is None else str(x)] for x in values], object)
            else:
                feed[name] = np.array([[np.nan if x is None or x == "" else float(x)] for x in values], np.float64)
        return feed

    def __call__(self, rows: Sequence[Row]) -> Outputs:
        """Return the predictions of raw rows, (rows,) each."""
        return dict(zip(self._outputs, self.session.run(self._outputs, self.feed(rows)), strict=True))
