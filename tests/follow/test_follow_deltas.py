"""Following with deltas, a real server in the registry, and a follower that is killed: versions answer as their runs do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import requests
import yaml
from served import ENVIRONMENT, command, until

from recsys.export.artefact import load
from recsys.export.artefact.apply_delta import RESULT, is_delta
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings
from recsys.follow.model_registry import digest
from recsys.online.predictor import Predictor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # test_cycle.py has the same with steps that train nothing
USERS, ITEMS = 30_000, 3_000
DATA = """
name: days
source: {format: parquet, files: ["day=*/a.parquet"]}
label: {column: y}
dense: {x: {transform: [standardise]}}
sparse: {user: {capacity: 30001}, item: {}}
"""
TRAIN = "model=dlrm data=days model.dim=8 model.bottom_mlp=[8,8] model.top_mlp=[8] trainer.batch_size=500"
SETTINGS: dict[str, Any] = {
    "root": "root",
    "name": "clicks",
    "train": f"{TRAIN} trainer.threads=1 trainer.max_epochs=1 optim.sparse.lr=0.2".split(),
    "partitions": {"folder": "logs"},
    "check": {"less": {"warn": None, "fail": None}, "auc": {"warn": None, "fail": None}, "ignore": ["user", "item"]},
    "gate": {"change": {"auc": -0.5}, "min_rows": 100, "size_mb": 100},
    "deltas": {"full_every": 3},
    "canary": {"share": 0.4, "guard": {"min_requests": 40, "min_seconds": 0, "metrics": ["errors"]}},
    "keep_runs": 9,
}
KILLED = """
import os, sys
from pathlib import Path
from recsys.follow import cycle
from recsys.follow.__main__ import follow
from recsys.follow.model_registry import ModelRegistry

where = {"before": (cycle.ContinuousTraining, "_register"), "within": (ModelRegistry, "_change")}[sys.argv[1]]
setattr(*where, lambda *_: os.kill(os.getpid(), 9))
follow(Path("follow.yaml"), None, [], None)
"""


def write_day(folder: Path, day: int) -> None:
    """Write a day; all but the first have few users and items, of which a tenth are new."""
    rng = np.random.default_rng(day)
    user, item = rng.permutation(USERS), rng.permutation(USERS) % ITEMS
    if day:
        user, item = (n - 270 + 30 * day + rng.integers(0, 300, 1500) for n in (USERS, ITEMS))
    x = rng.normal(size=len(user))
    y = (rng.random(len(user)) < 1 / (1 + np.exp(-2 * x))).astype(int)
    place = folder / "logs" / f"day=2025-01-0{day + 1}"
    place.mkdir(parents=True)
    pl.DataFrame({"user": user, "item": item, "x": x, "y": y}).write_parquet(place / "a.parquet")


class Askers:
    """Threads that ask a server for the same rows until they are told to stop."""

    def __init__(self, url: str, rows: list[dict[str, Any]]) -> None:
        self.answers: list[tuple[str, np.ndarray]] = []
        self.failures: list[str] = []
        self._url, self._rows, self._stop = url, rows, threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(2)]
        for t in self._threads:
            t.start()

    def stop(self) -> None:
        self._stop.set()
        for t in self._threads:
            t.join()

    def _ask(self) -> None:
        while not self._stop.wait(0.02):
            try:
                headers = {"x-routing-key": uuid.uuid4().hex}  # a part of the requests goes to the canary
                url = f"{self._url}/models/clicks/predict"
                answer = requests.post(url, json={"rows": self._rows}, headers=headers, timeout=20)
                predictions = np.array(answer.json()["predictions"], np.float32)
                self.answers.append((answer.headers["x-model-version"], predictions))
            except (KeyError, ValueError, requests.RequestException) as e:
                self.failures.append(repr(e))


def follow(folder: Path) -> ContinuousTraining:
    done = subprocess.run(
        [sys.executable, "-m", "recsys.follow", "follow.yaml"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return ContinuousTraining(load_settings(folder / "follow.yaml"))


def follow_and_kill(folder: Path, where: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, where], cwd=folder, env=ENVIRONMENT, capture_output=True)
    assert done.returncode == -9, done.stderr


def test_following_with_deltas_under_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "days.yaml").write_text(DATA)
    (tmp_path / "follow.yaml").write_text(yaml.safe_dump(SETTINGS))
    for day in (0, 1):
        write_day(tmp_path, day)
    follower = follow(tmp_path)
    registry = follower.registry
    [first] = registry.versions()
    rows = json.loads((registry.path(first) / "examples.json").read_text())["rows"][:16]
    arguments = ("loader=recsys.export.artefact:load", "workers=2", "grpc_port=null")
    with command(registry.folder.parent, tmp_path / "log", *arguments) as server:
        askers = Askers(server.url, rows)
        for day, kill in ((2, "before"), (3, "within"), (4, None), (5, None)):
            write_day(tmp_path, day)
            if kill is not None:
                follow_and_kill(tmp_path, kill)
                assert len(registry.versions()) == day - 1
                exported = digest(tmp_path / f"root/cycles/00000{day}/artefact" / RESULT)
            cycle = follow(tmp_path).state.current
            assert cycle is not None and cycle.version == registry.aliases()["canary"]
            assert kill is None or cycle.version == exported
            if day == 5:
                registry.rollback("by hand")
            else:
                until(lambda: registry.history()[-1]["event"] == "canary_passed", 60)
            outcome = follow(tmp_path).state.cycles[-1].outcome
            assert outcome == ("rolled_back" if day == 5 else "promoted")
        versions = registry.versions()
        assert registry.rollback("by hand") == versions[2]  # from a full artefact to a delta
        until(lambda: askers.answers[-1][0] == versions[2], 60)
        after = len(askers.answers)
        until(lambda: len(askers.answers) > after + 20, 60)
        askers.stop()
    assert not askers.failures
    assert [is_delta(registry.path(v)) for v in versions] == [False, True, True, False, True]
    assert registry.chain(versions[2]) == versions[2::-1] and registry.chain(versions[4]) == versions[4:2:-1]
    assert {version for version, _ in askers.answers} == set(versions)
    runs = {v["version"]: v["run"] for v in registry.summaries()}
    for version in versions:
        model = load(registry.artefact(version))
        expected = model.run(model.features(rows))["probability"]
        of_run = Predictor.load(runs[version]).predict(pl.DataFrame(rows))
        np.testing.assert_allclose(of_run, expected, atol=1e-5)
        for found, predictions in askers.answers:
            if found == version:
                np.testing.assert_allclose(predictions, expected, atol=1e-6)
