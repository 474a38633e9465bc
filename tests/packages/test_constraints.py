"""docs/deploy/constraints.txt holds what pyproject.toml resolves to; one command renews it and the base image."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from forks import ok
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "docs" / "deploy" / "constraints.txt"
BLOCKS = re.findall(r"^([a-z0-9].*?) \\\n((?: .*\n)+)", CONSTRAINTS.read_text(), re.M)


@pytest.fixture
def locked() -> None:
    """Skip a test where there is no uv.lock of this pyproject.toml, which `uv run` writes."""
    if shutil.which("uv") is None or not (ROOT / "uv.lock").is_file():
        pytest.skip("there is no uv, or no uv.lock: run pytest by `uv run`")
    done = subprocess.run(["uv", "lock", "--check", "--offline"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"uv.lock is not that of pyproject.toml: {done.stderr[-200:]}")


def test_the_constraints_are_what_the_project_resolves_to(locked: None) -> None:
    """If this fails: `just lock DAY`, with the day of exclude-newer in pyproject.toml."""
    assert (
        ok(subprocess.run([ROOT / ".ci" / "constraints"], capture_output=True, text=True)).stdout
        == CONSTRAINTS.read_text()
    )


def test_every_package_has_one_version_a_hash_and_no_address() -> None:
    requirements = [Requirement(line) for line, _ in BLOCKS]
    assert all(
        len(list(r.specifier)) == 1 and str(r.specifier).startswith("==") and r.url is None for r in requirements
    )
    assert all(re.fullmatch(r"(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", hashes) for _, hashes in BLOCKS)
    assert "://" not in CONSTRAINTS.read_text()
    for python in ("3.11.14", "3.12.8", "3.13.1"):
        version = python.rpartition(".")[0]
        linux = {"python_full_version": python, "python_version": version, "sys_platform": "linux"}
        here = {(r.name, str(r.specifier)) for r in requirements if r.marker is None or r.marker.evaluate(linux)}
        assert len(here) == len({name for name, _ in here}) > 200


def test_every_requirement_of_the_project_is_constrained() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = table["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), *table["dependency-groups"].values()]
    lines = [*(line for lines in lists for line in lines), *table["build-system"]["requires"]]
    wanted = {canonicalize_name(Requirement(line).name) for line in lines} - {project["name"]}
    assert wanted <= {canonicalize_name(Requirement(line).name) for line, _ in BLOCKS}


def test_the_day_and_the_digest_are_moved(tmp_path: Path) -> None:
    """With stand-ins for uv and docker, in a copy of what the commands read and write."""
    for name in (".ci", "docs/deploy"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    digest = "sha256:" + "0a" * 32
    for name, answer in (("uv", "numpy==9.9 \\\\\n    --hash=sha256:0"), ("docker", digest)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} \"$@\" >&2\nprintf '%s\\n' '{answer}'\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = ok(subprocess.run([tmp_path / ".ci/lock", "2031-02-03"], env=env, capture_output=True, text=True)).stderr
    assert (
        tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["uv"]["exclude-newer"]
        == "2031-02-03T00:00:00Z"
    )
    assert (
        "uv lock --upgrade\n" in said
        and (tmp_path / "docs/deploy/constraints.txt").read_text().count("numpy==9.9") == 1
    )
    for _ in range(2):  # a digest is replaced
        said = ok(subprocess.run([tmp_path / ".ci/digests"], env=env, capture_output=True, text=True)).stderr
        assert said.split()[-1] == base(ROOT / "docs/deploy/Dockerfile").partition("@")[0]
        bases = {base(tmp_path / "docs/deploy" / name) for name in ("Dockerfile", "train.Dockerfile")}
        assert bases == {f"{said.split()[-1]}@{digest}"}


def base(dockerfile: Path) -> str:
    [image] = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", dockerfile.read_text(), re.M)
    return str(image)
