"""docs/start/faq.md: each answer names tests that exist, and what it says of packages is so."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from recsys.base.packages import check_versions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start" / "faq.md").read_text()


def test_every_answer_names_a_test() -> None:
    answers = re.split(r"^\*\*.*?\*\*", PAGE, flags=re.M)[1:]
    assert len(answers) >= 15
    for answer in answers:
        named = re.findall(r"\[`(tests/[\w/.]+)(?:::(\w+))?`\]", answer)
        assert named, answer
        for place, test in named:
            assert (ROOT / place).exists(), place
            assert not test or f"def {test}(" in (ROOT / place).read_text(), test


def test_versions() -> None:
    """Packages are of PyPI, and those that the page names are what is installed and required."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    required = [*project["project"]["dependencies"], *project["dependency-groups"]["cpu"]]
    for package, version in (("torch", "2.13.0"), ("torchrec", "1.8.0"), ("fbgemm-gpu-cpu", "1.8.0")):
        assert f"{package}=={version}" in required
        assert importlib.metadata.version(package).startswith(version)
    assert int(np.__version__.split(".")[0]) >= 2
    check_versions()
    assert not any(" @ " in line or "://" in line for line in required)
    assert not {"index", "find-links", "extra-index-url"} & project["tool"]["uv"].keys()


def test_no_ssd_tables() -> None:
    import fbgemm_gpu  # noqa: F401
    import torch

    with pytest.raises((AttributeError, RuntimeError)):
        torch.classes.fbgemm.EmbeddingRocksDBWrapper  # noqa: B018
