"""checkpoint.mirror: what a run writes is copied to a store, from which a machine with an empty disk goes on."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from small_csv import Commands, write_mine

from recsys.base.errors import UserError
from recsys.training import mirror
from recsys.training.mirror import Mirror

URL = "memory://bucket/run"
MINE = ["data=mine", "data.root=raw", "trainer.threads=1", "trainer.batch_size=32", "run_dir=runs/a", "resume=auto"]


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    write_mine(tmp_path)
    monkeypatch.chdir(tmp_path)
    return Commands(monkeypatch, capsys)


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
    assert not (tmp_path / "b/config.yaml").exists()  # so that it is fetched again
    memory.pipe(f"/bucket/run/{mirror.LISTING}", b'{"../x": [1, 1], "checkpoints/step-1/a": [1, 1]}')
    with pytest.raises(UserError, match=r"names \.\./x, which is outside of the run's folder"):
        mirror.fetch(URL, tmp_path / "b")


@pytest.mark.parametrize(
    ("url", "message"),
    [("nope://bucket/run", "cannot be reached: "), ("/proc/run", "cannot be written: ")],
)
def test_a_mirror_that_cannot_be_used(tmp_path: Path, url: str, message: str) -> None:
    checkpoint(tmp_path / "a", "step-00000010")
    with pytest.raises(UserError, match=f"^checkpoint.mirror={url}: {message}"):
        mirror.check(url, tmp_path / "a", resumed=False)
