"""checkpoint.mirror: what a run writes is copied to a store, from which a machine with an empty disk goes on."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_csv import Commands

from recsys.base.errors import UserError
from recsys.job import mirror
from recsys.job.mirror import Mirror

URL = "memory://bucket/run"
MINE = ["data=mine", "data.root=raw", "trainer.threads=1", "trainer.batch_size=32", "run_dir=runs/a", "resume=auto"]


def test_a_machine_with_an_empty_disk_goes_on(commands: Commands, memory: Any) -> None:
    args = [*MINE, f"checkpoint.mirror={URL}", "checkpoint.every_n_steps=2"]
    assert commands("train", *args)[0] == 0
    listed = json.loads(memory.cat(f"/bucket/run/{mirror.LISTING}"))
    local = {str(f.relative_to("runs/a")) for f in Path("runs/a").rglob("*") if f.is_file()}
    assert {*listed} == local - {".lock", ".owner.json"}
    assert {name: memory.cat(f"/bucket/run/{name}") for name in listed if name.startswith("checkpoints/")} == {
        name: Path(f"runs/a/{name}").read_bytes() for name in listed if name.startswith("checkpoints/")
    }
    there = {name.removeprefix("/bucket/run/") for name in memory.find("/bucket/run")}
    assert there == {*listed, mirror.LISTING}  # of checkpoints that were replaced, nothing is left
    shutil.rmtree("runs")
    status, said = commands.said("train", *args, "trainer.max_epochs=2")
    assert status == 0 and "resuming from runs/a/checkpoints/step-00000005" in said
    assert "checkpoints/step-00000010/state.pt" in json.loads(memory.cat(f"/bucket/run/{mirror.LISTING}"))
    status, [error] = commands("train", *MINE[:-2], f"checkpoint.mirror={URL}", "run_dir=runs/c")
    assert status == 2 and error.startswith(f"checkpoint.mirror={URL}: already holds checkpoints, which this new run")


def checkpoint(run: Path, name: str) -> None:
    (run / "checkpoints" / name).mkdir(parents=True)
    (run / "checkpoints" / name / "state.pt").write_bytes(name.encode())
    (run / "config.yaml").write_text("model: {}\n")


def test_the_newer_of_folder_and_mirror_counts(tmp_path: Path, memory: Any) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    checkpoint(a, "step-00000010")
    Mirror(URL, a).copy()
    mirror.fetch(URL, b)
    assert (b / "checkpoints/step-00000010/state.pt").read_bytes() == b"step-00000010"
    checkpoint(tmp_path / "c", "step-00000020")
    mirror.fetch(URL, tmp_path / "c")
    assert not (tmp_path / "c/checkpoints/step-00000010").exists()
    mirror.fetch("memory://bucket/nothing", tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_copies_follow_what_changes_and_end_with_an_error(tmp_path: Path, memory: Any) -> None:
    def trained() -> None:
        with mirror.mirrored(URL, tmp_path / "a"):
            checkpoint(tmp_path / "a", "best-00000003")
            raise KeyError

    with pytest.raises(KeyError):
        trained()
    copy = Mirror(URL, tmp_path / "b")
    assert copy.newest == "00000003"
    (tmp_path / "a/checkpoints/best-00000003/state.pt").unlink()
    (tmp_path / "a/checkpoints/best-00000003").rmdir()
    checkpoint(tmp_path / "n", "step-00000004")
    (tmp_path / "n/checkpoints/step-00000004").rename(tmp_path / "a/checkpoints/step-00000004")
    Mirror(URL, tmp_path / "a").copy()
    assert Mirror(URL, tmp_path / "a").newest == "00000004"
    assert not memory.exists("/bucket/run/checkpoints/best-00000003")


def test_a_torn_copy_and_names_outside_are_refused(tmp_path: Path, memory: Any) -> None:
    checkpoint(tmp_path / "a", "step-00000010")
    Mirror(URL, tmp_path / "a").copy()
    memory.pipe("/bucket/run/checkpoints/step-00000010/state.pt", b"st")
    with pytest.raises(UserError, match=r"^checkpoint\.mirror=.*state\.pt is not as it was copied"):
        mirror.fetch(URL, tmp_path / "b")
    assert not (tmp_path / "b/checkpoints/step-00000010").exists()  # so that it is fetched again
    memory.pipe(f"/bucket/run/{mirror.LISTING}", b'{"../x": [1, 1], "checkpoints/step-1/a": [1, 1]}')
    with pytest.raises(UserError, match=r"names \.\./x, which is outside of the run's folder"):
        mirror.fetch(URL, tmp_path / "b")


@pytest.mark.parametrize(
    ("url", "message"), [("nope://bucket/run", "cannot be reached: "), ("/proc/run", "cannot be written: ")]
)
def test_a_mirror_that_cannot_be_used(tmp_path: Path, url: str, message: str) -> None:
    checkpoint(tmp_path / "a", "step-00000010")
    with pytest.raises(UserError, match=f"^checkpoint.mirror={url}: {message}"):
        mirror.check(url, tmp_path / "a", resumed=False)


def test_a_fetch_that_is_killed_is_made_again(tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    checkpoint(a, "step-00000010")
    (a / "checkpoints/step-00000010/rank-0.pt").write_bytes(b"rank")
    checkpoint(a, "best-00000003")
    Mirror(URL, a).copy()
    files = len(json.loads(memory.cat(f"/bucket/run/{mirror.LISTING}")))
    for done in range(files):
        left = iter(range(done))

        def killed(source: str, target: str, left: Iterator[int] = left) -> None:
            Path(target).write_bytes(b"half")
            if next(left, None) is None:
                raise KeyboardInterrupt
            Path(target).write_bytes(memory.cat(source))

        with monkeypatch.context() as patch:
            patch.setattr(memory, "get_file", killed)
            with pytest.raises(KeyboardInterrupt):
                mirror.fetch(URL, b)
        mirror.fetch(URL, b)
        for file in (f for f in a.rglob("*") if f.is_file()):
            assert (b / file.relative_to(a)).read_bytes() == file.read_bytes(), done
        shutil.rmtree(b)


def test_what_was_fetched_is_not_copied_again(tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / "a", "step-00000010")
    Mirror(URL, tmp_path / "a").copy()
    mirror.fetch(URL, tmp_path / "b")
    monkeypatch.setattr(memory, "put_file", None)
    Mirror(URL, tmp_path / "b").copy()


def test_newer_checkpoints_and_other_runs_are_not_replaced(commands: Commands, memory: Any) -> None:
    args = [*MINE[:-2], f"checkpoint.mirror={URL}"]
    assert commands("train", *args, "run_dir=runs/a", "resume=auto")[0] == 0
    [start] = json.loads(memory.cat("/bucket/run/starts.json"))
    assert start == json.loads(Path("runs/a/starts.json").read_text())[0] and start["how"] == "finished"
    shutil.copytree("runs/a", "runs/old")
    assert commands("train", *args, "run_dir=runs/a", "resume=auto", "trainer.max_epochs=2")[0] == 0
    before = memory.cat(f"/bucket/run/{mirror.LISTING}")
    status, [error] = commands("train", *args, "resume=runs/old", "trainer.max_epochs=2")
    assert status == 2 and error.startswith(f"checkpoint.mirror={URL}: has a newer checkpoint than runs/old")
    shutil.copytree("runs/old", "runs/b")
    file = Path("runs/b/starts.json")
    file.write_text(json.dumps([json.loads(file.read_text())[0] | {"host": "another"}]))
    for command in (["resume=runs/b"], ["run_dir=runs/b", "resume=auto"]):
        status, [error] = commands("train", *args, *command, "trainer.max_epochs=3")
        assert status == 2 and error.startswith(f"checkpoint.mirror={URL}: has another run than runs/b")
    assert memory.cat(f"/bucket/run/{mirror.LISTING}") == before


@pytest.mark.parametrize("place", ["runs/a", "runs/a/copy", "file://runs/../runs/a/copy", "s3:/bucket/run", "C:\\copy"])
def test_places_that_hold_no_copy(commands: Commands, place: str) -> None:
    status, [error] = commands("train", *MINE, f"checkpoint.mirror={place}")
    assert status == 2 and "checkpoint.mirror" in error


@pytest.mark.parametrize("key", [f"checkpoint.mirror={URL}", "metrics_port=9455", "data.split.validation=0"])
def test_what_no_sweep_takes(commands: Commands, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    from recsys.sweep import begin

    assert begin.begin([*MINE[:-2], "seed=1,2", "sweep.jobs=2", key]) == 2
    assert key.partition("=")[0] in capsys.readouterr().err and not Path("outputs").exists()


@pytest.mark.parametrize("file", [None, "a/checkpoints/step-00000010/state.pt"])
def test_copies_that_fail_are_said_once(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    def gone(*_: object) -> None:
        if file is None:
            raise FileNotFoundError("The specified bucket does not exist")  # as s3fs says it
        raise FileNotFoundError(2, "No such file", str(tmp_path / file))  # it is replaced before it is copied

    said = list[str]()
    monkeypatch.setattr(mirror, "say", said.append)
    monkeypatch.setattr(mirror, "LOOK_SECONDS", 0.01)
    checkpoint(tmp_path / "a", "step-00000010")
    monkeypatch.setattr(memory, "put_file", gone)
    with mirror.mirrored(URL, tmp_path / "a"):
        deadline = time.monotonic() + 5
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(said) == 1 and ("keep_last" if file else "bucket does not exist") in said[0]
