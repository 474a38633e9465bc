"""Inference requests of the open inference protocol v2 over HTTP and gRPC, and the extensions that are supported."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recsys.online.query_parameters import check_keys
from recsys.server import v2_tensors as v2
from recsys.server.call import Call
from recsys.server.core import Core
from recsys.server.payloads import TensorsPayload
from recsys.server.request_error import RequestError
from recsys.server.served_models import LoadedVersion, ServedModel
from recsys.server.v2_tensors import V2Tensor, bad

EXTENSIONS = [
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "statistics",
]
LOAD_KEYS = ("version", "unload_dependents")
TAKEN = ("timeout", "binary_data_output", "triton_enable_empty_final_response")
NO_STATE = "this server keeps nothing from one request to the next"
REFUSED = {  # parameters of inference requests, and why they have no effect; 0 and false ask for nothing
    "sequence_id": NO_STATE,
    "sequence_start": NO_STATE,
    "sequence_end": NO_STATE,
    "priority": "this server answers requests in the order in which they come",
}
NO_SHARED_MEMORY = "this server has no shared memory; leave shared_memory_region out, and send the values"
MISSING = {  # beginnings of paths, and of gRPC's methods in lower case -> extensions
    "systemsharedmemory": "system_shared_memory",
    "cudasharedmemory": "cuda_shared_memory",
    "trace": "trace",
    "log": "logging",
}


def check_parameters(parameters: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Raise UserError for a parameter of an inference request that would have no effect.

    known: names of parameters that the model reads
    """
    for key, why in REFUSED.items():
        if parameters.get(key):
            raise bad(f"parameters.{key}: {why}; leave it out")
    check_keys(parameters, known, "parameters.", (*TAKEN, *REFUSED))


def check_tensor_counts(model: ServedModel, inputs: int, outputs: int) -> None:
    """Raise UserError if a request has more inputs or outputs than the model; each of them takes time to be read."""
    served = [v.servable for v in model.versions.values()]
    counts = (
        ("inputs", inputs, max(len(s.inputs) + len(s.tensors) for s in served)),
        ("outputs", outputs, max(len(s.outputs) for s in served)),
    )
    for what, number, most in counts:
        if number > most:
            raise bad(f"{number} {what}: model {model.name} has {most}")


def check_load_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise UserError for a parameter with which a model cannot be loaded."""
    for key in parameters:
        if key == "config" or key.startswith("file:"):
            why = "a model is loaded as it was exported; leave config and files out, and serve another export instead"
            raise bad(f"parameters.{key[:80]}: {why}")
    check_keys(parameters, LOAD_KEYS, "parameters.")


def check_supported(name: str) -> None:
    """Raise RequestError (501) if a path below /v2, or a method of gRPC, belongs to an extension that is missing."""
    for beginning, extension in MISSING.items():
        if name.lower().startswith(beginning):
            raise RequestError(501, f"{name[:80]}: the extension {extension} is not supported by this server")


Columns = dict[str, list[Any]]


@dataclass(slots=True)
class V2Request:
    """A request in the form of the protocol's JSON, whose parts may be of any type.

    inputs: JSON objects with name, datatype, shape, parameters and data
    outputs: JSON objects with name and parameters; none for all outputs
    body, start: binary data of inputs, and the place where it begins
    content: returns the bytes that choose between a canary and the current version
    """

    model: str
    version: str | None
    parameters: Mapping[str, Any]
    inputs: Any
    outputs: Any
    body: bytes
    start: int
    content: Callable[[], bytes]


async def infer(core: Core, call: Call, request: V2Request) -> tuple[LoadedVersion, dict[str, np.ndarray]]:
    """Return the version that has answered a request, and the outputs that the request wants. Raises UserError."""
    parameters, outputs = request.parameters, request.outputs
    core.set_timeout(call, parameters.get("timeout"))
    loaded = core.route(call, request.model, request.version, request.content)
    check_parameters(parameters, loaded.kind.parameters)
    if type(outputs) is not list or any(type(o) is not dict or type(o.get("name")) is not str for o in outputs):
        raise bad("outputs must be a list of JSON objects with a name")
    for own in map(parameters_of, outputs):
        if "classification" in own:
            raise bad("outputs: the extension classification is not supported; leave classification (class_count) out")
        if "shared_memory_region" in own:
            raise bad(f"outputs: {NO_SHARED_MEMORY}")
    inputs, servable = request.inputs if type(request.inputs) is list else [], loaded.servable
    check_tensor_counts(core.registry.get(loaded.name), len(inputs), len(outputs))
    for item in inputs:  # before they are read: millions of texts would hold up the event loop
        if type(item) is not dict:
            continue  # parse_inputs raises the error
        shape = item.get("shape")
        if type(shape) is not list or any(type(n) is not int for n in shape):
            continue  # checked_shape raises the error
        if len(shape) > 0 and shape[0] > core.settings.max_rows:
            core.check_rows(shape[0])
        if item.get("datatype") == "BYTES" and any(n > 1 for n in shape[1:]):
            raise bad(f"shape {shape[: v2.MAX_DIMENSIONS]}: BYTES takes the shape [rows] or [rows, 1]")
    if (plain := plain_columns(inputs, request.body, request.start)) is not None and loaded.takes(plain[0]):
        columns, rows = plain
        core.check_rows(rows)
        payload = loaded.kind.payload(servable, columns, rows, parameters)
    else:
        tensors = parse_inputs(inputs, memoryview(request.body)[request.start :])
        core.check_rows(tensors[0].shape[0])
        names = {t.name for t in tensors}
        if names <= {s.name for s in servable.tensors} and not names <= {s.name for s in servable.inputs}:  # features
            v2.check_input_names(tensors, servable.tensors, loaded.name)
            check_parameters(parameters)
            payload = TensorsPayload(v2.to_arrays(tensors), tensors[0].shape[0])
        else:
            v2.check_input_names(tensors, servable.inputs, loaded.name)
            payload = loaded.kind.payload(servable, v2.to_columns(tensors), v2.rows_of(tensors), parameters)
    computed = await core.compute(call, loaded, payload, explicit=request.version is not None)
    return loaded, v2.selected(_output_arrays(computed), [o["name"] for o in outputs], loaded.name)


def parameters_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a request, an input or an output."""
    parameters = item.get("parameters") or {}
    if type(parameters) is not dict:
        raise bad("parameters must be a JSON object")
    return parameters


def plain_columns(inputs: Sequence[Any], body: bytes, at: int) -> tuple[Columns, int] | None:
    """Return the raw columns of a usual request: BYTES in binary form, whose shapes are [rows] or [rows, 1].

    Four times as fast as `parse_inputs`. Returns None for any other request, good or bad, which that function reads.

    Args:
        inputs: the inputs as in the request, unchecked.
        body: the whole body.
        at: place in the body where binary data begins.
    """
    columns: Columns = {}
    try:
        rows = inputs[0]["shape"][0]
        shapes = ([rows], [rows, 1])
        if type(rows) is not int or rows <= 0:
            return None
        for item in inputs:
            parameters = item["parameters"]
            size = parameters["binary_data_size"]
            usual = item["datatype"] == "BYTES" and item["shape"] in shapes and "data" not in item
            if not usual or type(size) is not int or len(parameters) > 1:
                return None
            end, values = at + size, []
            for _ in range(rows):
                start = at + v2.LENGTH.size
                at = start + v2.LENGTH.unpack_from(body, at)[0]
                if at > end:
                    return None
                values.append(body[start:at].decode() or None)
            if at != end:
                return None
            columns[item["name"]] = values
    except (LookupError, TypeError, ValueError, struct.error):
        return None
    return (columns, rows) if at == len(body) and len(columns) == len(inputs) else None


def parse_inputs(inputs: Sequence[Any], blobs: memoryview) -> list[V2Tensor]:
    """Return the inputs of a request, whose binary data lies in `blobs`. Raises RequestError."""
    if not inputs:
        raise bad("inputs must be a list of at least one input")
    tensors, at = [], 0
    for item in inputs:
        if type(item) is not dict:
            raise bad("inputs: each input must be a JSON object with name, shape, datatype and data")
        name, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape")
        parameters = parameters_of(item)
        size = parameters.get("binary_data_size")
        if "shared_memory_region" in parameters:
            raise bad(f"input {str(name)[:80]}: {NO_SHARED_MEMORY}")
        if size is None:
            tensors.append(v2.from_json(name, datatype, shape, item.get("data")))
            continue
        if type(size) is not int or size < 0 or at + size > len(blobs):
            raise bad(f"input {str(name)[:80]}: binary_data_size does not fit the {len(blobs)} bytes after the header")
        if "data" in item:
            raise bad(f"input {str(name)[:80]}: has data beside binary data; send one of them")
        tensors.append(v2.from_bytes(name, datatype, shape, blobs[at : at + size]))
        at += size
    if at != len(blobs):
        raise bad(f"{len(blobs) - at} bytes are left over after the binary inputs")
    return tensors


def _output_arrays(outputs: Any) -> dict[str, np.ndarray]:
    """Return outputs as arrays, as in LoadedVersion.output_specs; items and scores of one query are (k,)."""
    if isinstance(outputs, dict):
        return {name: array[:, None] if array.ndim == 1 else array for name, array in outputs.items()}
    items, *numbers = outputs[0]
    texts = np.array([str(i) for i in items], dtype=object)
    names = ("scores", "propensities")
    return {"items": texts} | {n: np.asarray(x, np.float32) for n, x in zip(names, numbers, strict=False)}
