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
RECIPES = re.findall(r"^([\w-]+)[^:\n]*:(?!=)", (ROOT / "justfile").read_text(), re.M)
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


def test_there_are_four() -> None:
    assert set(WORKFLOWS) == {"ci", "docs", "lock", "release"}
    assert WORKFLOWS["lock"][True]["schedule"]
    assert WORKFLOWS["release"][True]["push"] == {"tags": ["v*"]}  # PyYAML reads the key `on` as true


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


def test_the_site_is_built_as_just_docs_does() -> None:
    assert commands("docs") == ["uvx --from rust-just just docs"]
    assert "docs" in RECIPES
    build, publish = (WORKFLOWS["docs"]["jobs"][j] for j in ("build", "publish"))
    assert build["env"]["RECSYS_REPOSITORY"] == "${{ github.server_url }}/${{ github.repository }}"
    [folder] = [s["with"]["path"] for s in build["steps"] if "upload-pages" in s.get("uses", "")]
    assert folder in (ROOT / "justfile").read_text() and publish["if"] == "github.ref == 'refs/heads/main'"


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


def test_versions_move_by_the_recipes_and_are_checked() -> None:
    *recipes, check, propose = commands("lock")
    assert recipes == [f"uvx --from rust-just just {name}" for name in ("lock", "digests")]
    assert {"lock", "digests"} <= {r.split()[0] for r in RECIPES} and check == ".ci/run" and "gh pr create" in propose


@pytest.mark.parametrize("form", ["bug", "data", "feature"])
def test_issue_forms_ask_for_the_doctor(form: str) -> None:
    template = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
    assert {"name", "description", "body"} <= set(template)
    ids = [part["id"] for part in template["body"]]
    assert len(ids) == len(set(ids)) and "doctor" in ids
    [doctor] = [part for part in template["body"] if part["id"] == "doctor"]
    assert "python -m recsys.doctor" in doctor["attributes"]["label"]
    for part in template["body"]:
        assert part["type"] == "textarea" and part["attributes"]["label"]


def test_the_version_stands_once() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["authors"] and citation["title"] and citation["message"]
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    manifests = "".join(p.read_text() for p in (ROOT / "docs/deploy").glob("*.yaml"))
    tags = re.findall(r"image: recsys-(?:serve|train):([\d.]+)", manifests)
    assert len(tags) == 3 and set(tags) == {PROJECT["version"]}
