"""The environment of a process reads as empty while it begins to execute a program."""

import threading
import time
from pathlib import Path

from recsys.sweep import processes

STAT = "7 (a) b) S 1 7 7 0 -1 {flags} 0 0"


def process(folder: Path, flags: int) -> Path:
    (folder / "stat").write_text(STAT.format(flags=flags))
    (folder / "environ").write_bytes(b"")
    return folder


def test_an_empty_environment_is_read_again(tmp_path: Path) -> None:
    process(tmp_path, 0)
    write = threading.Timer(processes.EMPTY_SECONDS, lambda: (tmp_path / "environ").write_bytes(b"A=1\0B=2\0"))
    write.start()
    assert processes._environment(tmp_path)[:2] == [b"A=1", b"B=2"]


def test_a_kernel_thread_has_none(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert processes._environment(process(tmp_path, processes.KERNEL_THREAD | 64)) == [b""]
    assert time.monotonic() - begun < processes.EMPTY_SECONDS * processes.EMPTY_READS
