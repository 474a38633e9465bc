"""A combination of settings, and trials of it: runs that differ in one thing, whose answers are compared."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import sample
import yaml
from settings import Chosen, keys_of

import recsys
from recsys.base.console import say_once
from recsys.data.prepare.prepared import Prepared
from recsys.training.evaluate_run import evaluate
from recsys.training.run_data import RunData

BASE: dict[str, dict[str, Any]] = {
    "ranking": {"label": {"column": None}, "sparse": {"user": {}, "item": {}}, "dense": {}},
    "retrieval": {
        "label": {"column": None},
        "group": {"by": "user", "order": "ts"},
        "sequences": {},
        "sparse": {"item": {}},
    },
}
Files = Mapping[str, pl.DataFrame]  # name of a raw file, without .csv -> its rows, in the order in which they are read


class Trial:
    """A run of a combination, and what it said."""

    def __init__(self, run: recsys.TrainedRun, said: str, probe: pl.DataFrame) -> None:
        self.run, self.said, self.metrics, self._probe = run, said, run.metrics, probe

    @cached_property
    def features(self) -> dict[str, Any]:
        return dict(json.loads((self.run.path / "features.json").read_text()))

    @cached_property
    def answers(self) -> dict[Any, float]:
        """What the model answers to the case's rows: each row's predictions, or the score of each user's items."""
        if self.features["item"] is not None:
            rows = self.lists().explode("items", "scores").iter_rows()
            return {(user, item): score for user, item, score in rows if score is not None}
        frame = in_columns(self.run.predict(self._probe, allow_unknown=True))
        return {(name, i): v for name in frame.columns for i, v in enumerate(frame[name])}

    def lists(self, k: int | None = None) -> pl.DataFrame:
        """Return the list of each user, as long as it can be or of k items."""
        recommender = self.run.recommender
        most = recommender.nameable
        return recommender.recommend(self._probe, min(k or most, most), allow_unknown=True)

    def prepared(self, split: str) -> pl.DataFrame:
        """Return the rows of a split as models read them, in the order of their files."""
        data = RunData.load(self.run.path)
        assert data is not None
        return pl.concat([pl.read_parquet(f) for f in Prepared(data.prepared).files(split)])

    def evaluated(self, split: str, checkpoint: str = "best") -> tuple[dict[str, Any], str]:
        """Return the metrics of `recsys.evaluate`, and what it says."""
        say_once.cache_clear()
        with redirect_stderr(StringIO()) as said:
            metrics = evaluate(str(self.run.path), split, checkpoint)[split]
        return metrics, said.getvalue()


def in_columns(predictions: Any) -> pl.DataFrame:
    """Return predictions as a frame with a column for each."""
    return predictions.to_frame("prediction") if isinstance(predictions, pl.Series) else predictions


@dataclass
class Case:
    """A combination in a folder of its own, in which commands run."""

    chosen: Chosen
    folder: Path
    trials: int = 0

    @property
    def ranks(self) -> bool:
        return self.chosen["array"] != "retrieval"

    @cached_property
    def files(self) -> dict[str, pl.DataFrame]:
        """The raw files: rows in the order of time, three fifths of which train."""
        if not self.ranks:
            return {"train": sample.walks()}
        rows = sample.clicks()
        a, b = int(0.6 * rows.height), int(0.8 * rows.height)
        return {"train": rows[:a], "validation": rows[a:b], "test": rows[b:]}

    @cached_property
    def data(self) -> dict[str, Any]:
        """The data's YAML."""
        data = copy.deepcopy(BASE["ranking" if self.ranks else "retrieval"])
        for name, value in keys_of(self.chosen).items():
            if name.startswith("data."):
                put(data, name.split(".")[1:], value)
        return data

    @property
    def overrides(self) -> list[str]:
        return [override(k, v) for k, v in keys_of(self.chosen).items() if not k.startswith("data.")]

    @cached_property
    def base(self) -> Trial:
        return self.train()

    def train(self, *more: str, files: Files | None = None, data: Mapping[str, Any] | None = None) -> Trial:
        """Train a run. more: overrides; files, data: instead of the case's own"""
        root = self._written(files or self.files)
        name = root.name
        given = {
            "name": name,
            "source": {"files": [f"{f}.csv" for f in files or self.files if f in self.files]},
            **(data or self.data),
        }
        (self.folder / "conf" / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "conf" / "data" / f"{name}.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
        return self._trained([f"data={name}", f"data.root={root}", "trainer.threads=1", *self.overrides, *more])

    def go_on(self, start: Trial, *more: str, files: Files | None = None) -> Trial:
        """Train a run that starts from another one. files: instead of those of the run"""
        root = [f"data.root={self._written(files)}"] if files is not None else []
        return self._trained([f"start_from={start.run.path}", *root, *more])

    def resume(self, run: Path, *more: str) -> Trial:
        return self._trained([f"resume={run}", *more])

    def _written(self, files: Files) -> Path:
        self.trials += 1
        root = self.folder / f"raw{self.trials}"
        root.mkdir()
        sample.write_sides(root)
        for file, rows in files.items():
            rows.write_csv(root / f"{file}.csv")
        return root

    def _trained(self, overrides: Sequence[str]) -> Trial:
        self.trials += 1
        if not any(o.startswith(("resume=", "run_dir=")) for o in overrides):
            overrides = [*overrides, f"run_dir={self.folder}/run{self.trials}"]
        say_once.cache_clear()
        with chdir(self.folder), redirect_stderr(StringIO()) as said:  # where conf/ is
            run = recsys.train(list(overrides))
        return Trial(run, said.getvalue(), self.files["test" if self.ranks else "train"])


def put(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a nested key; a mapping is added to one that is there."""
    for part in path[:-1]:
        data = data.setdefault(part, {})
    old = data.get(path[-1])
    data[path[-1]] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else copy.deepcopy(value)


def override(key: str, value: Any) -> str:
    """Return Hydra's text of a key and its value; model= and the like choose a file."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("\n...")
    return f"{key}={text.replace(': ', ':')}"
