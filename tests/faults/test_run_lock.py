"""Two jobs never write to one run folder, and a new run moves only an old run's files."""

import fcntl
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_run import Home

from recsys.base.errors import UserError
from recsys.training import run_lock

HOLD = """
import sys
from pathlib import Path
from recsys.training import run_lock
run_lock.hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a run folder, until it is killed or the block ends."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        yield first
    finally:
        first.kill()
        first.wait()


def test_the_second_job_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    """However it ends: its lock goes with it, and the folder is taken over."""
    with held(tmp_path) as first:
        who = rf"={tmp_path}: process {first.pid} on {socket.gethostname()} \(since 20\S+ \S+\) is writing to it"
        with pytest.raises(UserError, match=f"run_dir{who}"):
            run_lock.hold(tmp_path)
        with pytest.raises(UserError, match=f"resume{who}"):
            run_lock.check_free(tmp_path, "resume")
    run_lock.check_free(tmp_path)
    run_lock.hold(tmp_path)
    run_lock.hold(tmp_path)  # a job may ask again
    run_lock.check_free(tmp_path)
    run_lock.release()


def test_a_look_at_the_lock_leaves_nothing_and_disturbs_no_other_job(tmp_path: Path) -> None:
    run_lock.check_free(tmp_path / "new")
    run_lock.check_free(tmp_path)
    assert not [*tmp_path.iterdir()]
    (tmp_path / run_lock.LOCK).touch()
    with (tmp_path / run_lock.LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # as another job that looks
        run_lock.check_free(tmp_path)


def test_a_busy_folder_is_refused_before_slow_imports(tmp_path: Path) -> None:
    with held(tmp_path):
        command = [sys.executable, "-X", "importtime", "-m", "recsys.train", f"run_dir={tmp_path}", "resume=auto"]
        second = subprocess.run(command, capture_output=True, text=True)
    assert (second.returncode, second.stderr.count("is writing to it; choose another run_dir, or wait")) == (2, 1)
    assert "| torch\n" not in second.stderr


def test_a_running_job_is_left_alone(trained: Home, capfd: pytest.CaptureFixture[str]) -> None:
    before = {f: f.read_bytes() for f in trained.run.rglob("*") if f.is_file() and f.name != ".owner.json"}
    with held(trained.run):
        for more in ((), (f"resume={trained.run}",)):
            with pytest.raises(UserError, match=r"is writing to it; choose another run_dir, or wait"):
                trained.train(*more)
    assert before == {f: f.read_bytes() for f in trained.run.rglob("*") if f.is_file() and f.name != ".owner.json"}


@pytest.mark.slow
def test_a_new_run_moves_the_old_runs_files_alone(trained: Home, capfd: pytest.CaptureFixture[str]) -> None:
    folder = trained.folder / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "raw").mkdir()
    first = trained.train(f"run_dir={folder}").metrics["test"]
    second = trained.train(f"run_dir={folder}").metrics["test"]
    assert first == second
    old = folder.with_name("mine.1")
    assert json.loads((old / "metrics.json").read_text())["test"] == first
    assert {f.name for f in folder.iterdir()} - {f.name for f in old.iterdir()} == {"notes.txt", "raw", ".lock"}
    assert f"moved it to {old}\n" in capfd.readouterr().err
    (folder / "metrics.json").unlink()  # as of a run that was interrupted
    trained.train(f"run_dir={folder}")
    interrupted = folder.with_name("mine.2")
    assert f"moved it to {interrupted}, where resume={interrupted} goes on with it\n" in capfd.readouterr().err
