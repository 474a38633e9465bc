"""What is exported: a run, the form of its artefact, and what each kind of model does for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from recsys.base.errors import UserError
from recsys.export.examples import Examples
from recsys.export.single_graph import check_single_graph
from recsys.export.triton.repository import Options
from recsys.index.milvus import connect
from recsys.job.run_config import RunConfig
from recsys.online.raw_rows import RawRows
from recsys.schema.command_schemas import TableType

# tolerances of smaller types find damage only; the metrics say what such a type costs
TOLERANCES = {"fp16": 5e-3, "bf16": 5e-2, "int8": 2e-2, "int4": 2e-1}


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
