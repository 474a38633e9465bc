"""Metrics of the server, and the sample of requests in Parquet files."""

from __future__ import annotations

import json
import math
import queue
import shutil
import time
from pathlib import Path

import fake_models
import numpy as np
import polars as pl
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from served import Served, serving

from recsys.online.servable import Query
from recsys.server.call import Call
from recsys.server.payloads import QueriesPayload, RowsPayload, TensorsPayload
from recsys.server.request_log import RequestLog


def metrics(served: Served, name: str, **labels: str) -> float:
    """Return the sum of the samples with these labels."""
    families = text_string_to_metric_families(requests.get(f"{served.url}/metrics").text)
    samples = [s for f in families for s in f.samples if s.name == name]
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


def predict(served: Served, rows: list[dict[str, object]], model: str = "counted") -> requests.Response:
    return requests.post(f"{served.url}/models/{model}/predict", json={"rows": rows})


def test_counts_and_histograms(tmp_path: Path) -> None:
    """The model has a name of its own: metrics of a process are shared by its servers."""
    with serving(fake_models.write_model(tmp_path / "m", name="counted")) as served:
        for n in (1, 2, 3):
            assert predict(served, [{"a": 0}] * n).status_code == 200
        assert predict(served, [{"a": "x"}]).status_code == 400
        of = {"model": "counted", "version": "1"}
        assert metrics(served, "recsys_requests_total", **of, protocol="json", status="200") == 3
        assert metrics(served, "recsys_requests_total", **of, status="400") == 1
        for part in ("parse", "queue", "total"):
            count = metrics(served, "recsys_seconds_count", **of, part=part)
            assert count == (4 if part == "total" else 3), part
        assert metrics(served, "recsys_seconds_count", **of, part="features") == 3
        assert metrics(served, "recsys_batch_rows_sum", **of) == 7  # the batch that failed included
        assert metrics(served, "recsys_rows_total", **of) == 6  # without the row that cannot be read
        assert metrics(served, "recsys_queue_rows", **of) == 0
        assert metrics(served, "recsys_reloads_total", result="ok", model="counted") == 1


def test_shares_of_unknown_ids_and_predictions_of_samples(tmp_path: Path) -> None:
    with serving(fake_models.write_model(tmp_path / "m", name="sampled", seconds=0.02)) as served:
        of = {"model": "sampled", "version": "1"}
        for _ in range(12):
            predict(served, [{"b": "b5"}, {}, {}, {}], "sampled")
            time.sleep(0.03)
        batches = metrics(served, "recsys_unknown_share_count", **of, column="b")
        assert 2 <= batches < 12  # a sample
        assert metrics(served, "recsys_unknown_share_sum", **of) == pytest.approx(0.75 * batches)
        assert metrics(served, "recsys_prediction_count", **of, output="p") == 4 * batches
        assert metrics(served, "recsys_prediction_bucket", **of, le="0.5") == 3 * batches


def record(log: RequestLog, rows: list[dict[str, object]], p: list[float]) -> None:
    class LoadedVersion:
        name, version, servable = "ctr", "3", fake_models.Scorer("ctr", "3")

    call = Call("json", "mine")
    call.loaded = LoadedVersion()  # type: ignore[assignment]
    log.offer(call, RowsPayload(rows), {"p": np.array(p, np.float32)})  # type: ignore[arg-type]


def test_the_log_of_samples(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, 1.0, file_rows=4)
    record(log, [{"a": 1, "b": "b7"}, {"a": "x", "b": None}], [0.25, 0.5])
    for _ in range(3):
        record(log, [{"a": 1.5, "list": [1, 2]}], [0.75])
    log.close()
    files = sorted(tmp_path.glob("*.parquet"))
    assert len(files) == 2 and all(f.name.startswith("ctr-3-") for f in files)
    frame = pl.read_parquet(tmp_path / "*.parquet")  # all files have the same columns
    assert sorted(pl.read_parquet(f).height for f in files) == [1, 4]
    assert frame["a"].to_list() == ["1", "x", "1.5", "1.5", "1.5"]
    assert frame["b"].to_list() == ["b7", None, None, None, None]
    assert frame["other_columns"].to_list() == [None, None, *['{"list":[1,2]}'] * 3]
    assert frame["prediction:p"].to_list() == [0.25, 0.5, 0.75, 0.75, 0.75]
    assert frame["request_row"].to_list() == [0, 1, 0, 0, 0] and set(frame["request_id"]) == {"mine"}
    assert not list(tmp_path.glob(".*"))


def test_the_log_of_samples_drops_rather_than_waits(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, 1.0)
    log._queue = queue.Queue(2)  # nobody reads this one
    started = time.monotonic()
    for _ in range(10):
        record(log, [{}], [0.5])
    assert time.monotonic() - started < 2
    assert log.take_dropped() == 8 and log.take_dropped() == 0
    log.offer(Call("v2"), TensorsPayload({}, 1), {})
    assert log.take_dropped() == 0


def test_a_share_of_the_requests_is_written(tmp_path: Path) -> None:
    folder, share, requests_ = tmp_path / "samples", 0.2, 300
    with (
        serving(
            fake_models.write_model(tmp_path / "m", name="counted"), sample=share, sample_dir=str(folder)
        ) as served,
        requests.Session() as session,
    ):
        for n in range(requests_):
            session.post(f"{served.url}/predict", json={"rows": [{"a": n}]})
    written = pl.concat([pl.read_parquet(f) for f in folder.glob("*.parquet")])
    spread = 4 * math.sqrt(requests_ * share * (1 - share))
    assert abs(written.height - share * requests_) < spread
    a = written["a"].cast(pl.Float64).to_numpy()
    np.testing.assert_allclose(written["prediction:p"], 1 / (1 + np.exp(-a)), rtol=1e-5)


def test_recommendations_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    model = fake_models.write_model(tmp_path / "m", kind="retrieval", name="items")
    with serving(model, sample=1.0, sample_dir=str(folder)) as served:
        requests.post(f"{served.url}/recommend", json={"history": [{"item": "item0"}], "k": 2})
    [row] = pl.read_parquet(next(folder.glob("*.parquet"))).to_dicts()
    assert (row["history"], row["items"], row["scores"]) == ('[{"item":"item0"}]', ["item1", "item2"], [1.0, 0.5])


def offered(log: RequestLog, queries: list[Query], lists: list[tuple[list[object], ...]], name: str = "shop") -> None:
    class LoadedVersion:
        version, servable = "1", fake_models.Recommender("shop", "1")

    LoadedVersion.name = name  # type: ignore[attr-defined]
    call = Call("json", "mine")
    call.loaded = LoadedVersion()  # type: ignore[assignment]
    log.offer(call, QueriesPayload(queries), lists)


def test_samples_of_a_pipeline_have_context_and_propensities(tmp_path: Path) -> None:
    """With and without exploration: off-policy evaluation needs both."""
    log = RequestLog(tmp_path, 1.0)
    queries = [Query([], context={"user": "u1", "time": 7}), Query([{"item": "i1"}])]
    offered(log, queries, [(["i2", "i3"], [0.5, 0.25], [0.9, 0.05]), ([], [], [])])
    offered(log, queries[:1], [(["i2"], [0.5])])
    log.close()
    frame = pl.read_parquet(tmp_path / "*.parquet")
    assert frame["context"].to_list() == ['{"user":"u1","time":7}', None, '{"user":"u1","time":7}']
    assert frame["items"].to_list() == [["i2", "i3"], [], ["i2"]]
    assert frame["scores"].to_list() == [[0.5, 0.25], [], [0.5]]
    assert frame["propensities"].to_list() == [[0.9, 0.05], None, None]
    assert frame["request_row"].to_list() == [0, 1, 0] and log.take_dropped() == 0


def test_samples_that_are_lost_are_said_once_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RequestLog(tmp_path / "log", 1.0)
    for _ in range(50):
        offered(log, [Query([])], [])  # a list is missing
    shutil.rmtree(tmp_path / "log")
    for _ in range(7):
        record(log, [{}, {}], [0.5, 0.5])
    log.close()
    lines = [json.loads(x) for x in capsys.readouterr().err.splitlines() if '"request log"' in x]
    assert 1 <= len(lines) <= 2 and sum(x["lost_requests"] for x in lines) in (51, 57)
    assert "ValueError" in lines[0]["error"] and "traceback" not in lines[0]
    assert log.take_dropped() in (51, 57)  # the seven have one id


def test_files_of_samples_stay_apart_when_clocks_and_process_ids_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose worker has the same id after each start, when its clock is set back."""
    monkeypatch.setattr(time, "time", lambda: 1e9)
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101T000000")
    for _ in range(3):
        log = RequestLog(tmp_path, 1.0)
        record(log, [{"a": 1}], [0.25])
        offered(log, [Query([])], [([], [])], name="../../evil")
        log.close()
    assert len(list(tmp_path.glob("ctr-3-*.parquet"))) == 3 and len(list(tmp_path.glob("*.parquet"))) == 6
    assert not list(tmp_path.parent.glob("evil*"))


def test_much_text_is_written_before_a_file_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.server.request_log.FILE_BYTES", 1000)
    log = RequestLog(tmp_path, 1.0)
    for _ in range(3):
        record(log, [{"b": "b" * 1200}], [0.5])
    log.close()
    assert len(list(tmp_path.glob("*.parquet"))) == 3
