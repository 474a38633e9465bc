"""A repository for Triton names the packages of its Python models, and a missing one is told when a model is loaded."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from without_modules import without

from recsys.export.artefact.folder import Artefact
from recsys.export.triton.repository import (
    ALWAYS,
    INDEXES,
    MODEL,
    MODULES,
    REQUIREMENTS,
    RUNTIME,
    with_versions,
    write_requirements,
)

PROGRAM = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("model", "model.py")
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)
model.import_all()
print("pyarrow" in sys.modules, "torch" in sys.modules)
"""


def artefact(folder: Path, index: str | None = None) -> Artefact:
    return Artefact(folder, {"index": index and {"kind": index}})


def test_requirements_are_lines_of_pip_with_the_versions_of_the_project(tmp_path: Path) -> None:
    write_requirements(tmp_path, with_versions([*ALWAYS, RUNTIME, "faiss-cpu"]))
    lines = [s for s in (tmp_path / REQUIREMENTS).read_text().splitlines() if not s.startswith("#")]
    found = {r.name: str(r.specifier) for r in map(Requirement, lines)}
    assert set(found) == {*ALWAYS, RUNTIME, "faiss-cpu"}
    assert found["polars"].startswith("==") and found[RUNTIME].startswith(">=")
    assert (found["numpy"], found["pyarrow"]) == ("", "<20,>=18")  # these run with numpy 1 and with numpy 2
    assert MODULES["faiss-cpu"] in with_versions(["faiss-cpu"])


def test_no_import_of_the_models_is_left_out() -> None:
    """Also imports within functions count: pyarrow is first imported by a request with histories."""
    models = ("transforms", "graph", "recommend")
    parts = [*(f"recsys.export.triton.{m}" for m in models), "recsys.index.engines", "recsys.index.milvus"]
    code = f"import sys, {', '.join(parts)}; print(*(n for n in sys.modules if n.startswith('recsys')))"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    named = {MODULES.get(p, p) for p in (*ALWAYS, RUNTIME, *INDEXES.values())}
    rest = {"recsys", "triton_python_backend_utils", "onnx", "grpc", "annotated_types", "typing_extensions"}
    rest |= {"torch"}  # of labels, which predict from tensors; no repository has any, as other tests see
    assert len(names) > 40
    imported = set().union(*(_imports(importlib.import_module(name)) for name in names))
    assert imported - sys.stdlib_module_names - rest <= named <= imported


def _imports(module: Any) -> set[str]:
    """Return the packages that the file of a module imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_all_packages_that_cannot_be_imported_are_told_at_once(tmp_path: Path) -> None:
    packages = repr(with_versions(["numpy", "pyarrow", "xxhash"]))
    (tmp_path / "model.py").write_text(MODEL.replace("{module}", "transforms").replace("{packages}", packages))
    why = "pyarrow requires NumPy 2.0 or newer, found 1.26.4"
    (tmp_path / "pyarrow.py").write_text(f"raise ImportError({why!r})\n")
    (tmp_path / "xxhash.py").write_text("raise ImportError\n")
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, cwd=tmp_path, capture_output=True, text=True)
    says = (
        f"pyarrow, xxhash cannot be imported in Triton's Python ({why}); run: pip install 'pyarrow>=18,<20' 'xxhash'; "
    )
    assert done.stderr.splitlines()[-1].startswith(f"RuntimeError: {says}"), done.stderr


@pytest.mark.parametrize("missing", ["pyarrow", "recsys", ""])
def test_a_missing_package_is_told_when_the_model_is_loaded(missing: str, tmp_path: Path) -> None:
    packages = repr(with_versions([*ALWAYS, RUNTIME]))
    (tmp_path / "model.py").write_text(MODEL.replace("{module}", "transforms").replace("{packages}", packages))
    env = without(missing or "nothing", tmp_path)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    if not missing:
        assert done.stdout == "True False\n", done.stderr
        return
    start = f"RuntimeError: {missing} cannot be imported in Triton's Python (No module named '{missing}'); "
    fix = r"run: pip install 'pyarrow>=18,<20'" if missing == "pyarrow" else "export with python_path=bundle"
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(start) and re.search(fix, last), done.stderr
    assert "During handling" not in done.stderr
