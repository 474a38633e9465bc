"""The packages that the models of Triton's Python backend import, with the versions that recsys asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from recsys.export.artefact.folder import Artefact

REQUIREMENTS = "requirements.txt"  # in the repository; Triton reads only its folders
ALWAYS = ("numpy", "polars", "pyarrow", "pydantic", "rich", "xxhash", "filelock")
RUNTIME = "onnxruntime"
INDEXES = {"ivf": "faiss-cpu", "ivf_pq": "faiss-cpu", "hnsw": "faiss-cpu", "usearch": "usearch", "milvus": "pymilvus"}
MODULES = {"faiss-cpu": "faiss"}  # of packages whose module has another name
HEAD = """\
# What the models of this repository import. Install it into the Python that Triton's Python backend runs:
#     pip install -r requirements.txt
"""
# Some builds of Triton pin numpy 1: with it, pyarrow imports below version 20 only, which runs with numpy 2 as well.
ANY_NUMPY = {"numpy": "", "pyarrow": ">=18,<20"}


def packages_of(artefact: Artefact, python_graph: bool) -> list[str]:
    """Return the names of the packages that the Python models of a repository import.

    python_graph: whether a graph runs in the Python backend
    """
    index = INDEXES.get((artefact.about.get("index") or {}).get("kind", ""))
    return [*ALWAYS, *([RUNTIME] if python_graph else []), *([] if index is None else [index])]


def with_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return module -> requirement, as pip reads it, for each package; without a version if recsys is not installed."""
    try:
        asked = [re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*([^;\s]*)", line) for line in requires("recsys") or []]
    except PackageNotFoundError:
        asked = []
    versions = {m[1]: m[2] for m in asked if m is not None} | ANY_NUMPY
    return {MODULES.get(name, name): f"{name}{versions.get(name, '')}" for name in packages}


def write_requirements(folder: Path, requirements: Mapping[str, str]) -> None:
    """Write what pip installs. requirements: what `with_versions` returned"""
    (folder / REQUIREMENTS).write_text(HEAD + "".join(f"{line}\n" for line in requirements.values()))
