"""The examples in docstrings run and print what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {f: text for f in sorted((ROOT / "recsys").rglob("*.py")) if ">>> " in (text := f.read_text("utf-8"))}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: str(f.relative_to(ROOT)))
def test_examples(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)))
    assert found.attempted and not found.failed


def test_there_are_enough() -> None:
    """A docstring has one example at least; its lines are not counted one by one."""
    assert sum(text.count("\n\n    >>> ") + text.count("\n\n        >>> ") for text in EXAMPLES.values()) >= 40
