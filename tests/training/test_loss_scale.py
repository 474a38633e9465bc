"""trainer.precision=16-mixed: gradients are unscaled before FBGEMM's kernels apply them, and bad steps are skipped."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from checkpoint_states import assert_same
from forks import ok, run_forked

from recsys.base.errors import NotFinite, UserError
from recsys.config.compose import compose
from recsys.training.loss_scale import FIRST, GROWTH_STEPS, Float16, LossScale
from recsys.training.run import Run, train

DATA = ["data=criteo", "data.sample.rows=2000", "trainer.batch_size=128", "trainer.threads=1", "model.dim=8"]


def run(home: Path, name: str, *more: str) -> Run:
    return train(compose("train", [*DATA, f"data.prepared={home}/prepared", *more, f"run_dir={home / name}"]))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "more",
    [
        ["model=deepfm"],
        ["model=dcnv2", "trainer.pipeline=sparse_dist", "optim.clip_norm=0.1"],
        ["model=dlrm", "model.bottom_mlp=[8]", "optim=adam", "trainer.accumulate=2"],
    ],
    ids=["rowwise_adagrad", "pipeline", "adam, accumulated"],
)
def test_a_scale_of_two_to_the_n_changes_nothing_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """Tables get their gradients in a second part of the backward pass, to the last bit those of one."""
    run(tmp_path, "plain", *more)
    monkeypatch.setattr(Float16, "forward_context", lambda _: nullcontext())
    metrics = run(tmp_path, "scaled", *more, "trainer.precision=16-mixed").metrics
    assert metrics["train"]["skipped_steps"] == 0
    assert_same(tmp_path / "plain", tmp_path / "scaled", tmp_path)


@pytest.mark.slow
def test_two_processes_skip_together(tmp_path: Path) -> None:
    """A scale that overflows on some steps only: the ranks would otherwise wait for each other."""
    given = [*DATA, "model=dlrm", "model.bottom_mlp=[8]", "sharding=rowwise", "trainer.devices=2", "run_dir=run"]
    ok(run_forked("recsys.train", *given, "trainer.precision=16-mixed", "data.prepared=prepared", cwd=tmp_path))


def test_steps_that_overflow_are_skipped_until_the_scale_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.training.loss_scale.FIRST", 2.0**28)  # too large for gradients in float16
    metrics = run(tmp_path, "run", "model=deepfm", "trainer.precision=16-mixed").metrics["train"]
    assert 0 < metrics["skipped_steps"] < 12 and metrics["steps"] == 12 - metrics["skipped_steps"]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("optim", ["adagrad", "adam"])
def test_skipped_steps_leave_all_weights_as_they_are(tmp_path: Path, optim: str) -> None:
    """Dense weights, tables and the state of their optimizers."""
    more = ["model=deepfm", f"optim.sparse.name={optim}", "trainer.precision=16-mixed", "trainer.loss_scale=1e38"]
    for batches in (1, 9):
        train_metrics = run(tmp_path, f"{batches}", *more, f"debug.train_batches={batches}").metrics["train"]
        assert train_metrics["skipped_steps"] == batches and train_metrics["steps"] == 0
    assert_same(tmp_path / "1", tmp_path / "9", tmp_path)


@pytest.mark.slow
def test_a_scale_that_always_overflows_ends_the_run(tmp_path: Path) -> None:
    more = ["model=dnn", "trainer.precision=16-mixed", "trainer.loss_scale=1e38", "trainer.max_epochs=9"]
    more.append("trainer.early_stopping.patience=null")
    why = r"^the gradients of 50 steps, one after another, are NaN or infinite, at step 0; .*trainer.precision=bf16-mixed$"
    with pytest.raises(NotFinite, match=why):
        run(tmp_path, "run", *more)


def test_the_scale_grows_and_shrinks() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    scale = LossScale(torch.nn.Linear(1, 1), None)
    for gradient, value in ((1.0, FIRST), (torch.inf, FIRST / 2), (torch.nan, FIRST / 4)):
        weight.grad = torch.full((2,), gradient)
        scale.release([weight])
        assert scale.end_step([weight]) == (gradient == 1.0) and scale.value == value
    weight.grad = torch.full((2,), scale.value)
    for _ in range(GROWTH_STEPS):
        before = weight.grad[0].item()
        scale.release([weight])
        assert scale.end_step([weight])
        assert weight.grad[0].item() == before / (FIRST / 4)
        weight.grad.fill_(1.0)
    assert scale.value == FIRST / 2 and scale.skipped == 2
    other = LossScale(torch.nn.Linear(1, 1), None)
    other.load_state_dict(scale.state_dict())
    assert other.state_dict() == scale.state_dict()


def test_a_scale_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^trainer.loss_scale=0: must be above 0"):
        run(tmp_path, "run", "trainer.loss_scale=0")
