"""Files that are only appended to, on a disk that fills while a line is written: the next line is whole."""

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recsys.base import console
from recsys.base.append import append
from recsys.data.features.blocks import BadRow
from recsys.data.prepare.writer import Output
from recsys.files.json_text import append_line
from recsys.server.feedback import FeedbackLog, read_feedback
from recsys.store.fitting import reject


@contextmanager
def largest(size: int) -> Iterator[None]:
    """Let no file grow beyond a size: a write stops there, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def bad_rows(path: Path) -> Callable[[str], None]:
    output = Output(path.with_suffix(".parquet"), path)
    return lambda text: output.keep([BadRow(file="f", line=1, reason="r", text=text, value="v")])


def run_log(path: Path) -> Callable[[str], None]:
    console.log_to(path)
    return console.log


WRITERS: dict[str, Callable[[Path], Callable[[str], None]]] = {
    "journal": lambda path: lambda text: append_line(path, {"text": text}),
    "rejected": lambda path: lambda text: reject(path, "view", "f:1", "why", text),
    "bad_rows": bad_rows,
    "run_log": run_log,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str) -> None:
    monkeypatch.setattr(console, "_log", None)
    file = tmp_path / "lines"
    write = WRITERS[writer](file)
    write("before")
    before = file.read_bytes()
    assert b"before" in before
    with largest(len(before) + 1000):
        if writer == "run_log":  # nothing depends on it, so a run goes on
            write("x" * 5000)
        else:
            with pytest.raises(OSError, match="File too large"):
                write("x" * 5000)
    assert file.read_bytes() == before
    write("after")
    assert file.read_bytes().startswith(before)
    assert file.read_bytes().count(b"\n") == before.count(b"\n") + 1


def test_confirmed_feedback_stays_when_a_write_has_failed(tmp_path: Path) -> None:
    log = FeedbackLog(tmp_path)
    piece = {"id": "first", "row": 0, "click": 1, "time": 1.0}
    log.append([piece])
    with largest(100_000), pytest.raises(OSError, match="File too large"):
        log.append([piece | {"id": f"lost{n}"} for n in range(4000)])
    log.append([piece | {"id": "confirmed"}])
    assert [f["id"] for f in read_feedback(tmp_path)] == ["first", "confirmed"]


def test_a_line_of_a_killed_writer_is_ended_first(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b'{"torn": ')
    append(file, b"{}\n")
    assert file.read_bytes() == b'{"torn": \n{}\n'
