"""Open the models that a pipeline names (artefacts, or runs that are exported once), and what its parts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.export.artefact.apply_delta import full_artefact
from recsys.export.artefact.folder import Artefact
from recsys.export.artefact.load_artefact import model_of
from recsys.export.artefact.served_ranking import ServedRanking
from recsys.export.artefact.served_retrieval import ServedRetrieval
from recsys.files.run_files import CONFIG
from recsys.online.servable import Servable
from recsys.stages.catalogue import Catalogue
from recsys.stages.visitor import Events
from recsys.store.request_features import OnlineFeatures

OPENERS = "artefact"  # folder below that of a run


@dataclass
class Models:
    """Loads models by folder, each once.

    root: folder from which relative paths start
    threads: number of threads of a model
    item_type: the type that items have in the raw rows of the last retrieval model
    """

    root: Path
    threads: int = 1
    item_type: pl.DataType | None = None
    _loaded: dict[Path, Servable] = field(default_factory=dict)

    def retrieval(self, run: str, key: str) -> ServedRetrieval:
        """Return the retrieval model of a run or an artefact. Raises UserError for another kind of model."""
        model = self._load(run, key)
        if not isinstance(model, ServedRetrieval):
            raise UserError(f"{key}={run}: its model scores rows and cannot retrieve; name it under score")
        self.item_type = model.item_type
        return model

    def ranking(self, run: str, key: str) -> ServedRanking:
        """Return the ranking model of a run or an artefact. Raises UserError for another kind of model."""
        model = self._load(run, key)
        if not isinstance(model, ServedRanking):
            raise UserError(f"{key}={run}: its model retrieves items and cannot score rows; name it under sources")
        return model

    def exported(self, run: str, key: str) -> Path:
        """Return the folder of the artefact of a run, which is exported if it has none, or of an artefact itself."""
        folder = self.root / run
        if not folder.is_dir():
            raise UserError(f"{key}={run}: no such folder in {self.root.resolve()}; name a run or an artefact")
        return self._exported(folder, key, run) if (folder / CONFIG).is_file() else folder

    def artefact(self, run: str, key: str) -> Artefact:
        """Return the artefact of a run, or an artefact itself, as for `exported`."""
        folder = self.exported(run, key)
        try:
            return Artefact.open(full_artefact(folder))
        except UserError as e:
            raise UserError(f"{key}: {e}") from e

    def _load(self, run: str, key: str) -> Servable:
        place = (self.root / run).resolve()
        if place not in self._loaded:
            self._loaded[place] = model_of(self.artefact(run, key), self.threads)
        return self._loaded[place]

    def _exported(self, run: Path, key: str, given: str) -> Path:
        folder = run / OPENERS
        if folder.is_dir():
            written = (folder / "manifest.json").stat().st_mtime
            if all(f.stat().st_mtime <= written for f in (run / "checkpoints").glob("[!.]*")):
                return folder
            raise UserError(f"{key}={given}: {folder} is older than the run's checkpoints; remove it")
        from recsys.base.packages import check_versions
        from recsys.export.exported import ExportSource, Form
        from recsys.export.write_artefact import write_artefact
        from recsys.training.run_dir import choose_checkpoint, open_run

        check_versions()
        cfg, path = open_run(str(run))
        say(f"{key}={given}: exporting the run to {folder}")
        name = str(cfg.model["_target_"]).rpartition(".")[2].lower()
        write_artefact(ExportSource(path, cfg, choose_checkpoint(path, "best")), Form(name), folder)
        return folder


@dataclass(frozen=True)
class Resources:
    """Resources that the parts of a pipeline share.

    catalogue: the items
    user, context: names of the columns of users and of requests
    events: what users did, None if requests bring their histories
    models: loads models
    sources: names of the sources
    items: stored features of items, or None
    """

    catalogue: Catalogue
    models: Models
    user: Sequence[str] = ()
    context: Sequence[str] = ()
    events: Events | None = None
    sources: Sequence[str] = ()
    items: OnlineFeatures | None = None
