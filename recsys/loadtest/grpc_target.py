"""A server that speaks gRPC: the inputs of its models, and whether it takes a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError
from recsys.loadtest.answers import MOST_BYTES
from recsys.loadtest.encode_tensors import InputSpec
from recsys.loadtest.endpoint import Endpoint
from recsys.loadtest.target import SECONDS, Check, no_such_model, refused_token, untrusted

INFER = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # each channel has a connection of its own
)


def metadata(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    """Return the metadata of each call: the token."""
    return (("authorization", f"Bearer {endpoint.token}"),) if endpoint.token else ()


def credentials(endpoint: Endpoint) -> Any:
    """Return the grpc.ChannelCredentials of TLS, which hold the trusted authorities."""
    import grpc

    return grpc.ssl_channel_credentials(None if endpoint.tls_ca is None else Path(endpoint.tls_ca).read_bytes())


class GrpcTarget:
    """A server that speaks gRPC."""

    def __init__(self, endpoint: Endpoint) -> None:
        import grpc
        from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

        self.endpoint = endpoint
        if endpoint.tls:
            self._channel = grpc.secure_channel(endpoint.address, credentials(endpoint), OPTIONS)
        else:
            self._channel = grpc.insecure_channel(endpoint.address, OPTIONS)
        self._stub = GRPCInferenceServiceStub(self._channel)

    def _call(self, method: Any, request: Any) -> Any:
        """Return the answer of a call, or the grpc.RpcError. Raises UserError if the server is not one of gRPC."""
        import grpc

        where = f"target={self.endpoint.address}"
        try:
            return method(request, timeout=SECONDS, metadata=metadata(self.endpoint))
        except grpc.RpcError as e:
            code, details = e.code(), str(e.details())
            if code is grpc.StatusCode.UNAVAILABLE and "refused" in details:
                raise UserError(f"{where}: refuses the connection; start the server, or correct the port") from e
            if "Hostname Verification Check failed" in details:
                raise untrusted(self.endpoint, "host name mismatch") from e
            if "CERTIFICATE_VERIFY_FAILED" in details:
                why = details.rpartition("CERTIFICATE_VERIFY_FAILED: ")[2].partition(":")[0]
                raise untrusted(self.endpoint, why) from e
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL) and "http" in details.lower():
                raise UserError(f"{where}: does not speak gRPC; for an HTTP port, add protocol=http") from e
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                why = f"does not answer in gRPC ({' '.join(details.split())[:200]})"
                raise UserError(f"{where}: {why}; for TLS write grpcs://..., for an HTTP port add protocol=http") from e
            if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                raise refused_token(self.endpoint) from e
            return e

    def check(self) -> None:
        if self._about() is None:
            raise UserError(f"target={self.endpoint.address}: speaks gRPC, but not the open inference protocol v2")

    def extensions(self) -> list[str]:
        about = self._about()
        return [] if about is None else list(about.extensions)

    def _about(self) -> Any:
        """Return the metadata of the server, None if it does not speak the open inference protocol."""
        from tritonclient.grpc.service_pb2 import ServerMetadataRequest, ServerMetadataResponse

        answer = self._call(self._stub.ServerMetadata, ServerMetadataRequest())
        return answer if isinstance(answer, ServerMetadataResponse) else None

    def models(self) -> list[str]:
        from tritonclient.grpc.service_pb2 import RepositoryIndexRequest, RepositoryIndexResponse

        answer = self._call(self._stub.RepositoryIndex, RepositoryIndexRequest())
        return sorted({m.name for m in answer.models}) if isinstance(answer, RepositoryIndexResponse) else []

    def inputs(self, name: str, version: str | None) -> tuple[InputSpec, ...]:
        import grpc
        from tritonclient.grpc.service_pb2 import ModelMetadataRequest

        answer = self._call(self._stub.ModelMetadata, ModelMetadataRequest(name=name, version=version or ""))
        if not isinstance(answer, grpc.RpcError):
            return tuple(InputSpec(i.name, i.datatype, tuple(i.shape)) for i in answer.inputs)
        raise no_such_model(name, version, self)

    def outputs(self, name: str, version: str | None) -> dict[str, str]:
        from tritonclient.grpc.service_pb2 import ModelMetadataRequest, ModelMetadataResponse

        answer = self._call(self._stub.ModelMetadata, ModelMetadataRequest(name=name, version=version or ""))
        return {o.name: o.datatype for o in answer.outputs} if isinstance(answer, ModelMetadataResponse) else {}

    def refusal(self, request: bytes, check: Check) -> str | None:
        import grpc

        answer = self._call(self._channel.unary_unary(INFER), request)
        if not isinstance(answer, grpc.RpcError):
            check(answer)
            return None
        return f"{answer.code().name}, {' '.join(str(answer.details()).split())[:300]}"

    def statistics(self, name: str) -> Any:
        from google.protobuf.json_format import MessageToDict
        from tritonclient.grpc.service_pb2 import ModelStatisticsRequest, ModelStatisticsResponse

        answer = self._call(self._stub.ModelStatistics, ModelStatisticsRequest(name=name))
        if not isinstance(answer, ModelStatisticsResponse):
            return None
        return json.loads(json.dumps(MessageToDict(answer, preserving_proto_field_name=True)))
