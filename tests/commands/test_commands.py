"""`recsys` and `python -m recsys`: the list of commands, versions, and each command by its name."""

import os
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from forks import run_forked

from recsys import __main__ as entry
from recsys.cli import command_help
from recsys.config.compose import COMMANDS

ROOT = Path(__file__).parents[2]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["recsys", *arguments])
    entry.main()


@pytest.mark.parametrize("arguments", [(), ("--help",), ("help",)])
def test_lists_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    run(monkeypatch, *arguments)
    shown = capsys.readouterr().out
    for name in entry.COMMANDS:
        assert f"\n  {name} " in shown


def test_every_command_is_listed() -> None:
    """Modules of the package that have a main, and packages that have a __main__."""
    package = ROOT / "recsys"
    modules = {p.stem for p in package.glob("*.py") if "\ndef main(" in p.read_text() and p.stem != "__main__"}
    packages = {p.parent.name for p in package.glob("*/__main__.py")}
    assert modules | packages == set(entry.COMMANDS)


def test_versions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "--version")
    shown = capsys.readouterr().out
    assert shown.startswith(
        f"recsys {version('declarative-recsys')} (torch {version('torch')}, torchrec {version('torchrec')}, fbgemm"
    )


def test_unknown_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "trian")
    assert stopped.value.code == 2
    assert (
        capsys.readouterr().err
        == "error: trian: no such command; did you mean train? (run `recsys` to list the commands)\n"
    )


@pytest.mark.slow
def test_console_script_runs_a_command(tmp_path: Path) -> None:
    """`recsys train ...` is `python -m recsys.train ...`, with the same exit status."""
    [script] = [e for e in entry_points(group="console_scripts") if e.name == "recsys"]
    assert script.value == "recsys.__main__:main"
    for start in ([str(Path(sys.executable).parent / "recsys")], [sys.executable, "-m", "recsys"]):
        done = subprocess.run([*start, "train", "modle=dlrm"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and "did you mean model" in done.stderr


COMMANDS_WITH_KEYS = (
    "new serve export loadtest feature_store registry follow evaluate predict checkpoint report".split()
)


@pytest.mark.parametrize("command", COMMANDS_WITH_KEYS)
def test_help_says_what_each_key_means(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    command_help.show(command)
    shown = capsys.readouterr().out
    assert shown.startswith(f"python -m recsys.{command} ") and "Powered by Hydra" not in shown
    keys = list(command_help.keys(COMMANDS[command]))
    assert all(f"\n{key.name.removeprefix('create.')} " in shown for key in keys)
    assert [key.name for key in keys if not key.meaning] == []


@pytest.mark.parametrize("command", command_help.COMPOSED)
def test_help_of_composed_commands_has_choices_values_and_meanings(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command_help.show(command)
    shown = capsys.readouterr().out
    assert shown.startswith("python -m recsys.")
    data = shown[shown.index("\ndata ") :].split("\n\n")[0]
    assert all(name in data for name in ("criteo_1tb", "movielens_100k", "yelp"))
    assert "--help data. shows them" in shown and "\ndata.label" not in shown
    command_help.show(command, words=["data.label.column"])
    assert "null: rows have no label" in capsys.readouterr().out


def test_help_masks_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    command_help.show("train", ["data.root=postgresql://me:hunter2@host/db"], ["data.root"])  # pragma: allowlist secret
    shown = capsys.readouterr().out
    assert "data.root" in shown and "hunter2" not in shown


@pytest.mark.parametrize("arguments", [["recsys"], ["recsys.train", "--help"], ["recsys.train", "--cfg", "job"]])
def test_a_pipe_that_is_closed_early_is_no_error(arguments: list[str], tmp_path: Path) -> None:
    """As in `python -m recsys.train --cfg job | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recsys.serve", "--port", "8100", "model"], "error: --port: no such option; write port=VALUE"),
        (["recsys.export", "--run=x", "output=y"], "error: --run=x: no such option; write run=x"),
    ],
)
def test_options_and_types_of_other_programs(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run_forked(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, message)
