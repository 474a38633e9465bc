"""The names that `import recsys` offers are those of the modules, and importing the package stays fast."""

import subprocess
import sys
from importlib import import_module

import pytest

import recsys


@pytest.mark.parametrize("name", sorted(recsys.EXPORTS))
def test_exports(name: str) -> None:
    assert getattr(recsys, name) is getattr(import_module(recsys.EXPORTS[name]), name)


def test_importing_the_package_imports_nothing_slow() -> None:
    code = "import sys, recsys; print({'torch', 'polars', 'hydra'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
