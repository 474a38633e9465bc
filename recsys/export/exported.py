"""What is exported: a run, its own model, examples of what that gives, and the form of the artefact.

Tables are read from the checkpoint block by block, whatever plan and world size wrote them, so that the memory that an
export takes does not depend on their size. Raw rows with the outputs that they must have prove that an artefact does
what its run does.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from recsys.base.errors import UserError
from recsys.data.features.arrays import Arrays, single_valued
from recsys.data.features.batch_tensors import RowTensors
from recsys.data.features.blocks import LINE, ORDER
from recsys.data.raw import read_sources
from recsys.export.single_graph import check_single_graph
from recsys.export.triton.repository import Options
from recsys.files.atomic import finite
from recsys.index.milvus import connect
from recsys.interface.features import FeatureSpec
from recsys.interface.labels import Label, ScalarLabel, columns, predict
from recsys.job.build import with_dims
from recsys.job.run_config import RunConfig
from recsys.online.raw_rows import RawRows
from recsys.schema.command_schemas import TableType
from recsys.sharding.stored_checkpoint import StoredCheckpoint, check_checkpoint
from recsys.sharding.tables import TableInfo, rows_of_a_block, tables
from recsys.training.ema import unwrapped
from recsys.training.run_state import RunState

# tolerances of smaller types find damage only; the metrics say what such a type costs
TOLERANCES = {"fp16": 5e-3, "bf16": 5e-2, "int8": 2e-2, "int4": 2e-1}
ROUNDING, STEADY = 1e-6, 5e-6  # relative, of logits and of predictions
RECORDED, COMPARED = 256, 10_000  # rows that an artefact holds, and rows that are compared when it is exported


@dataclass(frozen=True)
class Form:
    """How an artefact is stored.

    name, version: under which a server offers the model
    precision: type of the dense weights: fp32, fp16 or bf16
    tables: type of the rows of tables
    formats: further forms of the graph
    triton: options of a model repository for Triton; None writes none
    index, index_url, recall_target: an index of item vectors, see `recsys.index.build_index`; None builds none
    events_until: time of the newest training event, ISO 8601; None if nobody says it
    """

    name: str
    version: str = "1"
    precision: str = "fp32"
    tables: TableType = "fp32"
    formats: tuple[str, ...] = ()
    triton: Options | None = None
    index: str | None = None
    index_url: str | None = None
    recall_target: float = 0.98
    events_until: str | None = None


@dataclass(frozen=True)
class ExportSource:
    """The run to export: its folder, its config and a checkpoint. files: raw files to take rows from"""

    run: Path
    cfg: RunConfig
    checkpoint: Path
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Examples:
    """Raw rows, and the output of each: for ranking, numbers by name; for retrieval, one list a group of rows."""

    rows: list[Any]
    outputs: Any
    more: Mapping[str, Any]
    dependent: bool = False  # whether the output of a row depends on the rows before it

    @property
    def recorded(self) -> Examples:
        """The examples that an artefact holds."""
        return self._part(0, RECORDED)

    @property
    def compared(self) -> Examples:
        """The other examples, which are compared once; all if rows depend on those before them."""
        return self if self.dependent else self._part(RECORDED, None)

    def _part(self, start: int, stop: int | None) -> Examples:
        if isinstance(self.outputs, dict):
            outputs: Any = {name: x[start:stop] for name, x in self.outputs.items()}
        else:
            outputs = self.outputs[start:stop]
        return Examples(self.rows[start:stop], outputs, self.more)

    def write(self, file: Path) -> None:
        """Write the examples as JSON; times and other values that JSON lacks are text."""
        value = finite({"rows": self.rows, "outputs": self.outputs, **self.more})
        file.write_text(json.dumps(value, default=str) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Exported(ABC):
    """The model of a run as an artefact of a form. Each kind of model has a subclass."""

    source: ExportSource
    form: Form
    rows: RawRows
    exact: ClassVar[float] = 1e-5  # tolerance with fp32 weights and tables
    has_fil: ClassVar[bool] = False  # Triton's backend of trees
    outputs_of: ClassVar[str] = "raw rows"

    @property
    def tolerance(self) -> float:
        """The largest difference of an output from the run's that is not an error."""
        return max(self.exact, TOLERANCES.get(self.form.precision, 0.0), TOLERANCES.get(self.form.tables, 0.0))

    def check(self) -> None:
        """Raise UserError if the model or its data has no such form, before anything is written."""
        index, url, triton = self.form.index, self.form.index_url, self.form.triton
        if index is not None and not self.source.cfg.kind.has_vectors:
            raise UserError(f"index={index}: this model has no item vectors; leave it out")
        if index is not None and url is not None:
            connect(url)
        if triton is not None and triton.dense_backend == "fil" and not self.has_fil:
            raise UserError("dense_backend=fil: serves boosted trees only; use onnxruntime, pytorch or python")
        if "single_graph" in self.form.formats:
            check_single_graph(self.rows.fitted)

    @abstractmethod
    def write(self, raw: pl.DataFrame, folder: Path) -> tuple[dict[str, Any], Examples]:
        """Write the parts of the model; return its description, and examples made of raw rows."""


@dataclass(frozen=True)
class StoredTask:
    """A run's task, whose tables are on the meta device, and its checkpoint.

    infos: the tables, by name
    """

    cfg: RunConfig
    features: FeatureSpec
    stored: StoredCheckpoint
    task: Any
    infos: Mapping[str, TableInfo]

    @classmethod
    def load(cls, cfg: RunConfig, features: FeatureSpec, checkpoint: Path) -> StoredTask:
        """Build the task and load its dense weights, or their moving average, if the run has one, and its buffers.

        Raises DamagedFile if the checkpoint is not as it was written.
        """
        check_checkpoint(checkpoint)
        features = with_dims(cfg, features)  # dims depend on the rows of tables, which with_rows makes fewer
        stored = StoredCheckpoint(checkpoint)
        task = cfg.kind.build_task(cfg, features, torch.device("meta"))
        infos = tables(task)
        parameters = {i.parameter for i in infos.values()}
        dense = {n: x for n, x in task.state_dict().items() if n not in parameters}
        stored.check_dense(dense)
        state = {n: stored.read(f"model.{n}") for n in dense}
        averages = RunState.load(checkpoint).state.get("ema", {}).get("average", {})
        state |= {unwrapped(name): average for name, average in averages.items()}
        task.load_state_dict(state, strict=False)
        return cls(cfg, features, stored, task.eval(), infos)

    def with_rows(self, ids: Mapping[str, np.ndarray]) -> tuple[Any, FeatureSpec]:
        """Return the task with tables that hold only some rows, and its feature spec.

        ids: the sorted ids of the rows, by table of the data; id i is row i of the smaller table
        """
        sparse = tuple(replace(f, cardinality=len(ids[f.table])) for f in self.features.sparse)
        features = replace(self.features, sparse=sparse)
        task = self.cfg.kind.build_task(self.cfg, features, torch.device("cpu"))
        own = tables(task)
        dense = {n: x for n, x in self.task.state_dict().items() if not x.is_meta}
        task.load_state_dict(dense, strict=False)
        weights = dict(task.named_parameters())
        with torch.no_grad():
            for info in own.values():
                weights[info.parameter].copy_(self._rows(self.infos[info.name], ids[info.vocabulary]))
        return task.eval(), features

    def logits(self, arrays: Arrays) -> Tensor:
        """Return the logits (B, L) of B rows of a ranking model, whose tables hold only the rows that these need."""
        singles = single_valued(self.features)
        ids = {n: arrays.ids[:, i] for i, n in enumerate(singles)} | arrays.values
        kept: dict[str, np.ndarray] = {}  # the sorted distinct ids of each table, row 0 included
        for f in self.features.sparse:
            kept[f.table] = np.union1d(kept.get(f.table, np.zeros(1, np.int64)), ids[f.name].astype(np.int64))
        task, narrow = self.with_rows(kept)
        for f in self.features.sparse:
            ids[f.name] = np.searchsorted(kept[f.table], ids[f.name]).astype(np.int32)
        columns = np.stack([ids[n] for n in singles], axis=1) if singles else arrays.ids
        return logits_of(task.model, replace(arrays, ids=columns, values={n: ids[n] for n in arrays.values}), narrow)

    def _rows(self, info: TableInfo, ids: np.ndarray) -> Tensor:
        """Read rows of a table: sorted ids (n,) -> (n, dim)."""
        key = f"model.{info.parameter}"
        step = rows_of_a_block(self.stored.size(key)[1])
        parts = [torch.zeros(0, info.dim)]
        for first in range(0, info.rows, step):
            inside = ids[np.searchsorted(ids, first) : np.searchsorted(ids, first + step)]
            if len(inside):
                block = self.stored.read(key, first, min(step, info.rows - first))
                parts.append(block[torch.from_numpy(inside - first), : info.dim].float())
        return torch.cat(parts)


def logits_of(model: nn.Module, arrays: Arrays, features: FeatureSpec) -> Tensor:
    """Return the logits (B, L) of B rows of a ranking model."""
    batch = RowTensors.from_arrays(arrays, features).batch(np.zeros((arrays.rows, len(features.labels)), np.float32))
    logits: Tensor = model(batch.dense, batch.sparse)
    return logits


def raw_frame(rows: RawRows, files: list[Path], most: int) -> pl.DataFrame:
    """Return the first rows of the files, at most `most`, with the raw columns that features read."""
    data, frames, have = rows.fitted.data, list[pl.DataFrame](), 0
    for file in files:
        source = read_sources.prediction_source(data, file)
        for block in read_sources.read_blocks(source, file, unlabelled=True, complete=lambda frame: frame):
            frame = block.frame.select(n for n in rows.types if n in block.frame.columns)
            frames.append(frame.head(most - have))
            have += frames[-1].height
            if have >= most:
                return pl.concat(frames, how="diagonal_relaxed")
    if not have:
        raise UserError("the run's raw files hold no rows; name files with rows=FILES")
    return pl.concat(frames, how="diagonal_relaxed")


def scored(rows: RawRows, raw: pl.DataFrame, logits: Callable[[Arrays], Tensor], labels: tuple[Label, ...]) -> Examples:
    """Return the rows that can be read and their predictions, by the run's own transforms and model.

    logits: the model, from the features of B rows to logits (B, L)
    """
    parsed, _ = rows.parse_frame(raw)
    if dependent := rows.fitted.data.group is not None:  # the first of them must not depend on others
        parsed = parsed.sort(ORDER, maintain_order=True)
    raw = raw[parsed[LINE]]
    applied = rows.fitted.apply(rows.in_context(parsed))
    arrays = Arrays.from_frame(applied, rows.fitted.features, rows.fitted.matrices)
    with torch.no_grad():
        scores = logits(arrays)
    is_isotonic = any(isinstance(label, ScalarLabel) and label.isotonic for label in labels)
    if is_isotonic and not (steady := is_steady(scores, labels)).all():
        return scored(rows, raw.filter(steady.numpy()), logits, labels)  # again: others may depend on these rows
    predictions = predict(scores, labels).numpy()
    outputs = {name: predictions[:, i].tolist() for i, name in enumerate(columns(labels))}
    return Examples(raw.to_dicts(), outputs, {}, dependent=dependent)


def is_steady(logits: Tensor, labels: tuple[Label, ...]) -> Tensor:
    """Return which rows' predictions rounding does not decide, (B,): an isotonic calibration may rise steeply."""
    noise = ROUNDING * (1 + logits.abs())
    low, high = predict(logits - noise, labels), predict(logits + noise, labels)
    return ((high - low).abs() <= STEADY * (1 + high.abs())).all(dim=1)
