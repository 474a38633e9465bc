"""Continuous training in one command: twelve days of a sample, a poisoned day, and a canary with a bug.

    ROOT/logs/day=.../     a day of impressions, which arrives while the demo runs
    ROOT/follow.yaml       settings; python -m recsys.follow status ROOT/follow.yaml
    ROOT/follow/           state, runs, cycles and the registry, which a server serves
    ROOT/follow/page.html  what was promoted, rejected and rolled back

Visitors ask the server for scores of five items, see the best one, and click as the sample's teacher says. Each model
that passes the gate answers a part of them first, until the server's guard has seen enough.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.config.overrides import override
from recsys.data.samples.drifting import DriftingTeacher, rows_of, write_days
from recsys.data.samples.interactions import Shown
from recsys.files import manifest
from recsys.files.atomic import whole_folder
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings
from recsys.follow.history_page import show, write_page
from recsys.follow.model_registry import ModelRegistry

DAYS, ROWS = 12, 6000
POISONED, BUG = 6, 9  # numbers of the days whose labels are inverted, and on which somebody deploys a build by hand
NAME, SHARE, ITEMS = "clicks", 0.3, 5
START_SECONDS, MAX_REQUESTS, BLOCK = 60.0, 30_000, 1000

SETTINGS = {
    "name": NAME,
    "train": ["model=dlrm", "data=sample_drifting", "trainer.batch_size=256", "trainer.threads=1"],
    "first": 2,
    "full": {"overrides": ["trainer.max_epochs=2"]},
    "gate": {"change": {"auc": -0.01}},
    "canary": {"share": SHARE, "guard": {"min_requests": 400, "min_seconds": 1}},
}
ENDS = ("rolled_back", "canary_passed")


def demo(root: Path, seed: int = 0) -> None:
    """Run the demo in a new folder. Raises UserError if the folder has files."""
    if root.exists() and any(root.iterdir()):
        raise UserError(f"root={root}: has files already; name a new folder")
    say(f"following {DAYS} days of a sample in {root}; this takes some minutes")
    root.mkdir(parents=True, exist_ok=True)
    logs, coming = root / "logs", root / "coming"
    write_days(coming, days=DAYS, rows_per_day=ROWS, seed=seed, poison={POISONED: "labels"})
    logs.mkdir()
    file = root / "follow.yaml"
    own = {"root": str(root / "follow"), "partitions": {"folder": str(logs)}}
    file.write_text(yaml.safe_dump(SETTINGS | own, sort_keys=False))
    visitors = Visitors(seed)
    days = sorted(coming.glob("day=*"))
    for day in days[:3]:  # the first two, and the day on which their model is judged
        day.rename(logs / day.name)
    _follow(file)
    with _server(root) as port:
        for number, day in enumerate(days[3:], 3):
            say(f"--- {day.name} arrives")
            day.rename(logs / day.name)
            visitors.day(number)
            while _follow(file):
                visitors.visit(port, ModelRegistry(root / "follow" / "registry", NAME))
            if number == BUG:
                _deploy_by_hand(root, visitors, port)
    shutil.rmtree(coming)
    page = write_page(ContinuousTraining(load_settings(file)))
    show(file)
    say(f"page: {page}; history: python -m recsys.registry show root={root / 'follow'} name={NAME}")


def _follow(file: Path) -> bool:
    """Do what can be done, and return whether a canary waits for requests."""
    follower = ContinuousTraining(load_settings(file))
    with follower.alone():
        follower.run()
    return follower.state.current is not None


def _deploy_by_hand(root: Path, visitors: Visitors, port: int) -> None:
    """Let a build with a bug, which no gate has seen, answer a share of the requests."""
    registry = ModelRegistry(root / "follow" / "registry", NAME)
    champion = registry.aliases()["champion"]
    build = root / "build"
    with whole_folder(build) as building:
        shutil.copytree(registry.artefact(champion), building, dirs_exist_ok=True)
        for file in building.glob("pipeline/**/vocabularies/*.parquet"):  # the bug: ids that are those of another day
            table = pl.read_parquet(file)
            shifted = (np.arange(len(table)) + len(table) // 2) % len(table)
            table.with_columns(table["value"].gather(shifted)).write_parquet(file)
        content = manifest.content(building) or {}
        names = [building / name for name in manifest.read(building) or {}]
        about = {k: v for k, v in content.items() if k not in ("files", "version", "digest")}
        manifest.write(building, manifest.entries_of(building, names), about)
    version = registry.register(build, why="a build that skipped the gate")
    say(f"somebody deploys {version} by hand: its ids are those of another day")
    registry.canary(version, SHARE, "deployed by hand", {"guard": {"min_requests": 2000, "min_seconds": 1}})
    visitors.visit(port, registry)
    last = registry.history()[-1]
    say(f"{last['event'].replace('_', ' ')} after {last.get('requests')} of its requests: {last.get('why', '')}")


@contextmanager
def _server(root: Path) -> Iterator[int]:
    """Serve the registry in a process of its own; yield its port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "recsys.serve", str(root / "follow" / "registry"), f"port={port}"]
    command += ["grpc_port=null", override("feedback", root / "feedback"), "feedback_wait_s=1", "workers=1"]
    with (root / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline, ready = time.monotonic() + START_SECONDS, False
            while not ready and time.monotonic() < deadline and process.poll() is None:
                try:
                    connection = HTTPConnection("127.0.0.1", port, timeout=5)
                    connection.request("GET", "/v2/health/ready")
                    ready = connection.getresponse().status == 200
                except OSError:
                    time.sleep(0.2)
            if not ready:
                raise UserError(f"the server did not start; see {root / 'server.log'}")
            yield port
        finally:
            process.terminate()
            process.wait()


class Visitors:
    """Visitors of the days of a sample."""

    def __init__(self, seed: int) -> None:
        self._teacher, self._rng, self._number = DriftingTeacher(seed), np.random.default_rng(seed), 0

    def day(self, number: int) -> None:
        """Set the day, by number."""
        self._number = number

    def visit(self, port: int, registry: ModelRegistry) -> None:
        """Let visitors come until the registry's canary is rolled back or has passed."""
        canary = registry.aliases()["canary"]
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        clicks: list[dict[str, object]] = []
        with bar("visitors", None, "requests") as shown:
            for i in range(MAX_REQUESTS):
                if i % 50 == 0 and any(e.get("version") == canary and e["event"] in ENDS for e in registry.history()):
                    break
                if i % BLOCK == 0:
                    self._teacher.day(self._number)
                    drawn = self._teacher.draw(self._rng, BLOCK * ITEMS)
                    of_visitor = np.repeat(np.arange(BLOCK) * ITEMS, ITEMS)
                    seen = Shown(drawn.user[of_visitor], drawn.item, drawn.device[of_visitor], drawn.seconds)
                    rows, expected = rows_of(self._teacher, seen).to_dicts(), self._teacher.click(seen)
                at = i % BLOCK * ITEMS
                identity = uuid.uuid4().hex
                asked = {"rows": rows[at : at + ITEMS]}
                answer = self._post(connection, "/predict", asked, {"x-request-id": identity})
                best = int(np.argmax(answer["predictions"]))
                click = bool(self._rng.random() < expected[at + best])
                clicks.append({"id": identity, "row": best, "click": int(click)})
                if len(clicks) == 20:
                    self._post(connection, "/feedback", {"feedback": clicks})
                    clicks = []
                shown.advance(1)

    def _post(
        self, connection: HTTPConnection, path: str, body: object, headers: dict[str, str] | None = None
    ) -> dict[str, list[float]]:
        connection.request("POST", path, json.dumps(body), headers or {})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        if answer.status != 200:
            raise UserError(f"the server answered {answer.status}: {found}")
        return dict(found)
