"""A combination of settings, and trials of it: runs that differ in one thing, whose answers are compared."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
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
SPLITS = ("train", "validation", "test")
Files = Mapping[str, pl.DataFrame]  # name of a raw file, without .csv -> its rows, in the order in which they are read


class Trial:
    """A run of a combination."""

    def __init__(self, run: recsys.TrainedRun, said: str, probe: pl.DataFrame) -> None:
        self.run, self.said, self.metrics, self._probe = run, said, run.metrics, probe

    @cached_property
    def answers(self) -> dict[str, np.ndarray]:
        """What the model answers for the rows of the test, by name: predictions, or each item's score by user."""
        return self.answers_to(self._probe)

    def answers_to(self, rows: pl.DataFrame) -> dict[str, np.ndarray]:
        if self.retrieves:
            return scores_of(self.lists(rows))
        found = self.run.predict(rows, allow_unknown=True)
        frame = found.to_frame() if isinstance(found, pl.Series) else found
        return {name: frame[name].to_numpy().astype(float) for name in sorted(frame.columns)}

    @property
    def retrieves(self) -> bool:
        return self.run.metrics["test"].get("rows") is not None and "protocol" in self.config and self._is_retrieval

    @cached_property
    def _is_retrieval(self) -> bool:
        return self.features["item"] is not None

    def lists(self, rows: pl.DataFrame, k: int | None = None) -> pl.DataFrame:
        """Return the lists of items of each user, as long as they can be."""
        r = self.run.recommender
        return r.recommend(rows, r.nameable if k is None else k, allow_unknown=True)

    @cached_property
    def features(self) -> dict[str, Any]:
        return yaml.safe_load((self.run.path / "features.json").read_text())

    @cached_property
    def config(self) -> dict[str, Any]:
        return yaml.safe_load((self.run.path / "config.yaml").read_text())

    def prepared(self, split: str) -> pl.DataFrame:
        """Return the rows of a split as they are trained on, in the order of the files."""
        data = RunData.load(self.run.path)
        assert data is not None
        folder = Prepared(Path(data.folder)).folder
        return pl.concat([pl.read_parquet(f) for f in sorted((folder / split).glob("*.parquet"))])

    def evaluated(self, split: str, checkpoint: str = "best") -> dict[str, Any]:
        return dict(evaluate(str(self.run.path), split, checkpoint)[split])


def scores_of(lists: pl.DataFrame) -> dict[str, np.ndarray]:
    """Return the scores of each user's list by item, in the order of the items' names."""
    flat = lists.rename({"items": "item", "scores": "score"}).explode("item", "score").sort("user", "item")
    return {u: rows["score"].to_numpy().astype(float) for (u,), rows in flat.group_by("user", maintain_order=True)} | {
        "items": np.array([hash(x) % 1e6 for x in flat["item"].to_list()])
    }


@dataclass
class Case:
    """A combination in a folder of its own, in which commands run."""

    chosen: Chosen
    folder: Path
    trials: int = 0

    @property
    def ranks(self) -> bool:
        return self.chosen["array"] == "ranking"

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
        data = copy.deepcopy(BASE[self.chosen["array"]])
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

    def train(
        self, *more: str, files: Files | None = None, data: Mapping[str, Any] | None = None, run: str | None = None
    ) -> Trial:
        """Train a run. more: overrides; files, data: instead of the case's own; run: its folder, to come back to it"""
        self.trials += 1
        name, files = f"d{self.trials}", files or self.files
        root = self.folder / f"raw{self.trials}"
        root.mkdir()
        for file, rows in files.items():
            rows.write_csv(root / f"{file}.csv")
        sample.write_sides(root)
        given = {"name": name, "source": {"files": [f"{file}.csv" for file in files]}, **(data or self.data)}
        (self.folder / "conf" / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "conf" / "data" / f"{name}.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
        folder = run or f"run{self.trials}"
        own = [f"data={name}", f"data.root={root}", f"run_dir={self.folder}/{folder}", "trainer.threads=1"]
        return self._trained([*own, *self.overrides, *more])

    def again(self, *overrides: str, files: Files | None = None) -> Trial:
        """Train with overrides alone: a run to start from, or to resume, is one of them."""
        self.trials += 1
        more = [] if any(o.startswith("resume=") for o in overrides) else [f"run_dir={self.folder}/run{self.trials}"]
        if files is not None:
            root = self.folder / f"raw{self.trials}"
            root.mkdir()
            sample.write_sides(root)
            for file, rows in files.items():
                rows.write_csv(root / f"{file}.csv")
            more.append(f"data.root={root}")
        return self._trained([*overrides, *more])

    def _trained(self, overrides: Sequence[str]) -> Trial:
        say_once.cache_clear()
        before = os.getcwd()
        os.chdir(self.folder)  # where conf/ is
        try:
            run = recsys.train(list(overrides))
        finally:
            os.chdir(before)
        probe = self.files["test"] if self.ranks else self.files["train"]
        return Trial(run, (run.path / "train.log").read_text(), probe)


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
