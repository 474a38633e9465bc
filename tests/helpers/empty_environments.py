"""Virtual environments with nothing in them but what a test installs, by uv and from its cache if it suffices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def built_wheel(folder: Path) -> Path:
    """Build the wheel into a folder. Skips the test if no wheel can be built here."""
    built = subprocess.run(["uv", "build", "--wheel", "-o", str(folder)], cwd=ROOT, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"no wheel can be built here: {built.stderr[-200:]}")
    [wheel] = folder.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment of this Python's version."""

    def __init__(self, folder: Path) -> None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run(["uv", "venv", "--quiet", "--python", version, folder], check=True)
        self.python = folder / "bin" / "python"

    def install(self, *arguments: str) -> None:
        """Install packages: from uv's cache, otherwise from the network. Skips the test if neither has them."""
        command = ["uv", "pip", "install", "--quiet", "--python", str(self.python), *arguments]
        for more in (["--offline"], []):
            done = subprocess.run([*command, *more], cwd=self.python.parent, capture_output=True, text=True)
            if done.returncode == 0:
                return
        if "error sending request" in done.stderr or "dns error" in done.stderr:
            pytest.skip(f"no network: {done.stderr[-200:]}")
        raise AssertionError(done.stderr)

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python, which sees nothing of the checkout."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RECSYS_"))}
        folder = cwd or self.python.parent
        return subprocess.run([self.python, *arguments], cwd=folder, env=env, capture_output=True, text=True)

    def packages(self) -> set[str]:
        """Return the names of what is installed."""
        command = ["uv", "pip", "list", "--quiet", "--format", "freeze", "--python", str(self.python)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return {line.partition("==")[0] for line in listed.splitlines()}
