"""Serve a pipeline: `python -m recsys.serve pipeline=FILE` loads it with `load`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from omegaconf import OmegaConf

from recsys.base.errors import UserError
from recsys.config.compose import compose_file, object_of
from recsys.files import manifest
from recsys.files.atomic import write_text
from recsys.online.servable import Features, Query, Row, TensorSpec
from recsys.schema.fields import plain
from recsys.schema.pipeline_schema import PipelineConfig
from recsys.stages.assemble import build_parts, tables_root
from recsys.stages.assemble import load as load_pipeline
from recsys.stages.open_models import OPENERS, Models
from recsys.stages.staged import StagedRecommender

CONFIG = "pipeline.yaml"
KEY = "pipeline"  # in manifest.json


def write_folder(file: Path, overrides: Sequence[str], folder: Path) -> None:
    """Write what `load` reads: the composed config, with absolute paths. Runs without an artefact are exported.

    Raises UserError for a mistake in the config.
    """
    config = compose_file(file, overrides)
    build_parts(config)
    root = Path(config.root).expanduser().resolve()
    tables = tables_root(config).resolve()
    config = replace(config, root=str(root), data_root=str(tables))
    write_text(folder / CONFIG, OmegaConf.to_yaml(plain(config)))
    # globs of the files from which the pipeline is loaded: a server loads it again when they change
    named = [t.file for t in (config.items, config.users, config.events) if t is not None]
    files = [str(tables / name) for names in named for name in names]
    if config.features.definition is not None:
        files.append(str(tables / config.features.definition))
    parts = {f"sources.{name}": part for name, part in config.sources.items()} | {"score": config.score}
    named_runs = {str(part["run"]): f"{key}.run" for key, part in parts.items() if part and part.get("run")}
    for run, key in named_runs.items():  # here, since each worker loads the pipeline, at the same time
        Models(root).exported(run, key)
    runs = sorted(named_runs)
    filters = [part for part in config.filters.values() if part is not None]
    files += [str(root / str(part["file"])) for part in filters if part.get("file")]
    files += [str(root / run / below / manifest.FILE) for run in runs for below in ("", OPENERS)]
    manifest.write(folder, manifest.entries_of(folder), {KEY: config.name, manifest.MADE_FROM: files})


def load(folder: str | Path, *, threads: int = 1, before: object = None) -> PipelineServable:  # noqa: ARG001
    """Load the pipeline of a folder that `write_folder` wrote. before: what answers now; nothing is shared"""
    config = replace(object_of(PipelineConfig, OmegaConf.load(Path(folder) / CONFIG)), threads=threads)
    return PipelineServable(load_pipeline(config), config.name, config.context)


class PipelineServable:
    """A Servable that answers requests with the lists of a pipeline. Threads may share it.

    Args:
        pipeline: the pipeline.
        name: name of the model in requests.
        context: columns that requests may have besides the user and the time.
    """

    kind: Literal["retrieval"] = "retrieval"
    rows_depend_on_others = True
    tensors: tuple[TensorSpec, ...] = ()

    def __init__(self, pipeline: StagedRecommender, name: str, context: Sequence[str]) -> None:
        self.pipeline, self.name, self.version = pipeline, name, "1"
        s = pipeline.settings
        self.context = (s.user, *([s.time] if s.time else []), *context)
        columns = (TensorSpec(name, "BYTES", (-1, 1), optional=True) for name in self.context)
        self.inputs: tuple[TensorSpec, ...] = tuple(columns)
        self._explores = any(part.explores for part in pipeline.order.values())
        numbers = ("scores", "propensities") if self._explores else ("scores",)
        self.outputs = (TensorSpec("items", "BYTES", (-1,)), *(TensorSpec(n, "FP32", (-1,)) for n in numbers))

    @property
    def columns(self) -> frozenset[str]:
        """The keys of the rows of a history that are read."""
        s, events = self.pipeline.settings, self.pipeline.events
        return frozenset([s.user, s.item, *([s.time] if s.time else []), *(events.frame.columns if events else [])])

    @property
    def example(self) -> Sequence[Row]:
        """The context of one request."""
        events = self.pipeline.events
        row = events.frame.row(events.frame.height - 1, named=True) if events is not None else {}
        return [{n: row.get(n, "") for n in self.context if n in row or n == self.pipeline.settings.user}]

    def recommend(self, queries: Sequence[Query]) -> list[tuple[list[Any], ...]]:
        """Return items and scores of each query and, if the pipeline explores, propensities."""
        answers = self.pipeline.answers(queries)
        lists: list[tuple[list[Any], ...]] = []
        for answer in answers:
            found: tuple[list[Any], ...] = (self.pipeline.names(answer.items), answer.scores.tolist())
            drawn = answer.propensities
            lists.append((*found, [] if drawn is None else drawn.tolist()) if self._explores else found)
        return lists

    def features(self, *_: object, **__: object) -> NoReturn:
        """Raise UserError: a pipeline answers requests of users."""
        raise UserError(f"pipeline {self.name}: answers requests of users; use POST /recommend")

    features_of_columns = run = run_tensors = features

    def known_items(self, query: Query) -> None:
        """Return None: the models of a pipeline have their own vocabularies."""

    def unknown_shares(self, features: Features) -> dict[str, float]:
        """Return nothing: the models of a pipeline have their own vocabularies."""
        return {}
