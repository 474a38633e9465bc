"""The notebooks for newcomers: what is committed, and that they run."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 300_000  # bytes of a notebook
PATHS = re.compile(r"(?:/(?:tmp|home|root|work|Users|private|var|opt|mnt)/|[A-Z]:\\)[\w.-]*")  # of the machine


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cells(path: Path) -> list[Any]:
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


def _commands() -> list[tuple[str, str]]:
    lines = [line for path in NOTEBOOKS for cell in _cells(path) for line in cell.source.splitlines()]
    found = [re.match(r"!python -m recsys\.(\w+) ([^|]*)", line) for line in lines]
    return [(m[1], " ".join(shlex.split(m[2]))) for m in found if m]


def test_some_were_found() -> None:
    assert len(NOTEBOOKS) >= 4
    assert {"train", "report", "plan", "checkpoint", "pipeline"} <= {command for command, _ in _commands()}


@pytest.mark.parametrize(("command", "arguments"), _commands())
def test_command_composes(command: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _module(ROOT / "tests" / "docs" / "test_readme.py").test_command_composes(command, arguments, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_is_committed(path: Path) -> None:
    nbformat.validate(nbformat.read(path, as_version=4))
    cells = _cells(path)
    outputs = [output for cell in cells for output in cell.outputs]
    assert path.stat().st_size < LARGEST
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [o.evalue for o in outputs if o.output_type == "error"] == []
    assert any("image/svg+xml" in o.get("data", {}) for o in outputs), "a picture"
    text = "\n".join(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])) for cell in cells)
    assert sorted(set(PATHS.findall(text))) == []
    assert "\ufffd" not in text, "a letter that a terminal has cut: run docs/notebooks/make.py again"
    assert "error: " not in text.replace("error: sharding: no plan fits", "")  # which one notebook shows


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_links_lead_to_pages(path: Path) -> None:
    links = re.findall(r"\]\((\.\./[^)#]*)", path.read_text())
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path: Path, tmp_path: Path) -> None:
    before = sorted(FOLDER.iterdir())
    notebook = _module(FOLDER / "make.py").execute(path, tmp_path)
    assert len([c for c in notebook.cells if c.cell_type == "code"]) == len(_cells(path))
    assert [o for c in notebook.cells for o in c.get("outputs", ()) if o.output_type == "error"] == []
    assert sorted(FOLDER.iterdir()) == before
