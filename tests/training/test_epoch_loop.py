"""Hooks are called after what is due, and marks cost nothing unless a profiler runs."""

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from recsys.config.compose import compose
from recsys.training import epoch_loop
from recsys.training.callbacks import Record
from recsys.training.profiling import marked_while_profiled
from recsys.training.run import train


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("more", "due"),
    [
        (("checkpoint.every_n_steps=12", "trainer.log_every_n_steps=15"), {1, 12, 15, 20, 24, 30, 36, 40, 45, 48, 50}),
        (("trainer.accumulate=3", "trainer.max_steps=9"), {1, 21, 27}),
        (("debug=profile", "debug.profile_steps=4"), set(range(1, 15))),
        ((), {1, 20, 40, 50}),
        (("trainer.validate_every_n_steps=22",), {1, 20, 22, 40, 44, 50}),
        (("trainer.max_steps=31",), {1, 20, 31}),
        (("trainer.accumulate=3",), {1, 21, 42, 50}),
    ],
)
def test_hooks_of_batches(
    more: tuple[str, ...], due: set[int], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_loop, "SECONDS", 1e9)
    called: set[int] = set()

    def end(self: Any, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        called.add(batch_idx + 1)

    monkeypatch.setattr(Record, "on_train_batch_end", end)
    prepared = f"data.prepared={tmp_path_factory.getbasetemp() / 'prepared'}"
    given = ["data.sample.rows=4000", "trainer.batch_size=64", "trainer.threads=1", prepared, *more]
    made = train(compose("train", [*given, f"run_dir={tmp_path_factory.mktemp('run')}"]))
    assert called == due
    assert made.metrics["train"]["samples"] == min(64 * max(due), 3200)


def test_marks_do_nothing_without_a_profiler() -> None:
    with marked_while_profiled():
        with record_function("before") as mark:
            pass
        with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("within"):
            torch.ones(2).sum()
        with record_function("after"):
            pass
        with record_function("left open") as open_mark, profile(activities=[ProfilerActivity.CPU]):
            pass
    assert mark.record is None and open_mark.record is None
    names = {e.key for e in profiled.key_averages()}
    assert "within" in names and not names & {"before", "after"}
    with record_function("as PyTorch has it") as mark:
        assert mark.record is not None
