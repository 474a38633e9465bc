"""The open inference protocol v2 over HTTP: inference with JSON and with the binary tensor extension, and metadata."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from recsys.base.versions import version_of
from recsys.online.query_parameters import QUERY_KEYS, check_keys, make_query
from recsys.online.servable import TensorSpec
from recsys.server import v2_tensors as v2
from recsys.server.core import Call, Core
from recsys.server.payloads import ColumnsPayload, Payload, QueriesPayload, TensorsPayload
from recsys.server.request_error import RequestError
from recsys.server.served_models import LoadedVersion, ServedModel
from recsys.server.v2_extensions import (
    EXTENSIONS,
    NO_SHARED_MEMORY,
    check_load,
    check_outputs,
    check_parameters,
)
from recsys.server.v2_tensors import V2Tensor, bad

BINARY_HEADER = b"inference-header-content-length"
PLATFORM = "recsys"
_LENGTH = struct.Struct("<I")


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request; NaN, which Python's json and tritonclient write, is null.

    Raises RequestError.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as e:
        value = _with_nan(body, e)
    if type(value) is not dict:
        raise bad("the body must be a JSON object")
    return value


def _with_nan(body: bytes, error: orjson.JSONDecodeError) -> Any:
    """Return a body that orjson has refused, if the only reason is a NaN in it."""
    try:
        if b"NaN" not in body:
            raise error
        value = json.loads(body, parse_constant=_constant)
        orjson.dumps(value)  # raises TypeError for texts and numbers that orjson does not read
    except (ValueError, TypeError, RecursionError) as e:
        raise bad(f"the body is not JSON: {e}") from e
    return value


def _constant(name: str) -> None:
    if name != "NaN":
        raise ValueError(f"{name} is not a number")


def _described_inputs(request: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return the datatypes and the shapes of a request's inputs, which may be of any type."""
    inputs = request.get("inputs")
    return [(i.get("datatype"), i.get("shape")) for i in inputs if type(i) is dict] if type(inputs) is list else []


def check_size(core: Core, loaded: LoadedVersion, described: Sequence[tuple[Any, Any]]) -> None:
    """Check the number of inputs and values before they are read: millions of texts would hold up the event loop.

    described: datatype and shape of each input

    Raises RequestError.
    """
    most = len(loaded.servable.inputs) + len(loaded.servable.tensors)
    if len(described) > most:
        raise bad(f"{len(described)} inputs: model {loaded.name} has {most}")
    for datatype, shape in described:
        if not isinstance(shape, Sequence) or any(type(n) is not int for n in shape):
            continue  # checked_shape raises the error
        if len(shape) > 0 and shape[0] > core.settings.max_rows:
            core.check_rows(shape[0])
        if datatype == "BYTES" and any(n > 1 for n in shape[1:]):
            raise bad(f"shape {list(shape)[: v2.MOST_DIMENSIONS]}: BYTES takes the shape [rows] or [rows, 1]")


def parse_inputs(request: Mapping[str, Any], blobs: memoryview) -> list[V2Tensor]:
    """Return the inputs of a request, whose binary data lies in `blobs`. Raises RequestError."""
    inputs = request.get("inputs")
    if type(inputs) is not list or not inputs:
        raise bad("inputs must be a list of at least one input")
    tensors, at = [], 0
    for item in inputs:
        if type(item) is not dict:
            raise bad("inputs: each input must be a JSON object with name, shape, datatype and data")
        name, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape")
        size = _parameters(item).get("binary_data_size")
        if "shared_memory_region" in _parameters(item):
            raise bad(f"input {str(name)[:80]}: {NO_SHARED_MEMORY}")
        if size is None:
            tensors.append(v2.from_json(name, datatype, shape, item.get("data")))
            continue
        if type(size) is not int or size < 0 or at + size > len(blobs):
            raise bad(f"input {str(name)[:80]}: binary_data_size does not fit the {len(blobs)} bytes after the header")
        if "data" in item:
            raise bad(f"input {str(name)[:80]}: has data and binary_data_size; send one of them")
        tensors.append(v2.from_bytes(name, datatype, shape, blobs[at : at + size]))
        at += size
    if at != len(blobs):
        raise bad(f"{len(blobs) - at} bytes are left over after the binary inputs")
    return tensors


def plain_columns(
    request: Mapping[str, Any], body: bytes, at: int, loaded: LoadedVersion, most: int
) -> ColumnsPayload | None:
    """Return the raw columns of a usual request: BYTES in binary form, whose shapes are [rows] or [rows, 1].

    Four times as fast as `parse_inputs`. Returns None for any other request, good or bad, which that function reads.

    Args:
        request: the JSON of the request.
        body: the whole body.
        at: place in the body where binary data begins.
        loaded: the model that answers.
        most: the most rows of a request.
    """
    columns: dict[str, list[Any]] = {}
    try:
        inputs = request["inputs"]
        rows = inputs[0]["shape"][0]
        shapes = ([rows], [rows, 1])
        if type(rows) is not int or not 0 < rows <= most:
            return None
        for item in inputs:
            size = item["parameters"]["binary_data_size"]
            if item["datatype"] != "BYTES" or item["shape"] not in shapes or type(size) is not int:
                return None
            end, values = at + size, []
            for _ in range(rows):
                start = at + _LENGTH.size
                at = start + _LENGTH.unpack_from(body, at)[0]
                if at > end:
                    return None
                values.append(body[start:at].decode() or None)
            if at != end:
                return None
            columns[item["name"]] = values
    except (LookupError, TypeError, ValueError, struct.error):
        return None
    whole = at == len(body) and len(columns) == len(inputs)
    return ColumnsPayload(columns, rows) if whole and loaded.takes(columns) else None


def _parameters(item: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = item.get("parameters") or {}
    if type(parameters) is not dict:
        raise bad("parameters must be a JSON object")
    return parameters


def make_payload(loaded: LoadedVersion, inputs: Sequence[V2Tensor], parameters: Mapping[str, Any]) -> Payload:
    """Return the payload of a request's inputs: raw columns, or features if `tensors` has all their names.

    For a retrieval model, raw columns are the history of one query, with its k, filter_history and exclude in the
    parameters; for a pipeline, they are the context of one request.
    """
    servable = loaded.servable
    names = {t.name for t in inputs}
    if names <= {s.name for s in servable.tensors} and not names <= {s.name for s in servable.inputs}:
        v2.check_names(inputs, servable.tensors, loaded.name)
        check_parameters(parameters)
        return TensorsPayload(v2.to_arrays(inputs), inputs[0].shape[0])
    v2.check_names(inputs, servable.inputs, loaded.name)
    rows, columns = v2.rows_of(inputs), v2.to_columns(inputs)
    if servable.kind == "ranking":
        return ColumnsPayload(columns, rows)
    history = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if not servable.context:
        return QueriesPayload([make_query(history, parameters)])
    if rows != 1:
        raise bad(f"{rows} rows: pipeline {loaded.name} takes one, the context of a request")
    return QueriesPayload([replace(make_query([], parameters), context=history[0])])


def known_parameters(loaded: LoadedVersion) -> Sequence[str]:
    """Return the names of the parameters that a model reads."""
    return QUERY_KEYS if loaded.servable.kind == "retrieval" else ()


def output_specs(loaded: LoadedVersion) -> list[TensorSpec]:
    """Return the outputs in tensors. Predictions are (rows, 1): Triton has no other shape for a batch of numbers."""
    servable = loaded.servable
    column = servable.kind == "ranking"
    return [replace(s, shape=(-1, 1)) if column and len(s.shape) == 1 else s for s in servable.outputs]


def output_arrays(outputs: Any) -> dict[str, np.ndarray]:
    """Return outputs as arrays of the shapes in `output_specs`; items and scores of one query are (k,)."""
    if isinstance(outputs, dict):
        return {name: array[:, None] if array.ndim == 1 else array for name, array in outputs.items()}
    items, *numbers = outputs[0]
    texts = np.array([str(i) for i in items], dtype=object)
    names = ("scores", "propensities")
    return {"items": texts} | {n: np.asarray(x, np.float32) for n, x in zip(names, numbers, strict=False)}


async def infer(
    core: Core, call: Call, name: str, version: str | None, body: bytes, header_length: bytes | None
) -> tuple[bytes, int | None]:
    """Answer an inference request.

    Args:
        core: the worker.
        call: the request that is answered.
        name: name of the model.
        version: version of the model; None chooses one of those in memory.
        body: JSON, and binary data if `header_length` says where it begins.
        header_length: header with the length of the JSON in bytes; None if all of the body is JSON.

    Returns:
        The body, and the length of the JSON at its beginning if binary data follows it.
    """
    json_size = _header_size(header_length, len(body))
    request = parse_json(body[:json_size])
    parameters = _parameters(request)
    core.set_timeout(call, parameters.get("timeout"))
    loaded = core.route(call, name, version, lambda: body)
    check_parameters(parameters, known_parameters(loaded))
    check_size(core, loaded, _described_inputs(request))
    payload: Payload | None = plain_columns(request, body, json_size, loaded, core.settings.max_rows)
    if payload is None:
        inputs = parse_inputs(request, memoryview(body)[json_size:])
        core.check_rows(inputs[0].shape[0])
        payload = make_payload(loaded, inputs, parameters)
    wanted, binary = _wanted_outputs(request, bool(parameters.get("binary_data_output", False)))
    outputs = await core.compute(call, loaded, payload, explicit=version is not None)
    chosen = v2.selected(output_arrays(outputs), wanted, loaded.name)
    return _encode(loaded, request.get("id"), chosen, binary)


def _header_size(header: bytes | None, size: int) -> int:
    """Return the number of bytes of the JSON in a body."""
    if header is None:
        return size
    if not header.isdigit() or len(header) > 15 or int(header) > size:
        raise bad(f"Inference-Header-Content-Length: must be a number of bytes from 0 to the {size} of the body")
    return int(header)


def _wanted_outputs(request: Mapping[str, Any], all_binary: bool) -> tuple[list[str], Any]:
    """Return the names of the outputs that a request wants, and those that it wants in binary form (True: all)."""
    outputs = request.get("outputs") or []
    if type(outputs) is not list or any(type(o) is not dict or type(o.get("name")) is not str for o in outputs):
        raise bad("outputs must be a list of JSON objects with a name")
    check_outputs(map(_parameters, outputs))
    binary = {o["name"] for o in outputs if _parameters(o).get("binary_data", all_binary)}
    return [o["name"] for o in outputs], binary if outputs else all_binary


def _encode(
    loaded: LoadedVersion, request_id: Any, outputs: Mapping[str, np.ndarray], binary: Any
) -> tuple[bytes, int | None]:
    described, blobs = [], []
    for name, array in outputs.items():
        item: dict[str, Any] = {"name": name, "datatype": v2.datatype_of(array), "shape": list(array.shape)}
        if binary is True or (binary and name in binary):
            blobs.append(v2.to_bytes(array))
            item["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            item["data"] = v2.to_json(array)
        described.append(item)
    answer: dict[str, Any] = {"model_name": loaded.name, "model_version": loaded.version, "outputs": described}
    if isinstance(request_id, str):
        answer["id"] = request_id
    head = orjson.dumps(answer)
    return (b"".join([head, *blobs]), len(head)) if blobs else (head, None)


def server_metadata() -> dict[str, Any]:
    """Return the metadata of the server."""
    return {"name": "recsys", "version": version_of("recsys") or "not installed", "extensions": EXTENSIONS}


def model_metadata(model: ServedModel, loaded: LoadedVersion) -> dict[str, Any]:
    """Return the metadata of a model: its raw columns and its outputs, and its features among the parameters."""
    return {
        "name": model.name,
        "versions": [v.version for v in model.versions.values()],
        "platform": PLATFORM,
        "inputs": [spec_json(s) for s in loaded.servable.inputs],
        "outputs": [spec_json(s) for s in output_specs(loaded)],
        "parameters": {"kind": loaded.servable.kind, "tensors": [spec_json(s) for s in loaded.servable.tensors]},
    }


def spec_json(spec: TensorSpec) -> dict[str, Any]:
    """Return an input or an output as metadata."""
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def metadata_version(core: Core, name: str, version: str | None) -> LoadedVersion:
    """Return the version whose metadata is wanted; without a version, the one that answers."""
    model = core.registry.get(name)
    current = model.loaded(model.choice.current)
    if version or current is None:
        return core.registry.version(name, version, lambda: b"")[0]
    return current


def repository_index(core: Core, body: bytes) -> list[dict[str, str]]:
    """Return the models and versions; only those that are loaded if the request has {"ready": true}."""
    request = {} if body.strip() in (b"", b"null") else parse_json(body)
    check_keys(request, ("ready",))
    return core.registry.index(ready=request.get("ready") is True)


def load_version(body: bytes, query: bytes) -> str | None:
    """Return the version that a request to load a model names, in its parameters or in the query string."""
    from urllib.parse import parse_qs

    request = parse_json(body) if body.strip() else {}
    parameters = _parameters(request)
    check_keys(request, ("parameters",))
    check_load(parameters)
    if "version" in parameters and parameters["version"] is None:
        raise bad("parameters.version: must be a text, the name of a version")
    named = parse_qs(query.decode("latin-1")).get("version", [None])[0]
    version = parameters.get("version", named)
    if isinstance(version, int) and not isinstance(version, bool):
        version = str(version)
    if version is not None and not isinstance(version, str):
        raise RequestError(400, "parameters.version: must be a text, the name of a version")
    return version
