"""The server answers all that callers can send, and never with an error of its own (5xx, INTERNAL, UNKNOWN)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import fake_models
import grpc
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import Served, serving
from tritonclient.grpc import service_pb2 as pb

FUZZ = settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    fake_models.write_model(folder / "ctr" / "1")
    fake_models.write_model(folder / "items" / "7", kind="retrieval")
    with serving(folder, max_rows=100, read_s=5, feedback=str(folder.parent / "feedback")) as s:
        yield s


numbers = st.one_of(st.integers(), st.sampled_from([0, 1, 2, -1, 2**31, 2**63, 2**64, 1e308, 0.5]))
scalars = st.one_of(
    st.none(), st.booleans(), numbers, st.text(max_size=8), st.sampled_from(["b7", "a", "b", "p", "item"])
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=3), v, max_size=3), max_leaves=8
)
datatypes = st.sampled_from(["BYTES", "FP64", "FP32", "FP16", "INT64", "INT8", "UINT64", "BOOL", "X"])
parameters = st.dictionaries(
    st.sampled_from(["binary_data_size", "timeout", "k", "exclude", "filter_history", "binary_data_output", "x"]),
    values,
    max_size=3,
)
tensors = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b", "item", "values"]),
        "datatype": datatypes,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | values,
        "data": st.lists(scalars, max_size=4) | values,
    },
    optional={"parameters": parameters},
)
infers = st.fixed_dictionaries(
    {"inputs": st.lists(tensors, max_size=3)},
    optional={
        "parameters": parameters,
        "outputs": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["p", "q"])}, optional={"parameters": parameters}),
            max_size=2,
        )
        | values,
        "id": values,
    },
)
rows = st.lists(st.dictionaries(st.sampled_from(["a", "b", "item"]), values, max_size=3) | values, max_size=4) | values
people = st.dictionaries(
    st.sampled_from(["rows", "history", "queries", "k", "exclude", "filter_history", "feedback"]),
    rows | values,
    max_size=4,
)
bodies = (infers | people | values).map(lambda v: json.dumps(v).encode()) | st.binary(max_size=60)
paths = st.sampled_from(
    [
        "/models/ctr/predict",
        "/models/items/recommend",
        "/feedback",
        "/v2/models/ctr/infer",
        "/v2/models/items/infer",
        "/v2/repository/models/ctr/load",
        "/v2/models/ctr/versions/9/infer",
    ]
)
headers = st.dictionaries(
    st.sampled_from(
        ["timeout", "inference-header-content-length", "x-routing-key", "x-request-id", "content-encoding"]
    ),
    st.integers(-5, 200).map(str) | st.text("09afé -~", max_size=5),
    max_size=3,
)


@pytest.fixture(scope="module")
def connection(served: Served) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(served.http, timeout=20)
    yield connection
    connection.close()


@FUZZ
@given(path=paths, body=bodies, headers=headers)
def test_http(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> None:
    connection.request("POST", path, body, {k: v.strip().encode("latin-1") for k, v in headers.items()})  # type: ignore[misc]
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status < 500 or (answer.status == 504 and "timeout" in f"{headers}{body!r}"), text
    if answer.status != 200:
        assert "\n" not in json.loads(text)["error"]


@FUZZ
@given(
    blob=st.binary(max_size=40),
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    datatype=datatypes,
    size=st.integers(-9, 60),
    header=st.integers(-9, 200) | st.just(None),
)
def test_binary_data(
    connection: http.client.HTTPConnection, blob: bytes, shape: list[int], datatype: str, size: int, header: int | None
) -> None:
    item = {"name": "b", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [item]}).encode()
    connection.request(
        "POST",
        "/v2/models/ctr/infer",
        head + blob,
        {"inference-header-content-length": str(len(head) if header is None else header)},
    )
    answer = connection.getresponse()
    assert answer.status < 500, answer.read()
    answer.read()


@FUZZ
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    path=st.text("/v2models.%~ctré", max_size=25),
)
def test_paths(connection: http.client.HTTPConnection, method: str, path: str) -> None:
    from urllib.parse import quote

    connection.request(method, "/" + quote(path))
    answer = connection.getresponse()
    assert answer.status < 500, answer.read()
    answer.read()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=200)
    | st.tuples(
        st.sampled_from(
            [
                b"GET / HTTP/1.1\r\n",
                b"POST /predict HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
                b"POST /predict HTTP/1.1\r\ncontent-length: ",
            ]
        ),
        st.binary(max_size=40),
    ).map(b"".join)
)
def test_bytes_that_are_not_http(served: Served, data: bytes) -> None:
    import socket

    with socket.create_connection((served.http.split(":")[0], served.settings.port), timeout=10) as s:
        s.sendall(data + b"\r\n\r\n")
        s.shutdown(socket.SHUT_WR)
        answer = s.recv(65536)
    assert not answer.startswith(b"HTTP/1.1 5"), answer


contents = st.fixed_dictionaries(
    {},
    optional={
        "fp64_contents": st.lists(st.floats(), max_size=3),
        "int64_contents": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        "int_contents": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "bytes_contents": st.lists(st.binary(max_size=4), max_size=3),
        "bool_contents": st.lists(st.booleans(), max_size=3),
    },
)
grpc_inputs = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b", "item", "values", ""]),
        "datatype": datatypes,
        "shape": st.lists(st.integers(-2, 3), max_size=3),
        "contents": contents,
    }
)
grpc_requests = st.fixed_dictionaries(
    {"model_name": st.sampled_from(["ctr", "items", "nix", ""]), "inputs": st.lists(grpc_inputs, max_size=3)},
    optional={
        "model_version": st.sampled_from(["1", "7", "x"]),
        "raw_input_contents": st.lists(st.binary(max_size=24), max_size=3),
        "outputs": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["p", "q"])}), max_size=2),
    },
).map(lambda fields: pb.ModelInferRequest(**fields).SerializeToString())


@pytest.fixture(scope="module")
def infer(served: Served) -> Iterator[Any]:
    with grpc.insecure_channel(served.grpc) as channel:
        yield channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")


@FUZZ
@given(message=grpc_requests | st.binary(max_size=80))
def test_grpc(infer: Any, message: bytes) -> None:
    call = infer.future(message, timeout=20)
    assert call.code().name in ("OK", "INVALID_ARGUMENT", "NOT_FOUND"), (call.code(), call.details())
    assert "\n" not in (call.details() or "")


def test_the_openapi_document(served: Served) -> None:
    """Requests that schemathesis makes from the document get the answers that it names."""
    import schemathesis  # takes a second, which no other process of a session needs

    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json").exclude(path_regex="load$")
    names = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
    checks = list(schemathesis.checks.CHECKS.get_by_names(names))
    for operation in schema.get_all_operations():

        @settings(max_examples=6, deadline=None)
        @given(case=operation.ok().as_strategy())
        def test(case: Any) -> None:
            case.call_and_validate(checks=checks)

        test()
