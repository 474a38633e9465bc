"""Write a run as an artefact, and prove that the outputs of the artefact equal the outputs of the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.base.packages import version_of
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.prepare.plan_build import plan_build
from recsys.data.raw import read_sources
from recsys.export.artefact import folder as files
from recsys.export.artefact.apply_delta import write_vocabulary
from recsys.export.artefact.folder import Artefact
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
