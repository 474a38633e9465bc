"""Extensions of the open inference protocol that Triton's clients ask for: model configuration and statistics.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2, service_pb2

from recsys.online.servable import TensorSpec
from recsys.schema.command_schemas import ServeConfig
from recsys.server.core import Core
from recsys.server.rest_v2 import PLATFORM
from recsys.server.served_models import LoadedVersion, ServedModel

PARTS = {"features": "compute_input", "model": "compute_infer"}  # of recsys_request_batch_seconds -> statistics


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
