"""A small run with two checkpoints, the data that it was trained on, and rows to predict."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from storage_faults import copy

from recsys.config.compose import compose
from recsys.training.run import train

SMALL = ["data.sample.rows=1200", "trainer.batch_size=64", "trainer.threads=1", "model.dim=4", "model.bottom_mlp=[4]"]
STEPS = ["trainer.max_epochs=2", "checkpoint.every_n_steps=4", "checkpoint.keep_last=2"]


@dataclass(frozen=True)
class Home:
    """folder: holds `run` and `prepared`; rows.csv has rows to predict."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def prepared(self) -> Path:
        [folder] = (p for p in (self.folder / "prepared").glob("criteo-*") if p.is_dir())
        return folder

    def train(self, *more: str) -> Any:
        where = [] if any(m.startswith("resume=") for m in more) else [f"run_dir={self.run}"]
        return train(compose("train", [*SMALL, *STEPS, f"data.prepared={self.folder / 'prepared'}", *where, *more]))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("faults"))
    home.train()
    [sample] = (home.folder / "prepared").glob("sample-*/train.tsv")
    lines = sample.read_text().splitlines()[-20:]
    (home.folder / "rows.tsv").write_text("\n".join(lines) + "\n")
    return home


@pytest.fixture
def home(trained: Home, tmp_path: Path) -> Iterator[Home]:
    """The run, which a test may damage."""
    whole = copy(trained.folder, tmp_path / "whole")
    yield trained
    shutil.rmtree(trained.folder)
    copy(whole, trained.folder)


@pytest.fixture(scope="session")
def raw() -> pl.DataFrame:
    return pl.DataFrame({f"int_{i}": [i, None] for i in range(1, 14)} | {f"cat_{i}": ["a", None] for i in range(1, 27)})
