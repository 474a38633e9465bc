"""Requests as bytes, made before the clock starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from recsys.loadtest.encode_tensors import History, Row, make_tensors
from recsys.loadtest.endpoint import Endpoint, TargetModel

MAX_REQUESTS = 512  # number of different requests of a batch size
MAX_BYTES = 16 * 2**20  # of all requests of a batch size

Encode = Callable[[Sequence[Any]], bytes]  # rows, or histories, of a request -> the request


def make_requests(rows: Sequence[Any], batch_size: int, encode: Encode) -> list[bytes]:
    """Return different requests of `batch_size` rows, or histories, each, one after another in their order."""
    requests: list[bytes] = []
    size = 0
    for i in range(min(MAX_REQUESTS, math.ceil(len(rows) / math.gcd(batch_size, len(rows))))):
        start = i * batch_size
        requests.append(encode([rows[(start + k) % len(rows)] for k in range(batch_size)]))
        size += len(requests[-1])
        if size > MAX_BYTES:
            break
    return requests


def encode_binary(endpoint: Endpoint, model: TargetModel, rows: Sequence[Row]) -> bytes:
    """Return a request over HTTP with the binary tensor extension, whose answer is binary too."""
    tensors = make_tensors(model.inputs, rows)
    blobs = [t.to_bytes() for t in tensors]
    inputs = [t.described() | {"parameters": {"binary_data_size": len(b)}} for t, b in zip(tensors, blobs, strict=True)]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return endpoint.http_request("POST", f"{model.path}/infer", b"".join([head, *blobs]), headers)


def encode_json(endpoint: Endpoint, model: TargetModel, rows: Sequence[Row]) -> bytes:
    """Return a request over HTTP with tensors in JSON."""
    tensors = make_tensors(model.inputs, rows)
    body = orjson.dumps({"inputs": [t.described() | {"data": t.to_json()} for t in tensors]})
    return endpoint.http_request("POST", f"{model.path}/infer", body, {"content-type": "application/json"})


def encode_rows(endpoint: Endpoint, model: TargetModel, rows: Sequence[Row]) -> bytes:
    """Return a request POST /predict of recsys.serve."""
    return _people(endpoint, model, "predict", {"rows": list(rows)})


def encode_histories(endpoint: Endpoint, model: TargetModel, histories: Sequence[History]) -> bytes:
    """Return a request POST /recommend of recsys.serve with a query for each history."""
    queries = [{"history": history} for history in histories]
    return _people(endpoint, model, "recommend", queries[0] if len(queries) == 1 else {"queries": queries})


def _people(endpoint: Endpoint, model: TargetModel, verb: str, content: Mapping[str, Any]) -> bytes:
    place = f"/{verb}"
    if model.name is not None:
        version = f"/versions/{quote(model.version, safe='')}" if model.version else ""
        place = f"/models/{quote(model.name, safe='')}{version}/{verb}"
    body = orjson.dumps(content, default=str)
    return endpoint.http_request("POST", place, body, {"content-type": "application/json"})


def encode_grpc(model: TargetModel, rows: Sequence[Row]) -> bytes:
    """Return a ModelInferRequest with raw contents, as bytes."""
    from tritonclient.grpc.service_pb2 import ModelInferRequest

    request = ModelInferRequest(model_name=model.name, model_version=model.version or "")
    for tensor in make_tensors(model.inputs, rows):
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.to_bytes())
    data: bytes = request.SerializeToString()
    return data
