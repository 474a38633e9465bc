"""The tables of the page about GPUs follow from the files of the benchmarks."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("make_gpu_tables", ROOT / "docs" / "make_gpu_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_gpu_tables = loaded()


def test_the_page_has_the_figures_of_the_files() -> None:
    text = make_gpu_tables.PAGE.read_text()
    assert make_gpu_tables.page(text) == text, "run python docs/make_gpu_tables.py"
    assert "9,760,753 (4.72 x)" in text and "2026-11-27" in text and "H200" in text


def test_what_was_not_measured_says_so() -> None:
    skipped = {"rates": [], "problem": "skipped: no time"}
    assert make_gpu_tables.rate(skipped) == make_gpu_tables.rate(make_gpu_tables.NOT_RUN) == "not run"
    assert make_gpu_tables.rate({"rates": [], "problem": "failed: NotFinite: the gradients"}) == "failed: `NotFinite`"
    assert make_gpu_tables.rate({"rates": [3000.0, 1000.0, 2000.0]}, {"rates": [1000.0]}) == "2,000 (2.00 x)"


def test_files_of_several_days_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_gpu_tables.results("h100")
    found["dlrm"] |= {"date": "2027-01-01", "commit": "abc"}
    text = make_gpu_tables.machines(found)
    assert text.startswith("`dcnv2`, ") and "`dlrm`: 2027-01-01 on one NVIDIA H100" in text.replace("\n", " ")


@pytest.mark.parametrize(
    "file", sorted(make_gpu_tables.RESULTS.glob("*/*.json")), ids=lambda f: f"{f.parent.name}-{f.stem}"
)
def test_a_file_says_on_what_it_was_measured(file: Path) -> None:
    found = json.loads(file.read_text())
    assert found["gpu"] and found["commit"] and found["versions"]["torch"] and len(found["date"]) == 10
    assert all(bool(o["rates"]) or o["problem"] for o in found["contestants"].values())
