"""Several processes that write the same file or folder, and processes that are killed while they write."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.base.errors import UserError
from recsys.files.atomic import put_in_place, whole_file, whole_folder

WRITER = """
import sys, time
from pathlib import Path
from recsys.files import atomic
with atomic.{what}(Path(sys.argv[1])) as building:
    (building / "part" if "{what}" == "whole_folder" else building).write_text("of a process that was killed")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Start a process that writes tmp_path/out, and wait until it does."""

    def run(what: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER.format(what=what), str(tmp_path / "out")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        return process

    return run


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_folder_that_another_process_writes(tmp_path: Path, start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("whole_folder")
    with pytest.raises(UserError, match="out: another process is writing it"), whole_folder(tmp_path / "out"):
        raise AssertionError
    process.send_signal(signal.SIGKILL)
    process.wait()
    with whole_folder(tmp_path / "out") as building:
        assert names(building) == []
        (building / "mine").touch()
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["mine"]


def test_a_file_that_another_process_writes(tmp_path: Path, start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("whole_file")
    threading.Timer(0.3, process.kill).start()
    with whole_file(tmp_path / "out") as building:  # waits
        assert building.read_text() == ""
        building.write_text("mine")
    process.wait()
    assert names(tmp_path) == ["out"] and (tmp_path / "out").read_text() == "mine"


def test_many_writers_of_one_file(tmp_path: Path) -> None:
    def write(text: str) -> None:
        for _ in range(50):
            with whole_file(tmp_path / "out") as building:
                building.write_text(text * 10_000)

    threads = [threading.Thread(target=write, args=(c,)) for c in "abcd"]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        if (tmp_path / "out").exists():
            text = (tmp_path / "out").read_text()
            assert len(text) == 10_000 and len(set(text)) == 1
    assert names(tmp_path) == ["out"]


def test_many_writers_of_one_folder(tmp_path: Path) -> None:
    refused, written = [], []

    def write(text: str) -> None:
        try:
            with whole_folder(tmp_path / "out", new=True) as building:
                (building / "file").write_text(text)
            written.append(text)
        except UserError as e:
            refused.append(str(e))

    threads = [threading.Thread(target=write, args=(str(i),)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1 and len(refused) == 39
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "file").read_text() == written[0]
    assert all("another process" in why for why in refused)


def test_what_exists_stays_if_it_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "out") as building:
        (building / "new").write_text(str(1 / 0))
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "missing", tmp_path / "out")
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["old"]


def test_a_kill_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / ".out.old").mkdir()  # as a process leaves it that is killed there
    (tmp_path / ".out.old" / "old").touch()
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "missing", tmp_path / "out")
    assert names(tmp_path / "out") == ["old"]


def test_an_error_of_the_writer_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), whole_folder(tmp_path / "out"):
        raise BlockingIOError
    with pytest.raises(BlockingIOError), whole_file(tmp_path / "out"):
        raise BlockingIOError
    assert os.listdir(tmp_path) == []


def test_a_place_where_no_folder_can_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/proc: no folder can be created here"), whole_folder(Path("/proc/none")):
        raise AssertionError
