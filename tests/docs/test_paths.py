"""The files that the documentation names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [p for folder in (ROOT, ROOT / "docs") for p in sorted(folder.glob("*.md")) if p.name != "CHANGELOG.md"]
EXAMPLES = {"recsys/models/mymodel.py"}  # that the reader writes


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_paths_of_the_package_and_its_tests_exist(page: Path) -> None:
    named = set(re.findall(r"\b(?:recsys|tests|benchmarks)/[\w/]+\.(?:py|toml|md)\b", page.read_text())) - EXAMPLES
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
