"""A resumed run goes on: the learning rates that a scheduler has changed, also under another plan, and its steps."""

from pathlib import Path

import pytest

from recsys.config.compose import compose
from recsys.training.run import train

SCHEDULERS = {
    "exponential": "{_target_: torch.optim.lr_scheduler.ExponentialLR, gamma: 0.3}",
    "plateau": "{_target_: torch.optim.lr_scheduler.ReduceLROnPlateau, mode: max, factor: 0.3, patience: 0, threshold: 9}",
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["exponential", pytest.param("plateau", marks=pytest.mark.slow)])
def test_resumed_equals_uninterrupted(scheduler: str, prepared: Path, tmp_path: Path) -> None:
    def run(*more: str) -> dict[str, float]:
        arguments = [
            "data.sample.rows=3000",
            f"data.prepared={prepared}",
            f"optim.scheduler={SCHEDULERS[scheduler]}",
            "trainer.batch_size=512",
            "model.dim=8",
            *more,
        ]
        return train(compose("train", arguments)).metrics["validation"]

    whole = run("trainer.max_epochs=4", f"run_dir={tmp_path / 'whole'}")
    run("trainer.max_epochs=2", f"run_dir={tmp_path / 'part'}")
    rules = ["sharding.per_table.cat_1.types=[row_wise]"]  # a plan may differ
    part = run("trainer.max_epochs=4", f"resume={tmp_path / 'part'}", *rules)
    assert part == whole


@pytest.mark.slow
def test_a_run_that_ended_with_an_epoch_goes_on_to_a_number_of_steps(prepared: Path, tmp_path: Path) -> None:
    small = ["data.sample.rows=3000", f"data.prepared={prepared}", "trainer.batch_size=512", "model.dim=8"]
    first = train(compose("train", [*small, f"run_dir={tmp_path / 'run'}"]))
    steps = first.metrics["train"]["steps"]
    more = ["trainer.max_epochs=2", f"trainer.max_steps={steps + 3}"]
    resumed = train(compose("train", [*small, *more, f"resume={tmp_path / 'run'}"]))
    assert resumed.metrics["train"]["steps"] == steps + 3
