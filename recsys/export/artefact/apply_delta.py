"""Apply a delta to the artefact that it is based on: python -m recsys.export.artefact.apply_delta BASE DELTA OUTPUT

A delta is a folder with what differs between two artefacts, the base and the result:

manifest.json      `delta`: the digests of both, how each file is made, and the digests of the delta's own files
result.json        the manifest of the result
files/PATH         files of the result in full: the graph, the examples, and all that is small
rows/PATH.*.npy    of a table: the numbers of rows that differ or are new (n,), and their bytes (n, row_bytes)
values/PATH        of a vocabulary: the ids of new and replaced values, and these values

A file that both artefacts have is linked. So the result takes as much disk as its tables, and not one byte of the base
changes, which other processes have mapped and may be answering from. The digests of all files that were made are
compared with the result's manifest, so that a result is equal to a full export or is not written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from annotated_types import Ge
from filelock import FileLock
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from recsys.base.errors import UserError
from recsys.base.printable import escaped
from recsys.files import manifest
from recsys.files.atomic import link_or_copy, remove_folder, whole_folder

KEY = "delta"  # in manifest.json
VERSION = 1
RESULT, FILES, ROWS, VALUES = "result.json", "files", "rows", "values"

Natural = Annotated[int, Ge(0)]
Segment = tuple[Natural, Natural, Natural]  # rows of the base: first, first in the result, number
FOLDER_VARIABLE = "RECSYS_DELTA_DIR"
APPLIED = ".applied"  # beside the versions, if the variable names no folder
KEPT = 3  # full artefacts that are kept beside the newest; those that are mapped stay in memory until they are not


class PatchedTable(TypedDict):
    """How a table is made. segments: rows that are copied from the base"""

    row_bytes: Annotated[int, Ge(1)]
    segments: list[Segment]


class _Description(TypedDict):
    """What manifest.json says of a delta; base, result: digests of manifests; rows: number of changed and new rows."""

    format: int
    base: str
    result: str
    name: str
    version: str
    rows: Natural
    tables: dict[str, PatchedTable]
    vocabularies: list[str]


_DESCRIPTION: TypeAdapter[_Description] = TypeAdapter(_Description)


def digest_of(folder: Path) -> str:
    """Return the digest of an artefact's manifest, by which a delta names it."""
    return str((manifest.content(folder) or {}).get("digest"))


def is_delta(folder: Path) -> bool:
    """Return whether a folder has the manifest of a delta, whole or not."""
    return folder.is_dir() and KEY in (manifest.content(folder) or {})


@dataclass(frozen=True)
class Delta:
    """A delta's folder, the description of it that manifest.json holds, and the entries of the result's files."""

    folder: Path
    about: _Description
    entries: Mapping[str, manifest.Entry]

    @classmethod
    def open(cls, folder: Path) -> Delta:
        """Read a folder's manifest and check its files, digests included. Raises UserError."""
        found = (manifest.content(folder) or {}).get(KEY)
        if not isinstance(found, dict):
            hint = "write a delta with python -m recsys.export run=RUN output=DIR delta_from=ARTEFACT"
            raise UserError(f"{folder}: is not a delta; {hint}")
        if found.get("format") != VERSION:
            hint = f"this version of recsys reads format {VERSION!r}; export the run again"
            raise UserError(f"{folder}: has format {found.get('format')!r} of deltas, and {hint}")
        try:
            about = _DESCRIPTION.validate_python(found)
        except ValidationError as e:
            first = e.errors()[0]
            key = ".".join([KEY, *map(str, first["loc"])])
            raise UserError(f"{folder / manifest.FILE}: {key}: {first['msg']}; export the run again") from e
        manifest.check(folder)
        result = manifest.read_json(folder / RESULT, "files", "digest")
        if result["digest"] != about["result"]:
            raise manifest.DamagedFile(folder / RESULT, "is not the manifest of the result that manifest.json names")
        with manifest.from_elsewhere(folder):
            return cls(folder, about, {name: (size, digest) for name, (size, digest) in result["files"].items()})

    def make(self, base: Path, building: Path) -> None:
        """Write the result into an empty folder. Raises UserError."""
        if (found := digest_of(base)) != self.about["base"]:
            why = f"applies to the artefact with the digest {self.about['base']}, and {base} has {found}"
            hint = "apply deltas in the order in which they were exported, or name the artefact that delta_from named"
            raise UserError(f"{self.folder}: {why}; {hint}")
        before = manifest.read(base) or {}
        for name, entry in self.entries.items():
            file = manifest.inside(building, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            with manifest.from_elsewhere(self.folder):
                self._make_file(base, name, file, linked=before.get(name) == entry)
        shutil.copyfile(self.folder / RESULT, building / manifest.FILE)

    def _make_file(self, base: Path, name: str, file: Path, *, linked: bool) -> None:
        """Write one file of the result and check it. linked: whether the base has the same file"""
        if linked:
            manifest.check_file(base, name, self.entries[name], size_only=True)
            link_or_copy(manifest.inside(base, name), file)
            return
        if (table := self.about["tables"].get(name)) is not None:
            files = (manifest.inside(self.folder, f"{ROWS}/{name}.{part}.npy") for part in ("ids", "bytes"))
            rows, new = (np.load(f, mmap_mode="r", allow_pickle=False) for f in files)
            width = table["row_bytes"]
            with file.open("wb") as f:
                f.truncate(self.entries[name][0])
            segments = [(a * width, b * width, n * width) for a, b, n in table["segments"]]
            copy_rows(manifest.inside(base, name), file, segments)
            if len(rows):
                np.memmap(file, np.uint8, "r+").reshape(-1, width)[rows] = new
            file.chmod(0o444)
        elif name in self.about["vocabularies"]:
            values = pl.read_parquet(manifest.inside(self.folder, f"{VALUES}/{name}"), glob=False)
            write_vocabulary(patched(pl.read_parquet(manifest.inside(base, name), glob=False), values), file)
        else:
            link_or_copy(manifest.inside(self.folder, f"{FILES}/{name}"), file)
        try:
            manifest.check_file(file.parents[name.count("/")], name, self.entries[name])
        except manifest.DamagedFile as e:
            why = "does not become what was exported: the base is damaged, or another version of polars wrote it"
            raise manifest.DamagedFile(self.folder, f"{name} {why}; export the run in full") from e


def apply_delta(base: Path, delta: Path, output: Path) -> None:
    """Write the artefact that a delta makes of its base. An artefact that is there already is replaced at the end.

    The same delta may be applied again and again, with the same result.

    Raises:
        UserError: `base` is not the artefact that the delta is based on, or `delta` is not a delta.
        DamagedFile: a file of the delta or of the base is not as it was written; nothing is then written.
    """
    opened = Delta.open(delta)
    output.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(output) as building:
        opened.make(base, building)


def copy_rows(before: Path, file: Path, parts: Sequence[Segment]) -> None:
    """Copy parts of a file (first byte, first byte in the new file, bytes), in the kernel where it can."""
    with before.open("rb") as source, file.open("r+b") as target:
        for start, at, left in parts:
            while left:
                try:
                    n = os.copy_file_range(source.fileno(), target.fileno(), left, start, at)
                except OSError:  # another file system
                    n = os.pwrite(target.fileno(), os.pread(source.fileno(), min(left, 1 << 24), start), at)
                if not n:
                    raise ValueError(f"{before.name} ends before byte {start + left:,}")
                start, at, left = start + n, at + n, left - n


def patched(base: pl.DataFrame, values: pl.DataFrame) -> pl.DataFrame:
    """Return a vocabulary with other values: frames (value, id), in the order of ids."""
    kept = base.join(values, on="id", how="anti")
    return pl.concat([kept, values.select(base.columns)]).sort("id")


def write_vocabulary(frame: pl.DataFrame, file: Path) -> None:
    """Write a vocabulary, so that equal vocabularies have equal bytes."""
    frame.rechunk().write_parquet(file, row_group_size=1 << 18, statistics=False)


def main() -> None:
    """Apply the delta in sys.argv[2] to the artefact in sys.argv[1], and write it to sys.argv[3], at low priority."""
    os.nice(19)
    try:
        apply_delta(*(Path(argument) for argument in sys.argv[1:4]))
    except UserError as e:
        sys.stderr.write(f"{escaped(str(e))}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()


def chain(version: Path) -> list[Path]:
    """Return the folders that a version is made of: itself, the base of its delta, and so on, a full artefact last.

    Raises UserError if one of them is not beside it.
    """
    folders, above = [version], frozenset[str]()
    while base := _about(folders[-1]).get("base"):
        above |= {result_of(folders[-1])}
        folders.append(_beside(folders[-1], str(base), above))
    return folders


def full_artefact(version: Path) -> Path:
    """Return the artefact that a version is, or that its delta makes. Raises UserError as `applied`."""
    return applied(version) if is_delta(version) else version


def applied(version: Path) -> Path:
    """Return the full artefact of a version that is a delta, made of the versions beside it if it is not there yet.

    A process of its own makes it, at low priority: what works for requests gets the processor first. If it is killed,
    nothing is left that could be taken for the artefact, and the next caller makes it again.

    Raises:
        UserError: no version beside it is the delta's base, or the base is damaged.
        DamagedFile: the delta is damaged.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    cache = Path(named) / version.parent.resolve().name if named else version.parent / APPLIED
    if (there := _made(cache, result_of(version))) is not None:  # also where nothing can be written
        return there
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / ".lock"):
            folder = _applied(version, cache, frozenset())
            others = [p for p in cache.iterdir() if p.is_dir() and p != folder]
            unfinished = [p for p in others if p.name.startswith(".")]  # of a process that was killed
            made = sorted((p for p in others if p not in unfinished), key=lambda p: p.stat().st_mtime)
            for old in made[:-KEPT]:  # processes that have mapped one keep it until they unmap it
                remove_folder(old)
            for left in unfinished:
                shutil.rmtree(left, ignore_errors=True)
            return folder
    except OSError as e:
        fix = f"set {FOLDER_VARIABLE} to a folder on a local disk"
        raise UserError(f"{cache}: cannot be written ({e.strerror}), and deltas are applied there; {fix}") from e


def _applied(version: Path, cache: Path, above: frozenset[str]) -> Path:
    delta = Delta.open(version)
    result, wanted = delta.about["result"], delta.about["base"]
    folder = cache / result
    if _made(cache, result) is not None:
        return folder
    if (base := _made(cache, wanted)) is None:
        base = _beside(version, wanted, above | {result})
        base = _applied(base, cache, above | {result}) if is_delta(base) else base
    command = [sys.executable, "-m", "recsys.export.artefact.apply_delta", str(base), str(version), str(folder)]
    environment = os.environ | {"POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"the process has ended with status {done.returncode}"])[-1]
        raise UserError(why if str(version) in why else f"{version}: cannot be applied: {why}")
    return folder


def _beside(version: Path, wanted: str, above: frozenset[str]) -> Path:
    """Return the version beside another one that is, or makes, the artefact with a digest; full artefacts first."""
    others = sorted(p.parent for p in version.parent.glob(f"*/{manifest.FILE}") if p.parent != version)
    deltas = []
    for other in others:
        with suppress(UserError):  # of this version alone
            if result_of(other) == wanted:
                if not is_delta(other):
                    return other
                deltas.append(other)
    if deltas and wanted not in above:
        return deltas[0]
    raise UserError(
        f"{version}: is a delta of the artefact with the digest {wanted}, which no version in {version.parent} has; "
        "copy that version there, or the full artefact: python -m recsys.export apply BASE DELTA output=DIR"
    )


def _made(cache: Path, digest: str) -> Path | None:
    """Return the artefact with a digest if it has been made, and count it as used now."""
    if not (folder := cache / digest).is_dir() or digest_of(folder) != digest:
        return None
    with suppress(OSError):
        os.utime(folder)
    return folder


def result_of(version: Path) -> str:
    """Return the digest of the artefact that a version is, or that its delta makes, as its manifest says."""
    return str(_about(version).get("result") or manifest.read_json(version / manifest.FILE).get("digest"))


def _about(version: Path) -> dict[str, Any]:
    about = manifest.read_json(version / manifest.FILE).get(KEY)
    return about if isinstance(about, dict) else {}
