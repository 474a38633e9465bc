"""Folders that cannot be a run's, files that are not raw data, and disks that are full: one line each."""

import errno
import os
import re
from pathlib import Path

import polars as pl
import pytest
import torch
from forks import run_forked
from small_csv import Commands, write_mine
from torch.distributed.checkpoint.api import CheckpointException

from recsys.base.console import log, log_to
from recsys.data.raw.raw_files import Outputs
from recsys.distributed import failures
from recsys.files.atomic import whole_file, whole_folder

MINE = ["data=mine", "data.root=raw", "trainer.threads=1", "trainer.batch_size=32"]
FULL = "No space left on device; free space there, then run the same command again"


def test_what_commands_write_is_not_raw_data(commands: Commands) -> None:
    everything = ["data=mine", "data.root=.", "data.source.files=['**/*.csv']", "trainer.threads=1"]
    train = [*everything, "trainer.batch_size=32", "data.prepared=elsewhere/p"]
    assert commands("train", *train, "run_dir=runs/a")[0] == 0
    [Path(f"{folder}/more.csv").write_text("clicked,price,user\n1,2,u1\n") for folder in ("runs/a", "elsewhere/p")]
    Path("outputs").mkdir()
    Path("outputs/more.csv").write_text("clicked,price,user\n1,2,u1\n")
    assert commands("train", *train, "run_dir=runs/b")[0] == 0  # neither metrics.csv nor more.csv is read
    assert len([*Path("elsewhere/p").glob("mine-*/prepared.json")]) == 1
    status, [error] = commands("train", "data=mine", "data.root=runs/a", "run_dir=runs/c")
    assert status == 2
    assert error == "data.root=runs/a: is the folder of a run or of prepared data; name that of the raw files"
    status, [error] = commands("train", *train[:1], "data.root=runs", "data.source.files=['**/*.csv']", "run_dir=c")
    assert status == 2 and error.endswith("; files of runs and of data.prepared are not data"), error


def test_folders_of_outputs(tmp_path: Path) -> None:
    for folder, files in {"run": ["config.yaml"], "sweep": ["sweep.json"], "p": ["prepared.json"], "raw": []}.items():
        (tmp_path / folder / "checkpoints").mkdir(parents=True)
        for name in [*files, "a.csv"]:
            (tmp_path / folder / name).touch()
    outputs = Outputs(tmp_path, str(tmp_path / "prepared"))
    inside = {p for p in tmp_path.rglob("*.csv") if outputs.contains(p)}
    assert inside == {tmp_path / name / "a.csv" for name in ("run", "sweep", "p")}


# --- full disks -------------------------------------------------------------------------------------------

LIMITED = """
import resource, sys
from recsys.cli import command_line
from importlib import import_module
command, size = sys.argv[1], int(sys.argv[2])
sys.dont_write_bytecode = True  # Python does not notice that it has written a part of a file
sys.argv = [sys.argv[0], *sys.argv[3:]]
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
module = "report.__main__" if command == "report" else command
import_module(f"recsys.{module}").main()
"""
TOO_LARGE = r"(File too large|No space left on device); free space there, then run the same command again"


def limited(command: str, size: int, *arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Run a command that may write no file above `size` bytes; return its status, its error and all that it says."""
    (cwd / "limited.py").write_text(LIMITED)
    done = run_forked("limited", command, str(size), *arguments, cwd=cwd, env={"PYTHONPATH": str(cwd)}, timeout=100)
    assert "Traceback" not in done.stderr, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    return done.returncode, errors[0], done.stderr


@pytest.mark.slow
def test_a_disk_that_is_full_during_a_checkpoint_and_a_reshard(tmp_path: Path) -> None:
    write_mine(tmp_path)
    large = [*MINE, "run_dir=r", "model.top_mlp=[2048,256]"]
    status, error, _ = limited("train", 1 << 20, *large, cwd=tmp_path)
    assert status == 2 and re.search(rf"{TOO_LARGE} with resume=\S*/r$", error), error
    assert not [p for p in (tmp_path / "r" / "checkpoints").iterdir() if not p.name.startswith(".")]
    done = run_forked("recsys.train", *large, "resume=r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reshard = ["reshard", "r", "output=r2", "sharding=tablewise"]
    status, error, _ = limited("checkpoint", 1 << 20, *reshard, cwd=tmp_path)
    assert status == 2 and re.search(rf"{TOO_LARGE}$", error), error
    assert not (tmp_path / "r2").exists()
    status, error, _ = limited("report", 1 << 12, "r", "output=report.html", cwd=tmp_path)
    assert status == 2 and re.search(rf"{TOO_LARGE}$", error), error


def test_a_disk_that_is_full_in_the_log(commands: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r").mkdir()
    Path("r/train.log").symlink_to("/dev/full")
    status, said = commands.said("train", *MINE, "run_dir=r")
    assert status == 0
    line = "r/train.log: No space left on device; messages are shown, but not written to this file"
    assert said.count(line) == 1, said
    try:
        log_to(Path("/dev/full"))
        log("a line")
    finally:
        log_to(None)


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_errors_of_a_full_disk_in_other_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(error: BaseException) -> str:
        def fail() -> None:
            raise error

        assert failures.call(fail) == failures.USER
        return capsys.readouterr().err

    log_to(None)
    named = OSError(errno.ENOSPC, "", "/data/x")
    assert said(named) == f"error: /data/x: {FULL}\n"
    assert said(CheckpointException("save", {1: (full(), None)})) == f"error: the disk: {FULL}\n"  # type: ignore[dict-item]
    assert said(OSError("No space left on device (os error 28)")) == f"error: the disk: {FULL}\n"  # as Polars says it
    (tmp_path / "out").mkdir()
    for write_in in (whole_file, whole_folder):  # what libraries say lacks the place
        with pytest.raises(OSError, match="os error 28") as raised, write_in(tmp_path / "out" / "x"):
            raise OSError("No space left on device (os error 28)")
        assert said(raised.value) == f"error: the disk of {tmp_path / 'out'}: {FULL}\n"
    outer = RuntimeError("writing failed")
    outer.__cause__ = named
    assert said(outer) == f"error: /data/x: {FULL}\n"
    for write in (
        lambda: torch.save(torch.zeros(1 << 16), "/dev/full"),
        lambda: pl.DataFrame({"a": range(100_000)}).write_parquet("/dev/full"),
    ):
        assert failures.call(write) == failures.USER
        assert capsys.readouterr().err == f"error: the disk: {FULL}\n"


def test_other_errors_keep_their_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        try:
            raise full()
        except OSError:
            raise ValueError("something else") from None

    assert failures.call(fail) == failures.OURS
    assert "ValueError: something else" in capsys.readouterr().err
