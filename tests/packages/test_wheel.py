"""A stranger installs the wheel into an empty environment, as the documentation says, and trains."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from empty_environments import Environment, built_wheel

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "start" / "install.md")
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]


def pip_lines(page: Path) -> list[list[str]]:
    """Return the arguments of the lines `pip install` that follow `uv build` on a page."""
    after = page.read_text().partition("    uv build\n")[2]
    return [line.split() for line in re.findall(r"\s+pip install ([^#\n]+)", after)][:2]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_pages_install_what_the_project_pins(page: Path) -> None:
    wheel, pins = pip_lines(page)
    assert wheel == ["dist/declarative_recsys-*.whl"]
    assert pins == ["--no-deps", *GROUPS["cpu"]]


@pytest.mark.slow
def test_the_wheel_trains_in_an_empty_environment(tmp_path: Path) -> None:
    """The environment has 5.4 GB, nearly all of it links to uv's cache."""
    environment = Environment(tmp_path / "environment")
    environment.install(str(built_wheel(tmp_path)))
    environment.install(*pip_lines(PAGES[0])[1])
    folder = tmp_path / "empty"
    folder.mkdir()
    arguments = ["model=dlrm", "data=criteo", "data.sample.rows=20000", "run_dir=run"]
    done = environment.run("-m", "recsys.train", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    assert 0.5 < metrics["test"]["auc"] < metrics["bayes"]["auc"]
    where = environment.run("-c", "import recsys; print(recsys.__file__)", cwd=folder).stdout
    assert where.startswith(str(tmp_path / "environment"))
