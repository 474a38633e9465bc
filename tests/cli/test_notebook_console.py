"""Progress and messages in a notebook: one line that is updated in place, on standard output, without codes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from recsys.base import console


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(console.KERNEL, "1")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels do
    monkeypatch.setattr(console, "console", console._console(stderr=True))
    monkeypatch.setattr(console, "UPDATE_EVERY_SECONDS", -1.0)
    console.log_to(tmp_path / "train.log")
    yield
    console.log_to(None)


def shown(text: str) -> list[str]:
    """Return the lines that a cell shows: what follows a carriage return is written over its line."""
    lines = []
    for line in text.split("\n"):
        letters = ""
        for part in line.split("\r"):
            letters = part + letters[len(part) :]
        lines.append(letters.rstrip())
    return lines


def test_a_bar_leaves_one_line(
    kernel: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with console.bar("training", 1000) as training:
        for _ in range(10):
            training.advance(100)
            with console.bar("validating", 10) as validating:
                validating.advance(10)
        console.say("stopped")
    output, errors = capsys.readouterr()
    assert errors == "" and "\x1b" not in output
    assert output.count("\r") > 20
    first, second, rest = shown(output)
    assert (first, rest) == ("stopped", "")
    assert re.fullmatch(r"training: 1,000 rows \(100%\), [\d,]+ rows/s", second)
    log = (tmp_path / "train.log").read_text()
    assert log.count("validating: 10 rows") == 10 and "\r" not in log


def test_ranks_print_where_the_kernel_prints(kernel: None) -> None:
    assert console.environment() == {console.KERNEL: "1"}


def test_elsewhere_nothing_is_updated_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(console.KERNEL, raising=False)
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setattr(console, "console", console._console(stderr=True))
    monkeypatch.setattr(console, "UPDATE_EVERY_SECONDS", -1.0)
    with console.bar("reading", 10) as bar:
        bar.advance(10)
    output, errors = capsys.readouterr()
    assert output == "" and "\r" not in errors and errors.startswith("reading: 10 rows (100%)")
    assert console.environment() == {}
