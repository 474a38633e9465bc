"""The files of an artefact.

manifest.json      what the artefact is, and the digests of all other files
model.onnx         the graph: features to predictions, or features to queries (retrieval)
tables/*.bin       rows of embedding tables and item vectors, which the graph memory-maps
index/             retrieval: an index of the item vectors, if the export was to build one
score.onnx         retrieval: queries and item vectors to scores, if they are not dot products
pipeline/          the fitted transforms (recsys.serving.pipeline)
fil/               boosted trees, if Triton's backend FIL serves them (recsys.serving.triton.repository)
examples.json      raw rows and the outputs that they must have
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recsys import manifest
from recsys.errors import UserError
from recsys.serving.servable import Row, TensorSpec

VERSION = 1
GRAPH, SCORER, PIPELINE, EXAMPLES = "model.onnx", "score.onnx", "pipeline", "examples.json"
SINGLE_GRAPH = "single_graph.onnx"
FIL = "fil"
INDEX = "index"
REPOSITORY = "triton"
KEY = "artefact"  # in manifest.json


@dataclass(frozen=True)
class Artefact:
    """An artefact's folder and the description of it that manifest.json holds."""

    folder: Path
    about: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path, *, digests: bool = True) -> Artefact:
        """Read a folder's manifest and check its files.

        Args:
            folder: the folder.
            digests: whether to read every file and compare its digest; otherwise only sizes are compared.

        Raises:
            UserError: the folder is not an artefact, or one that another version of recsys wrote.
            DamagedFile: a file is missing or is not as it was written.
        """
        file = folder / manifest.FILE
        about = manifest.read_json(file).get(KEY) if file.is_file() else None
        if not isinstance(about, dict):
            kind = "a run" if (folder / "config.yaml").is_file() else "not an artefact"
            raise UserError(f"{folder}: is {kind}; write an artefact with python -m recsys.export run=RUN output=DIR")
        if about.get("format") != VERSION:
            raise UserError(
                f"{folder}: has format {about.get('format')} of artefacts, and this version of recsys reads format "
                f"{VERSION}; export the run again"
            )
        entries = manifest.read(folder) or {}
        if unlisted := sorted(_files(folder) - set(entries)):
            raise UserError(f"{folder / unlisted[0]}: is not in {manifest.FILE}; remove it or export the run again")
        manifest.check(folder, size_only=not digests)
        return cls(folder, about)

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def kind(self) -> str:
        return str(self.about["kind"])

    @property
    def example(self) -> list[Row]:
        """One recorded row or, for retrieval, the rows of one history."""
        rows: list[Any] = manifest.read_json(self.folder / EXAMPLES, "rows")["rows"][:1]
        return rows[0] if rows and self.kind == "retrieval" else rows

    @cached_property
    def signature(self) -> dict[str, tuple[TensorSpec, ...]]:
        """The raw columns (inputs), the features (tensors) and the outputs."""
        return {
            part: tuple(TensorSpec(s["name"], s["datatype"], tuple(s["shape"]), s["optional"]) for s in specs)
            for part, specs in self.about["signature"].items()
        }


def _files(folder: Path) -> set[str]:
    """Return the files of a folder, but not hidden ones, the manifest and Triton's repository, to which Triton adds."""
    files = {f.relative_to(folder) for f in folder.rglob("*") if f.is_file()}
    own = {f for f in files if not f.name.startswith(".") and f.parts[0] != REPOSITORY}
    return {f.as_posix() for f in own} - {manifest.FILE}
