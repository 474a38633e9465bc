"""A resumed run goes on: the learning rates that a scheduler has changed, also under another plan, and its steps."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recsys.config.compose import compose
from recsys.training.combined_optimizer import Optimizers
from recsys.training.run import train

SCHEDULERS = {
    "exponential": "{_target_: torch.optim.lr_scheduler.ExponentialLR, gamma: 0.3}",
    "plateau": "{_target_: torch.optim.lr_scheduler.ReduceLROnPlateau, mode: max, factor: 0.3, patience: 0, threshold: 9}",
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


def optimizers() -> Optimizers:
    made: Any = object.__new__(Optimizers)
    made._dense_optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.7)
    groups = made._dense_optimizer.param_groups
    made._wrapper = SimpleNamespace(param_groups=groups, state={})
    made.combined = SimpleNamespace(param_groups=[*groups, {"lr": 0.9}])
    for group in made.combined.param_groups:
        group["initial_lr"] = group["lr"]
    return made


def test_rates_are_restored_exactly() -> None:
    """A factor times the initial rate is often the next number: of 0.7 and of 0.9, within thirty steps."""
    first, rounded = optimizers(), 0
    for _ in range(30):
        for group in first.combined.param_groups:
            group["lr"] *= 0.3
            rounded += group["lr"] / group["initial_lr"] * group["initial_lr"] != group["lr"]
        again = optimizers()
        again.load_state_dict(copy.deepcopy(first.state_dict()), [])
        assert [again.groups()[kind][-1]["lr"] for kind in ("dense", "sparse")] == [
            g["lr"] for g in first.combined.param_groups
        ]
    assert rounded > 0
    old = {"dense_optimizer": first.state_dict()["dense_optimizer"], "lr": {"dense": [0.5], "sparse": []}}
    again.load_state_dict(old, [])  # of a checkpoint of an earlier version
    assert again.groups()["dense"][0]["lr"] == 0.35


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
