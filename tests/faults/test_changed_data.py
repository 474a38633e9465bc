"""Raw files that change after a run: the run keeps its own transforms, and says which rows it is measured on."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import OmegaConf

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.online.predictor import Predictor
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train

DATA = """
name: scaled
source: {files: ["*.csv"]}
label: {column: y}
split: {by: order, validation: 0.2, test: 0.2}
dense: {x: {fill: 0, transform: [standardise]}}
sparse: {s: {encode: hash, buckets: 20}}
"""
ROWS = 1500


def write(raw: Path, scale: float = 1.0, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=ROWS)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-3 * x))).astype(int)
    raw.mkdir(exist_ok=True)
    pl.DataFrame({"y": y, "x": x * scale, "s": rng.integers(0, 9, ROWS)}).write_csv(raw / "rows.csv")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Train on unscaled rows; return a function that trains with more overrides."""
    write(tmp_path / "raw")

    def call(*more: str) -> Any:
        cfg = compose("train", ["model=wide_deep", "trainer.batch_size=60", "trainer.threads=1", *more])
        cfg.data = OmegaConf.create(DATA)
        cfg.data.root, cfg.data.prepared = str(tmp_path / "raw"), str(tmp_path / "prepared")
        return train(cfg)

    call(f"run_dir={tmp_path / 'run'}", "trainer.max_epochs=3")
    return call


def test_evaluate_keeps_the_runs_statistics(run: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With x 100 times as large, refitted statistics would give the old AUC; the run's own saturate the model."""
    old = evaluate(str(tmp_path / "run"))["test"]
    assert "have changed" not in capfd.readouterr().err
    shutil.rmtree(tmp_path / "raw")
    write(tmp_path / "raw", scale=100)
    new = evaluate(str(tmp_path / "run"))["test"]
    assert "the raw files have changed since the run was trained: measuring on today's rows" in capfd.readouterr().err
    assert new["logloss"] > 2 * old["logloss"]
    rows = pl.read_csv(tmp_path / "raw" / "rows.csv")[-ROWS // 5 :]
    p = Predictor.load(str(tmp_path / "run")).predict(rows.drop("y")).to_numpy().astype(np.float64)
    p = np.clip(p, 1e-7, 1 - 1e-7)
    assert new["logloss"] == pytest.approx(-np.mean(np.where(rows["y"] == 1, np.log(p), np.log1p(-p))), rel=1e-3)


def test_a_run_is_not_resumed_on_other_data(run: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (tmp_path / "run" / "transforms.json").read_bytes()
    write(tmp_path / "raw", seed=1)
    with pytest.raises(UserError, match=r"resume=.*/run: the raw files in data.root have changed since the run began"):
        run(f"resume={tmp_path / 'run'}", "trainer.max_epochs=4")
    found = run(f"resume={tmp_path / 'run'}", "trainer.max_epochs=4", "resume_on_changed_data=true")
    assert "going on with today's files and the run's transforms" in capfd.readouterr().err
    assert found.metrics["train"]["epochs"] == 4
    after = json.loads((tmp_path / "run" / "transforms.json").read_text())
    assert after["dense"] == json.loads(before)["dense"]


def test_without_raw_files_the_prepared_data_serve(run: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old = evaluate(str(tmp_path / "run"))["test"]
    shutil.rmtree(tmp_path / "raw")
    assert evaluate(str(tmp_path / "run"))["test"] == old
    assert "raw: no such folder or file; measuring on " in capfd.readouterr().err
    shutil.rmtree(tmp_path / "prepared")
    with pytest.raises(UserError, match=r"data.root=.*raw: no such folder or file$"):
        evaluate(str(tmp_path / "run"))


def test_moved_raw_files_are_the_same_data(run: Any, tmp_path: Path) -> None:
    shutil.move(tmp_path / "raw", tmp_path / "elsewhere")
    (tmp_path / "raw").symlink_to(tmp_path / "elsewhere")
    run(f"resume={tmp_path / 'run'}", "trainer.max_epochs=4")
