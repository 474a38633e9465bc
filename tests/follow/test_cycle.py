"""The whole cycle on days of a sample: what is promoted, what is refused, and what a crash between any two steps loses."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from following import DAYS, fake_steps, followed, settings_file

from recsys.base.errors import UserError
from recsys.data.samples.drifting import write_days
from recsys.export.artefact.apply_delta import is_delta
from recsys.follow import cycle
from recsys.follow.__main__ import check_training_settings
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings
from recsys.follow.follow_state import FollowState
from recsys.follow.history_page import show, write_page
from recsys.follow.increment_checks import CheckLine, CheckReport
from recsys.follow.model_registry import stored_as
from recsys.server.model_versions import Repository

POISONED = 3  # the number of the day whose labels are inverted


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_days(folder, days=6, rows_per_day=3000, poison={POISONED: "labels"})
    return folder


@pytest.fixture(scope="module")
def done(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> ContinuousTraining:
    """Followed to the end, in two calls."""
    file = settings_file(tmp_path_factory.mktemp("follow"), logs)
    followed(file, cycles=1)
    return followed(file)


@pytest.mark.slow
def test_each_day_is_trained_on_but_the_poisoned_one(done: ContinuousTraining) -> None:
    assert [(c.train, c.window, c.full, c.outcome) for c in done.state.cycles] == [
        (DAYS[:2], DAYS[2:3], True, "promoted"),
        (DAYS[2:3], DAYS[4:5], False, "promoted"),
        (DAYS[4:5], DAYS[5:6], False, "promoted"),
    ]
    poisoned = done.state.partitions[DAYS[POISONED]]
    assert poisoned.status == "bad" and "below 0.5: the labels are inverted, or a column is broken" in poisoned.why
    assert [p.name for p in done.waiting()] == DAYS[5:]


@pytest.mark.slow
def test_each_version_is_in_the_registry_with_its_parent_and_interval(done: ContinuousTraining) -> None:
    versions = done.registry.summaries()
    assert [v["interval"] for v in versions][1:3] == [
        [f"2025-01-{a:02d}T00:00:00+00:00", f"2025-01-{a + 1:02d}T00:00:00+00:00"] for a in (3, 5)
    ]
    assert [v["parent"] for v in versions] == [None, *(v["version"] for v in versions[:-1])]
    assert done.registry.aliases() == {"champion": versions[-1]["version"], "previous": versions[-2]["version"]}
    assert [e["event"] for e in done.registry.history()] == ["registered", "promoted"] * 3


@pytest.mark.slow
def test_every_day_is_predicted_before_it_is_trained_on(done: ContinuousTraining) -> None:
    """Progressive validation: the champion of the day, on the day."""
    measured = {n: p.metrics["auc"] for n, p in done.state.partitions.items() if p.metrics}
    assert list(measured) == DAYS[3:]
    assert measured.pop(DAYS[POISONED]) < 0.45
    assert min(measured.values()) > 0.55


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("before", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["before", "after"])
def test_a_crash_at_any_step_loses_and_repeats_nothing(
    before: bool, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends at the n-th time that the state is written, before or after it is, for each n."""
    fake_steps(monkeypatch)
    save, number = FollowState.save, count(1)
    few = {"partitions": {"folder": str(logs), "pattern": "day=2025-01-0[1-4]"}}
    clean = followed(settings_file(tmp_path, logs, **few))
    assert [c.outcome for c in clean.state.cycles] == ["promoted"] * 2
    saves = 0

    def save_or_crash(state: FollowState, root: Path) -> None:
        nonlocal saves
        saves += 1
        if not before:
            save(state, root)
        if saves == at:
            raise Crash
        if before:
            save(state, root)

    monkeypatch.setattr(FollowState, "save", save_or_crash)
    for at in number:
        saves, folder = 0, tmp_path / str(at)
        folder.mkdir()
        file = settings_file(folder, logs, **few)
        try:
            follower = followed(file)
            break
        except Crash:
            saves = -10_000
            follower = followed(file)
        assert [(c.train, c.window, c.outcome, c.metrics) for c in follower.state.cycles] == [
            (c.train, c.window, c.outcome, c.metrics) for c in clean.state.cycles
        ]
        assert [e["event"] for e in follower.registry.history()] == ["registered", "promoted"] * 2
    assert at > 20


def test_a_canary_is_awaited_and_a_rollback_ends_the_cycle(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_steps(monkeypatch)
    file = settings_file(tmp_path, logs, canary={"share": 0.2, "guard": {"min_requests": 10}})
    follower = followed(file)
    assert [c.outcome for c in follower.state.cycles] == ["promoted", ""]
    waiting = follower.state.current
    assert waiting is not None and "waits for its canary" in follower.what_waits()
    assert followed(file).state.current is not None  # nothing has happened
    server = Repository(follower.root / "registry")
    champion = follower.registry.aliases()["champion"]
    assert server.end_canary("clicks", str(waiting.version), champion)
    server.record("clicks", "rolled_back", version=waiting.version, why="it fails")
    follower = followed(file)
    assert [c.outcome for c in follower.state.cycles] == ["promoted", "rolled_back", ""]
    assert follower.state.cycles[1].why == "canary: it fails"
    assert follower.state.partitions[DAYS[2]].status == "rejected"
    assert follower.registry.aliases()["champion"] == champion
    server.record("clicks", "canary_passed", version=follower.registry.aliases()["canary"])
    follower = followed(file)
    assert follower.state.cycles[2].outcome == "promoted"
    assert [c.split()[-1] for c in calls] == ["None", "000001", "000001", "000003"]  # each starts from the champion


def test_a_rollback_during_a_cycle_is_not_undone(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cycle was trained from, and judged against, the champion that was rolled back: its days are trained again."""
    calls = fake_steps(monkeypatch)
    file = settings_file(tmp_path, logs)
    followed(file, cycles=2)
    bad = ContinuousTraining(load_settings(file)).registry.aliases()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ContinuousTraining, "_register", killed)
        with pytest.raises(KeyboardInterrupt):
            followed(file)
    follower = ContinuousTraining(load_settings(file))
    assert follower.state.current is not None and "cycle 3 goes on at register" in follower.what_waits()
    good = follower.registry.rollback("it is bad")
    assert good == bad["previous"]
    follower = followed(file)
    assert [c.outcome for c in follower.state.cycles][:4] == ["promoted", "promoted", "superseded", "promoted"]
    assert bad["champion"] in follower.state.cycles[2].why and good in follower.state.cycles[2].why
    assert follower.state.cycles[3].train == follower.state.cycles[2].train
    assert [c.split()[-1] for c in calls][2:4] == ["000002", "000001"]  # the run that each started from


def test_full_trainings_come_by_number_by_drift_and_by_kpis(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_steps(monkeypatch)
    follower = followed(settings_file(tmp_path, logs, full={"every": 2, "partitions": 3}))
    assert [(c.full, len(c.train)) for c in follower.state.cycles] == [(True, 2), (True, 3), (False, 1), (True, 3)]
    drifted = CheckReport((CheckLine("warn", "psi", "column x has drifted"),))
    monkeypatch.setattr(cycle, "check_partition", lambda *_: drifted)
    (tmp_path / "drift").mkdir()
    follower = followed(settings_file(tmp_path / "drift", logs, full={"on_drift": True}), cycles=2)
    assert [c.full for c in follower.state.cycles] == [True, True]
    (tmp_path / "kpi").mkdir()
    file = settings_file(tmp_path / "kpi", logs)
    monkeypatch.setattr(cycle, "check_partition", lambda *_: CheckReport((CheckLine("pass", "volume", "ok"),)))
    follower = followed(file, cycles=1)
    time.sleep(0.002)
    Repository(follower.root / "registry").record(
        "clicks", "kpi_below", version=follower.registry.aliases()["champion"]
    )
    assert [c.full for c in followed(file, cycles=2).state.cycles] == [True, True, False]


def test_versions_are_deltas_until_a_full_one_is_due(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_steps(monkeypatch)
    follower = followed(settings_file(tmp_path, logs, deltas={"full_every": 3}))
    registry, versions = follower.registry, follower.registry.versions()
    assert [registry.chain(v) for v in versions] == [versions[:1], versions[1::-1], versions[2::-1], versions[3:]]
    assert [is_delta(registry.path(v)) for v in versions] == [False, True, True, False]
    for number, version in enumerate(versions, 1):
        assert np.fromfile(registry.artefact(version) / "tables" / "a.bin", np.uint8).sum() == 8 * number
    second = registry.summaries()[1]
    assert second["delta_of"] == versions[0] and stored_as(second).startswith(f"delta of {versions[0]}, ")
    assert second["bytes"] == sum(f.stat().st_size for f in registry.path(versions[1]).rglob("*") if f.is_file())
    show(tmp_path / "follow.yaml")
    assert versions[3] in capfd.readouterr().out
    write_page(follower)
    assert f"delta of {versions[0]}" in (follower.root / "page.html").read_text()


def test_a_version_without_its_base_is_not_served(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Somebody deletes the folder of an old version; the next version is full, and nothing depends on the old ones."""
    fake_steps(monkeypatch)
    file = settings_file(tmp_path, logs, deltas={"full_every": 9})
    registry = followed(file, cycles=2).registry
    first, second = registry.versions()
    registry.path(first).rename(tmp_path / "deleted")
    follower = followed(file, cycles=1)
    third = follower.state.cycles[-1].version
    assert third is not None and not is_delta(registry.path(third)) and registry.aliases()["champion"] == third
    assert "cycle 3: exports a full artefact, not a delta: " in capfd.readouterr().err
    for change in (registry.rollback, lambda: registry.promote(second), lambda: registry.canary(second, 0.1)):
        with pytest.raises(
            UserError, match=rf"{second}: is a delta of .* copy that version there, or the full artefact"
        ):
            change()
    with pytest.raises(UserError, match=rf"{first}: is gone; restore the folder, or choose another version"):
        registry.promote(first)
    assert registry.aliases() == {"champion": third, "previous": second}
    (tmp_path / "deleted").rename(registry.path(first))
    assert registry.rollback() == second


def test_training_on_drift_alone(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days wait until one drifts; then a cycle trains on all of them, and the next on the day itself."""
    fake_steps(monkeypatch)

    def check(folder: Path, rows: Any, predictions: Path | None, *_: Any) -> CheckReport:
        drifts = predictions is not None and DAYS[4] in str(predictions)
        return CheckReport((CheckLine("warn" if drifts else "pass", "psi", "column x"),))

    monkeypatch.setattr(cycle, "check_partition", check)
    follower = followed(settings_file(tmp_path, logs, train_on="drift"))
    assert [c.train for c in follower.state.cycles] == [DAYS[:2], DAYS[2:4], DAYS[4:5]]


def test_refused_partitions_are_readmitted(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_steps(monkeypatch)
    bad = CheckReport((CheckLine("fail", "psi", "column x has drifted"),))
    monkeypatch.setattr(
        cycle, "check_partition", lambda folder, *_: bad if "none" not in str(folder) else CheckReport(())
    )
    file = settings_file(tmp_path, logs)
    follower = followed(file)
    assert [follower.state.partitions[d].status for d in DAYS] == ["trained", "trained", "ready"] + ["bad"] * 3
    with pytest.raises(UserError, match=r"readmit=day=2025-01-01: was not refused; did you mean day=2025-01-0\d\?"):
        follower.readmit([DAYS[0]])
    follower.readmit([DAYS[4]])
    follower = followed(file)
    assert follower.state.cycles[-1].train == [DAYS[2]] and follower.state.cycles[-1].window == [DAYS[4]]


def test_changed_files(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A repaired partition is checked again; one that a model has trained on is not read again."""
    fake_steps(monkeypatch)
    log = tmp_path / "log"
    shutil.copytree(logs, log)
    outcomes = {DAYS[3]: "fail"}

    def check(folder: Path, rows: Any, predictions: Path | None, *_: Any) -> CheckReport:
        bad = predictions is not None and outcomes.get(predictions.parent.name)
        return CheckReport((CheckLine("fail" if bad else "pass", "volume", "too few rows"),))

    monkeypatch.setattr(cycle, "check_partition", check)
    file = settings_file(tmp_path, log)
    assert followed(file).state.partitions[DAYS[3]].status == "bad"
    outcomes.clear()
    assert followed(file).state.partitions[DAYS[3]].status == "bad"  # nobody has touched it
    capfd.readouterr()
    for day in (DAYS[0], DAYS[3]):
        (log / day / "more.parquet").write_bytes((log / day / "part.parquet").read_bytes())
    assert followed(file).state.partitions[DAYS[3]].status in ("ready", "trained")
    said = capfd.readouterr().err
    assert f"{DAYS[3]}: has changed, and is checked again" in said
    assert f"{DAYS[0]}: has changed since a model trained on it, and is not read again" in said
    followed(file)
    assert "has changed" not in capfd.readouterr().err


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
        ({"gates": {}}, "gates: no such key; did you mean gate"),
        ({"partitions": {"folder": "nowhere"}}, "partitions.folder=nowhere: no such folder"),
        ({"partitions": {"folder": ".", "every": "soon"}}, "partitions.every=soon: is not a duration"),
        ({"partitions": {"folder": ".", "pattern": "/day=*"}}, r"pattern='/day=\*': must be a glob below the folder"),
        ({"train": ["model=dlrm", "data.root=x"]}, "train: data.root is set by recsys.follow"),
        ({"items": "none.csv"}, "items=none.csv: no such file"),
        ({"name": "a/b"}, "name='a/b': contains /"),
        ({"root": __file__}, "root=.*: is a file; name a folder"),
    ],
)
def test_mistakes(logs: Path, tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_settings(settings_file(tmp_path, logs, **more))


RETRIEVAL = ["model=two_tower", "data=sample_interactions_retrieval"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"train": ["model=dlmr", "data=sample_drifting"]}, "model=dlmr: .*did you mean dlrm"),
        (
            {"train": ["model=ease", "data=sample_sequences"]},
            "train: the model EASE is fitted at once, and cannot start",
        ),
        ({"train": ["model=dnn", "data=sample_sales", "loss=mse"]}, "is a label of kind regression"),
        ({"train": RETRIEVAL, "check": {"slices": ["x"]}, "gate": {}}, "check.slices: a retrieval model predicts no"),
        ({"items": __file__}, "items=.*: applies to retrieval models"),
        ({"gate": {"change": {"ndcg@10": -0.1}}}, "gate.change.ndcg@10: is not a metric of ranking models"),
        ({"gate": {"slices": {"device": {"mrr": 0}}}}, "gate.slices.device.mrr: is not a metric of ranking models"),
        ({"increment": {"overrides": ["trainer.batch_size=0"]}}, "trainer.batch_size=0: "),
        ({"export": ["precison=float16"]}, "precison: no such key"),
    ],
)
def test_what_the_model_cannot_do_is_said_before_data_is_read(
    logs: Path, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    file = settings_file(tmp_path, logs, **more)
    with pytest.raises(UserError, match=message):
        check_training_settings(load_settings(file), file)


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
    assert history == ["registered", "promoted"] * 3
