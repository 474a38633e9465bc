"""The whole cycle on days of a sample: what is promoted, what is refused, and what a crash between any two steps loses."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock

from recsys.data.samples.drifting import write_days
from recsys.errors import UserError
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import FollowConfig, load_settings
from recsys.follow.follow_state import FollowState
from recsys.follow.status import show

DAYS = [f"day=2025-01-{d:02d}" for d in range(1, 8)]
POISONED = 4  # the number of the day whose labels are inverted


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_days(folder, days=7, rows_per_day=3000, poison={POISONED: "labels"})
    return folder


def settings_file(folder: Path, logs: Path, **more: Any) -> Path:
    model = ["model=dnn", "model.deep_mlp=[16]", "model.dim=8", "data=sample_drifting"]
    given = {
        "root": str(folder / "root"),
        "name": "clicks",
        "train": [*model, "trainer.batch_size=100", "trainer.threads=1"],
        "partitions": {"folder": str(logs)},
        "first": 2,
        "full": {"overrides": ["trainer.max_epochs=2"]},
        "gate": {"change": {"auc": -0.02}, "min_rows": 500},
        **more,
    }
    file = folder / "follow.yaml"
    file.write_text(yaml.safe_dump(given))
    return file


def followed(file: Path, cycles: int | None = None) -> ContinuousTraining:
    follower = ContinuousTraining(load_settings(file))
    with follower.alone():
        follower.run(cycles)
    return follower


@pytest.fixture(scope="module")
def done(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> ContinuousTraining:
    """Followed to the end, in two calls."""
    file = settings_file(tmp_path_factory.mktemp("follow"), logs)
    followed(file, cycles=1)
    return followed(file)


def test_each_day_is_trained_on_but_the_poisoned_one(done: ContinuousTraining) -> None:
    assert [(c.train, c.window, c.full, c.outcome) for c in done.state.cycles] == [
        (DAYS[:2], DAYS[2:3], True, "promoted"),
        (DAYS[2:3], DAYS[3:4], False, "promoted"),
        (DAYS[3:4], DAYS[5:6], False, "promoted"),
        (DAYS[5:6], DAYS[6:7], False, "promoted"),
    ]
    poisoned = done.state.partitions[DAYS[POISONED]]
    assert poisoned.status == "bad" and "below 0.5: the labels are inverted, or a column is broken" in poisoned.why
    assert [p.name for p in done.waiting()] == DAYS[6:]


def test_each_version_is_in_the_registry_with_its_parent_and_interval(done: ContinuousTraining) -> None:
    versions = done.registry.summaries()
    assert [v["interval"] for v in versions][1:3] == [
        [f"2025-01-{a:02d}T00:00:00+00:00", f"2025-01-{a + 1:02d}T00:00:00+00:00"] for a in (3, 4)
    ]
    assert [v["parent"] for v in versions] == [None, *(v["version"] for v in versions[:-1])]
    assert done.registry.aliases() == {"champion": versions[-1]["version"], "previous": versions[-2]["version"]}
    assert [e["event"] for e in done.registry.history()] == ["registered", "promoted"] * 4


def test_every_day_is_predicted_before_it_is_trained_on(done: ContinuousTraining) -> None:
    """Progressive validation: the champion of the day, on the day."""
    measured = {n: p.metrics["auc"] for n, p in done.state.partitions.items() if p.metrics}
    assert list(measured) == DAYS[3:]
    assert measured.pop(DAYS[POISONED]) < 0.45
    assert min(measured.values()) > 0.55


def test_status(done: ContinuousTraining, capsys: pytest.CaptureFixture[str]) -> None:
    show(done.root.parent / "follow.yaml")
    out = capsys.readouterr().out
    assert "day=2025-01-05" in out and "bad" in out and "1 partitions wait for a cycle" in out
    assert f"champion {done.registry.aliases()['champion']}" in out


def test_a_crash_after_any_step_loses_and_repeats_nothing(
    done: ContinuousTraining, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step runs twice: the state after it is not written the first time."""
    file = settings_file(tmp_path, logs)
    save, crashed = FollowState.save, set()

    def crash_once(state: FollowState, root: Path) -> None:
        current = state.current
        key = (len(state.cycles), current and current.step, len(state.partitions))
        if key not in crashed:
            crashed.add(key)
            raise KeyboardInterrupt
        save(state, root)

    monkeypatch.setattr(FollowState, "save", crash_once)
    crashes = 0
    while True:
        try:
            follower = followed(file, cycles=2)
        except KeyboardInterrupt:
            crashes += 1
            continue
        break
    assert crashes > 15
    same = [(c.train, c.window, c.outcome, c.metrics) for c in done.state.cycles[:2]]
    assert [(c.train, c.window, c.outcome, c.metrics) for c in follower.state.cycles] == same
    events = [e["event"] for e in follower.registry.history()]
    assert events == ["registered", "promoted"] * 2


def test_a_worse_model_is_rejected_and_its_day_set_aside(logs: Path, tmp_path: Path) -> None:
    """The gate asks for more than one more day can give."""
    follower = followed(settings_file(tmp_path, logs, gate={"at_least": {"auc": 0.9}, "min_rows": 500}), cycles=1)
    [cycle] = follower.state.cycles
    assert cycle.outcome == "rejected" and "and not at least 0.9" in cycle.why
    assert follower.state.partitions[DAYS[0]].status == "rejected"
    assert follower.registry.aliases() == {} and follower.registry.versions() == []
    gate = json.loads((follower.root / "cycles" / "000001" / "gate.json").read_text())
    assert gate["passed"] is False


def test_two_followers_of_one_root(logs: Path, tmp_path: Path) -> None:
    file = settings_file(tmp_path, logs)
    (tmp_path / "root").mkdir()
    with (
        FileLock(tmp_path / "root" / ".follow.lock", is_singleton=False),
        pytest.raises(UserError, match=r"root=.*/root: another follower is at work there; wait for it, or stop it"),
    ):
        followed(file)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"gates": {}}, r"gates: no such key \(did you mean gate\?\)"),
        ({"first": 0}, r"first=0: input should be greater than or equal to 1"),
        ({"partitions": {"folder": "nowhere"}}, r"partitions.folder=nowhere: no such folder"),
        ({"partitions": {"folder": ".", "every": "soon"}}, r"partitions.every='soon': is not a duration; write a dur"),
        ({"train": ["model=dlrm", "data.root=x"]}, r"train: data.root is set by recsys.follow; leave it out"),
        ({"train_on": "drifts"}, r"train_on='drifts': input should be 'data' or 'drift'"),
    ],
)
def test_mistakes(logs: Path, tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_settings(settings_file(tmp_path, logs, **more))


def test_settings_file_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "follow.yaml"
    for text, message in (
        ("root: a\ntrain: [", r"follow.yaml, line 2, column \d+: is not YAML"),
        ("[1]", "must have the keys root, train and partitions"),
        ("root: a\ntrain: []", "partitions is missing"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            load_settings(file)


@pytest.mark.slow
def test_kill_9_at_random_moments(done: ContinuousTraining, logs: Path, tmp_path: Path) -> None:
    """50 kills with RECSYS_TEST_EXAMPLES=all, else 10: the cycles are those of a follower that nobody killed."""
    file = settings_file(tmp_path, logs)
    command = [sys.executable, "-m", "recsys.follow", str(file)]
    rng = random.Random(0)
    for _ in range(50 if os.environ.get("RECSYS_TEST_EXAMPLES") == "all" else 10):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(1, 15))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert subprocess.run(command, check=False).returncode == 0
    state = FollowState.load(load_settings(file).root)
    same = [(c.train, c.window, c.outcome, c.metrics) for c in done.state.cycles]
    assert [(c.train, c.window, c.outcome, c.metrics) for c in state.cycles] == same
    history = [e["event"] for e in ContinuousTraining(load_settings(file)).registry.history()]
    assert history == ["registered", "promoted"] * 4


def test_the_config_of_a_follower_is_not_hydras() -> None:
    assert FollowConfig.model_config["extra"] == "forbid"
