"""A state.json or a registry that was restored from a backup: the follower asks, and recovers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from following import DAYS, fake_steps, followed, settings_file

from recsys.base.errors import UserError
from recsys.data.samples.drifting import write_days
from recsys.follow import cycle as follow_cycle
from recsys.follow import recover as follow_recover
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings
from recsys.follow.follow_state import FollowState
from recsys.follow.history_page import write_page
from recsys.follow.recover import recover


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that was followed to the end, with a copy of it after the first cycle and of the end."""
    folder = tmp_path_factory.mktemp("recover")
    write_days(folder / "logs", days=6, rows_per_day=1000)
    file = settings_file(folder, folder / "logs", gate={"change": {"auc": -0.5}, "min_rows": 10})
    for name, cycles in (("first", 1), ("end", None)):
        followed(file, cycles=cycles)
        shutil.copytree(folder / "root", folder / name)
    return folder


@pytest.fixture
def root(backups: Path) -> Iterator[Path]:
    yield backups / "root"
    shutil.rmtree(backups / "root")
    shutil.copytree(backups / "end", backups / "root")


def recovered(backups: Path) -> ContinuousTraining:
    follower = ContinuousTraining(load_settings(backups / "follow.yaml"))
    with follower.alone():
        recover(follower.root, follower.state, follower.registry, follower.partitions)
    return follower


def facts(state: FollowState) -> list[Any]:
    return [(c.number, c.train, c.full, c.version, c.outcome, c.parent and Path(c.parent).name) for c in state.cycles]


@pytest.mark.slow
@pytest.mark.parametrize("backup", ["first", None])
def test_an_older_state_is_asked_about_and_recovered(root: Path, backups: Path, backup: str | None) -> None:
    whole = FollowState.load(root)
    (root / "state.json").unlink()
    if backup is not None:
        shutil.copy(backups / backup / "state.json", root)
    with pytest.raises(UserError, match="recover=true"):
        followed(backups / "follow.yaml")
    found = recovered(backups)
    assert facts(found.state) == facts(whole)
    trained = {n for n, p in whole.partitions.items() if p.status == "trained"}
    assert {n for n, p in found.state.partitions.items() if p.status == "trained"} == trained
    assert [p.name for p in found.waiting()] == DAYS[5:]
    registry = found.registry.history()
    write_days(backups / "logs", days=7, rows_per_day=1000)  # the first days again, which are older than their state
    assert [c.train for c in followed(backups / "follow.yaml").state.cycles[len(whole.cycles) :]] == [DAYS[5:]]
    assert found.registry.history()[: len(registry)] == registry
    shutil.rmtree(backups / "logs" / "day=2025-01-07")


@pytest.mark.slow
def test_an_older_registry_is_asked_about_and_its_lost_days_train_again(root: Path, backups: Path) -> None:
    shutil.rmtree(root / "registry")
    shutil.copytree(backups / "first" / "registry", root / "registry")
    shutil.copytree(backups / "first" / "runs", root / "runs", dirs_exist_ok=True)  # of which follow keeps the newest
    with pytest.raises(UserError, match="recover=true"):
        followed(backups / "follow.yaml")
    found = recovered(backups)
    assert [c.train for c in found.state.cycles] == [DAYS[:2]]
    assert [p.name for p in found.waiting()] == DAYS[2:]
    again = followed(backups / "follow.yaml").state
    assert [(c.train, c.outcome) for c in again.cycles[1:]] == [([d], "promoted") for d in DAYS[2:5]]
    assert [Path(c.parent).name for c in again.cycles[1:] if c.parent] == ["000001", "000002", "000003"]


@pytest.mark.slow
def test_a_run_of_another_cycle_is_not_reused(root: Path, backups: Path) -> None:
    state = FollowState.load(root)
    state.cycles[-1].step, state.cycles[-1].train = "train", DAYS[3:4]
    state.save(root)
    with pytest.raises(UserError, match="and this cycle trains from"):
        followed(backups / "follow.yaml")


def test_a_state_without_the_cycles_of_the_registry_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_steps(monkeypatch)
    write_days(tmp_path / "logs", days=6, rows_per_day=30)
    file = settings_file(tmp_path, tmp_path / "logs")
    first = followed(file, cycles=1)
    kept = (first.root / "state.json").read_text()
    assert len(followed(file).state.cycles) > 1
    (first.root / "state.json").write_text(kept)
    with pytest.raises(UserError, match="cycle 2"):
        followed(file)


@pytest.fixture
def with_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the settings of a follower whose second cycle waits for its canary. Nothing is trained."""
    fake_steps(monkeypatch)
    train = follow_cycle.train_on
    monkeypatch.setattr(follow_cycle, "training_config", lambda _settings, _prepared, files, *_: files)

    def noted(cfg: Any, run_dir: Path, start: Path | None) -> Any:
        run = train(cfg, run_dir, start)
        (run_dir / "files.json").write_text(json.dumps([cfg, start and str(start)]))
        return run

    def opened(run: str) -> Any:
        files, start = json.loads((Path(run) / "files.json").read_text())
        return SimpleNamespace(data=SimpleNamespace(split=SimpleNamespace(train_files=files)), start_from=start), None

    monkeypatch.setattr(follow_cycle, "train_on", noted)
    monkeypatch.setattr(follow_recover, "open_run", opened)
    write_days(tmp_path / "logs", days=6, rows_per_day=30)
    current = followed(settings_file(tmp_path, tmp_path / "logs", canary={"share": 0.2})).state.current
    assert current is not None and current.step == "canary"
    return tmp_path


@pytest.mark.parametrize(("outcome", "status"), [("promoted", "trained"), ("rolled_back", "rejected")])
@pytest.mark.parametrize("recovers_after", [False, True])
def test_a_canary_is_judged_as_if_the_state_had_never_been_lost(
    with_canary: Path, outcome: str, status: str, recovers_after: bool
) -> None:
    file = with_canary / "follow.yaml"
    registry = ContinuousTraining(load_settings(file)).registry
    canary = registry.aliases()["canary"]
    (with_canary / "root" / "state.json").unlink()
    if not recovers_after:
        assert recovered(with_canary).state.cycles[1].step == "canary"
    registry.promote(canary) if outcome == "promoted" else registry.rollback()
    if recovers_after:
        recovered(with_canary)
    state = followed(file).state
    assert [c.outcome for c in state.cycles] == ["promoted", outcome, ""]
    assert state.partitions[DAYS[2]].status == status
    assert state.cycles[2].train == DAYS[3:4]


@pytest.mark.parametrize("has_run", [True, False])
def test_a_day_that_is_gone_is_not_trained_on_again(with_canary: Path, has_run: bool) -> None:
    file, root, days = with_canary / "follow.yaml", with_canary / "root", with_canary / "logs"
    registry = ContinuousTraining(load_settings(file)).registry
    registry.promote(registry.aliases()["canary"])
    shutil.move(days / DAYS[0], with_canary / "first")
    shutil.move(days / DAYS[1], with_canary / "second")
    if not has_run:
        shutil.rmtree(root / "runs" / "000001")
    (root / "state.json").unlink()
    state = recovered(with_canary).state
    assert [c.train for c in state.cycles] == [DAYS[:2] if has_run else [], DAYS[2:3]]
    found = ContinuousTraining(load_settings(file))
    write_page(found)
    shutil.move(with_canary / "first", days / DAYS[0])
    assert (DAYS[0] in [p.name for p in ContinuousTraining(load_settings(file)).waiting()]) is not has_run


def test_a_run_without_a_version_is_rejected(with_canary: Path) -> None:
    file, root = with_canary / "follow.yaml", with_canary / "root"
    ContinuousTraining(load_settings(file)).registry.rollback()
    shutil.copytree(root / "runs" / "000002", root / "runs" / "000003")  # whose model the gate has rejected
    (root / "runs" / "000003" / "files.json").write_text(json.dumps([["x"], None]))
    (root / "state.json").unlink()
    assert [(c.step, c.outcome) for c in recovered(with_canary).state.cycles[2:]] == [("", "rejected")]


def test_a_root_that_was_moved_is_not_recovered(with_canary: Path) -> None:
    file, root = with_canary / "follow.yaml", with_canary / "root"
    root.rename(with_canary / "moved")
    file.write_text(file.read_text().replace(str(root), str(with_canary / "moved")))
    (with_canary / "moved" / "state.json").unlink()
    with pytest.raises(UserError, match="the run of the champion"):
        recovered(with_canary)
    assert not (with_canary / "moved" / "state.json").exists()
