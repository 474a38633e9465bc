"""Model of Triton's Python backend: raw columns in, the inputs of the graph out."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from recsys.base.errors import UserError
from recsys.export.artefact.graph_io import graph_inputs
from recsys.export.triton.backend import InferenceRequest, parameters_of, raw_columns, refusal
from recsys.online.row_transforms import RowTransforms

FOLDER = "pipeline"


class TritonPythonModel:
    """Transforms all rows of the requests that Triton has batched at once."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the transforms from the version's folder."""
        config = json.loads(args["model_config"])
        self._inputs = [i["name"] for i in config["input"]]
        self._outputs = [o["name"] for o in config["output"]]
        self._pipeline = RowTransforms.load(Path(args["model_repository"]) / args["model_version"] / FOLDER)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request; a row that cannot be read fails its own request only."""
        import triton_python_backend_utils as pb

        alone = self._pipeline.fitted.data.group is not None or len(requests) == 1
        if not alone:
            try:
                columns = [self._columns(pb, request) for request in requests]
                sizes = [rows for _, rows in columns]
                together = {n: [v for c, _ in columns for v in c[n]] for n in columns[0][0]}
                arrays = self._features(together, sum(sizes))
                bounds = np.cumsum(sizes)[:-1]
                parts = {n: np.split(x, bounds) for n, x in arrays.items()}
                return [self._response(pb, {n: x[i] for n, x in parts.items()}) for i in range(len(requests))]
            except (UserError, KeyError):
                pass  # each request alone, so that only the bad ones fail
        answers = []
        for request in requests:
            try:
                answers.append(self._response(pb, self._features(*self._columns(pb, request))))
            except UserError as e:
                answers.append(refusal(pb, e))
        return answers

    def _columns(self, pb: ModuleType, request: InferenceRequest) -> tuple[dict[str, list[Any]], int]:
        parameters_of(request)
        return raw_columns(pb, request, self._inputs)

    def _features(self, columns: dict[str, list[Any]], rows: int) -> dict[str, np.ndarray]:
        return graph_inputs(self._pipeline.arrays_of_columns(columns, rows), self._pipeline.features).feed

    def _response(self, pb: ModuleType, arrays: dict[str, np.ndarray]) -> Any:
        return pb.InferenceResponse(
            output_tensors=[pb.Tensor(n, np.ascontiguousarray(arrays[n])) for n in self._outputs]
        )
