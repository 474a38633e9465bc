"""SECURITY.md: each promise names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text().partition("## What recsys promises")[2].partition("\n## ")[0]
    promises = re.split(r"\n- ", text)[1:]
    assert len(promises) >= 10
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", promise)
        assert named, promise
        for file, test in named:
            assert f"def {test}" in (ROOT / file).read_text(), (file, test)
