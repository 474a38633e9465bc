"""HTTP: JSON for people, the open inference protocol with tritonclient, pages, and the message of each mistake."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_models
import numpy as np
import polars as pl
import pytest
import requests
import tritonclient.http as triton
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Served, serving
from tritonclient.utils import InferenceServerException

from recsys.server.request_error import RequestError
from recsys.server.v2_infer import parse_inputs, plain_columns
from recsys.server.v2_tensors import to_columns
from recsys.store.definition import load_views
from recsys.store.materialise import materialise
from recsys.store.stores import open_store


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    fake_models.write_model(folder / "ctr" / "1")
    fake_models.write_model(folder / "ctr" / "2", bias=1.0)
    fake_models.write_model(folder / "two" / "1", outputs=["click", "buy"])
    fake_models.write_model(folder / "items" / "7", kind="retrieval")
    fake_models.write_model(folder / "defect" / "1", fails=True)
    (folder / "ctr" / "serving.json").write_text('{"version": 1, "versions": [2]}')
    with serving(folder, max_rows=100, max_list=5, max_body_mb=1) as s:
        yield s


def post(served: Served, path: str, body: Any, **headers: str) -> requests.Response:
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    return requests.post(served.url + path, data=data, headers={k.replace("_", "-"): v for k, v in headers.items()})


def sigmoid(*values: float) -> list[float]:
    return (1 / (1 + np.exp(-np.array(values)))).tolist()


def test_predict_a_single_output(served: Served) -> None:
    answer = post(served, "/models/ctr/predict", {"rows": [{"a": "1", "b": "b7"}, {"a": 2.5}, {}]}, x_request_id="mine")
    assert answer.status_code == 200 and answer.headers["x-request-id"] == "mine"
    assert answer.json()["predictions"] == pytest.approx(sigmoid(1.7, 2.5, 0), rel=1e-6)
    of_version_2 = post(served, "/models/ctr/versions/2/predict", {"rows": [{"a": 2.5}]})
    assert of_version_2.json()["predictions"] == pytest.approx(sigmoid(3.5), rel=1e-6)


def test_columns_that_all_rows_share(served: Served) -> None:
    """One user with several candidates; a row's own value wins."""
    answer = post(served, "/models/ctr/predict", {"shared": {"a": 2}, "rows": [{"b": "b7"}, {}, {"a": 1}]})
    assert answer.json()["predictions"] == pytest.approx(sigmoid(2.7, 2, 1), rel=1e-6)
    wrong = post(served, "/models/ctr/predict", {"shared": [1], "rows": [{}]})
    assert (wrong.status_code, wrong.json()["error"]) == (400, "shared: must be a JSON object of columns and values")


def test_shared_columns_that_the_model_does_not_read_are_dropped_at_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of each in each row would take thousands of times the memory of the request."""
    model, samples = fake_models.write_model(tmp_path / "ctr"), tmp_path / "samples"
    seen: list[Any] = []
    features = fake_models.Scorer.features
    monkeypatch.setattr(
        fake_models.Scorer,
        "features",
        lambda self, rows, shared=None: seen.append(shared) or features(self, rows, shared),
    )
    with serving(model, sample=1.0, sample_dir=str(samples), max_body_mb=1) as served:
        many = {f"unknown_{i}": i for i in range(16_000)}
        answer = post(served, "/predict", {"shared": many | {"a": 2}, "rows": [{"b": "b7"}] * 4096})
        assert answer.json()["predictions"][0] == pytest.approx(sigmoid(2.7)[0], rel=1e-6)
        assert seen[-1] == {"a": 2}
        few = post(served, "/predict", {"shared": {"user": "u5", "a": 2}, "rows": [{"b": "b7"}]})
        assert few.status_code == 200 and seen[-1] == {"a": 2}
        large = post(served, "/predict", {"shared": {"a": "1" * 2000}, "rows": [{"b": "b7"}] * 4096})
        assert large.status_code == 413 and large.json()["error"] == (
            "shared: would be 8,224,768 bytes in 4,096 rows; at most 4,194,304 are taken"
        )
    rows = pl.read_parquet(samples / "*.parquet")
    assert rows["other_columns"].to_list() == [None] * 4096 + ['{"user":"u5"}']


def test_predictions_that_are_not_finite_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON would show them as null."""
    with serving(fake_models.write_model(tmp_path / "ctr")) as served:
        values = {"name": "values", "datatype": "FP32", "shape": [2, 2], "data": [0, 0, 3e38, 0]}
        monkeypatch.setattr(
            fake_models.Scorer, "run_tensors", lambda _, t: {"p": (t["values"].sum(1) * 1e20).astype(np.float32)}
        )
        with np.errstate(all="ignore"):
            answer = post(served, "/v2/models/ctr/infer", {"inputs": [values]})
        assert (answer.status_code, answer.json()["error"]) == (
            400,
            "rows[1]: output p is not a finite number; the features are too large",
        )
        monkeypatch.setattr(fake_models.Scorer, "run_tensors", lambda _, __: {"p": np.full(1, np.nan, np.float32)})
        answer = post(served, "/predict", {"rows": [{"a": None}]})
        assert (answer.status_code, answer.json()["error"]) == (
            500,
            "rows[0]: output p is not a finite number; version 1 of the model may be damaged",
        )


def test_stored_features_are_joined(tmp_path: Path) -> None:
    """The server looks up features of the keys in each row; unknown keys have no values."""
    log = pl.DataFrame({"user": ["u1", "u1", "u2"], "at": [1, 2, 1], "a": [9.0, 2.5, -1.0]})
    log.write_parquet(tmp_path / "log.parquet")
    definition = f"users: {{files: {tmp_path}/log.parquet, key: user, time: at, columns: [a]}}"
    (tmp_path / "features.yaml").write_text(definition)
    url = f"sqlite:///{tmp_path}/features.db"
    materialise(load_views(tmp_path / "features.yaml"), open_store(url, write=True))
    fake_models.write_model(tmp_path / "model")
    with serving(tmp_path / "model", definition=str(tmp_path / "features.yaml"), store=url) as served:
        rows = [{"user": "u1"}, {"user": "u2", "a": 3}, {"user": "nobody"}, {}]
        answer = post(served, "/predict", {"rows": rows})
        assert answer.json()["predictions"] == pytest.approx(sigmoid(2.5, 3, 0, 0), rel=1e-6)
        shared = post(served, "/predict", {"shared": {"user": "u1"}, "rows": [{"b": "b7"}]})
        assert shared.json()["predictions"] == pytest.approx(sigmoid(3.2), rel=1e-6)


def test_predict_several_outputs(served: Served) -> None:
    answer = post(served, "/models/two/predict", {"rows": [{"a": 0}, {"a": 1}]})
    [p0, p1] = sigmoid(0, 1)
    assert [set(p) for p in answer.json()["predictions"]] == [{"click", "buy"}] * 2
    assert [p["buy"] for p in answer.json()["predictions"]] == pytest.approx([p0 / 2, p1 / 2], rel=1e-6)


def test_recommend(served: Served) -> None:
    one = post(served, "/models/items/recommend", {"history": [{"item": "item1"}], "k": 3, "exclude": ["item2"]})
    assert one.json() == {"items": ["item0", "item3", "item4"], "scores": [1, 1 / 2, 1 / 3]}
    queries = [{"history": [{"item": "item0"}], "filter_history": False, "k": 1}, {"history": [], "k": 2}]
    several = post(served, "/models/items/recommend", {"queries": queries})
    assert [r["items"] for r in several.json()["recommendations"]] == [["item0"], ["item0", "item1"]]
    chosen = post(served, "/models/items/recommend", {"history": [], "candidates": ["item9", "item4"]})
    assert chosen.json()["items"] == ["item9", "item4"]
    wrong = post(served, "/models/items/recommend", {"history": [], "candidates": {"a": 1}})
    assert (wrong.status_code, wrong.json()["error"]) == (400, "candidates: must be a list of items")


def test_pages(served: Served) -> None:
    index = requests.get(served.url).json()
    assert [m["name"] for m in index["models"]] == ["ctr", "defect", "items", "two"]
    for model in index["models"]:
        for path in model["links"].values():
            assert requests.get(served.url + path).status_code in (200, 405)
    page = requests.get(f"{served.url}/docs")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page.text)  # needs no network
    assert "<script" not in page.text, "the page's Content-Security-Policy allows none"
    for link in re.findall(r'href="([/#][^"]*)"', page.text):
        assert f'id="{link[1:]}"' in page.text if link[0] == "#" else requests.get(served.url + link).status_code == 200
    document = requests.get(f"{served.url}/openapi.json").json()
    for path in document["paths"]:
        assert requests.get(served.url + path.replace("{model}", "ctr")).status_code in (200, 405), path
    assert requests.head(served.url).text == ""


def test_the_names_of_models(tmp_path: Path) -> None:
    """The folder of one model has two names; KServe's list has the one in the manifest."""
    fake_models.write_model(tmp_path / "art", "ctr")
    with serving(tmp_path / "art") as served:
        assert requests.get(f"{served.url}/v2/models").json() == {"models": ["ctr"]}
        for name in ("ctr", "art"):
            assert requests.get(f"{served.url}/v2/models/{name}").json()["name"] == "ctr"
            assert post(served, f"/models/{name}/predict", {"rows": [{"a": 0}]}).json() == {"predictions": [0.5]}
        assert requests.get(f"{served.url}/v2/models/other").status_code == 404
    fake_models.write_model(tmp_path / "models" / "b" / "1")
    fake_models.write_model(tmp_path / "models" / "a" / "1")
    with serving(tmp_path / "models") as served:
        assert requests.get(f"{served.url}/v2/models").json() == {"models": ["a", "b"]}
        assert requests.get(f"{served.url}/v2/models/models").status_code == 404


def test_models_that_are_named_like_the_end_of_a_path(tmp_path: Path) -> None:
    for name in ("ready", "stats"):
        fake_models.write_model(tmp_path / name / "1")
    with serving(tmp_path) as served:
        for name in ("ready", "stats"):
            assert requests.get(f"{served.url}/v2/models/{name}").json()["platform"] == "recsys"
            for path in (f"{name}/ready", f"{name}/versions/1/ready/"):
                assert requests.get(f"{served.url}/v2/models/{path}").json() == {"name": name, "ready": True}
            [found] = requests.get(f"{served.url}/v2/models/{name}/stats").json()["model_stats"]
            assert found["name"] == name


HISTORY = {"queries": [{"history": []}, {"history": [{"item": None}]}]}
LOAD, UNLOAD = "/v2/repository/models/ctr/load", "/v2/repository/models/ctr/unload"
PREDICT, RECOMMEND = "/models/ctr/predict", "/models/items/recommend"
ONE: dict[str, Any] = {"rows": [{"a": None}]}
MISTAKES: list[tuple[str, Any, int, str]] = [  # path, body, status, message
    (PREDICT, {"rows": [{"aa": 1}]}, 400, r"^rows\[0\]: model ctr reads no column aa; did you mean a\?$"),
    (RECOMMEND, {"history": [{"itm": 1}]}, 400, r"^history\[0\]: model items reads no column itm"),
    (LOAD, {"version": "2"}, 400, "^version: no such key; valid: parameters$"),
    (LOAD, {"parameters": {"versoin": "2"}}, 400, r"^parameters.versoin: no such key"),
    (LOAD, {"parameters": {"version": None}}, 400, "^parameters.version: must be a text"),
    (LOAD, {"parameters": {"version": 9}}, 400, "^model ctr: has no version 9"),
    (UNLOAD, {"version": "2"}, 400, "^version: no such key"),
    (LOAD.replace("ctr", ".."), {}, 404, ".*"),
    (LOAD.replace("ctr", "ctrr"), {}, 400, r"^model ctrr: no such model; did you mean ctr\?$"),
    (LOAD.replace("ctr", ""), {}, 404, "^no model is named"),
    (PREDICT, "{", 400, "^the body is not JSON: "),
    (PREDICT, "[" * 5000, 400, "^the body is not JSON: "),
    (PREDICT, b'{"rows": [{"a": "\xff"}]}', 400, "^the body is not JSON: "),
    (PREDICT, "[]", 400, "^the body must be a JSON object$"),
    (PREDICT, {"row": []}, 400, r"^row: no such key; did you mean rows\?$"),
    (PREDICT, {}, 400, "^rows: must be a list of JSON objects"),
    (PREDICT, {"rows": []}, 400, "^rows is empty"),
    (PREDICT, {"rows": [{}, 3]}, 400, r"^rows\[1\]: a row is a JSON object"),
    (PREDICT, {"rows": [{"a": 1}, {"a": "x"}]}, 400, r"^rows\[1\]: column a: 'x' is not a number$"),
    (PREDICT, {"rows": [{"a": [1] * 6}]}, 413, r"^rows\[0\]: column a: has 6 elements; .* at most 5$"),
    (PREDICT, {"rows": [{"a": None}] * 101}, 413, "^101 rows: this server takes at most 100"),
    (PREDICT, " " * (2**20 + 1), 413, "^the body is larger than this server's limit of 1 MiB$"),
    ("/models/ctr/recommend", {"history": []}, 400, "^model ctr scores rows; "),
    ("/models/items/predict", ONE, 400, "^model items recommends items; "),
    (RECOMMEND, HISTORY, 400, r"^queries\[1\]\.history\[0\]: column item: None is not an item$"),
    (RECOMMEND, {"history": [], "k": 0}, 400, "^k: must be a whole number from 1 to 2147483647$"),
    (RECOMMEND, {"queries": [{"history": [], "filter_history": 1}]}, 400, r"^queries\[0\].filter_history: "),
    (RECOMMEND, {"queries": [{"history": [], "exclude": [None]}]}, 400, r"^queries\[0\].exclude: "),
    (RECOMMEND, {"queries": [3]}, 400, r"^queries\[0\]: "),
    (RECOMMEND, {"queries": []}, 400, "^queries is empty"),
    (RECOMMEND, {"history": [{"item": "i"}] * 101}, 413, "^101 rows: "),
    ("/predict", ONE, 400, r"^several models are served \(ctr, defect, items, two\)"),
    ("/models/crt/predict", ONE, 404, r"^model crt: no such model; did you mean ctr\?$"),
    ("/models/ctr/versions/3/predict", ONE, 404, "^model ctr: has no version 3; valid: 1, 2$"),
    ("/v3/models", {}, 404, "^/v3/models: no such path; "),
    ("/v2/models/ctr/infre", {}, 404, "^/v2/models/ctr/infre: no such path of the open inference protocol$"),
    ("/v2/models/ctr", {}, 405, "^/v2/models/ctr: takes GET, not POST$"),
    ("/models/defect/predict", ONE, 500, "^internal error; "),
    ("/v2/models/ctr/infer", {}, 400, "^inputs must be a list of at least one input$"),
    ("/v2/models/ctr/infer", {"inputs": [3]}, 400, "^inputs: each input must be a JSON object"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), MISTAKES)
def test_mistakes(served: Served, path: str, body: Any, status: int, message: str) -> None:
    answer = post(served, path, body)
    assert re.search(message, answer.json()["error"]), answer.text
    assert answer.status_code == status and "\n" not in answer.json()["error"] and "secret" not in answer.text


INPUT = {"name": "a", "datatype": "FP64", "shape": [2], "data": [1, 2]}
BAD_INPUTS: list[tuple[dict[str, Any], str]] = [  # changes of INPUT, and the message
    ({"name": None}, "^inputs: each input needs a name, a text$"),
    ({"name": "c"}, r"^input c: model ctr has no such input"),
    ({"datatype": ["FP64"]}, "^input a: datatype .* is not one of"),
    ({"shape": []}, "^input a: shape must be a list of 1 to 8 dimensions"),
    ({"shape": [1] * 9}, "^input a: shape must be a list of 1 to 8 dimensions"),
    ({"shape": [-2]}, "^input a: the dimensions of a shape are whole numbers from 0$"),
    ({"shape": [2.0]}, "^input a: the dimensions of a shape are whole numbers from 0$"),
    ({"shape": [3, 2**62]}, "^input a: has 2 values, but shape"),
    ({"shape": [0], "data": []}, "^rows is empty; send at least one$"),
    ({"shape": [1, 2]}, r"^input a: shape \[1, 2\] is not \[rows\] or \[rows, 1\]$"),
    ({"shape": [101], "data": [0] * 101}, "^101 rows: this server takes at most 100 a request$"),
    ({"data": None}, "^input a: data must be a list$"),
    ({"data": [1, "2"]}, "^input a: FP64 does not take a value of the type str$"),
    ({"data": [[1], 2]}, "^input a: data mixes lists and values$"),
    ({"datatype": "INT8", "data": [1, 300]}, "^input a: a value is out of the range of INT8$"),
    ({"datatype": "INT64", "data": [1, 2.5]}, "^input a: INT64 does not take a value of the type float$"),
    ({"datatype": "BYTES"}, "^input a: BYTES takes texts; null or an empty text is a missing value$"),
    ({"parameters": 3}, "^parameters must be a JSON object$"),
    ({"parameters": {"binary_data_size": -8}}, "^input a: binary_data_size does not fit the 0 bytes"),
    ({"parameters": {"binary_data_size": 0}}, "^input a: has data beside binary data"),
]


@pytest.mark.parametrize(("change", "message"), BAD_INPUTS)
def test_bad_inputs(served: Served, change: dict[str, Any], message: str) -> None:
    answer = post(served, "/v2/models/ctr/infer", {"inputs": [INPUT | change]})
    assert re.search(message, answer.json()["error"]), answer.text
    assert answer.status_code in (400, 413)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"inputs": [INPUT, INPUT]}, "model ctr: an input is given twice"),
        ({"inputs": [INPUT, INPUT | {"name": "b", "shape": [1], "data": [1]}]}, "input b: has 1 rows, but a has 2"),
        ({"outputs": [{"name": "q"}]}, "output q: model ctr has no such output"),
        ({"outputs": ["p"]}, "outputs must be a list"),
        ({"parameters": {"timeout": -1}}, "timeout -1: "),
        ({"parameters": {"timeout": 1}}, "the deadline has passed"),
    ],
)
def test_bad_requests_of_the_protocol(served: Served, request_: dict[str, Any], message: str) -> None:
    answer = post(served, "/v2/models/ctr/infer", {"inputs": [INPUT]} | request_)
    assert answer.status_code in (400, 504) and answer.json()["error"].startswith(message)


def binary(head: dict[str, Any], blobs: bytes, length: str | None = None) -> tuple[bytes, dict[str, str]]:
    text = json.dumps(head).encode()
    return text + blobs, {"Inference_Header_Content_Length": str(len(text)) if length is None else length}


BYTES_INPUT = {"name": "b", "datatype": "BYTES", "shape": [2]}


@pytest.mark.parametrize(
    ("blobs", "size", "message"),
    [
        (struct.pack("<I2sI", 2, b"b7", 9), 10, "^input b: a length goes beyond the end of the data$"),
        (struct.pack("<I2sI", 2, b"b7", 0xFFFFFFFF), 10, "^input b: a length goes beyond the end of the data$"),
        (struct.pack("<I6sI", 6, b"b7b7b7", 0) + b"??", 16, "^input b: 2 bytes are left over after 2 values$"),
        (struct.pack("<I", 0), 4, "^input b: 4 bytes cannot hold 2 values with a length of 4 bytes each$"),
        (struct.pack("<I2sI", 2, b"\xff\xfe", 0), 10, "^input b: a value is not UTF-8 text$"),
        (struct.pack("<II", 0, 0) + b"?", 8, "^1 bytes are left over after the binary inputs$"),
    ],
)
def test_bad_binary_data(served: Served, blobs: bytes, size: int, message: str) -> None:
    body, headers = binary({"inputs": [BYTES_INPUT | {"parameters": {"binary_data_size": size}}]}, blobs)
    answer = post(served, "/v2/models/ctr/infer", body, **headers)
    assert answer.status_code == 400 and re.search(message, answer.json()["error"]), answer.text


@pytest.mark.parametrize("length", ["-1", "99999", ""])
def test_bad_length_of_the_header(served: Served, length: str) -> None:
    body, headers = binary({"inputs": [INPUT]}, b"", length)
    answer = post(served, "/v2/models/ctr/infer", body, **headers)
    assert answer.status_code == 400 and "Inference-Header-Content-Length: must be" in answer.json()["error"]


def test_headers(served: Served) -> None:
    rows = {"rows": [{"a": None}]}
    assert post(served, "/models/ctr/predict", rows, timeout="60000000").status_code == 200
    expired = post(served, "/models/ctr/predict", rows, timeout="1")
    assert expired.status_code == 504 and "deadline" in expired.json()["error"]
    assert post(served, "/models/ctr/predict", rows, timeout="soon").status_code == 400
    compressed = post(served, "/models/ctr/predict", b"...", Content_Encoding="br")
    message = "Content-Encoding br: send the body as gzip or deflate, or uncompressed"
    assert (compressed.status_code, compressed.json()["error"]) == (415, message)
    long = post(served, "/models/ctr/predict", rows, x_request_id="x" * 500)
    assert long.headers["x-request-id"] == "x" * 128


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(served.http, concurrency=4) as c:
        yield c


def test_triton_gets_configuration_and_statistics(client: triton.InferenceServerClient, served: Served) -> None:
    config = client.get_model_config("ctr")
    assert (config["name"], config["max_batch_size"]) == ("ctr", served.settings.max_rows)
    assert config["input"][0] | {"name": "a", "data_type": "TYPE_FP64", "dims": [1]} == config["input"][0]
    assert client.get_model_config("items", "7")["max_batch_size"] == 0  # the rows are one history
    before = statistics(client, "ctr")
    for a, status in ((1, 200), ("x", 400)):
        rows = {"rows": [{"a": a}] * 3}
        assert requests.post(f"{served.url}/models/ctr/versions/1/predict", json=rows).status_code == status
    after = statistics(client, "ctr")
    assert after["inference_count"] - before["inference_count"] == 3
    for name, n in (("success", 1), ("fail", 1), ("queue", 1), ("compute_infer", 1), ("compute_input", 1)):
        old, new = (s["inference_stats"][name] for s in (before, after))
        assert new["count"] - old["count"] == n and new["ns"] > old["ns"], name
    assert 0 <= time.time() * 1e3 - after["last_inference"] < 60_000
    for call in (client.get_model_config, client.get_inference_statistics):
        with pytest.raises(InferenceServerException, match="nosuch: no such model"):
            call("nosuch")
        with pytest.raises(InferenceServerException, match="has no version 9"):
            call("ctr", "9")


def statistics(client: triton.InferenceServerClient, name: str) -> dict[str, Any]:
    [found] = client.get_inference_statistics(name, "1")["model_stats"]
    return found


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=4), st.sampled_from(["", "b3", "é"])), min_size=1, max_size=3),
    st.integers(-1, 30),
    st.binary(max_size=3),
)
def test_the_quick_reader_of_texts_reads_as_the_other(rows: list[tuple[str, str]], cut: int, more: bytes) -> None:
    """For bodies that are cut or too long it returns nothing, or what the checked reader reads."""
    inputs, blobs = [], b""
    for i, name in enumerate(("a", "b")):
        texts = [row[i].encode() for row in rows]
        blob = b"".join(struct.pack("<I", len(t)) + t for t in texts)
        shape = [len(rows), 1] if i else [len(rows)]
        size = {"binary_data_size": len(blob)}
        inputs.append({"name": name, "datatype": "BYTES", "shape": shape, "parameters": size})
        blobs += blob
    body = b"{}" + (blobs if cut < 0 else blobs[:cut]) + more
    found = plain_columns(inputs, body, 2)
    try:
        read = parse_inputs(inputs, memoryview(body)[2:])
        wanted = to_columns(read)
    except RequestError:
        assert found is None
    else:
        assert found == (wanted, len(rows))
