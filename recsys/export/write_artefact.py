"""Write a run as an artefact, and prove that the outputs of the artefact equal the outputs of the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import torch

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.base.packages import version_of
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.prepare.prepared import plan_build
from recsys.data.raw import read_sources
from recsys.evaluation.calibration import load as load_calibration
from recsys.export.artefact import folder as files
from recsys.export.artefact.apply_delta import write_vocabulary
from recsys.export.artefact.folder import Artefact
from recsys.export.artefact.scorers import VectorScorer
from recsys.export.artefact.session import open_session
from recsys.export.examples import COMPARED, RECORDED, Examples, raw_frame, scored
from recsys.export.forms import write_forms
from recsys.export.graphs import OPSET
from recsys.export.ranking_graph import measure, write_ranking
from recsys.export.ranking_graph import signature_of as ranking_signature
from recsys.export.restored import StoredTask, logits_of
from recsys.export.retrieval_graph import recommended, signature_of, write_closed_form, write_retrieval
from recsys.export.single_graph import check_single_graph
from recsys.export.trees import write_steps, write_trees
from recsys.export.triton.repository import Options, write_repository
from recsys.files import manifest
from recsys.files.atomic import finite, whole_folder
from recsys.files.run_files import RESULTS
from recsys.index import build
from recsys.index.milvus import connect
from recsys.job.kinds import ModelKind
from recsys.job.run_config import RunConfig
from recsys.online.queries import in_batches
from recsys.online.raw_rows import RawRows
from recsys.online.recommender import Recommender
from recsys.schema.command_schemas import TableType
from recsys.training.fitted_ranking import load as load_fitted
from recsys.training.run_data import prepare_to_measure

EXACT, EXACT_SCORES = 1e-5, 1e-4  # tolerance of predictions and of items' scores with fp32 weights and tables
# tolerances of smaller types find damage only; the metrics say what such a type costs
TOLERANCES = {"fp16": 5e-3, "bf16": 5e-2, "int8": 2e-2, "int4": 2e-1}
PACKAGES = ("recsys", "torch", "onnx", "onnxruntime", "polars", "numpy")


@dataclass(frozen=True)
class IndexOptions:
    """An index of a retrieval model's item vectors; see `recsys.index.build_index`."""

    kind: str
    recall_target: float
    url: str | None = None


@dataclass(frozen=True)
class Form:
    """How an artefact is stored.

    name, version: under which a server offers the model
    precision: type of the dense weights: fp32, fp16 or bf16
    tables: type of the rows of tables
    formats: further forms of the graph
    triton: options of a model repository for Triton; None writes none
    index: options of an index of item vectors; None builds none
    events_until: time of the newest training event, ISO 8601; None if nobody says it
    """

    name: str
    version: str = "1"
    precision: str = "fp32"
    tables: TableType = "fp32"
    formats: tuple[str, ...] = ()
    triton: Options | None = None
    index: IndexOptions | None = None
    events_until: str | None = None

    def tolerance(self, *, scores_rows: bool) -> float:
        """Return the largest difference of an output from the run's that is not an error."""
        exact = EXACT if scores_rows else EXACT_SCORES
        return max(exact, TOLERANCES.get(self.precision, 0.0), TOLERANCES.get(self.tables, 0.0))


@dataclass(frozen=True)
class ExportSource:
    """The run to export: its folder, its config and a checkpoint. files: raw files to take rows from"""

    run: Path
    cfg: RunConfig
    checkpoint: Path
    files: tuple[Path, ...] = ()

    @property
    def kind(self) -> ModelKind:
        return self.cfg.kind


def write_artefact(source: ExportSource, form: Form, output: Path) -> dict[str, Any]:
    """Write the artefact of a run and return its description. An artefact that is there already is replaced at the end.

    Raises:
        UserError: its outputs differ from the run's; nothing is then written.
    """
    new = not output.exists()
    output.parent.mkdir(parents=True, exist_ok=True)
    rows = RawRows.load(source.run)
    _check_forms(source, form, rows)
    try:
        raw = raw_frame(rows, list(source.files) or _raw_files(source.cfg.data), RECORDED + COMPARED)
    except UserError as e:
        if not source.files:
            raise
        raise UserError(f"rows: {str(e).partition('; set data.')[0]}") from e
    with whole_folder(output, new=new) as building:
        _save_pipeline(rows, building / files.PIPELINE)
        write = _ranking if source.kind.scores_rows else _retrieval
        about, examples = write(source, form, rows, raw, building)
        compared = examples.compared(dependent=source.kind.scores_rows and rows.fitted.data.group is not None)
        examples.recorded.write(building / files.EXAMPLES)
        about = finite(_description(source, form, about))
        for table in building.glob("tables/*.bin"):  # servers map them: a change in place would end their workers
            table.chmod(0o444)
        manifest.write(building, manifest.entries_of(building), {files.KEY: about})
        if form.triton is not None:
            write_repository(Artefact(building, about), building / files.REPOSITORY, form.triton)
        with TemporaryDirectory(prefix="recsys-export-") as temporary:
            more = Path(temporary) / "compared.json"
            compared.write(more)
            for file in (None, more) if compared.rows else (None,):
                result = _verify_elsewhere(building, file)
                what = "raw rows" if source.kind.scores_rows else "lists of items"
                say(f"{result['rows']:,} {what} agree with the run within {result['difference']:.1e}")
    return about


def _check_forms(source: ExportSource, form: Form, rows: RawRows) -> None:
    """Raise UserError if the model or its data has no such form, before anything is written."""
    if not source.kind.scores_rows and form.precision != "fp32":
        raise UserError(f"precision={form.precision}: applies to models that score rows; leave it out")
    if form.index is not None and (source.kind.scores_rows or source.kind.fitted_at_once):
        raise UserError(f"index={form.index.kind}: this model has no item vectors; leave it out")
    if form.index is not None and form.index.url is not None:
        connect(form.index.url)
    if source.kind.scores_rows and source.kind.fitted_at_once:
        given = {"precision": form.precision, "tables": form.tables}
        if wrong := [f"{key}={value}" for key, value in given.items() if value != "fp32"]:
            raise UserError(f"{wrong[0]}: {source.kind.fitted_models} have no weights and no tables; leave it out")
        if wrong := [f for f in form.formats if f != "single_graph"]:
            why = f"{source.kind.fitted_models} have no such form"
            raise UserError(f"format={wrong[0]}: {why}; use single_graph or onnx")
    elif form.triton is not None and form.triton.dense_backend == "fil":
        raise UserError("dense_backend=fil: serves boosted trees only; use onnxruntime, pytorch or python")
    if "single_graph" in form.formats:
        check_single_graph(rows.fitted)


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
    """Return the run's raw files, the last one first: the files of the test split if the config names them, or all."""
    try:
        data: ResolvedData = plan_build(config).data
    except UserError as e:
        raise UserError(f"{e}; or name files of raw rows to compare with rows=FILES") from e
    globs = list(data.split.test_files) if data.split.by == "files" else None
    return read_sources.find_files(data, globs or None)[::-1]


def _ranking(
    source: ExportSource, form: Form, rows: RawRows, raw: pl.DataFrame, folder: Path
) -> tuple[dict[str, Any], Examples]:
    """Write the parts of a ranking model; return its description and rows to compare."""
    features, more = rows.fitted.features, dict[str, Any]()
    labels = load_calibration(source.run, rows.fitted.labels)
    if source.kind.fitted_at_once:
        model = load_fitted(source.cfg, rows.fitted, source.checkpoint)
        examples = scored(rows, raw, lambda arrays: logits_of(model, arrays, features), labels)
        written = write_trees(model, labels, folder)
        if form.triton is not None and form.triton.dense_backend == "fil":
            more = {"fil": write_steps(model, labels, folder / files.FIL)}
    else:
        task = StoredTask.load(source.cfg, features, source.checkpoint)
        examples = scored(rows, raw, task.logits, labels)
        written = write_ranking(task, labels, form.tables, form.precision, folder)
        more = {"layout": written.layout}
    recorded = examples.recorded
    write_forms(form.formats, written, rows, recorded.rows, recorded.outputs, form.tolerance(scores_rows=True))
    measured = {}
    prepared = prepare_to_measure(source.run, source.cfg.data)
    if prepared.rows("test"):
        session = open_session(folder / files.GRAPH, source.cfg.trainer.threads or torch.get_num_threads())
        measured = measure(session, source.cfg, prepared, labels)
    about = {"kind": "ranking", "signature": ranking_signature(rows, features, written.graph.outputs)}
    return about | more | {"metrics": {"artefact": measured}}, examples


def _retrieval(
    source: ExportSource, form: Form, rows: RawRows, raw: pl.DataFrame, folder: Path
) -> tuple[dict[str, Any], Examples]:
    """Write the parts of a retrieval model; return its description and lists to compare."""
    recommender = Recommender.load(str(source.run), source.checkpoint.name)
    examples = recommended(recommender, raw)
    features, read = rows.fitted.features, list[str]()
    if recommender.items is None:
        described = write_closed_form(recommender.model, 1 + len(rows.fitted.candidates), folder)
    else:
        task = StoredTask.load(source.cfg, features, source.checkpoint)
        described = write_retrieval(recommender, task, form.tables, folder)
        read = [i.name for i in open_session(folder / files.GRAPH).get_inputs()]
    about: dict[str, Any] = {"kind": "retrieval", "k": recommender.k, "filter_history": recommender.filter_history}
    about |= {"items": recommender.nameable, "signature": signature_of(rows, features, read), "metrics": {}}
    about |= described
    if (options := form.index) is None:
        return about, examples
    scorer = VectorScorer(Artefact(folder, about), torch.get_num_threads())
    if not scorer.multiplies:
        raise UserError(f"index={options.kind}: this model's scores are not inner products of vectors; leave it out")
    parsed, _ = rows.parse(rows.keep_history(rows.from_frame(raw)))
    queries = np.concatenate([scorer.vectors(part) for part in in_batches(rows.fitted, parsed, 1024)])
    index = build(
        scorer.items, kind=options.kind, queries=queries, k=max(about["k"], 100),
        recall_target=options.recall_target, threads=torch.get_num_threads(), url=options.url,
    )  # fmt: skip
    index.save(folder / files.INDEX, vectors=False)
    tuned = index.about
    finds = f"a search finds {tuned.recall:.1%} of the best {tuned.recall_at} ({tuned.queries} queries)"
    say(f"index of {len(index):,} items ({tuned.kind}): {finds}")
    return about | {"index": asdict(tuned)}, examples


def _description(source: ExportSource, form: Form, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an artefact for its manifest."""
    results = source.run / RESULTS[0]
    measured = json.loads(results.read_text(encoding="utf-8")).get("test", {}) if results.exists() else {}
    return {
        **own,
        "format": files.VERSION,
        "name": form.name,
        "version": form.version,
        "precision": form.precision,
        "tables": form.tables,
        "tolerance": form.tolerance(scores_rows=source.kind.scores_rows),
        "formats": ["onnx", *form.formats],
        "opset": OPSET,
        "model": source.cfg.model["_target_"],
        "data": source.cfg.data.name,
        "checkpoint": source.checkpoint.name,
        "metrics": {"run": measured, **own["metrics"]},
        "events_until": form.events_until,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {p: version_of(p) for p in PACKAGES},  # of recsys none, in a checkout that is not installed
    }


def _verify_elsewhere(folder: Path, examples: Path | None = None) -> dict[str, Any]:
    """Verify an artefact in a fresh process. Raises UserError if an output differs, or the process imports torch."""
    command = [sys.executable, "-m", "recsys.export.artefact.verify", str(folder)]
    command += [] if examples is None else [str(examples)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"nothing was written: {(done.stderr.strip().splitlines() or ['it cannot be verified'])[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if result["imported"]:
        raise RuntimeError(f"serving imports {', '.join(result['imported'])}")
    return result
