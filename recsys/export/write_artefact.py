"""Write a run as an artefact, and prove that the outputs of the artefact equal the outputs of the run.

`export_delta` writes only what differs from an earlier artefact, for `recsys.export.artefact.apply_delta` to apply.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.base.packages import version_of
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.prepare.plan_build import plan_build
from recsys.data.raw import read_sources
from recsys.export.artefact import folder as files
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
    link,
    patched,
    write_vocabulary,
)
from recsys.export.artefact.folder import PIPELINE, Artefact, bytes_of
from recsys.export.exported import COMPARED, RECORDED, Exported, ExportSource, Form, raw_frame
from recsys.export.graphs import OPSET
from recsys.export.ranking_graph import ExportedRanking
from recsys.export.retrieval_graph import ExportedClosedForm, ExportedRetrieval
from recsys.export.trees import ExportedTrees
from recsys.export.triton.repository import write_repository
from recsys.files import manifest, starts
from recsys.files.atomic import finite, whole_folder
from recsys.files.run_files import RESULTS
from recsys.job.kinds import ClosedFormKind, FittedRankingKind, ModelKind, RankingKind, RetrievalKind
from recsys.online.raw_rows import RawRows

PACKAGES = ("recsys", "torch", "onnx", "onnxruntime", "polars", "numpy")


EXPORTS: dict[type[ModelKind], type[Exported]] = {
    RankingKind: ExportedRanking,
    FittedRankingKind: ExportedTrees,
    RetrievalKind: ExportedRetrieval,
    ClosedFormKind: ExportedClosedForm,
}
WORTH = 0.5  # of the artefact's bytes: a larger delta is not written
BLOCK_BYTES = 1 << 24


def write_artefact(source: ExportSource, form: Form, output: Path) -> dict[str, Any]:
    """Write the artefact of a run and return its description. An artefact that is there already is replaced at the end.

    Raises:
        UserError: its outputs differ from the run's; nothing is then written.
    """
    rows = RawRows.load(source.run)
    exported = EXPORTS[type(source.cfg.kind)](source, form, rows)
    exported.check()
    new = not output.exists()
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        raw = raw_frame(rows, list(source.files) or _raw_files(source.cfg.data), RECORDED + COMPARED)
    except UserError as e:
        if not source.files:
            raise
        raise UserError(f"rows: {str(e).partition('; set data.')[0]}") from e
    with whole_folder(output, new=new) as building:
        _save_pipeline(rows, building / files.PIPELINE)
        about, examples = exported.write(raw, building)
        compared = examples.compared
        examples.recorded.write(building / files.EXAMPLES)
        about = finite(_description(exported, about))
        for table in building.glob("tables/*.bin"):  # servers map them: a change in place would end their workers
            table.chmod(0o444)
        manifest.write(building, manifest.entries_of(building), {files.KEY: about})
        if form.triton is not None:
            write_repository(Artefact(building, about), building / files.REPOSITORY, form.triton)
        with TemporaryDirectory(prefix="recsys-export-") as temporary:
            more = Path(temporary) / "compared.json"
            compared.write(more)
            for number, difference in _verify_elsewhere(building, *([more] if compared.rows else [])):
                say(f"{number:,} {exported.outputs_of} agree with the run within {difference:.1e}")
    return about


def _save_pipeline(rows: RawRows, folder: Path) -> None:
    """Save the transforms without the places of the raw and prepared data on this machine."""
    data = rows.fitted.data
    joins = [replace(join, file=Path(join.file).name) for join in data.source.joins]
    source = replace(data.source, joins=joins)
    data = replace(data, source=source, root=None, prepared="outputs/prepared", spec=None)
    # the counts of values change with each training, and a server does not read them
    ids = {table: v.select("value", "id") for table, v in rows.fitted.vocabularies.items()}
    RawRows(replace(rows.fitted, data=data, vocabularies=ids, waiting={}), rows.raw).save(folder)
    for file in (folder / "vocabularies").glob("*.parquet"):
        write_vocabulary(pl.read_parquet(file, glob=False), file)


def _raw_files(config: ResolvedData) -> list[Path]:
    """Return the run's raw files, the last one first: those of the test split if the config names them, or all."""
    try:
        data: ResolvedData = plan_build(config).data
    except UserError as e:
        raise UserError(f"{e}; or name files of raw rows to compare with rows=FILES") from e
    globs = [*(data.split.test_files or data.split.train_files)] if data.split.by == "files" else None
    return read_sources.find_files(data, globs or None)[::-1]


def _description(exported: Exported, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an artefact for its manifest."""
    source, form = exported.source, exported.form
    results = source.run / RESULTS[0]
    measured = json.loads(results.read_text(encoding="utf-8")).get("test", {}) if results.exists() else {}
    return {
        **own,
        "format": files.VERSION,
        "name": form.name,
        "version": form.version,
        "precision": form.precision,
        "tables": form.tables,
        "tolerance": exported.tolerance,
        "formats": ["onnx", *form.formats],
        "opset": OPSET,
        "model": source.cfg.model["_target_"],
        "data": source.cfg.data.name,
        "checkpoint": source.checkpoint.name,
        "metrics": {"run": measured, **own["metrics"]},
        "events_until": form.events_until,
        "trained_by": starts.line(source.run),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {p: version_of(p) for p in PACKAGES},  # of recsys none, in a checkout that is not installed
    }


def _verify_elsewhere(folder: Path, *more: Path) -> list[tuple[int, float]]:
    """Verify in a fresh process. Return the rows and the largest difference of each file; UserError if one differs."""
    code = "from recsys.export.artefact.load_artefact import print_verified; print_verified()"
    command = [sys.executable, "-c", code, str(folder), *map(str, more)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"nothing was written: {(done.stderr.strip().splitlines() or ['it cannot be verified'])[-1]}")
    results, imported = json.loads(done.stdout.strip().splitlines()[-1])
    if imported:
        raise RuntimeError(f"serving imports {', '.join(imported)}")
    return [(number, difference) for number, difference in results]  # JSON has no tuples


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
            link(full / name, folder / FILES / name)
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
