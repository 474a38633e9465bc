"""What tritonclient and KServe's client ask for is answered or refused by name, over both protocols alike."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import fake_models
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from served import Served, serving
from tritonclient.utils import InferenceServerException

CLIENTS = [tritonclient.http, tritonclient.grpc]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    for version, bias in (("1", 0.0), ("2", 1.0)):
        inputs = ["a", "b", "n:INT64", "t:BOOL"]
        fake_models.write_model(folder / "ctr" / version, bias=bias, inputs=inputs)
    (folder / "ctr" / "serving.json").write_text('{"version": "1", "versions": ["2"]}')
    fake_models.write_model(folder / "items" / "1", kind="retrieval")
    with serving(folder, max_rows=100, max_body_mb=1) as s:
        yield s


@pytest.fixture(params=CLIENTS, ids=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: Served) -> Iterator[tuple[ModuleType, Any]]:
    triton = request.param
    with triton.InferenceServerClient(served.http if triton is tritonclient.http else served.grpc) as c:
        yield triton, c


def column(triton: ModuleType, name: str = "a", values: Any = (1.0,), datatype: str = "FP64", **how: Any) -> Any:
    array = np.array(values, {"FP64": np.float64, "BYTES": object}[datatype])[:, None]
    found = triton.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array, **how)
    return found


def refused(call: Any) -> str:
    with pytest.raises(InferenceServerException) as e:
        call()
    assert e.value.status() in ("400", "501", "StatusCode.INVALID_ARGUMENT", "StatusCode.UNIMPLEMENTED")
    return str(e.value.message())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sequence_id": 7, "sequence_start": True}, "parameters.sequence_id: this server keeps nothing from one"),
        ({"sequence_id": "abc"}, "parameters.sequence_id: this server keeps nothing from one"),
        ({"priority": 2}, "parameters.priority: this server answers requests in the order in which they come; leave"),
        ({"parameters": {"kk": 3}}, "parameters.kk: no such key"),
    ],
)
def test_parameters_without_effect(client: tuple[ModuleType, Any], given: dict[str, Any], why: str) -> None:
    triton, c = client
    texts = np.array(["item1"], dtype=object)
    item = triton.InferInput("item", [1], "BYTES")
    item.set_data_from_numpy(texts)
    for model, inputs in (("ctr", [column(triton)]), ("items", [item])):
        assert refused(lambda model=model, inputs=inputs: c.infer(model, inputs, **given)).startswith(why)
    assert c.infer("ctr", [column(triton)], sequence_id=0, priority=0).as_numpy("p").shape == (1, 1)


def test_raw_columns_and_items(client: tuple[ModuleType, Any]) -> None:
    """Of a version, with and without binary data; over HTTP, the answer has the form that was asked for."""
    triton, c = client
    a, b = [1.0, 2.0, -3.0], ["b7", "", "b30"]
    for binary in (True, False) if triton is tritonclient.http else (True,):
        how = {"binary_data": binary} if triton is tritonclient.http else {}
        inputs = [column(triton, values=a, **how), column(triton, "b", b, "BYTES", **how)]
        for version, bias in (("1", 0), ("2", 1)):
            wanted = [triton.InferRequestedOutput("p", **how)]
            found = c.infer("ctr", inputs, outputs=wanted, request_id="17", model_version=version)
            answer = found.get_response()
            told = (answer["id"], answer["model_version"]) if how else (answer.id, answer.model_version)
            assert told == ("17", version) and (not how or ("data" in answer["outputs"][0]) is not binary)
            expected = 1 / (1 + np.exp(-(np.array([[1.7], [2.0], [0.0]]) + bias)))
            np.testing.assert_allclose(found.as_numpy("p"), expected, rtol=1e-6)
    items = column(triton, "item", ["item0", "item1"], "BYTES")
    found = c.infer("items", [items], parameters={"k": 3, "exclude": "item3,item4"})
    assert found.as_numpy("items").tolist() == [b"item2", b"item5", b"item6"]
    np.testing.assert_allclose(found.as_numpy("scores"), [1, 1 / 2, 1 / 3], rtol=1e-6)


def test_health_metadata_and_outputs(client: tuple[ModuleType, Any]) -> None:
    triton, c = client
    assert c.is_server_live() and c.is_server_ready() and c.is_model_ready("ctr") and not c.is_model_ready("ctr", "3")
    metadata = c.get_model_metadata("ctr", **({"as_json": True} if triton is tritonclient.grpc else {}))
    assert metadata["versions"] == ["1", "2"]
    assert [(i["name"], i["datatype"]) for i in metadata["inputs"]] == [
        *(("a", "FP64"), ("b", "BYTES"), ("n", "INT64"), ("t", "BOOL"))
    ]
    values = triton.InferInput("values", [2, 2], "FP32")
    values.set_data_from_numpy(np.array([[1, 2], [0.5, 0]], np.float32))
    found = c.infer("ctr", [values], request_id="17")
    np.testing.assert_allclose(found.as_numpy("p"), 1 / (1 + np.exp([[-3], [-0.5]])), rtol=1e-6)
    item = column(triton, "item", ["item0"], "BYTES")
    assert c.infer("items", [item], parameters={"k": 2, "filter_history": False}).as_numpy("items").tolist() == [
        *(b"item0", b"item1")
    ]
    with pytest.raises(InferenceServerException, match=r"rows\[1\]: column b: 'x' is not a code such as b7"):
        c.infer("ctr", [column(triton, values=[1.0, 2.0]), column(triton, "b", ["b7", "x"], "BYTES")])


def test_shared_memory(client: tuple[ModuleType, Any]) -> None:
    triton, c = client
    shared = triton.InferInput("b", [1, 1], "BYTES")
    shared.set_shared_memory("region", 8)
    wanted = triton.InferRequestedOutput("p")
    wanted.set_shared_memory("region", 8)
    why = "this server has no shared memory; leave shared_memory_region out"
    assert refused(lambda: c.infer("ctr", [column(triton), shared])).startswith(f"input b: {why}")
    assert refused(lambda: c.infer("ctr", [column(triton)], outputs=[wanted])).startswith(f"outputs: {why}")
    for call, extension in (
        (c.get_system_shared_memory_status, "system_shared_memory"),
        (lambda: c.register_system_shared_memory("region", "/region", 8), "system_shared_memory"),
        (c.get_cuda_shared_memory_status, "cuda_shared_memory"),
        (c.get_trace_settings, "trace"),
        (lambda: c.update_trace_settings("ctr", {"trace_level": "OFF"}), "trace"),
        (c.get_log_settings, "logging"),
    ):
        assert f": the extension {extension} is not supported by this server" in refused(call)


def test_class_count_and_a_load_with_a_configuration(client: tuple[ModuleType, Any]) -> None:
    triton, c = client
    wanted = [triton.InferRequestedOutput("p", class_count=2)]
    assert "leave classification (class_count) out" in refused(lambda: c.infer("ctr", [column(triton)], outputs=wanted))
    for more in ({"config": "{}"}, {"config": "{}", "files": {"file:1/model.onnx": b"x"}}):
        assert "a model is loaded as it was exported" in refused(lambda more=more: c.load_model("ctr", **more))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_bodies(client: tuple[ModuleType, Any], algorithm: str) -> None:
    triton, c = client
    name = "request_compression_algorithm" if triton is tritonclient.http else "compression_algorithm"
    found = c.infer("ctr", [column(triton)], **{name: algorithm}).as_numpy("p")
    np.testing.assert_array_equal(found, c.infer("ctr", [column(triton)]).as_numpy("p"))


def test_damaged_and_large_compressed_bodies(served: Served) -> None:
    def answer(body: bytes, encoding: str) -> tuple[int, str]:
        headers = {"content-encoding": encoding}
        found = requests.post(f"{served.url}/models/ctr/predict", data=body, headers=headers)
        return found.status_code, found.json().get("error", "")

    good = gzip.compress(b'{"rows": [{"a": 1}]}')
    assert answer(good, "gzip") == answer(zlib.compress(b'{"rows": [{"a": 1}]}'), "Deflate") == (200, "")
    for body in (good[:-3], good + b"x", b"{}", b""):
        status, message = answer(body, "gzip")
        assert status == 400 and message.startswith("the body cannot be decompressed"), body
    limit = "the body is larger than this server's limit of 1 MiB"
    assert answer(gzip.compress(b" " * 2**30, 1), "gzip") == (413, limit)


def infer(served: Served, body: str) -> requests.Response:
    return requests.post(f"{served.url}/v2/models/ctr/infer", data=body)


@pytest.mark.parametrize(
    "inputs",
    [
        '{"name": "a", "datatype": "FP64", "shape": [2], "data": [null, 1]}',  # as KServe's client sends NaN
        '{"name": "a", "datatype": "FP32", "shape": [2, 1], "data": [NaN, 1]}',  # as tritonclient does
        '{"name": "b", "datatype": "BYTES", "shape": [2, 1], "data": [[null], ["b10"]]}',
    ],
)
def test_null_is_a_missing_value(served: Served, inputs: str) -> None:
    [output] = infer(served, f'{{"inputs": [{inputs}]}}').json()["outputs"]
    assert output["shape"] == [2, 1]
    assert output["data"] == pytest.approx([0.5, 1 / (1 + np.exp(-1))])


def test_nan_of_tritonclient_is_missing(client: tuple[ModuleType, Any]) -> None:
    triton, c = client
    for how in ({"binary_data": False}, {}) if triton is tritonclient.http else ({},):
        found = c.infer("ctr", [column(triton, values=[np.nan, 1.0], **how)]).as_numpy("p")
        np.testing.assert_allclose(found, [[0.5], [1 / (1 + np.exp(-1))]], rtol=1e-6)


def test_shapes_of_rows(client: tuple[ModuleType, Any]) -> None:
    """Rows may be [n] or [n, 1]; predictions are [n, 1], as Triton's are, and metadata and configuration say so."""
    triton, c = client
    flat = triton.InferInput("a", [2], "FP64")
    flat.set_data_from_numpy(np.array([1.0, 2.0]))
    for given in (flat, column(triton, values=[1.0, 2.0])):
        assert c.infer("ctr", [given]).as_numpy("p").shape == (2, 1)
    metadata, config = c.get_model_metadata("ctr"), c.get_model_config("ctr")
    if triton is tritonclient.http:
        assert metadata["outputs"][0]["shape"] == [-1, 1] and config["output"][0]["dims"] == [1]
        assert config["version_policy"] == {"specific": {"versions": [1, 2]}}
    else:
        assert list(metadata.outputs[0].shape) == [-1, 1] and list(config.config.output[0].dims) == [1]


def test_a_server_without_models_is_not_ready(client: tuple[ModuleType, Any]) -> None:
    _, c = client
    try:
        for name in ("ctr", "items"):
            assert c.is_server_ready()
            c.unload_model(name)
        assert c.is_server_live() and not c.is_server_ready()
    finally:
        for name in ("ctr", "items"):
            c.load_model(name)
    assert c.is_server_ready()


def test_the_index_of_what_is_loaded(served: Served) -> None:
    url = f"{served.url}/v2/repository/index"
    with tritonclient.grpc.InferenceServerClient(served.grpc) as c:
        c.unload_model("items")
        try:
            states = {m["name"]: m["state"] for m in requests.post(url).json()}
            assert states == {"ctr": "READY", "items": "UNAVAILABLE"}
            assert [m["name"] for m in requests.post(url, json={"ready": True}).json()] == ["ctr"] * 2
            assert requests.post(url, json={"raedy": True}).status_code == 400
        finally:
            c.load_model("items")


def test_a_stream_that_asks_for_its_end(served: Served) -> None:
    """perf_analyzer sends this parameter with each request of a stream."""
    answers: list[Any] = []
    with tritonclient.grpc.InferenceServerClient(served.grpc) as c:
        c.start_stream(lambda result, error: answers.append(error or result))
        c.async_stream_infer("ctr", [column(tritonclient.grpc)], enable_empty_final_response=True)
        c.stop_stream()
    [answer] = answers
    assert answer.get_response().parameters["triton_final_response"].bool_param


def test_statistics_count_requests_alike(client: tuple[ModuleType, Any], served: Served) -> None:
    """perf_analyzer ends with an error unless all counts are the number of requests."""
    triton, c = client
    rows = json.dumps({"history": [{"item": "item1"}]})
    for _ in range(3):
        c.infer("ctr", [column(triton)])
        requests.post(f"{served.url}/models/items/recommend", data=rows)
    found = c.get_inference_statistics() if triton is tritonclient.http else c.get_inference_statistics(as_json=True)
    for model in found["model_stats"]:
        stats = model["inference_stats"]
        parts = ("success", "queue", "compute_input", "compute_infer", "compute_output")
        assert len({int(stats[part]["count"]) for part in parts}) == 1
        assert int(stats["compute_infer"]["ns"]) > 0 and int(model["last_inference"]) > 0
