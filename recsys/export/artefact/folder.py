"""The files of an artefact.

manifest.json      what the artefact is, and the digests of all other files
model.onnx         the graph: features to predictions, or features to queries (retrieval)
tables/*.bin       rows of embedding tables and item vectors, which the graph memory-maps
index/             retrieval: an index of the item vectors, if the export was to build one
score.onnx         retrieval: queries and item vectors to scores, if they are not dot products
pipeline/          the fitted transforms (recsys.online.row_transforms)
fil/               boosted trees, if Triton's backend FIL serves them (recsys.export.triton.repository)
examples.json      raw rows and the outputs that they must have
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Len
from pydantic import Discriminator, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from recsys.base.errors import UserError
from recsys.files import manifest
from recsys.files.user_files import check_name
from recsys.online.raw_rows import RawRows
from recsys.online.servable import Datatype, TensorSpec

if TYPE_CHECKING:
    from recsys.data.features import Fitted

VERSION = 1
GRAPH, SCORER, PIPELINE, EXAMPLES = "model.onnx", "score.onnx", "pipeline", "examples.json"
SINGLE_GRAPH = "single_graph.onnx"
FIL = "fil"
INDEX = "index"
REPOSITORY = "triton"
KEY = "artefact"  # in manifest.json
ARTEFACT_KINDS = ("ranking", "retrieval")


def is_artefact(folder: Path) -> bool:
    """Return whether a folder has the manifest of an artefact, whole or not."""
    return folder.is_dir() and KEY in (manifest.content(folder) or {})


@dataclass(frozen=True)
class Artefact:
    """An artefact's folder and the description of it that manifest.json holds."""

    folder: Path
    about: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path, *, digests: bool = True) -> Artefact:
        """Read a folder's manifest and check its files.

        Args:
            digests: whether to read every file and compare its digest; otherwise only sizes are compared.

        Raises:
            UserError: the folder is not an artefact, or one that another version of recsys wrote.
            DamagedFile: a file is missing or is not as it was written.
        """
        about = (manifest.content(folder) or {}).get(KEY)
        if not isinstance(about, dict):
            if "delta" in (manifest.content(folder) or {}):
                fix = "make the artefact with python -m recsys.export apply BASE DELTA output=DIR"
                raise UserError(f"{folder}: is a delta of another artefact; {fix}")
            kind = "a run" if (folder / "config.yaml").is_file() else "not an artefact"
            raise UserError(f"{folder}: is {kind}; write an artefact with python -m recsys.export run=RUN output=DIR")
        if about.get("format") != VERSION:
            hint = f"this version of recsys reads format {VERSION!r}; export the run again"
            raise UserError(f"{folder}: has format {about.get('format')!r} of artefacts, and {hint}")
        file = folder / manifest.FILE
        try:
            _DESCRIPTION.validate_python(about)
        except ValidationError as e:
            first = e.errors()[0]
            key = ".".join([KEY, *(str(part) for part in first["loc"] if part not in ARTEFACT_KINDS)])
            raise UserError(f"{file}: {key}: {first['msg']}; export the run again") from e
        check_name(about["name"], f"{file}: name", "clicks")
        check_name(about["version"], f"{file}: version", "1")
        inside = {f.relative_to(folder) for f in folder.rglob("*") if f.is_file() and not f.name.startswith(".")}
        names = {f.as_posix() for f in inside if f.parts[0] != REPOSITORY}  # to which Triton adds
        if unlisted := sorted(names - {manifest.FILE} - set(manifest.read(folder) or {})):
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
    def has_graph(self) -> bool:
        """Return whether ONNX Runtime runs a part of the model."""
        return any((self.folder / name).is_file() for name in (GRAPH, SCORER))

    def raw_rows(self, before: Fitted | None = None) -> RawRows:
        """Load the transforms. Raises UserError if they would read files that are not in the artefact.

        before: transforms whose vocabularies are shared where they are equal
        """
        folder = self.folder / PIPELINE
        state = manifest.read_json(folder / "transforms.json", "data")["data"]
        if not isinstance(state, dict) or state.get("root") is not None:
            raise UserError(f"{folder}: names a folder of raw data, which no artefact has; export the run again")
        rows = RawRows.load(folder)
        if before is not None:
            rows.fitted.share_tables(before)
        return rows

    def examples(self) -> list[Any]:
        """Return the recorded rows or, for retrieval, the rows of each recorded history."""
        rows: list[Any] = manifest.read_json(self.folder / EXAMPLES, "rows")["rows"]
        return rows

    @property
    def specs(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """The raw columns, the features and the outputs."""
        return self.signature["inputs"], self.signature["tensors"], self.signature["outputs"]

    @cached_property
    def signature(self) -> dict[str, tuple[TensorSpec, ...]]:
        """The raw columns (inputs), the features (tensors) and the outputs."""
        return {
            part: tuple(TensorSpec(s["name"], s["datatype"], tuple(s["shape"]), s["optional"]) for s in specs)
            for part, specs in self.about["signature"].items()
        }


class _Tensor(TypedDict):
    name: str
    datatype: Datatype
    shape: list[int]
    optional: bool


class _Signature(TypedDict):
    inputs: list[_Tensor]
    tensors: list[_Tensor]
    outputs: Annotated[list[_Tensor], Len(1)]


class _Described(TypedDict):
    """What every artefact's description has."""

    name: str
    version: str
    tolerance: Annotated[float, Ge(0)]
    signature: _Signature


class _Ranking(_Described):
    kind: Literal["ranking"]


class _Retrieval(_Described):
    """k, filter_history: of a list; items, candidates: their numbers; width: of a vector; method, state: closed form"""

    kind: Literal["retrieval"]
    k: Annotated[int, Ge(1)]
    filter_history: bool
    items: Annotated[int, Ge(0)]
    candidates: Annotated[int, Ge(1)]
    width: NotRequired[Annotated[int, Ge(1)]]
    method: NotRequired[str]
    state: NotRequired[dict[str, Any]]


_DESCRIPTION: TypeAdapter[Any] = TypeAdapter(Annotated[_Ranking | _Retrieval, Discriminator("kind")])


def bytes_of(folder: Path) -> int:
    """Return the bytes of all files in a folder, such as an artefact or a delta."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
