"""python -m recsys.new in an empty folder with the file log.csv."""

from pathlib import Path

import pytest
from file_shapes import clicks, lines
from small_csv import Commands


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Run recsys.new in an empty working directory with the file log.csv."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(lines(clicks()))
    return NewCommand(monkeypatch, capsys)


class NewCommand(Commands):
    """Runs python -m recsys.new."""

    def said(self, command: str, *arguments: str) -> tuple[int, str]:
        from recsys.cli import command_line
        from recsys.new.__main__ import _command

        self._monkeypatch.setattr("sys.argv", ["recsys.new", command, *arguments] if command else ["recsys.new"])
        status = command_line.status("new", _command)
        said = self._capsys.readouterr().err
        assert "Traceback" not in said, said
        return status, said
