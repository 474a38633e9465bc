"""Run a command in a new interpreter that lacks some modules, as if their packages were not installed."""

import resource
import subprocess
from pathlib import Path
from typing import NamedTuple

from forks import run_anew

SITE = """
import os, sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        lacks = any(name == m or name.startswith(m + ".") for m in os.environ["RECSYS_TEST_WITHOUT"].split(","))
        return None if lacks else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
ROOT = Path(__file__).parents[2]


class Finished(NamedTuple):
    """A finished command, and the CPU seconds that it took."""

    done: subprocess.CompletedProcess[str]
    seconds: float


def without(modules: str, folder: Path) -> dict[str, str]:
    """Return the environment of an interpreter that lacks modules, separated by commas. folder: for its sitecustomize"""
    (folder / "sitecustomize.py").write_text(SITE)
    return {"PYTHONPATH": f"{folder}:{ROOT}", "RECSYS_TEST_WITHOUT": modules}


def run_without(modules: str, command: list[str], folder: Path) -> Finished:
    """Run `python -m COMMAND` in a folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run_anew(command[0], *command[1:], cwd=folder, env=without(modules, folder))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Finished(done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
