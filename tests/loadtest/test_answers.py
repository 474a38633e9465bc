"""Answers that are none, or other ones, count as errors; a server that never ends one costs no more than timeout_s."""

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from test_drive import MODEL, ROWS
from v2_server import Toy, serving

from recsys.base.errors import UserError
from recsys.loadtest.answers import AnswerCheck, ExpectedAnswer, problem_of
from recsys.loadtest.drive import LoadJob, Timings, drive
from recsys.loadtest.endpoint import Endpoint
from recsys.loadtest.measure_loads import prepare
from recsys.loadtest.requests import encode_binary, encode_json, encode_rows
from recsys.schema.command_schemas import LoadTestConfig


def tensor(values: list[Any], shape: list[int], name: str = "score", datatype: str = "FP32") -> bytes:
    return json.dumps({"outputs": [{"name": name, "datatype": datatype, "shape": shape, "data": values}]}).encode()


def binary(values: list[float], shape: list[int], size: int | None = None) -> bytes:
    size = 4 * len(values) if size is None else size
    output = {"name": "score", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}
    return json.dumps({"outputs": [output]}).encode() + struct.pack(f"<{len(values)}f", *values)


WRONG = [
    *(b"<html>200</html>", b"{}", b"", b"null", b'{"outputs": []}', b'{"outputs": [7]}', b"[" * 100_000, b"\xff" * 100),
    *(tensor([], [0]), tensor([0.5], [1]), tensor([0.5] * 3, [3]), tensor([0.5], [2]), tensor([0.5, None], [2])),
    *(tensor([0.5, "x"], [2]), tensor([0.5, 0.5], [2], "other"), tensor(["0.5", "0.5"], [2], datatype="BYTES")),
    *(binary([0.5, float("nan")], [2]), binary([0.5, 0.5], [2], 7), binary([0.5], [2])),
]


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_answers_that_are_none(body: bytes) -> None:
    for protocol in ("http", "rows", "grpc"):
        assert problem_of(body, ExpectedAnswer(protocol, 2, {"score": "FP32"}))
    assert AnswerCheck(ExpectedAnswer("http", 2, {"score": "FP32"})).error(0, body) == "wrong answer"


def test_right_answers() -> None:
    expected = ExpectedAnswer("http", 2, {"score": "FP32"})
    for body in (tensor([0.5, 1], [2]), binary([0.5, 1], [2]), binary([0.5, 1], [2, 1]), tensor([[0.5], [1]], [2, 1])):
        assert problem_of(body, expected) is None
    rows = ExpectedAnswer("rows", 2)
    for answer in ([0.5, 1], [[0.1, 0.2], [0.3, 0.4]], [{"a": 1, "b": 2}] * 2):
        assert problem_of(json.dumps({"predictions": answer}).encode(), rows) is None
    for answer in ([0.5], [0.5, None], [{"a": 1, "b": None}] * 2, [{"a": 1}, {}], "ab"):
        assert problem_of(json.dumps({"predictions": answer}).encode(), rows)
    lists = ExpectedAnswer("rows", 2, retrieval=True)
    own = {"items": ["a", "b"], "scores": [2.0, 1.0]}
    assert problem_of(json.dumps({"recommendations": [own, own]}).encode(), lists) is None
    assert problem_of(json.dumps(own).encode(), ExpectedAnswer("rows", 1, retrieval=True)) is None
    for wrong in ({"recommendations": [own]}, {"items": 3}, {"recommendations": [{**own, "scores": [1, None]}] * 2}):
        assert problem_of(json.dumps(wrong).encode(), lists)


def test_other_values_than_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.loadtest.answers.SAMPLE", 1)
    check, free = AnswerCheck(ExpectedAnswer("http", 2)), AnswerCheck(ExpectedAnswer("http", 2, same_values=False))
    for body, error in (
        (tensor([0.5, 0.25], [2]), None),
        (tensor([0.500001, 0.25], [2]), None),
        (tensor([0.5, 0.26], [2]), "other values"),
        (tensor([0.5, 0.25], [2]), None),
    ):
        assert check.error(0, body) == error and free.error(0, body) is None
    assert check.error(1, tensor([0.5, 0.26], [2])) is None  # another request


def run(toy: Toy, kind: str = "binary", **changes: Any) -> Timings:
    endpoint = Endpoint("127.0.0.1", toy.port)
    encode = {"binary": encode_binary, "json": encode_json, "rows": encode_rows}[kind]
    expected = ExpectedAnswer("rows" if kind == "rows" else "http", 1)
    job = {"connections": 2, "seconds": 0.3, "timeout_s": 1.0, "due": None, "begin": time.monotonic()} | changes
    return drive(LoadJob(expected.protocol, endpoint, [encode(endpoint, MODEL, ROWS)], **job, expected=expected))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["binary", "json", "rows"])
def test_every_answer_is_checked(kind: str) -> None:
    with serving(Toy(delay=0.002)) as toy:
        timings = run(toy, kind)
        assert not timings.errors and len(timings.latencies) > 20
        for body in (b"<html></html>", b"{}", b'{"predictions": []}', tensor([], [0])):
            toy.answer = body
            timings = run(toy, kind)
            assert timings.errors.keys() == {"wrong answer"} and not len(timings.latencies)


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("raw", "kinds"),
    [
        (HEAD + b"content-length: 9999999999\r\n\r\n{", {"timeout"}),
        (HEAD + b"content-length: 99999999999999999999999999\r\n\r\n{", {"connection"}),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", {"timeout"}),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"100000\r\n" + bytes(1 << 20) + b"\r\n", {"timeout"}),
        (HEAD + b"x: " + b"y" * 100_000, {"timeout", "connection"}),
    ],
    ids=range(5),
)
def test_answers_that_do_not_end(raw: bytes, kinds: set[str]) -> None:
    with serving(Toy(raw=raw)) as toy:
        started = time.monotonic()
        timings = run(toy, timeout_s=0.3)
    assert timings.errors.keys() <= kinds and timings.errors and not len(timings.latencies)
    assert time.monotonic() - started < 5


def test_two_answers_to_one_request_are_not_taken_for_that_to_the_next() -> None:
    answer = HEAD + b"content-length: 2\r\n\r\n{}"
    with serving(Toy(raw=answer + answer)) as toy:
        timings = run(toy, connections=1)
    assert timings.errors.keys() == {"wrong answer", "connection"}


def test_the_first_answer_ends_the_command_if_it_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("name,price\na,1\n")
    with serving(Toy(answer=b"<html>hello</html>")) as toy:
        for protocol in ("http", "rows"):
            given = {"target": f"127.0.0.1:{toy.port}", "rows": str(tmp_path / "r.csv"), "batch_sizes": [1]}
            config = LoadTestConfig(**given, concurrency=[1], protocol=protocol)
            with pytest.raises(UserError, match=r"answer to a request with batch size 1 is wrong: .*<html>hello"):
                prepare(config)
