"""The open inference protocol v2 over HTTP: JSON, binary tensors, metadata, and what Triton's clients ask besides."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs

import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2, service_pb2

from recsys.base.packages import version_of
from recsys.online.query_parameters import check_keys
from recsys.online.servable import TensorSpec
from recsys.schema.command_schemas import ServeConfig
from recsys.server import v2_tensors as v2
from recsys.server.call import Call
from recsys.server.core import Core
from recsys.server.served_models import LoadedVersion, ServedModel
from recsys.server.v2_infer import EXTENSIONS, V2Request, check_load_parameters, infer, parameters_of
from recsys.server.v2_tensors import bad

BINARY_HEADER = b"inference-header-content-length"
PLATFORM = "recsys"
PARTS = {"features": "compute_input", "model": "compute_infer"}  # of recsys_request_batch_seconds -> statistics


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
    check_load_parameters(parameters)
    if "version" not in parameters:
        return parse_qs(query.decode("latin-1")).get("version", [None])[0]
    version = parameters["version"]
    if type(version) not in (int, str):
        raise bad("parameters.version: must be a text, the name of a version")
    return str(version)


def model_config(model: ServedModel, loaded: LoadedVersion, settings: ServeConfig) -> Message:
    """Return the configuration of a version of a model. Rows are the dimension of a batch, but for retrieval models."""
    batches = loaded.kind.batches
    versions = [int(v.version) for v in model.versions.values() if v.version.isdecimal()]
    config = model_config_pb2.ModelConfig(name=loaded.name, platform=PLATFORM, backend=PLATFORM)
    config.max_batch_size = settings.max_rows if batches else 0
    config.version_policy.specific.versions.extend(versions)
    for spec in loaded.servable.inputs:
        config.input.add(optional=spec.optional, **_tensor(spec, batches))
    for spec in loaded.output_specs:
        config.output.add(**_tensor(spec, batches))
    if batches:
        config.dynamic_batching.preferred_batch_size.extend(settings.preferred_batch)
    return config


def _tensor(spec: TensorSpec, batches: bool) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    data_type = model_config_pb2.DataType.Value(f"TYPE_{kind}")
    return {"name": spec.name, "data_type": data_type, "dims": spec.shape[1:] if batches else spec.shape}


def statistics_of(core: Core, name: str | None, version: str | None) -> Message:
    """Return the statistics of a version of a model, or of all, as the workers counted them. Raises RequestError."""
    registry = core.registry
    models: Iterable[ServedModel] = [registry.get(name)] if name else [registry.get(n) for n in registry.names()]
    if name and version:
        registry.version(name, version, lambda: b"")
    pairs = [(m.name, v.version) for m in models for v in m.versions.values() if version in (None, v.version)]
    counts: dict[tuple[str, ...], float] = defaultdict(float)  # by model, version, name and, of times, what they are of
    for sample in core.metrics.samples():
        if "le" not in sample.labels and "model" in sample.labels:
            key = (sample.labels["model"], sample.labels.get("version", ""), sample.name)
            what = sample.labels.get("part") or sample.labels.get("of")
            counts[key if what is None else (*key, what)] += sample.value
    answer = service_pb2.ModelStatisticsResponse()
    for pair in pairs:
        model = answer.model_stats.add(name=pair[0], version=pair[1])
        model.inference_count = round(counts[(*pair, "recsys_rows_total")])
        model.execution_count = round(counts[(*pair, "recsys_batch_rows_count")])
        failed = counts[(*pair, "recsys_seconds_count", "failed")], counts[(*pair, "recsys_seconds_sum", "failed")]
        total = counts[(*pair, "recsys_seconds_count", "total")], counts[(*pair, "recsys_seconds_sum", "total")]
        stats, succeeded = model.inference_stats, total[0] - failed[0]
        model.last_inference = round(counts[(*pair, "recsys_model_time_seconds", "answered")] * 1e3)
        _set(stats.fail, *failed)
        _set(stats.success, succeeded, total[1] - failed[1])
        _set(stats.queue, succeeded, counts[(*pair, "recsys_seconds_sum", "queue")])
        for part, name in PARTS.items():
            _set(getattr(stats, name), succeeded, counts[(*pair, "recsys_request_batch_seconds_total", part)])
        _set(stats.compute_output, succeeded, 0.0)  # a part of compute_infer
    return answer


def _set(duration: Any, count: float, seconds: float) -> None:
    duration.count, duration.ns = round(count), round(max(seconds, 0.0) * 1e9)


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as Triton writes it over HTTP: with all fields, their own names, and whole numbers as such."""
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not (field.message_type is not None and not field.is_repeated and not message.HasField(field.name))
        and not (field.containing_oneof is not None and not message.HasField(field.name))
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        own = field.message_type.fields_by_name["value"]
        return {str(key): _value(own, value[key]) for key in value}
    if field.is_repeated:
        return [_one(field, v) for v in value]
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value.decode("latin-1") if isinstance(value, bytes) else value
