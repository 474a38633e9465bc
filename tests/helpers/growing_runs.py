"""Runs that go on from each other, with many values of which few come again: what deltas are made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from omegaconf import OmegaConf

from recsys.config.compose import compose
from recsys.export.exported import ExportSource, Form
from recsys.job.config_of import composed_config
from recsys.training.run import train
from recsys.training.run_dir import choose_checkpoint, open_run

USERS, ITEMS = 30_000, 3_000
DATA = """
name: days
source: {format: parquet, files: ["*.parquet"]}
label: {column: y}
split: {by: order, validation: 0, test: 0.2}
dense: {x: {transform: [standardise]}}
sparse: {user: {capacity: 30001}, item: {}}
"""
LISTS = """
name: lists
source: {format: parquet, files: ["*.parquet"]}
group: {by: user, order: time}
sequences: {max_length: 10}
split: {by: leave_one_out}
sparse: {item: {}, user: {per: group, capacity: 1501}}
"""
MODEL = ["model=dlrm", "model.dim=8", "model.bottom_mlp=[8,8]", "model.top_mlp=[8]", "trainer.threads=1"]


def train_days(folder: Path, days: int) -> list[Path]:
    """Train a run on each day, from the run of the day before.

    Later days have 300 users and 300 items each, of which a tenth are new: items get new rows, users those of others.
    """
    runs = []
    for day in range(days):
        rng = np.random.default_rng(day)
        if day == 0:
            user, item = rng.permutation(USERS), rng.permutation(USERS) % ITEMS
        else:
            user, item = (n - 270 + 300 * (day - 1) + rng.integers(0, 300, 1500) for n in (USERS, ITEMS))
        y = (rng.random(len(user)) < 0.3).astype(int)
        (folder / f"day{day}").mkdir()
        frame = pl.DataFrame({"user": user, "item": item, "x": rng.normal(size=len(user)), "y": y})
        frame.write_parquet(folder / f"day{day}" / "a.parquet")
        runs.append(_train(folder, day, [*MODEL, "trainer.batch_size=500"], DATA))
    return runs


def train_lists(folder: Path, days: int, model: str) -> list[Path]:
    """Train a retrieval model on the lists of each day, from the run of the day before.

    The first day has 1,500 users and 3,000 items. Later days have 60 users and 300 items, of which a tenth are new.
    """
    overrides = [f"model={model}", "loss=in_batch_softmax", "trainer.threads=1", "trainer.max_epochs=1"]
    runs = []
    for day in range(days):
        rng = np.random.default_rng(day)
        if day == 0:
            user, item = np.arange(12_000) // 8, np.r_[rng.permutation(3000), rng.integers(0, 3000, 9000)]
        else:
            user, item = 1440 + 20 * day + np.arange(480) // 8, 2700 + 30 * day + rng.integers(0, 300, 480)
        (folder / f"day{day}").mkdir(parents=True)
        frame = pl.DataFrame({"user": user, "item": item, "time": np.arange(len(user))})
        frame.write_parquet(folder / f"day{day}" / "a.parquet")
        runs.append(_train(folder, day, [*overrides, "trainer.batch_size=100"], LISTS))
    return runs


def _train(folder: Path, day: int, overrides: list[str], data: str) -> Path:
    run = folder / f"run{day}"
    own = [*([f"start_from={folder / f'run{day - 1}'}"] if day else []), f"run_dir={run}"]
    cfg: Any = composed_config(compose("train", [*overrides, *own]), own)
    if not day:
        cfg.data = OmegaConf.create(data)
    cfg.data.root, cfg.data.prepared = str(folder / f"day{day}"), str(folder / "prepared")
    train(cfg)
    return run


def export_source(run: Path) -> ExportSource:
    cfg, path = open_run(str(run))
    return ExportSource(path, cfg, choose_checkpoint(path, "best"))


def export_form(tables: Any = "fp32", version: str = "1") -> Form:
    return Form("clicks", version, tables=tables, events_until="2026-03-07T12:00:00Z")
