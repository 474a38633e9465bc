"""The tables of the page about GPUs follow from the files of the benchmarks."""

import importlib.util
from pathlib import Path
from typing import Any

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
