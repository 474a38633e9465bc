"""Control characters of a value from elsewhere reach no terminal and no log, whoever prints them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table

from recsys.base import console
from recsys.base.errors import NeedsAnswer, UserError
from recsys.base.json_log import log as server_log
from recsys.distributed import failures

VALUE = "ü漢\x1b]0;EVIL\x07\rb\x9bc\u202ed\U000e0001"  # a title, a bell, a return, C1, from right to left, a tag
SHOWN = r"ü漢\x1b]0;EVIL\x07\rb\x9bc\u202ed\U000e0001"


def raising(error: Exception) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


def table() -> None:
    shown = Table()
    shown.add_column(VALUE)
    shown.add_row("1")
    console.results.print(shown)


WAYS: dict[str, Callable[[], object]] = {
    "a message": lambda: console.say(f"column {VALUE}"),
    "an error": lambda: failures.call(raising(UserError(f"column {VALUE}: is wrong"))),
    "an unexpected error": lambda: failures.call(raising(KeyError(VALUE))),
    "a file that cannot be read": lambda: failures.call(raising(PermissionError(13, "x", VALUE))),
    "a table": table,
}


@pytest.mark.parametrize("way", WAYS)
def test_printed(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(console, "_log", tmp_path / "train.log")
    for name, stderr in (("console", True), ("results", False)):
        monkeypatch.setattr(console, name, console._console(stderr))
    WAYS[way]()
    printed = "".join(capsys.readouterr())
    logged = (tmp_path / "train.log").read_text() if way != "a table" else ""
    for text in (printed, logged):
        assert all(c.isprintable() or c == "\n" for c in text)
    shown = r"ü漢\x1b]0;EVI" if way == "a table" else SHOWN  # rich drops bells
    assert way == "an unexpected error" or shown in printed
    assert way in ("a table", "an unexpected error") or SHOWN in logged


def test_newlines(capsys: pytest.CaptureFixture[str]) -> None:
    """An error is one line, whatever its values are; a question has several."""
    failures.call(raising(UserError("column a\nerror: done")))
    failures.call(raising(NeedsAnswer("which?\n  label=a\n  label=b")))
    assert capsys.readouterr().err == "error: column a\\nerror: done\nerror: which?\n  label=a\n  label=b\n"


@pytest.mark.parametrize("level", ["info", "error"])
def test_the_log_of_a_server(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    server_log(level, "x", column=VALUE)
    [line] = capsys.readouterr().err.splitlines()
    assert line.isprintable() and "ü漢" in line
    assert json.loads(line)["column"] == VALUE
