"""The open inference protocol v2 over HTTP: inference with JSON and with the binary tensor extension, and metadata."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

import orjson

from recsys.base.versions import version_of
from recsys.online.query_parameters import check_keys
from recsys.online.servable import TensorSpec
from recsys.server import v2_tensors as v2
from recsys.server.core import Call, Core
from recsys.server.served_models import LoadedVersion, ServedModel
from recsys.server.v2_extensions import EXTENSIONS, check_load
from recsys.server.v2_infer import V2Request, infer, parameters_of
from recsys.server.v2_tensors import bad

BINARY_HEADER = b"inference-header-content-length"
PLATFORM = "recsys"


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

    def constant(name: str) -> None:
        if name != "NaN":
            raise ValueError(f"{name} is not a number")

    try:
        if b"NaN" not in body:
            raise error
        value = json.loads(body, parse_constant=constant)
        orjson.dumps(value)  # raises TypeError for texts and numbers that orjson does not read
    except (ValueError, TypeError, RecursionError) as e:
        raise bad(f"the body is not JSON: {e}") from e
    return value


async def infer_json(
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
    size = len(body)
    if header_length is not None:
        if not header_length.isdigit() or len(header_length) > 15 or int(header_length) > size:
            raise bad(f"Inference-Header-Content-Length: must be a number of bytes from 0 to the {size} of the body")
        size = int(header_length)
    request = parse_json(body[:size])
    parameters, outputs = parameters_of(request), request.get("outputs") or []
    inputs = request.get("inputs")
    wanted = V2Request(name, version, parameters, inputs, outputs, body, size, lambda: body)
    loaded, found = await infer(core, call, wanted)
    by_default = parameters.get("binary_data_output", False)
    asked = {o["name"]: parameters_of(o).get("binary_data", by_default) for o in outputs}
    described, blobs = [], []
    for output, array in found.items():
        item: dict[str, Any] = {"name": output, "datatype": v2.datatype_of(array), "shape": list(array.shape)}
        if asked.get(output, by_default):
            blobs.append(v2.to_bytes(array))
            item["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            item["data"] = v2.to_json(array)
        described.append(item)
    answer: dict[str, Any] = {"model_name": loaded.name, "model_version": loaded.version, "outputs": described}
    if isinstance(request.get("id"), str):
        answer["id"] = request["id"]
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
        "outputs": [spec_json(s) for s in loaded.output_specs],
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
    request = parse_json(body) if body.strip() else {}
    parameters = parameters_of(request)
    check_keys(request, ("parameters",))
    check_load(parameters)
    if "version" not in parameters:
        return parse_qs(query.decode("latin-1")).get("version", [None])[0]
    version = parameters["version"]
    if type(version) not in (int, str):
        raise bad("parameters.version: must be a text, the name of a version")
    return str(version)
