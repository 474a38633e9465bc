"""A run that goes on after kill -9 at any moment, or after an interruption, is the run that was never stopped.

Between two checkpoints a run folder does not change, so a copy of it after each one stands for a kill at any step.
"""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import pytorch_lightning
from case import Case
from settings import SEED, combinations, complete, name_of

from recsys.base import interrupts
from recsys.files.run_files import best_checkpoint, newest_checkpoint
from recsys.training import checkpoints, epoch_loop
from recsys.training.run_state import RunState

BATCHES, STEPS = 10, 30  # of an epoch, and of the longest training
ALL = combinations("cadences")
TOGETHER = complete(
    "cadences", {"validate": "3 steps", "checkpoint": "3 steps", "trainer.early_stopping.patience": "2"}
)
DAILY = random.Random(SEED).choice(ALL)


@pytest.mark.parametrize(
    ("chosen", "at_most"),
    [
        pytest.param(DAILY, 3, id="drawn"),
        pytest.param(TOGETHER, 99, id="together", marks=pytest.mark.slow),
        *(pytest.param(c, 99, id=str(i), marks=pytest.mark.slow) for i, c in enumerate(ALL)),
    ],
)
def test_killed_and_resumed(chosen: dict[str, str], at_most: int, tmp_path: Path, monkeypatch: Any) -> None:
    print(f"RECSYS_PAIRS_SEED={SEED}: {name_of(chosen)}")
    monkeypatch.setattr(epoch_loop, "SHARED_STEPS", 7)
    monkeypatch.setattr(epoch_loop, "SECONDS", 1e9)  # only what is due ends a group of steps
    case, killed = Case(chosen, tmp_path), []
    more = ["trainer.batch_size=54", *(["trainer.max_epochs=3"] if chosen["split"] == "files" else [])]
    save = checkpoints.Checkpoints._save

    def copied(self: checkpoints.Checkpoints, trainer: pytorch_lightning.Trainer, kind: str) -> None:
        save(self, trainer, kind)
        killed.append(tmp_path / f"killed-{len(killed)}-{kind}-{trainer.global_step}")
        shutil.copytree(self.folder.parent, killed[-1])

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.Checkpoints, "_save", copied)
        case.base = case.train(*more)
    whole, draw = outcome(case.base.run.path), random.Random(SEED)
    with monkeypatch.context() as patched:
        patched.setattr(epoch_loop, "SHARED_STEPS", 1)  # hooks after each step, as Lightning's own loop calls them
        assert outcome(case.train(*more, f"run_dir={tmp_path / 'each'}").run.path) == whole
    for folder in sorted(draw.sample(killed, min(at_most, len(killed)))):
        assert outcome(case.resume(folder).run.path) == whole, folder.name
    for step in draw.sample(range(1, STEPS), min(at_most, 4)):
        folder = tmp_path / f"interrupted-{step}"
        with monkeypatch.context() as patched:
            patched.setattr(interrupts, "requested", counted(step))
            patched.setattr(interrupts, "install_again", lambda: None)
            with suppress(interrupts.Interrupted):  # some trainings end before this step
                case.train(*more, "trainer.save_on_interrupt=true", f"run_dir={folder}")
        assert outcome(case.resume(folder).run.path) == whole, folder.name


def counted(step: int) -> Any:
    """Return a question that is answered with yes from the time that it has been asked `step` times."""
    asked = iter(range(10**6))
    return lambda: next(asked) + 1 >= step


def outcome(run: Path) -> dict[str, Any]:
    """Return what a run has come to: metrics of all its validations, rates, the state of callbacks, the best step."""
    metrics = json.loads((run / "metrics.json").read_text())
    rows = pl.read_csv(run / "metrics.csv")
    measured = [c for c in rows.columns if c.startswith("validation/")]
    rows = rows.filter(pl.any_horizontal(pl.col(measured).is_not_null())).cast(pl.Float64)
    newest, best = newest_checkpoint(run), best_checkpoint(run)
    assert newest is not None
    assert best is not None
    state = RunState.load(newest).state
    calibration = run / "calibration.json"
    return {
        "metrics": {split: metrics.get(split) for split in ("validation", "test")},
        "train": {key: metrics["train"][key] for key in ("steps", "epochs", "samples")},
        "validations": rows.select(*sorted(measured), "epoch", "step").to_dicts(),
        "rates": state.get("lr"),
        "callbacks": {k: str(v) for k, v in state["callbacks"].items() if not k.startswith("Throughput")},
        "checkpoints": (newest.name[-8:], best.name),
        "calibration": json.loads(calibration.read_text()) if calibration.exists() else None,
    }
