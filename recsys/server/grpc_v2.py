"""The open inference protocol v2 over gRPC, on the event loop of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2 as pb

from recsys.base.errors import UserError
from recsys.online.servable import TensorSpec
from recsys.server import rest_v2, v2_infer
from recsys.server import v2_tensors as v2
from recsys.server.call import Call
from recsys.server.core import Core
from recsys.server.request_error import RequestError, one_line, status_of
from recsys.server.v2_infer import V2Request, infer
from recsys.server.v2_tensors import bad

SERVICE = "GRPCInferenceService"
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
OPEN = ("ServerLive", "ServerReady")  # without a token, for load balancers
Context = Any  # grpc.aio.ServicerContext, whose stubs are incomplete
Method = Callable[[Any, Call, Context], Awaitable[Message]]
MAX_PARAMETERS = 100
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class Service:
    """The methods of the service. Each takes the request, its context and gRPC's context, and returns the answer."""

    def __init__(self, core: Core) -> None:
        self.core = core

    async def ServerLive(self, request: pb.ServerLiveRequest, call: Call, context: Context) -> Message:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, call: Call, context: Context) -> Message:
        return pb.ServerReadyResponse(ready=self.core.is_ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, call: Call, context: Context) -> Message:
        try:
            rest_v2.metadata_version(self.core, request.name, request.version or None)
        except RequestError:  # not loaded
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, call: Call, context: Context) -> Message:
        return pb.ServerMetadataResponse(**rest_v2.server_metadata())

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, call: Call, context: Context) -> Message:
        loaded = rest_v2.metadata_version(self.core, request.name, request.version or None)
        model = self.core.registry.get(request.name)
        return pb.ModelMetadataResponse(
            name=model.name,
            versions=[v.version for v in model.versions.values()],
            platform=rest_v2.PLATFORM,
            inputs=map(_spec, loaded.servable.inputs),
            outputs=map(_spec, loaded.output_specs),
        )

    async def ModelConfig(self, request: pb.ModelConfigRequest, call: Call, context: Context) -> Message:
        loaded = rest_v2.metadata_version(self.core, request.name, request.version or None)
        model = self.core.registry.get(request.name)
        return pb.ModelConfigResponse(config=rest_v2.model_config(model, loaded, self.core.settings))

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, call: Call, context: Context) -> Message:
        return rest_v2.statistics_of(self.core, request.name or None, request.version or None)

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, call: Call, context: Context) -> Message:
        rows = self.core.registry.index(request.ready)
        return pb.RepositoryIndexResponse(models=[pb.RepositoryIndexResponse.ModelIndex(**r) for r in rows])

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, call: Call, context: Context
    ) -> Message:
        parameters = _parameters(request.parameters)
        v2_infer.check_load_parameters(parameters)
        version = parameters.get("version")
        await self.core.registry.load(request.model_name, None if version is None else str(version))
        self.core.announce_reload()
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, call: Call, context: Context
    ) -> Message:
        v2_infer.check_load_parameters(_parameters(request.parameters))
        await self.core.registry.unload(request.model_name)
        self.core.announce_reload()
        return pb.RepositoryModelUnloadResponse()

    async def ModelInfer(self, request: pb.ModelInferRequest, call: Call, context: Context) -> Message:
        if (left := context.time_remaining()) is not None:
            call.deadline = asyncio.get_running_loop().time() + left
        version, outputs = request.model_version or None, request.outputs
        v2_infer.check_tensor_counts(self.core.registry.get(request.model_name), len(request.inputs), len(outputs))
        wanted = V2Request(
            model=request.model_name,
            version=version,
            parameters=_parameters(request.parameters),
            inputs=_inputs(request),
            outputs=[{"name": o.name, "parameters": _parameters(o.parameters)} for o in outputs],
            body=b"".join(request.raw_input_contents),
            start=0,
            content=request.SerializeToString,
        )
        loaded, found = await infer(self.core, call, wanted)
        answer = pb.ModelInferResponse(model_name=loaded.name, model_version=loaded.version, id=request.id)
        for output, array in found.items():
            answer.outputs.add(name=output, datatype=v2.datatype_of(array), shape=array.shape)
            answer.raw_output_contents.append(v2.to_bytes(array))
        return answer

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Message]:
        """Answer the requests of a stream one after another. An error is part of the answer, and ends nothing."""
        try:
            self.core.check_token(_metadata(context).get("authorization"))
        except RequestError as e:
            await context.abort(CODES[e.status], one_line(e))
        async for request in requests:
            call = _call(_metadata(context))
            error: Exception | None = None
            try:
                if isinstance(request, DecodeError):
                    raise bad("the message is not a ModelInferRequest")
                answer = pb.ModelStreamInferResponse(infer_response=await self.ModelInfer(request, call, context))
                answer.infer_response.parameters["triton_final_response"].bool_param = True
            except Exception as e:
                error, answer = e, pb.ModelStreamInferResponse(error_message=one_line(e))
                answer.infer_response.id = getattr(request, "id", "")
            self.core.finish(call, error)
            yield answer


def _inputs(request: pb.ModelInferRequest) -> list[dict[str, Any]]:
    """Return the inputs as JSON describes them, with values in raw_input_contents or in lists. Raises RequestError."""
    blobs = request.raw_input_contents
    if blobs and len(blobs) != len(request.inputs):
        if shared := next((i for i in request.inputs if "shared_memory_region" in i.parameters), None):
            raise bad(f"input {shared.name[:80]}: {v2_infer.NO_SHARED_MEMORY}")
        raise bad(f"raw_input_contents has {len(blobs)} entries for {len(request.inputs)} inputs")
    inputs = []
    for i, item in enumerate(request.inputs):
        parameters = _parameters(item.parameters) if item.parameters else {}
        shape = item.shape[: v2.MAX_DIMENSIONS + 1]
        described = {"name": item.name, "datatype": item.datatype, "shape": shape, "parameters": parameters}
        if blobs:
            parameters["binary_data_size"] = len(blobs[i])
        if not blobs or (item.HasField("contents") and item.contents.ListFields()):
            given = [field.name for field, _ in item.contents.ListFields()]
            if len(given) > 1:
                raise bad(f"input {item.name[:80]}: has {given[0]} and {given[1]}; send the one of its datatype")
            if item.datatype == "FP16":
                raise bad(f"input {item.name[:80]}: FP16 is only possible in raw_input_contents")
            described["data"] = getattr(item.contents, _CONTENTS.get(item.datatype, ""), ())
        inputs.append(described)
    return inputs


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    if len(parameters) > MAX_PARAMETERS:
        raise bad(f"{len(parameters)} parameters: at most {MAX_PARAMETERS} are taken")
    return {k: getattr(v, field) for k, v in parameters.items() if (field := v.WhichOneof("parameter_choice"))}


def _spec(spec: TensorSpec) -> Message:
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def _metadata(context: Context) -> dict[str, bytes]:
    metadata = context.invocation_metadata() or ()
    return {k: v if isinstance(v, bytes) else v.encode("latin-1", "replace") for k, v in metadata}


def _call(metadata: Mapping[str, bytes]) -> Call:
    request_id = metadata.get("x-request-id", b"").decode("latin-1")
    return Call("grpc", request_id, metadata.get("x-routing-key"), metadata.get("traceparent"))


def _guarded(core: Core, name: str, method: Method) -> Callable[[Any, Context], Awaitable[Message]]:
    """Return a method that checks the token, counts and logs, and turns errors into gRPC's codes."""

    async def handle(request: Message | DecodeError, context: Context) -> Message:
        metadata = _metadata(context)
        call = _call(metadata)
        try:
            if name not in OPEN:
                core.check_token(metadata.get("authorization"))
            if isinstance(request, DecodeError):
                raise bad("the message cannot be decoded")
            answer = await method(request, call, context)
        except asyncio.CancelledError:
            raise
        except Exception as e:
            core.finish(call, e)
            context.set_trailing_metadata((("x-request-id", call.request_id),))
            await context.abort(CODES.get(status_of(e), grpc.StatusCode.INTERNAL), one_line(e))
            raise AssertionError from e  # abort always raises
        if call.loaded is not None:
            core.finish(call)
            context.set_trailing_metadata((("x-request-id", call.request_id),))
        return answer

    return handle


def _decode(message: type[Message], data: bytes) -> Message | DecodeError:
    """Return a message, or the error instead of raising it, so that the caller gets INVALID_ARGUMENT."""
    try:
        return message.FromString(data)
    except DecodeError as e:
        return e


async def _refuse(name: str, *_: Any) -> Message:
    """Raise RequestError, which says to which extension a method belongs that the service does not have."""
    v2_infer.check_supported(name)
    raise RequestError(501, f"{name}: is not supported by this server")


async def start(core: Core) -> grpc.aio.Server:
    """Start the gRPC server of a worker. Raises UserError if it cannot use its port."""
    settings, service, handlers, encode = core.settings, Service(core), {}, methodcaller("SerializeToString")
    for described in pb.DESCRIPTOR.services_by_name[SERVICE].methods:
        method: Any = getattr(service, described.name, None) or partial(_refuse, described.name)
        decode = partial(_decode, GetMessageClass(described.input_type))
        if described.client_streaming:
            handlers[described.name] = grpc.stream_stream_rpc_method_handler(method, decode, encode)
        else:
            guarded = _guarded(core, described.name, method)
            handlers[described.name] = grpc.unary_unary_rpc_method_handler(guarded, decode, encode)
    options = [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", settings.max_body_mb * 2**20),
        ("grpc.max_metadata_size", settings.max_header_kb * 1024),
        ("grpc.max_concurrent_streams", 1024),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=settings.queue)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"inference.{SERVICE}", handlers),))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    try:
        if settings.tls_cert is not None and settings.tls_key is not None:
            pair = (Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes())
            server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            server.add_insecure_port(address)
    except RuntimeError as e:
        where = f"grpc_port={settings.grpc_port} on {settings.host}"
        raise UserError(f"{where}: cannot be used; choose another port") from e
    await server.start()
    return server
