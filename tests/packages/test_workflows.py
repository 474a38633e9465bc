"""The workflows, the issue forms and the citation fit the project. Only the server of the repository can run them."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {p.stem: yaml.safe_load(p.read_text()) for p in sorted((GITHUB / "workflows").glob("*.yml"))}
WRITES = {  # what a job may do besides reading the repository
    ("docs", "publish"): {"pages", "id-token"},
    ("lock", "lock"): {"contents", "pull-requests"},
    ("release", "build"): {"id-token", "attestations"},
    ("release", "publish"): {"id-token"},
}


def jobs() -> list[tuple[str, str, dict[str, Any]]]:
    return [(name, job, body) for name, w in WORKFLOWS.items() for job, body in w["jobs"].items()]


def commands(workflow: str) -> list[str]:
    return [step["run"] for name, _, body in jobs() if name == workflow for step in body["steps"] if "run" in step]


@pytest.mark.parametrize(("workflow", "job", "body"), jobs(), ids=lambda x: x if isinstance(x, str) else "")
def test_a_job_may_do_no_more_than_it_needs(workflow: str, job: str, body: dict[str, Any]) -> None:
    assert WORKFLOWS[workflow]["permissions"] == {"contents": "read"}
    granted = {k for k, v in body.get("permissions", {}).items() if v == "write"}
    assert granted == WRITES.get((workflow, job), set())
    for step in body["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"(actions|astral-sh)/[\w-]+@v\d+", step["uses"])
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "names of branches and tags must not become shell code"


def test_ci_runs_what_the_project_runs_on_every_python_that_it_allows() -> None:
    assert commands("ci") == [".ci/run"]
    [(_, _, body)] = [j for j in jobs() if j[0] == "ci"]
    versions = body["strategy"]["matrix"]["python"]
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert versions == [v for v in (f"3.{minor}" for minor in range(30)) if v in allowed]
    assert body["env"] == {"UV_PYTHON": "${{ matrix.python }}"}


def test_ci_and_just_check_run_the_same_lines() -> None:
    lines = {line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("uv run ")}
    recipes = {line.strip() for line in (ROOT / "justfile").read_text().splitlines() if line.startswith("    ")}
    assert len(lines) > 5 and lines <= recipes


def test_a_release_is_built_attested_and_published_without_a_token() -> None:
    steps = WORKFLOWS["release"]["jobs"]["build"]["steps"]
    order = [s.get("run") or s["uses"].partition("@")[0] for s in steps]
    assert (
        order.index("uv build")
        < order.index("actions/attest-build-provenance")
        < order.index("actions/upload-artifact")
    )
    assert commands("release")[-1] == "uv publish --trusted-publishing always dist/*"
    assert "secrets" not in (GITHUB / "workflows" / "release.yml").read_text()


def test_the_version_stands_once() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["authors"] and citation["title"] and citation["message"]
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    manifests = "".join(p.read_text() for p in (ROOT / "docs/deploy").glob("*.yaml"))
    tags = re.findall(r"image: recsys-(?:serve|train):([\d.]+)", manifests)
    assert len(tags) == 3 and set(tags) == {PROJECT["version"]}
