"""Learning rates that a scheduler has changed go on after a resume, also where the plan has other parameter groups."""

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
