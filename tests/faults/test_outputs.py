"""A command overwrites nothing that the user needs, and writes beside its target first."""

import os
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from small_run import Home

from recsys.base.errors import UserError
from recsys.files.atomic import write_text
from recsys.files.outputs import check_output


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "day.parquet").write_text("rows")
    (tmp_path / "rows.parquet").write_text("rows")
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "metrics.json", "test_predictions.parquet"):
        (tmp_path / "run" / name).write_text("")
    os.symlink(tmp_path / "rows.parquet", tmp_path / "link.parquet")
    os.link(tmp_path / "rows.parquet", tmp_path / "hard.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("output", "suffixes", "message"),
    [
        ("rows.parquet", (".parquet",), "output=.*/rows.parquet: is one of the inputs; name another file"),
        ("link.parquet", (".parquet",), "is one of the inputs"),
        ("hard.parquet", (".parquet",), "is one of the inputs"),
        ("run/../rows.parquet", (".parquet",), "is one of the inputs"),
        ("raw/new.parquet", (".parquet",), "lies in data.root=.*raw"),
        ("run/config.yaml", (".html",), "must end in .html"),
        ("run/test_predictions.parquet", (".parquet",), "belongs to the run in .*/run"),
        ("run", (), "belongs to the run in .*/run"),
        ("run", (".html",), "is a folder"),
        ("rows.parquet/a.html", (".html",), "rows.parquet is a file, not a folder"),
        ("rows.parquet", (), "is a file; name a folder"),
        ("pipe.parquet", (".parquet",), "is a named pipe, a device or a socket"),
        ("/proc/new.parquet", (".parquet",), "output=/proc/new.parquet: /proc cannot be written"),
    ],
)
def test_refused(place: Path, output: str, suffixes: tuple[str, ...], message: str) -> None:
    os.mkfifo(place / "pipe.parquet")
    with pytest.raises(UserError, match=message):
        check_output(place / output, suffixes, inputs=[place / "rows.parquet"], root=str(place / "raw"))


@pytest.mark.parametrize(
    ("output", "suffixes", "globs", "refused"),
    [
        ("exported/a", (), ["clicks.csv"], False),  # as recsys.new writes it: root: .
        ("model", (), ["*"], False),  # a folder is not read
        ("preds.parquet", (".parquet",), ["*.csv"], False),
        ("preds.parquet", (".parquet",), ["*"], True),
        ("preds.parquet", (".parquet",), ["logs/*"], False),
        ("logs/preds.parquet", (".parquet",), ["logs/*"], True),
        ("logs", (), ["logs/*"], True),
        ("logs/model", (), ["logs/*"], False),
        ("logs/day=1", (), ["logs/*"], True),
        ("logs/day=1/model", (), ["logs/*"], True),
        ("exported/a", (), ["**/*.csv"], True),
        (".", (), ["clicks.csv"], True),
    ],
)
def test_a_command_that_runs_in_the_folder_of_the_raw_data(
    output: str, suffixes: Any, globs: list[str], refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for root in (".", str(tmp_path), ".."):
        below = [f"{tmp_path.name}/{g}" if root == ".." and g != "**/*.csv" else g for g in globs]
        with pytest.raises(UserError, match=r"lies in data\.root") if refused else nullcontext():
            check_output(Path(output), suffixes, root=root, files=below)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "there" / "target.txt")
    for text in ("one", "two"):
        write_text(tmp_path / "link.txt", text)
        assert (tmp_path / "there" / "target.txt").read_text() == text and (tmp_path / "link.txt").is_symlink()


def test_allowed(place: Path) -> None:
    for output in ("new.parquet", "new/new.parquet", "run/mine.parquet"):
        check_output(place / output, (".parquet",), inputs=[place / "rows.parquet"], root=str(place / "raw"))
    check_output(place / "new", root="s3://bucket/raw")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "command",
    [
        "predict run={run} input={rows} output={rows}",
        "predict run={run} input={bad} output={home}/scores.parquet",
        "report.__main__ {run} output={run}/config.yaml",
        "checkpoint export-embeddings {run} output={run}",
        "plan output={run}/plan.json",
    ],
)
def test_nothing_is_overwritten(
    trained: Home, capfd: pytest.CaptureFixture[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, bad = trained.folder / "rows.parquet", trained.folder / "scores.bad_rows.csv"
    for file in (rows, bad):
        file.write_text("rows")
    before = {f: f.read_bytes() for f in trained.folder.rglob("*") if f.is_file()}
    words = command.format(run=trained.run, rows=rows, bad=bad, home=trained.folder).split()
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        import_module(f"recsys.{words[0]}").main()
    assert left.value.code == 2
    assert len(capfd.readouterr().err.strip().splitlines()) == 1
    assert {f: f.read_bytes() for f in trained.folder.rglob("*") if f.is_file()} == before
