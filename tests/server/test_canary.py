"""Canaries: which requests are compared, when one is rolled back or passes, over several workers, and mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_models
import numpy as np
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from served import Command, command, serving, until

from recsys.base.errors import UserError
from recsys.files.atomic import write_json
from recsys.files.model_folder import GuardSettings
from recsys.server.answer_hub import AnswerHub, KpiTest
from recsys.server.call import Call
from recsys.server.canary_guard import CanaryGuard
from recsys.server.model_versions import Choice, Repository
from recsys.server.prometheus import Metrics
from recsys.server.served_models import ServedModel

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "serving"))

import canaries

CANARY = {"version": "2", "share": 0.25}
SOON = {"min_requests": 200, "min_seconds": 0, "metrics": ["errors", "score", "click"]}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for version in ("1", "2"):
        fake_models.write_model(tmp_path / "models" / "ctr" / version)
    choose(tmp_path / "models", canary=CANARY)
    return tmp_path / "models"


def choose(models: Path, **content: object) -> None:
    write_json(models / "ctr" / "serving.json", {"version": "1"} | content)


def history(models: Path) -> list[dict[str, Any]]:
    file = models / "ctr" / "history.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Hub:
    """The supervisor's side alone, with made-up reports."""

    def __init__(self, models: Path, **settings: Any) -> None:
        self.metrics, self.reloads, self._ids = Metrics(), 0, 0
        options: dict[str, Any] = {"feedback": False, "wait": 60.0, "most": 1000} | settings
        self.hub = AnswerHub(Repository(models), reload=self._reload, metrics=lambda: self.metrics, **options)

    def _reload(self) -> None:
        self.reloads += 1

    def answer(self, is_canary: bool, failed: bool = False, seconds: float = 0.01, score: float | None = 0.5) -> str:
        self._ids += 1
        role, version = ("canary", "2") if is_canary else ("baseline", "1")
        entry = ["ctr", version, role, f"r{self._ids}", 1, seconds, 500 if failed else 200, score]
        self.hub.take(json.dumps({"answers": [entry]}).encode())
        return f"r{self._ids}"

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def test_the_baseline_is_as_large_as_the_canary_and_of_other_keys() -> None:
    versions: Any = {"1": "first", "2": "second"}
    model = ServedModel("ctr", Choice({}, "1", "2", 0.2, guard=GuardSettings()), versions)
    chosen = [model.choose(lambda n=n: f"user{n}".encode()) for n in range(5000)]  # type: ignore[misc]
    canaries = {n for n, (_, role) in enumerate(chosen) if role == "canary"}
    baseline = {n for n, (_, role) in enumerate(chosen) if role == "baseline"}
    assert 900 <= len(canaries) <= 1100 and 900 <= len(baseline) <= 1100  # 1000 +- 3.5 standard deviations
    assert {v for v, role in chosen if role == "canary"} == {"second"}
    assert {v for v, role in chosen if role != "canary"} == {"first"}
    larger = replace(model, choice=replace(model.choice, share=0.4))
    assert all(larger.choose(lambda n=n: f"user{n}".encode())[1] == "canary" for n in canaries)  # type: ignore[misc]
    unguarded = replace(model, choice=replace(model.choice, guard=None))
    assert {unguarded.choose(lambda n=n: f"user{n}".encode())[1] for n in range(99)} == {""}  # type: ignore[misc]


def no_margin(*metrics: str, **more: Any) -> GuardSettings:
    return GuardSettings(metrics=list(metrics), margins=dict.fromkeys(metrics, 0.0), **more)


def guarded(settings: GuardSettings, draw: Callable[[bool], tuple[bool, float, float]], pairs: int) -> CanaryGuard:
    guard = CanaryGuard(settings, feedback=False)
    for i in range(pairs):
        for is_canary in (False, True):
            failed, seconds, score = draw(is_canary)
            guard.answered(is_canary, 500 if failed else 200, seconds, score, now=i / 50)
        if guard.why:
            break
    return guard


RANDOM = np.random.default_rng(0)
WORSE = [
    ("errors", lambda c: (bool(RANDOM.random() < (0.2 if c else 0.01)), 0.01, RANDOM.random()), "share of failed"),
    ("latency", lambda c: (False, RANDOM.random() * (2.5 if c else 1), RANDOM.random()), "share of slow requests"),
    ("latency", lambda c: (False, 9 if c and RANDOM.random() < 0.4 else RANDOM.random(), 0), "share of very slow"),
    ("score", lambda c: (False, 0.01, RANDOM.random() + (0.4 if c else 0)), "scores are higher"),
    ("score", lambda c: (False, 0.01, RANDOM.random() - (0.4 if c else 0)), "scores are lower"),
    ("score", lambda c: (False, 0.01, 0.5 if c else RANDOM.random()), "scores are nearer to the middle"),
    ("score", lambda c: (False, 0.01, RANDOM.choice([0.0, 1.0]) if c else RANDOM.random()), "scores are farther"),
]


@pytest.mark.parametrize(("metric", "draw", "why"), WORSE)
def test_what_a_canary_is_rolled_back_for(metric: str, draw: Any, why: str) -> None:
    guard = guarded(GuardSettings(), draw, 3000)
    assert guard.metric == metric and why in guard.why and guard.requests[True] < 3000
    assert not guard.has_passed(1e9)


def test_a_canary_that_is_alike_passes_once_there_was_enough_traffic() -> None:
    draw = lambda _: (bool(RANDOM.random() < 0.01), RANDOM.random(), RANDOM.random())  # noqa: E731
    settings = GuardSettings(min_requests=500, min_seconds=60, metrics=["errors", "score"])
    guard = guarded(settings, draw, 499)
    assert not guard.why and not guard.has_passed(1e9)  # too few requests
    guard = guarded(settings, draw, 500)
    assert not guard.has_passed(59.0) and guard.has_passed(60.0)
    few = GuardSettings(min_requests=1, min_seconds=0, metrics=["errors", "click"])
    clicks = CanaryGuard(few, feedback=True)
    for is_canary in (True, False):
        clicks.answered(is_canary, 200, 0.1, 0.5, 0.0)
    assert not clicks.has_passed(9.0)  # no click could have come yet
    clicks.clicked(True, False)
    clicks.clicked(False, False)
    assert clicks.has_passed(9.0)


def test_a_canary_passes_only_once_its_latencies_could_have_been_found_worse() -> None:
    guard = CanaryGuard(GuardSettings(min_requests=40, min_seconds=0), feedback=False)
    passed = []
    for i in range(1000):
        for is_canary in (False, True):
            guard.answered(is_canary, 200, 0.01, 0.5, i / 10)
        passed.append(guard.has_passed(i / 10))
    assert passed.index(True) == 140  # 20 requests of each without a threshold, and 11 blocks of 11 requests of each


def test_a_request_that_is_late_is_slow_not_failed() -> None:
    """A crowded machine makes one version's requests time out for a while, as it makes them slow."""
    for metrics, metric in ((["errors", "latency"], "latency"), (["errors"], "errors")):
        guard = CanaryGuard(GuardSettings(metrics=metrics), feedback=False)
        for i in range(3000):
            guard.answered(False, 200, 0.01, 0.5, i / 50)
            guard.answered(True, 504 if i > 1000 else 200, 0.01, 0.5, i / 50)
        assert guard.metric == metric


def test_an_outage_of_both_versions_is_no_alarm() -> None:
    """Whatever both need fails for a while; then the numbers of their requests differ by chance."""
    alarms = 0
    for _ in range(30):
        guard = CanaryGuard(GuardSettings(), feedback=False)
        for i in range(2000):
            guard.answered(bool(RANDOM.random() < 0.5), 500 if i % 500 > 400 else 200, 0.01, 0.5, i / 50)
        alarms += bool(guard.why)
    assert alarms == 0


def test_a_rollback_rewrites_the_file_and_is_said_once(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    choose(models, canary=CANARY, shadow="2", kpi={"click": 0.1})
    hub = Hub(models)
    for _ in range(30):
        hub.answer(False)
        hub.answer(True, failed=True)
    alias = json.loads((models / "ctr" / "serving.json").read_text())
    assert alias == {"version": "1", "shadow": "2", "kpi": {"click": 0.1}} and hub.reloads == 1
    [event] = history(models)
    assert (event["event"], event["version"], event["current"], event["metric"]) == ("rolled_back", "2", "1", "errors")
    assert event["requests"] == 11 and event["time"].endswith("Z")
    assert re.match(
        r"errors: its share of failed requests is larger by 1, at least 0\.0\d*, more than 0\.01, after 11 blocks$",
        event["why"],
    )
    [line] = capfd.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "rolled_back" and json.loads(line)["level"] == "warning"
    assert hub.value("recsys_events_total", model="ctr", version="2", event="rolled_back") == 1
    choose(models, canary=CANARY)  # the same canary again is compared anew
    hub.hub.poll()
    for _ in range(30):
        hub.answer(False)
        hub.answer(True, failed=True)
    assert len(history(models)) == 2


def test_the_version_that_answered_is_kept_where_the_file_names_none(models: Path) -> None:
    """Otherwise the highest version would answer next."""
    fake_models.write_model(models / "ctr" / "0")
    write_json(models / "ctr" / "serving.json", {"canary": {"version": "1", "share": 0.5}})
    assert Repository(models).end_canary("ctr", "0", "2") is False
    assert Repository(models).end_canary("ctr", "1", "2") is True
    assert json.loads((models / "ctr" / "serving.json").read_text()) == {"version": "2"}


def test_a_canary_passes_once_also_after_a_restart(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    choose(models, canary=CANARY | {"guard": SOON})
    for _ in range(2):  # supervisors
        hub = Hub(models)
        for _ in range(200):
            hub.answer(True)
            hub.answer(False)
        hub.hub.poll()
        hub.hub.poll()
    [event] = history(models)
    assert (event["event"], event["requests"], event["baseline_requests"]) == ("canary_passed", 200, 200)
    choose(models, canary=CANARY | {"guard": SOON | {"min_requests": 100}})  # another test
    hub.hub.poll()
    for _ in range(100):
        hub.answer(True)
        hub.answer(False)
    hub.hub.poll()
    assert [e["event"] for e in history(models)] == ["canary_passed"] * 2
    for _ in range(30):  # it is watched further
        hub.answer(True, failed=True)
        hub.answer(False)
    assert history(models)[-1]["event"] == "rolled_back"
    assert "raceback" not in capfd.readouterr().err


def test_guard_false_compares_nothing(models: Path) -> None:
    choose(models, canary=CANARY | {"guard": False})
    assert Repository(models).choice("ctr").guard is None
    hub = Hub(models)
    for _ in range(50):
        hub.answer(True, failed=True)
        hub.answer(False)
    assert history(models) == []


def test_a_canary_with_fewer_clicks_is_rolled_back(models: Path) -> None:
    hub = Hub(models, feedback=True, wait=0.0)
    for _ in range(3000):
        for is_canary, rate in ((True, 0.02), (False, 0.1)):
            request = hub.answer(is_canary)
            if RANDOM.random() < rate:
                hub.hub.take(json.dumps({"feedback": [{"id": request, "row": 0, "click": 1}]}).encode())
            hub.hub.poll()
    [event] = history(models)
    assert event["metric"] == "click" and "its click rate is lower by 0.0" in event["why"]


@pytest.mark.slow
def test_false_alarms_over_all_metrics() -> None:
    """Without a difference and without margins, in 150 runs of 800 pairs: at most 5 %, and three standard errors."""
    settings = no_margin("errors", "latency", "score")
    draw = lambda _: (bool(RANDOM.random() < 0.05), RANDOM.random(), RANDOM.random())  # noqa: E731
    alarms = sum(bool(guarded(settings, draw, 800).why) for _ in range(150))
    assert alarms <= 150 * 0.05 + 3 * (150 * 0.05 * 0.95) ** 0.5


@pytest.mark.few(2)
@pytest.mark.parametrize("crowd", canaries.CROWDS)
def test_latencies_that_depend_on_each_other(crowd: str) -> None:
    """Equal versions, latency alone and no margin, watched for 40 s: at most 5 %, and three standard errors.

    Canaries that are three times as slow are found nonetheless, with a margin, as one of four metrics.
    """
    runs, random = 80, np.random.default_rng(0)
    alike = no_margin("latency", min_requests=100)
    draws = [canaries.latencies(crowd, 40, 40, 1.0, random) for _ in range(runs)]
    alarms = sum(canaries.seconds_until_alarm(alike, draw) is not None for draw in draws)
    assert alarms <= runs * 0.05 + 3 * (runs * 0.05 * 0.95) ** 0.5
    draws = [canaries.latencies(crowd, 40, 120, 3.0, random) for _ in range(10)]
    found = sum(canaries.seconds_until_alarm(GuardSettings(min_requests=100), draw) is not None for draw in draws)
    assert found >= 9


def test_a_rate_below_its_threshold_is_an_event_once_a_crossing(models: Path) -> None:
    choose(models, kpi={"click": 0.1})
    hub = Hub(models, feedback=True, wait=0.0)

    def answer(rate: float, number: int) -> None:
        for i in range(number):
            request = hub.answer(False)
            if i * 37 % 100 < rate * 100:
                hub.hub.take(json.dumps({"feedback": [{"id": request, "row": 0, "click": 1}]}).encode())
            hub.hub.poll()

    answer(0.15, 2000)
    assert history(models) == []
    answer(0.02, 2000)
    assert [(e["event"], e["kpi"], e["threshold"]) for e in history(models)] == [("kpi_below", "click", 0.1)]
    assert history(models)[0]["rate"] < 0.1
    answer(0.3, 1000)
    answer(0.02, 2000)
    assert len(history(models)) == 2
    clicks, number = (hub.value(f"recsys_click_{s}", model="ctr", version="1") for s in ("sum", "count"))
    assert number == 7000 and clicks == 2000 * 0.15 + 4000 * 0.02 + 1000 * 0.3


def test_a_rate_at_its_threshold_is_no_event() -> None:
    kpi = KpiTest(0.1)
    assert not any(kpi.update(bool(RANDOM.random() < 0.11)) for _ in range(20_000))


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([200, 400, 504]), st.floats(0, 10), st.none() | st.floats(-1e9, 1e9))
    )
)
def test_a_guard_takes_any_numbers(answers: list[tuple[bool, int, float, float | None]]) -> None:
    guard = CanaryGuard(GuardSettings(min_requests=1, min_seconds=0), feedback=False)
    for is_canary, status, seconds, score in answers:
        guard.answered(is_canary, status, seconds, score, 0.0)
    assert sum(guard.requests.values()) == len(answers)
    assert bool(guard.why) == bool(guard.metric)


MISTAKES = [
    ({"canary": CANARY | {"guard": {"alfa": 0.1}}}, r"canary\.guard\.alfa: .*alpha"),
    ({"canary": CANARY | {"guard": {"alpha": 0}}}, r"canary\.guard\.alpha=0: "),
    ({"canary": CANARY | {"guard": {"metrics": ["errors"], "margins": {"click": 0}}}}, "margins: click"),
    ({"canary": CANARY | {"gard": False}}, r"canary\.gard: .*guard"),
    ({"kpi": {"click": 2}}, r"kpi\.click=2: "),
]


@pytest.mark.parametrize(("content", "message"), MISTAKES)
def test_mistakes_in_a_guard(models: Path, content: dict[str, Any], message: str) -> None:
    choose(models, **content)
    with pytest.raises(UserError, match=rf"^{re.escape(str(models))}/ctr/serving\.json: .*{message}"):
        Repository(models).choice("ctr")


def ask(server: Command, stop: Callable[[], bool], keys: int = 10**9) -> list[tuple[str, int]]:
    """Send requests with other routing keys over four connections, and return version and status of each."""
    found: list[tuple[str, int]] = []

    def send(start: int) -> None:
        with requests.Session() as session:
            for n in range(start, keys, 4):
                if stop():
                    return
                headers = {"x-routing-key": f"user{n}", "connection": "close" if n % 50 < 4 else "keep-alive"}
                answer = session.post(
                    f"{server.url}/models/ctr/predict", json={"rows": [{"a": n % 7}]}, headers=headers
                )
                found.append((answer.headers["x-model-version"], answer.status_code))

    threads = [threading.Thread(target=send, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(("canary", "most"), [({"fails": True}, 150), ({"fails": 0.2}, 400)])
def test_a_canary_that_fails_is_rolled_back_by_the_server(models: Path, canary: dict[str, Any], most: int) -> None:
    """Two workers, and nothing else runs. `most` bounds what the canary answered, with all delays."""
    fake_models.write_model(models / "ctr" / "2", **canary)
    with command(models, models.parent / "log", "workers=2", "grpc_port=null", "max_batch=1") as server:
        end = time.monotonic() + 60
        file = models / "ctr" / "history.jsonl"  # a second later, no worker has the canary any more
        answers = ask(
            server, lambda: time.monotonic() > end or (file.exists() and time.time() > file.stat().st_mtime + 1)
        )
        [event] = history(models)
        assert event["event"] == "rolled_back" and event["metric"] == "errors"
        assert {version for version, _ in answers[-100:]} == {"1"}
        answered = [version for version, _ in answers].count("2")
        print(f"rolled back after {event['requests']} compared requests of the canary; it answered {answered}")
        assert event["requests"] <= answered + 4 and answered <= most
        assert json.loads((models / "ctr" / "serving.json").read_text()) == {"version": "1"}
        after = ask(server, lambda: False, keys=400)
        assert {status for _, status in after[-200:]} == {200} and {v for v, _ in after[-200:]} == {"1"}
        assert server.log.read_text().count('"event":"rolled_back"') == 1
        page = requests.get(f"{server.url}/metrics").text
        assert 'recsys_events_total{event="rolled_back",model="ctr",version="2"} 1.0' in page


class _Strict(fake_models.Scorer):
    """A version that does not read a row with a = 1, and refuses tensors of it."""

    def features(self, rows: Any, shared: Any = None) -> Any:
        if any(row.get("a") == 1 for row in rows):
            raise UserError("rows[0]: column a: is 1")
        return super().features(rows, shared)


@pytest.mark.parametrize("strict", ["1", "2", ""])
def test_a_refusal_counts_only_if_the_other_version_reads_the_rows(models: Path, strict: str) -> None:
    """Else one caller, who sends rows that nobody reads with routing keys of the canary, would end it."""

    def load(folder: Path, **options: Any) -> Any:
        cls = _Strict if folder.name == strict else fake_models.Scorer
        return cls("ctr", folder.name)

    choose(models, canary=CANARY | {"share": 0.5})
    sent: list[dict[str, Any]] = [{"a": 1}, {"a": "abc"}, {"a": 1e300, "b": "b1"}, {"c": 1}]
    counted: dict[str, list[int]] = {"canary": [], "baseline": []}
    with serving(models, loader_function=load) as served:
        for n in range(40):
            headers = {"x-routing-key": f"user{n}"}
            requests.post(f"{served.url}/models/ctr/predict", json={"rows": [sent[n % 4]]}, headers=headers)
        requests.post(f"{served.url}/models/ctr/predict", data="{", headers={"x-routing-key": "user1"})
        for report in served.core.take_reports():
            for _, _, role, *_, status, _ in report["answers"]:
                counted[role].append(status)
    assert set(counted["canary"]) == ({200, 400} if strict == "2" else {200})
    assert set(counted["baseline"]) == {200}


def test_identifiers_of_requests_cannot_be_guessed() -> None:
    """Whoever knows the identifier of a request of others could send feedback on it."""
    given = (*[""] * 998, "é", " ")  # the last two have no character that an id may have
    identifiers = {Call("http", request_id=text).request_id for text in given}
    assert len(identifiers) == 1000 and {len(i) for i in identifiers} == {24}
    for place in range(24):
        assert len({i[place] for i in identifiers}) == 16


@pytest.mark.slow
def test_a_canary_that_is_alike_passes_in_the_server_although_a_worker_is_killed(models: Path) -> None:
    choose(models, canary=CANARY | {"guard": SOON | {"min_seconds": 2}})
    with command(models, models.parent / "log", "workers=2", "grpc_port=null") as server:
        ask(server, lambda: False, keys=400)
        os.kill(server.workers()[0], signal.SIGKILL)
        until(lambda: len(server.workers()) == 2 and server.log.read_text().count('"event":"loaded"') == 6)
        end = time.monotonic() + 60
        ask(server, lambda: bool(history(models)) or time.monotonic() > end)
        assert [e["event"] for e in history(models)] == ["canary_passed"]
