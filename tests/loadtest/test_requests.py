"""Raw rows as requests, read back with Triton's own client, and every mistake in rows."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from recsys.base.errors import UserError
from recsys.loadtest.encode_tensors import (
    InputSpec,
    check_batch_sizes,
    check_rows,
    make_tensors,
    missing_numbers,
    read_rows,
)
from recsys.loadtest.endpoint import Endpoint, TargetModel, parse_target
from recsys.loadtest.requests import encode_binary, encode_grpc, encode_json, encode_rows, make_requests

SPECS = (
    InputSpec("text", "BYTES", (-1, 1)),
    InputSpec("whole", "INT64", (-1,)),
    InputSpec("small", "INT32", (-1, 1)),
    InputSpec("real", "FP64", (-1, 1)),
    InputSpec("single", "FP32", (-1, 1)),
    InputSpec("flag", "BOOL", (-1,)),
)
ROW = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(),
        "whole": st.integers(-(2**63), 2**63 - 1),
        "small": st.integers(-(2**31), 2**31 - 1),
        "real": st.none() | st.floats(allow_nan=False),
        "single": st.none() | st.floats(width=32, allow_nan=False),
        "flag": st.booleans(),
    }
)
ENDPOINT = Endpoint("127.0.0.1", 8000, token="secret")
MODEL = TargetModel("a b", "3", SPECS)


@given(st.lists(ROW, min_size=1, max_size=5))
def test_binary_requests_are_what_triton_reads(rows: list[dict[str, object]]) -> None:
    head, _, body = encode_binary(ENDPOINT, MODEL, rows).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines[1:])
    assert lines[0] == "POST /v2/models/a%20b/versions/3/infer HTTP/1.1" and headers["authorization"] == "Bearer secret"
    assert int(headers["content-length"]) == len(body)
    size = int(headers["inference-header-content-length"])
    described = json.loads(body[:size])
    assert described["parameters"] == {"binary_data_output": True}
    check_tensors(described["inputs"], body[size:], rows)
    message = ModelInferRequest.FromString(encode_grpc(MODEL, rows))
    assert b"".join(message.raw_input_contents) == body[size:]
    assert [list(i.shape) for i in message.inputs] == [i["shape"] for i in described["inputs"]]
    assert (message.model_name, message.model_version) == ("a b", "3")


def check_tensors(inputs: list[dict[str, object]], blob: bytes, rows: list[dict[str, object]]) -> None:
    types = {"INT64": "<i8", "INT32": "<i4", "FP64": "<f8", "FP32": "<f4", "BOOL": "?"}
    for spec, item in zip(SPECS, inputs, strict=True):
        size = item["parameters"]["binary_data_size"]
        part, blob = blob[:size], blob[size:]
        assert item["shape"] == ([len(rows), 1] if len(spec.shape) == 2 else [len(rows)])
        if spec.datatype == "BYTES":
            expected = [(row[spec.name] or "").encode() for row in rows]
            assert list(deserialize_bytes_tensor(part)) == expected
            assert part == serialize_byte_tensor(np.array(expected, dtype=object)).item()
        else:
            expected = [np.nan if row[spec.name] is None else row[spec.name] for row in rows]
            assert np.array_equal(
                np.frombuffer(part, types[spec.datatype]), np.array(expected, types[spec.datatype]), True
            )
    assert not blob


@given(st.lists(ROW, min_size=1, max_size=5))
def test_json_requests(rows: list[dict[str, object]]) -> None:
    """JSON has neither NaN nor infinities."""
    rows = [{k: 1.5 if v in (float("inf"), float("-inf")) else v for k, v in row.items()} for row in rows]
    inputs = json.loads(encode_json(ENDPOINT, MODEL, rows).partition(b"\r\n\r\n")[2])["inputs"]
    by_name = {i["name"]: i["data"] for i in inputs}
    assert by_name["text"] == [row["text"] or "" for row in rows] and by_name["flag"] == [row["flag"] for row in rows]
    assert by_name["real"] == [0.0 if row["real"] is None else row["real"] for row in rows]


def test_rows_for_people() -> None:
    rows = [{"a": None, "b": 1}]
    for model, path in (
        (TargetModel(None, None, ()), "/predict"),
        (TargetModel("m", "2", ()), "/models/m/versions/2/predict"),
    ):
        head, _, body = encode_rows(ENDPOINT, model, rows).partition(b"\r\n\r\n")
        assert head.startswith(f"POST {path} HTTP/1.1\r\n".encode()) and json.loads(body) == {"rows": rows}


def test_texts_of_a_csv_become_numbers() -> None:
    rows = [dict.fromkeys(("whole", "small"), "7") | {"text": "x", "real": "", "single": "1e3", "flag": "False"}]
    assert [t.values[0] for t in make_tensors(SPECS, rows)][1:3] == [7, 7]
    assert np.isnan(make_tensors(SPECS, rows)[3].values[0])
    assert [t.values[0] for t in make_tensors(SPECS, rows)][4:] == [1000.0, False]


def test_lists_fill_wide_inputs() -> None:
    specs = (InputSpec("ids", "INT32", (-1, 3)), InputSpec("history", "INT32", (-1, -1)))
    rows = [{"ids": [1, 2, 3], "history": [1, 2]}, {"ids": (4, 5, 6), "history": [3, 4]}]
    assert [(t.shape, t.values) for t in make_tensors(specs, rows)] == [
        ((2, 3), [1, 2, 3, 4, 5, 6]),
        ((2, 2), [1, 2, 3, 4]),
    ]


@pytest.mark.parametrize(
    ("count", "size", "distinct"), [(10, 1, 10), (10, 4, 5), (10, 10, 1), (3, 8, 3), (2000, 1, 512)]
)
def test_requests_go_through_all_rows(count: int, size: int, distinct: int) -> None:
    rows = [{"i": i} for i in range(count)]
    requests = make_requests(rows, size, lambda part: repr([row["i"] for row in part]).encode())
    assert len(requests) == len(set(requests)) == distinct
    sent = [i for r in requests for i in eval(r)]
    assert sent == [i % count for i in range(len(sent))] and all(len(eval(r)) == size for r in requests)


def test_missing_whole_numbers_are_counted() -> None:
    rows = [{"whole": None, "real": None}, {"whole": "", "real": 1.0}]
    specs = (SPECS[1], SPECS[3])
    assert missing_numbers(specs, rows, in_json=False) == {"whole": 2}
    assert missing_numbers(specs, rows, in_json=True) == {"whole": 2, "real": 1}


@pytest.mark.parametrize(
    ("spec", "row", "message"),
    [
        (SPECS[1], {"whole": "seven"}, "rows: column whole: 'seven' is not a value of the type INT64"),
        (SPECS[5], {"flag": "maybe"}, "rows: column flag: 'maybe' is not a value of the type BOOL"),
        (SPECS[0], {"text": ["a", "b"]}, "rows: column text: a row has 2 values, and the request needs 1 in each row"),
    ],
)
def test_values_that_do_not_fit(spec: InputSpec, row: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_tensors([spec], [row])
    assert str(caught.value) == message


def test_inputs_that_do_not_fit() -> None:
    for spec, message in (
        (SPECS[0], "rows: no column text, which is an input of the model m; did you mean texts?"),
        (InputSpec("a", "BF16", (-1,)), "input a of the model m: the type BF16 is not supported"),
        (InputSpec("a", "FP32", (3, 2)), "input a of the model m: the shape [3, 2] has no rows"),
    ):
        with pytest.raises(UserError) as caught:
            check_rows([spec], [{"texts": 1, "a": 1}], "m")
        assert str(caught.value) == message
    with pytest.raises(UserError, match=r"input a of the model m has the shape \[1\], which is one row; use batch_"):
        check_batch_sizes([InputSpec("a", "FP32", (1,))], [1, 8], "m")


def test_files_of_rows(tmp_path: Path) -> None:
    rows = [{"a": "x", "b": 1}, {"a": None, "b": 2}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + "\n")
    (tmp_path / "r.csv").write_text("a,b\nx,1\n,2\n")
    pl.DataFrame(rows).write_parquet(tmp_path / "r.parquet")
    (tmp_path / "examples.json").write_text(json.dumps({"rows": rows, "outputs": {}}))
    assert read_rows(tmp_path / "r.jsonl") == read_rows(tmp_path / "r.parquet") == read_rows(tmp_path) == rows
    assert read_rows(tmp_path / "r.csv") == [{"a": "x", "b": "1"}, {"a": "", "b": "2"}]
    (tmp_path / "examples.json").write_text(json.dumps({"rows": [rows, rows[:1]]}))  # histories of queries
    assert read_rows(tmp_path) == [*rows, rows[0]]


def test_targets() -> None:
    assert parse_target("http://h:9", "http") == parse_target("h:9", "http") == Endpoint("h", 9)
    assert parse_target("https://h", "http") == Endpoint("h", 443, tls=True)
    assert parse_target("grpc://[::1]", "grpc").address == "[::1]:8001"
    for target in ("ftp://h", "http://", "http://h:x", "http://h/v2"):
        with pytest.raises(UserError, match=r"is not an address; name a server, such as target=http://127.0.0.1:8000"):
            parse_target(target, "http")
    with pytest.raises(UserError, match="is a gRPC address; add protocol=grpc"):
        parse_target("grpc://h:1", "http")
