"""The files that the documentation and the docstrings of modules name exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(p for p in sorted(ROOT.glob("*.md")) if p.name != "CHANGELOG.md"),
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if not {"generated", "_build"} & set(p.parts)),
]
PARTS = ("recsys", "tests", "benchmarks", "experiments", "docs", ".ci")
EXAMPLES = {"recsys/models/mymodel.py"}  # that the reader writes


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_paths_of_the_package_and_its_tests_exist(page: Path) -> None:
    named = (
        set(re.findall(r"(?<![\w/])(?:recsys|tests|benchmarks)/[\w/]+\.(?:py|toml|md)\b", page.read_text())) - EXAMPLES
    )
    assert [n for n in sorted(named) if not (ROOT / n).exists() and not (page.parent / n).exists()] == []


def test_files_that_the_docstrings_of_modules_name_exist() -> None:
    files = sorted((ROOT / "recsys").rglob("*.py"))
    existing = {f.relative_to(ROOT).as_posix() for f in (*files, *(ROOT / "tests").rglob("*.py"))}
    unknown = {}
    for file in files:
        named = re.findall(r"(?<![\w/])[\w/]+\.py\b", ast.get_docstring(ast.parse(file.read_text())) or "")
        missing = [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in existing)]
        if missing:
            unknown[file.name] = missing
    assert unknown == {}


def test_files_that_pages_name_without_their_package_exist() -> None:
    """`job/build.py`, or `build.py` alone. Pages that tell of older versions are left out."""
    existing = {f"/{f.relative_to(ROOT).as_posix()}" for part in PARTS for f in (ROOT / part).rglob("*.py")}
    unknown = {}
    for page in (p for p in PAGES if not {"adr", "migrate"} & set(p.parts)):
        named = set(re.findall(r"`([\w/]+\.py)\b", page.read_text())) - EXAMPLES
        if missing := [name for name in named if not any(path.endswith(f"/{name}") for path in existing)]:
            unknown[page.name] = missing
    assert unknown == {}
