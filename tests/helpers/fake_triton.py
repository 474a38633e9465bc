"""Triton's Python backend for tests: its module `triton_python_backend_utils`, requests, and models that are loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2


class TritonError(str):
    """An error of a request. code: as Triton numbers them"""

    INVALID_ARG = 3
    code = 0

    def __new__(cls, message: str, code: int = 0) -> TritonError:
        error = super().__new__(cls, message)
        error.code = code
        return error


UTILS = SimpleNamespace(
    get_input_tensor_by_name=lambda request, name: request.get(name),
    Tensor=lambda name, array: (name, array.tolist()),
    TritonError=TritonError,
    InferenceResponse=lambda output_tensors, error=None: error or dict(output_tensors),
)


class Request(dict[str, Any]):
    """A request as Triton passes it: tensors by name, and parameters as JSON."""

    def __init__(self, columns: Mapping[str, np.ndarray], **parameters: Any) -> None:
        super().__init__({n: SimpleNamespace(as_numpy=lambda v=v: v) for n, v in columns.items()})
        self._parameters = parameters

    def parameters(self) -> str:
        return json.dumps(self._parameters)


def texts(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the columns of rows as tensors of TYPE_STRING."""
    columns = {name: [str(row[name]).encode() for row in rows] for name in (rows[0] if rows else ())}
    return {name: np.array(values, object) for name, values in columns.items()}


def config_of(folder: Path) -> Any:
    """Return the configuration of a model, which Triton's schema parses."""
    return text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


@contextmanager
def loaded(model: Any, folder: Path) -> Iterator[Any]:
    """Load a model as Triton does, from the folder of a repository; requests can be executed in the block."""
    config = config_of(folder)
    tensors = {"input": [{"name": i.name} for i in config.input], "output": [{"name": o.name} for o in config.output]}
    model.initialize({"model_config": json.dumps(tensors), "model_repository": str(folder), "model_version": "1"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", UTILS)
        yield model
