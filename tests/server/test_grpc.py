"""gRPC: the open inference protocol with tritonclient, and the code and message of each mistake."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import fake_models
import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Served, serving
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from recsys.server.grpc_v2 import _inputs
from recsys.server.request_error import RequestError
from recsys.server.v2_infer import parse_inputs, plain_columns
from recsys.server.v2_tensors import to_columns


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    fake_models.write_model(folder / "ctr" / "1")
    fake_models.write_model(folder / "ctr" / "2", bias=1.0)
    fake_models.write_model(folder / "slow" / "1", seconds=0.2)
    fake_models.write_model(folder / "items" / "7", kind="retrieval")
    fake_models.write_model(folder / "defect" / "1", fails=True)
    (folder / "ctr" / "serving.json").write_text('{"version": "1", "versions": ["2"]}')
    with serving(folder, max_rows=100, max_body_mb=1) as s:
        yield s


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(served.grpc) as c:
        yield c


@pytest.fixture(scope="module")
def stub(served: Served) -> Iterator[Any]:
    with grpc.insecure_channel(served.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def raw_inputs(a: np.ndarray, b: list[str]) -> list[triton.InferInput]:
    inputs = [triton.InferInput("a", list(a.shape), "FP64"), triton.InferInput("b", [len(b), 1], "BYTES")]
    inputs[0].set_data_from_numpy(a)
    inputs[1].set_data_from_numpy(np.array(b, dtype=object)[:, None])
    return inputs


def sigmoid(*values: float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.array(values)))


def test_values_in_the_lists_of_their_types(stub: Any) -> None:
    """Some clients do not know raw_input_contents."""
    request = pb.ModelInferRequest(model_name="ctr")
    request.inputs.add(name="a", datatype="INT32", shape=[2]).contents.int_contents.extend([1, 2])
    request.inputs.add(name="b", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"b7", b""])
    answer = stub.ModelInfer(request)
    np.testing.assert_allclose(np.frombuffer(answer.raw_output_contents[0], np.float32), sigmoid(1.7, 2), rtol=1e-6)


def test_a_stream(client: triton.InferenceServerClient) -> None:
    answers: list[Any] = []
    client.start_stream(lambda result, error: answers.append(error or result))
    for b in ("b7", "x", "b8"):
        client.async_stream_infer("ctr", raw_inputs(np.array([[1.0]]), [b]), request_id=b)
    client.stop_stream()
    assert [a.as_numpy("p").tolist() for a in (answers[0], answers[2])] == [
        [pytest.approx([p])] for p in sigmoid(1.7, 1.8)
    ]
    assert "column b: 'x' is not a code such as b7" in str(answers[1])


def infer(**fields: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(**{"model_name": "ctr"} | fields)
    if "inputs" not in fields:
        request.inputs.add(name="a", datatype="FP64", shape=[1]).contents.fp64_contents.append(1)
    return request


def tensor(datatype: str = "FP64", shape: tuple[int, ...] = (1,), name: str = "a", **contents: Any) -> Any:
    return pb.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape, contents=pb.InferTensorContents(**contents)
    )


MISTAKES = [  # what only this protocol has, and one a code; the others are tested below both, in test_http.py
    (infer(model_name="crt"), "NOT_FOUND", "model crt: "),
    (infer(model_version="9"), "NOT_FOUND", "model ctr: has no version 9"),
    (infer(inputs=[]), "INVALID_ARGUMENT", "inputs must be a list"),
    (infer(inputs=[tensor("FP16")]), "INVALID_ARGUMENT", "input a: FP16 is only possible in raw_input_contents"),
    (infer(inputs=[tensor("INT8", int_contents=[300])]), "INVALID_ARGUMENT", "input a: a value is out of the range"),
    (infer(inputs=[tensor("BYTES", bytes_contents=[b"\xff"])]), "INVALID_ARGUMENT", "input a: a value is not UTF-8"),
    (infer(raw_input_contents=[b"", b""]), "INVALID_ARGUMENT", "raw_input_contents has 2 entries for 1 inputs"),
    (infer(inputs=[tensor()], raw_input_contents=[b"1234"]), "INVALID_ARGUMENT", "input a: has 4 bytes"),
    (infer(raw_input_contents=[b"12345678"]), "INVALID_ARGUMENT", "input a: has data beside binary data"),
    (infer(inputs=[tensor(int64_contents=[1], fp64_contents=[2])]), "INVALID_ARGUMENT", "input a: has int64_contents"),
    (infer(model_name="defect"), "INTERNAL", "internal error; "),
]


@pytest.mark.parametrize(("request_", "code", "message"), MISTAKES)
def test_mistakes(stub: Any, request_: pb.ModelInferRequest, code: str, message: str) -> None:
    with pytest.raises(grpc.RpcError) as e:
        stub.ModelInfer(request_)
    assert e.value.code().name == code and e.value.details().startswith(message), e.value.details()


def test_a_message_that_cannot_be_decoded(served: Served) -> None:
    with grpc.insecure_channel(served.grpc) as channel:
        for method in ("ModelInfer", "ServerLive", "RepositoryIndex"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            with pytest.raises(grpc.RpcError) as e:
                call(b"\xff\xff\xff")
            assert (e.value.code().name, e.value.details()) == ("INVALID_ARGUMENT", "the message cannot be decoded")
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = list(map(pb.ModelStreamInferResponse.FromString, stream(iter([b"\xff\xff\xff"]))))
        assert [a.error_message for a in answers] == ["the message is not a ModelInferRequest"]
        with pytest.raises(grpc.RpcError) as e:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\0" * 2**20 * 2)
        assert e.value.code().name == "RESOURCE_EXHAUSTED"


def test_deadlines(client: triton.InferenceServerClient) -> None:
    inputs = raw_inputs(np.array([[1.0]]), ["b7"])
    with pytest.raises(InferenceServerException, match=r"Deadline Exceeded|DEADLINE_EXCEEDED"):
        client.infer("slow", inputs, client_timeout=0.05)
    with pytest.raises(InferenceServerException, match="the deadline has passed"):
        client.infer("slow", inputs, timeout=50_000)


def test_request_ids_and_routing_keys(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as e:
        stub.ModelInfer(infer(model_name="nix"), metadata=(("x-request-id", "mine"),))
    assert dict(e.value.trailing_metadata())["x-request-id"] == "mine"


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=4), st.sampled_from(["", "b3", "é"])), min_size=1, max_size=3),
    st.binary(max_size=3),
    st.sampled_from(["", "contents", "parameters", "type", "shape", "missing"]),
)
def test_the_quick_reader_of_texts_reads_as_the_other(rows: list[tuple[str, str]], more: bytes, change: str) -> None:
    """Any request but a usual one goes to the other, which checks it."""
    request = pb.ModelInferRequest(model_name="m")
    for i, name in enumerate(("a", "b")):
        texts = [row[i].encode() for row in rows]
        request.inputs.add(name=name, datatype="BYTES", shape=[len(rows), 1] if i else [len(rows)])
        request.raw_input_contents.append(b"".join(struct.pack("<I", len(t)) + t for t in texts))
    request.raw_input_contents[1] += more
    last = request.inputs[1]
    if change == "contents":
        last.contents.bytes_contents.append(b"x")
    elif change == "parameters":
        last.parameters["x"].int64_param = 1
    elif change == "type":
        last.datatype = "UINT8"
    elif change == "shape":
        last.shape.append(1)
    elif change == "missing":
        del request.raw_input_contents[1]
    body = b"".join(request.raw_input_contents)
    try:
        inputs = _inputs(request)
        found = plain_columns(inputs, body, 0)
        columns = to_columns(parse_inputs(inputs, memoryview(body)))
    except RequestError:
        assert change in ("contents", "type", "shape", "missing") or more
    else:
        assert found == (None if change else (columns, len(rows))) and not more
