"""A follower of days of the drifting sample, with a model that trains in seconds."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from recsys.export.write_delta import write_delta
from recsys.files import manifest
from recsys.files.atomic import put_in_place
from recsys.follow import cycle
from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import FollowConfig, load_settings
from recsys.follow.increment_checks import CheckLine, CheckReport

DAYS = [f"day=2025-01-{d:02d}" for d in range(1, 7)]


def settings_file(folder: Path, logs: Path, **more: Any) -> Path:
    model = ["model=dnn", "model.deep_mlp=[16]", "model.dim=8", "data=sample_drifting"]
    given = {
        "root": str(folder / "root"),
        "name": "clicks",
        "train": [*model, "trainer.batch_size=100", "trainer.threads=1"],
        "partitions": {"folder": str(logs)},
        "first": 2,
        "full": {"overrides": ["trainer.max_epochs=2"]},
        "gate": {"change": {"auc": -0.02}, "min_rows": 500},
        "deltas": {"full_every": 1},
        **more,
    }
    file = folder / "follow.yaml"
    file.write_text(yaml.safe_dump(given))
    return file


def followed(file: Path, cycles: int | None = None) -> ContinuousTraining:
    follower = ContinuousTraining(load_settings(file))
    with follower.alone():
        follower.run(cycles)
    return follower


def fake_artefact(folder: Path, number: int) -> Path:
    """Write what looks like an artefact: a table whose row NUMBER differs from the artefact before."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    rows = np.zeros((100, 8), np.uint8)
    rows[np.arange(number)] = 1
    rows.tofile(folder / "tables" / "a.bin")
    layout = {"tables/a.bin": {"row_bytes": 8, "starts": {"a": [0, 100]}}}
    about = {"name": "clicks", "version": "1", "created": "", "events_until": None, "layout": layout}
    manifest.write(folder, manifest.entries_of(folder), {"artefact": about})
    return folder


def fake_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace training, measuring and exporting by steps that write what the real ones write; return their calls."""
    calls: list[str] = []

    def train(cfg: Any, run_dir: Path, start: Path | None) -> Any:
        calls.append(f"train {run_dir.name} from {start and start.name}")
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text("")
        return SimpleNamespace(metrics={"protocol": {"rows": {"train": 100}}})

    def measure(run: Path, cfg: Any, output: Path) -> dict[str, float]:
        output.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        probability = rng.random(1000)
        label = (rng.random(1000) < probability).astype(np.uint8)
        frame = pl.DataFrame({"row": range(1000), "probability": probability, "label": label})
        frame.write_parquet(output / "test_predictions.parquet")
        return {"auc": 0.8}

    def export(settings: FollowConfig, run: Path, output: Path, until: str | None, base: Path | None) -> str:
        full = fake_artefact(output.with_name("full"), int(run.name))
        if base is None:
            put_in_place(full, output)
        else:
            output.mkdir()
            write_delta(base, full, output)
            shutil.rmtree(full)
        return ""

    for name, fake in {"train_on": train, "measure": measure, "export": export}.items():
        monkeypatch.setattr(cycle, name, fake)
    monkeypatch.setattr(cycle, "training_config", lambda *_: None)
    monkeypatch.setattr(cycle, "PartitionRows", lambda *_: SimpleNamespace(rows=100, bad=0))
    monkeypatch.setattr(cycle, "check_partition", lambda *_: CheckReport((CheckLine("pass", "volume", "ok"),)))
    monkeypatch.setattr(cycle, "save_references", lambda *_: None)
    return calls
