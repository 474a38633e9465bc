"""Write what differs between two artefacts as a delta, which `recsys.export.artefact.apply_delta` applies."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.export.artefact.apply_delta import (
    FILES,
    KEY,
    RESULT,
    ROWS,
    VALUES,
    VERSION,
    Delta,
    PatchedTable,
    Segment,
    apply_delta,
    digest_of,
    full_artefact,
    patched,
    write_vocabulary,
)
from recsys.export.artefact.folder import PIPELINE, Artefact, bytes_of
from recsys.export.exported import ExportSource, Form
from recsys.export.write_artefact import write_artefact
from recsys.files import manifest
from recsys.files.atomic import link_or_copy, whole_folder

WORTH = 0.5  # of the artefact's bytes: a larger delta is not written
BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class ExportedDelta:
    """What was written: a delta with this number of rows, or a full artefact.

    bytes, full_bytes: of what was written, and of the full artefact
    why: why it is not a delta
    """

    is_delta: bool
    rows: int
    bytes: int
    full_bytes: int
    about: Mapping[str, Any]
    why: str = ""


def export_delta(source: ExportSource, form: Form, base: Path, output: Path) -> ExportedDelta:
    """Export a run as a delta of an artefact, or in full if that has no use.

    The full artefact is written and proves itself first. The delta is applied to the base again, and must make the same
    files.

    source: the run, which went on from the run of the base
    base: the artefact that the delta is to be applied to, or a delta of it, beside its base

    Raises UserError if `base` is not an artefact or the outputs of the new one differ from the run's, and DamagedFile
    if a file of the base is not as it was written.
    """
    base = full_artefact(base)
    before = Artefact.open(base)
    with whole_folder(output) as building:
        full, delta = building / ".full", building / ".delta"
        about = write_artefact(source, form, full)
        full_size, why = bytes_of(full), _no_delta(before, Artefact(full, about))
        if why is None:
            delta.mkdir()
            rows = write_delta(base, full, delta)
            if (size := bytes_of(delta)) > WORTH * full_size:
                why = f"a delta would have {size / full_size:.0%} of its bytes"
            else:
                apply_delta(base, delta, building / ".proof")  # as a server does
                if digest_of(building / ".proof") != Delta.open(delta).about["result"]:
                    raise UserError(f"{delta}: does not make what was exported")
        for path in list((full if why is not None else delta).iterdir()):
            path.rename(building / path.name)
        for folder in (full, delta, building / ".proof"):
            shutil.rmtree(folder, ignore_errors=True)
    if why is None:
        return ExportedDelta(True, rows, size, full_size, about)
    say(f"{output}: is a full artefact, not a delta: {why}")
    return ExportedDelta(False, 0, full_size, full_size, about, why)


def _no_delta(before: Artefact, after: Artefact) -> str | None:
    """Return why two artefacts have no delta, or None if they have."""
    for key in ("kind", "name", "tables", "precision", "formats"):
        if before.about.get(key) != after.about.get(key):
            return f"{key} is {after.about.get(key)}, and {before.about.get(key)} in {before.folder}"
    for part in ("index", "triton", "fil"):
        if (after.folder / part).exists():
            return f"it has {part}/, which is written anew as a whole"
    if "layout" not in before.about:
        why = "it has none, or an older version of recsys wrote it"
        return f"{before.folder} does not say where the rows of its tables are: {why}"
    return None


def write_delta(base: Path, full: Path, folder: Path) -> int:
    """Write the delta from one artefact to another into an empty folder; return the number of rows in it."""
    old, new = (manifest.content(f) or {} for f in (base, full))
    before, entries = manifest.read(base) or {}, manifest.read(full) or {}
    layouts = [value["artefact"].get("layout", {}) for value in (old, new)]
    tables, vocabularies, rows = dict[str, PatchedTable](), list[str](), 0
    for name in sorted(n for n in entries if before.get(n) != entries[n]):
        a, b = (layout.get(name) for layout in layouts)
        if a is not None and b is not None and a["row_bytes"] == b["row_bytes"]:
            tables[name], changed = _write_table(base / name, full / name, a, b, folder / ROWS / name)
            rows += changed
        elif name in before and name.startswith(f"{PIPELINE}/vocabularies/") and name.count("/") == 2:
            vocabularies += [name] if _write_values(base, full, name, folder) else []
        if name not in tables and name not in vocabularies:
            (folder / FILES / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(full / name, folder / FILES / name)
    shutil.copyfile(full / manifest.FILE, folder / RESULT)
    about = {"format": VERSION, "base": old["digest"], "result": new["digest"], "rows": rows}
    about |= {key: new["artefact"][key] for key in ("name", "version", "created", "events_until")}
    about |= {"tables": tables, "vocabularies": vocabularies}
    manifest.write(folder, manifest.entries_of(folder), {KEY: about})
    return rows


def _write_table(
    before: Path, after: Path, old: Mapping[str, Any], new: Mapping[str, Any], target: Path
) -> tuple[PatchedTable, int]:
    """Write the rows of a table's file that differ from the base or are new; return how it is made, and their number.

    The file has several tables, each of which may have moved because one before it has grown.
    """
    width = new["row_bytes"]
    a, b = (np.memmap(f, np.uint8, "r").reshape(-1, width) for f in (before, after))
    segments: list[Segment] = []
    ids: list[np.ndarray] = []
    end = 0
    for name, (start, count) in sorted(new["starts"].items(), key=lambda table: table[1]):
        old_start, old_count = old["starts"].get(name, (0, 0))
        common = min(count, old_count)
        ids.append(np.arange(end, start))  # rows of no table
        if common:
            segments.append((old_start, start, common))
            step = max(1, BLOCK_BYTES // width)
            for first in range(0, common, step):
                end_of_block = min(first + step, common)
                old_rows = a[old_start + first : old_start + end_of_block]
                differ = (old_rows != b[start + first : start + end_of_block]).any(axis=1)
                ids.append(start + first + np.flatnonzero(differ))
        ids.append(np.arange(start + common, start + count))
        end = start + count
    ids.append(np.arange(end, len(b)))
    changed = np.concatenate(ids)
    target.parent.mkdir(parents=True, exist_ok=True)
    np.save(target.with_name(f"{target.name}.ids.npy"), changed.astype(np.uint32 if len(b) < 2**32 else np.uint64))
    np.save(target.with_name(f"{target.name}.bytes.npy"), b[changed])
    return {"row_bytes": width, "segments": segments}, len(changed)


def _write_values(base: Path, full: Path, name: str, folder: Path) -> bool:
    """Write the new and the replaced values of a vocabulary; return False if they do not make the same file."""
    old, new = (pl.read_parquet(f / name, glob=False) for f in (base, full))
    if old.schema != new.schema or "id" not in new.columns:
        return False
    values = new.join(old, on=new.columns, how="anti", maintain_order="left")
    target = folder / VALUES / name
    target.parent.mkdir(parents=True, exist_ok=True)
    write_vocabulary(patched(old, values), target)
    same = manifest.entry_of(target) == manifest.entry_of(full / name)
    target.unlink()
    if same:
        write_vocabulary(values, target)
    return same
