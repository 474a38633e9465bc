"""A small data set of the user's, `data=mine data.root=raw`, and commands on it in this process."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from recsys.cli import command_line

MINE = """name: mine
source: {format: csv, files: ['*.csv']}
label: {column: clicked}
dense: {price: {}}
sparse: {user: {}}
"""


def write_mine(folder: Path, rows: int = 200) -> None:
    """Write conf/data/mine.yaml and raw/a.csv."""
    (folder / "conf" / "data").mkdir(parents=True)
    (folder / "conf" / "data" / "mine.yaml").write_text(MINE)
    (folder / "raw").mkdir()
    lines = "".join(f"{i % 2},{i * 0.5},u{i % 7}\n" for i in range(rows))
    (folder / "raw" / "a.csv").write_text("clicked,price,user\n" + lines)


class Commands:
    """Runs commands in this process, in the current folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, command: str, *arguments: str) -> tuple[int, list[str]]:
        """Return the exit status and the lines 'error: ...', without that prefix."""
        status, said = self.said(command, *arguments)
        return status, [line.removeprefix("error: ") for line in said.splitlines() if line.startswith("error: ")]

    def said(self, command: str, *arguments: str) -> tuple[int, str]:
        """Return the exit status and all that the command says on standard error."""
        self._monkeypatch.setattr("sys.argv", [f"recsys.{command}", *arguments])
        parse = import_module("recsys.train")._config if command == "train" else None
        status = command_line.status(command, _function(command), parse=parse)
        said = self._capsys.readouterr().err
        assert "Traceback" not in said, said
        return status, said


def _function(command: str) -> Callable[[Any], Any]:
    if command == "train":
        from recsys.training.run import train

        return lambda cfg: train(cfg) and None
    if command == "preprocess":
        from recsys.preprocess import preprocess

        return preprocess
    module = import_module(f"recsys.{command}.__main__" if command in ("export", "report") else f"recsys.{command}")
    return getattr(module, "report" if command == "report" else "_command")  # type: ignore[no-any-return]
