"""A real server whose version changes from an artefact to deltas, under load: no request fails, and none gets a mix."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import requests
from growing_runs import export_form, export_source, train_days
from served import Command, command, until

from recsys.export.artefact import load
from recsys.export.artefact.apply_delta import applied
from recsys.export.write_artefact import write_artefact
from recsys.export.write_delta import export_delta
from recsys.files.atomic import write_json
from recsys.follow.model_registry import ModelRegistry

pytestmark = pytest.mark.slow
ROWS = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of versions: 1, a full artefact, and 2 and 3, deltas."""
    folder = tmp_path_factory.mktemp("served")
    runs = train_days(folder, 3)
    versions = folder / "models" / "clicks"
    versions.mkdir(parents=True)
    write_artefact(export_source(runs[0]), export_form(version="1"), versions / "1")
    for number in (2, 3):
        before = versions / "1" if number == 2 else applied(versions / "2")
        form = export_form(version=str(number))
        assert export_delta(export_source(runs[number - 1]), form, before, versions / str(number)).is_delta
    write_json(versions / "serving.json", {"version": "1"})
    return versions


def ask(server: Command, rows: list[object]) -> np.ndarray:
    answer = requests.post(f"{server.url}/models/clicks/predict", json={"rows": rows}, timeout=20)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["predictions"], np.float32)


def test_two_deltas_under_load(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {"1": model / "1", "2": applied(model / "2"), "3": applied(model / "3")}
    rows = json.loads((folders["3"] / "examples.json").read_text())["rows"][:ROWS]
    expected = {}
    for version, folder in folders.items():
        alone = load(folder)
        expected[version] = alone.run(alone.features(rows))["probability"]
    assert not np.allclose(expected["1"], expected["2"], atol=1e-4)
    monkeypatch.setitem(__import__("served").ENVIRONMENT, "RECSYS_DELTA_DIR", str(tmp_path / "applied"))
    answers: list[np.ndarray] = []
    failures: list[str] = []
    stop = threading.Event()
    arguments = ("loader=recsys.export.artefact:load", "workers=2", "grpc_port=null")
    with command(model.parent, tmp_path / "log", *arguments) as server:

        def asking() -> None:
            while not stop.is_set():
                try:
                    answers.append(ask(server, rows))
                except (AssertionError, requests.RequestException) as e:
                    failures.append(str(e))

        threads = [threading.Thread(target=asking) for _ in range(3)]
        for t in threads:
            t.start()
        for version in ("2", "3"):
            write_json(model / "serving.json", {"version": version})
            loaded = f'"event":"loaded","model":"clicks","version":"{version}"'
            until(lambda loaded=loaded: server.log.read_text().count(loaded) == 2, 60)  # type: ignore[misc]
        np.testing.assert_allclose(ask(server, rows), expected["3"], atol=1e-6)
        stop.set()
        for t in threads:
            t.join()
        page = requests.get(f"{server.url}/metrics").text
    assert not failures and len(answers) > 20
    versions = [min(expected, key=lambda v: float(np.abs(expected[v] - answer).max())) for answer in answers]
    for version, answer in zip(versions, answers, strict=True):
        np.testing.assert_allclose(answer, expected[version], atol=1e-6)
    assert versions[0] == "1"
    made = list((tmp_path / "applied" / "clicks").glob("[!.]*"))
    assert len(made) == 2
    times = dict(re.findall(r'recsys_model_time_seconds{model="clicks",of="(\w+)",version="3"} (\S+)', page))
    assert float(times["events"]) == 1772884800 and float(times["exported"]) <= float(times["served"]) + 1


def test_a_registry_takes_deltas(model: Path, tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path / "models", "clicks")
    with pytest.raises(Exception, match="which is not among the versions of clicks; register that artefact first"):
        registry.register(model / "2")
    registry.register(model / "1")
    version = registry.register(model / "2")
    assert registry.aliases()["challenger"] == version and version == registry.register(model / "2")
    assert load(registry.path(version)).version == "2"
