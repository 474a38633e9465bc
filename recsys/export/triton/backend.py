"""What the models of Triton's Python backend share: the device of an instance, and how requests are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

from recsys.base.errors import UserError
from recsys.online.query_parameters import check_keys


def device_of(args: Mapping[str, str]) -> str:
    """Return the device for `recsys.export.artefact.load`.

    An instance on a GPU whose Python has no CUDA provider serves on the CPU. args: what Triton passes to `initialize`
    """
    if args.get("model_instance_kind") != "GPU":
        return "cpu"
    return f"auto:{args['model_instance_device_id']}"


class InferenceRequest(Protocol):
    """What the backends read of Triton's request themselves; pb reads its tensors."""

    def parameters(self) -> str:
        """Return the parameters as JSON, or no text."""


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
