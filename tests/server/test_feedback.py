"""Feedback: from the request to the folder, to the metrics of all workers and to labels, counted once; and mistakes."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import fake_models
import polars as pl
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from served import command, serving, until

from recsys.base.errors import UserError
from recsys.server.feedback import (
    EARLY_SECONDS,
    AnsweredRequest,
    AnsweredRequests,
    check_feedback,
    join_feedback,
    read_feedback,
)


def test_feedback_becomes_labels_of_the_log(tmp_path: Path) -> None:
    """Two workers: feedback goes to either, some of it twice, some for nothing that was answered."""
    fake_models.write_model(tmp_path / "ctr")
    folders = (f"sample_dir={tmp_path}/log", f"feedback={tmp_path}/feedback")
    more = ("sample=1", "feedback_wait_s=5", "workers=2", "grpc_port=null")
    with command(tmp_path / "ctr", tmp_path / "out", *folders, *more) as server:
        for n in range(40):
            body = {"rows": [{"a": n}, {"a": -n}]}
            assert (
                requests.post(f"{server.url}/predict", json=body, headers={"x-request-id": f"r{n}"}).status_code == 200
            )
        clicks = [{"id": f"r{n}", "row": 1, "click": 1} for n in range(0, 40, 2)]
        lines = [
            *clicks,
            *clicks[:5],
            {"id": "r1", "click": 0},
            {"id": "nobody", "click": 1},
            {"id": "r3", "row": 2, "click": 1},
        ]
        random.Random(0).shuffle(lines)
        for start in range(0, len(lines), 4):  # each over a new connection, so to either worker
            answer = requests.post(f"{server.url}/feedback", json={"feedback": lines[start : start + 4]})
            assert answer.json() == {"received": len(lines[start : start + 4])}

        def metric(name: str) -> float:
            page = requests.get(f"{server.url}/metrics").text
            return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(name)), 0.0)

        until(lambda: metric("recsys_click_count") == 40)
        assert metric('recsys_click_sum{model="ctr",version="1"}') == 20
        results = {r: metric(f'recsys_feedback_total{{result="{r}"}}') for r in ("counted", "duplicate", "unknown")}
        assert results == {"counted": 21, "duplicate": 5, "unknown": 2}
        server.process.terminate()
        assert server.process.wait(10) == 0
    joined = join_feedback(tmp_path / "log", tmp_path / "feedback")
    assert (joined.counted, joined.duplicates, joined.unknown) == (21, 5, 2)
    labels = {(r["request_id"], r["request_row"]): r["click"] for r in joined.rows.to_dicts()}
    assert labels == {(f"r{n}", row): int(row == 1 and n % 2 == 0) for n in range(40) for row in (0, 1)}
    assert {"a", "b", "prediction:p", "request_time"} <= set(joined.rows.columns)
    first = joined.rows["request_time"].sort()[9]
    assert join_feedback(tmp_path / "log", tmp_path / "feedback", until=first).rows["request_time"].max() <= first


BAD: list[tuple[Any, str]] = [
    ({}, "feedback: "),
    ({"feedback": []}, "pieces of feedback is empty"),
    ({"feedbak": []}, "feedbak: no such key"),
    ({"feedback": [1]}, "feedback[0]: must be a JSON object"),
    ({"feedback": [{"id": "x", "click": 1, "rows": 1}]}, "feedback[0].rows: no such key"),
    ({"feedback": [{"id": "x", "click": 1}, {"click": 1}]}, "feedback[1].id: "),
    ({"feedback": [{"id": "x" * 129, "click": 1}]}, "feedback[0].id: "),
    ({"feedback": [{"id": "x", "click": 1, "row": -1}]}, "feedback[0].row: "),
    ({"feedback": [{"id": "x", "click": "1"}]}, "feedback[0].click: "),
    ({"feedback": [{"id": "x", "click": 1, "time": "now"}]}, "feedback[0].time: "),
]


def test_mistakes_in_a_request(tmp_path: Path) -> None:
    """A request with a mistake changes nothing."""
    model, folder = fake_models.write_model(tmp_path / "ctr"), tmp_path / "feedback"
    with serving(model) as served:
        answer = requests.post(f"{served.url}/feedback", json={"feedback": [{"id": "x", "click": 1}]})
        assert answer.status_code == 404
        assert answer.json()["error"] == "this server takes no feedback; start it with feedback=FOLDER"
    with serving(model, feedback=str(folder), max_rows=3) as served:
        for body, message in BAD:
            answer = requests.post(f"{served.url}/feedback", json=body)
            assert answer.status_code == 400 and answer.json()["error"].startswith(message), answer.text
        assert requests.post(f"{served.url}/feedback", json={"feedback": [{}] * 4}).status_code == 413
        assert requests.get(f"{served.url}/feedback").status_code == 405
        assert list(folder.iterdir()) == [] and list(served.core.take_reports()) == []


def test_feedback_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fake_models.write_model(tmp_path / "ctr")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with serving(model, feedback=str(tmp_path / "feedback")) as served:
        monkeypatch.setattr("recsys.server.feedback.FeedbackLog.append", full)
        answer = requests.post(f"{served.url}/feedback", json={"feedback": [{"id": "x", "click": 1}]})
        assert answer.status_code == 503
        assert answer.json()["error"] == "feedback cannot be written (No space left on device); send it again later"
        assert list(served.core.take_reports()) == []


def test_mistakes_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    for text, message in (
        ("{\n", r"f\.jsonl:1: is not JSON \(.*\); correct or remove the line$"),
        ('\n{"id": "x"}\n', r"f\.jsonl:2: feedback\.click: must be 0 or 1$"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            list(read_feedback(file))
    file.write_text('{"id": "x", "click": 1}\n{"id": "x", "cli')  # the writer was killed
    assert len(list(read_feedback(file))) == 1
    with pytest.raises(UserError, match="nix: cannot be read as a file of JSON lines"):
        list(read_feedback(tmp_path / "nix"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: holds no Parquet files; name the sample_dir of recsys\.serve$"):
        join_feedback(tmp_path / "empty", file)


PIECES = st.lists(st.tuples(st.sampled_from("abcx"), st.integers(0, 3), st.integers(0, 1)), max_size=40)


@given(PIECES, st.randoms(use_true_random=False))
def test_feedback_counts_once_in_any_order(pieces: list[tuple[str, int, int]], shuffle: random.Random) -> None:
    """Also if it comes before the answer is reported. Request x is unknown; the others have two rows."""
    pieces = pieces + pieces[:10]
    shuffle.shuffle(pieces)
    settled: dict[str, bool] = {}
    counts: Counter[str] = Counter()
    window = AnsweredRequests(10.0, 100, lambda a: settled.update({a.request: a.clicked}), lambda r: counts.update([r]))
    answers = [AnsweredRequest(name, "ctr", "1", "", 2, 0.0) for name in "abc"]
    steps: list[Any] = [*pieces, *answers]
    shuffle.shuffle(steps)
    for step in steps:
        if isinstance(step, AnsweredRequest):
            window.add(step)
        else:
            window.feed(dict(zip(("id", "row", "click"), step, strict=True)), 0.0)
    window.poll(EARLY_SECONDS)
    window.poll(10.0)
    known = [p for p in pieces if p[0] != "x" and p[1] < 2]
    assert counts["counted"] == len(set(known)) and counts.total() == len(pieces)
    assert counts["unknown"] == len(pieces) - len(known)
    assert settled == {name: any(p[0] == name and p[2] == 1 for p in known) for name in "abc"}


@given(st.integers(1, 5), st.integers(0, 20))
def test_the_window_is_bounded(most: int, number: int) -> None:
    settled: list[str] = []
    window = AnsweredRequests(1e9, most, lambda a: settled.append(a.request), lambda _: None)
    for n in range(number):
        window.add(AnsweredRequest(f"{n}", "ctr", "1", "", 1, 0.0))
        window.feed({"id": f"later{n}", "row": 0, "click": 1}, 0.0)
    assert settled == [f"{n}" for n in range(number - most)]
    assert len(window._by_id) <= most and len(window._early) <= most


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["id", "row", "click", "time", "x"]), x),
    )
)
def test_any_json_is_checked(value: Any) -> None:
    with suppress(UserError):
        checked = check_feedback(value, "feedback[0]")
        assert json.loads(json.dumps(checked)) == checked and checked["click"] in (0, 1)


def test_an_id_that_is_used_twice_is_the_last_requests(tmp_path: Path) -> None:
    """As after a caller's second try with the same id, here with fewer rows; the server does the same."""
    rows = pl.DataFrame({"request_id": ["r1"] * 3, "request_row": [0, 1, 0], "request_time": [1.0, 1.0, 2.0]})
    rows.cast({"request_row": pl.Int32}).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "f.jsonl").write_text('{"id": "r1", "click": 0}\n{"id": "r1", "click": 1}\n')
    joined = join_feedback(tmp_path, tmp_path / "f.jsonl")
    assert joined.rows["click"].to_list() == [1] and (joined.counted, joined.duplicates) == (2, 0)
    assert joined.rows["request_time"].to_list() == [2.0]
