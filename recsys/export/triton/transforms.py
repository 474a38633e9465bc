"""Model of Triton's Python backend: raw columns in, the inputs of the graph out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from recsys.base.errors import UserError
from recsys.export.artefact.graph_io import graph_inputs
from recsys.online.query_parameters import check_keys
from recsys.online.row_transforms import RowTransforms

FOLDER = "pipeline"


class InferenceRequest(Protocol):
    """What the backends read of Triton's request themselves; pb reads its tensors."""

    def parameters(self) -> str:
        """Return the parameters as JSON, or no text."""


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


def raw_columns(pb: ModuleType, request: InferenceRequest, names: Iterable[str]) -> tuple[dict[str, list[Any]], int]:
    """Return the values of each column that a request has, and the number of rows. pb: triton_python_backend_utils

    Raises UserError for a text that is not UTF-8.
    """
    found, rows = {}, 0
    for name in names:
        tensor = pb.get_input_tensor_by_name(request, name)
        if tensor is not None:
            values = tensor.as_numpy().reshape(-1)
            rows = len(values)
            try:
                found[name] = [v.decode() for v in values] if values.dtype == object else values.tolist()
            except UnicodeDecodeError as e:
                raise UserError(f"input {name}: a value is not UTF-8 text") from e
    return found, rows


def parameters_of(request: InferenceRequest, known: Sequence[str] = ()) -> dict[str, Any]:
    """Return the parameters of a request. Raises UserError for one that is not known."""
    parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
    check_keys(parameters, known, "parameters.")
    return parameters


def refusal(pb: ModuleType, error: UserError) -> Any:
    """Return the answer to a request that cannot be read: 400 over HTTP, INVALID_ARGUMENT over gRPC."""
    return pb.InferenceResponse(output_tensors=[], error=pb.TritonError(str(error), pb.TritonError.INVALID_ARG))
