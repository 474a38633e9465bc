"""A run that diverges ends with one line, whichever step shows it: no NaN in a checkpoint, none in metrics.json."""

import re
from pathlib import Path

import pytest
import torch
from forks import WARM, run_forked
from small_csv import Commands, write_mine

from recsys.models.ease import EASE
from recsys.sharding import sharded_checkpoint
from recsys.training import fitted_retrieval, module

STEP = ["data=mine", "data.root=raw", "trainer.threads=1", "run_dir=r"]
BEYOND = ["optim.dense.lr=3e38", "+optim.dense.weight_decay=1e4", "data.split.validation=0"]  # weights become infinite
FAR = ["optim.dense._target_=torch.optim.SGD", "optim.dense.lr=1e30"]
SEQUENCES = ["data=sample_sequences", "data.sample.rows=3000", "trainer.threads=1", "run_dir=r", "model.dim=8"]
ADVICE = r"last good checkpoint: none yet; try a lower optim\.sparse\.lr or optim\.dense\.lr$"


def nothing_is_left(run: Path) -> bool:
    return not (run / "metrics.json").exists() and not [*(run / "checkpoints").iterdir()]


def test_the_last_step_shows_in_validation(commands: Commands) -> None:
    status, [error] = commands("train", *STEP, *FAR, "trainer.batch_size=160")
    assert status == 2
    assert re.search(rf"^validation: 20 of 20 predictions are NaN or infinite after step 1; {ADVICE}", error), error
    assert nothing_is_left(Path("r"))


def test_the_last_step_shows_in_the_weights(commands: Commands) -> None:
    status, [error] = commands("train", *STEP, *FAR, *BEYOND, "trainer.batch_size=180")
    assert status == 2
    assert re.search(
        rf"^weights of \S+ are NaN or infinite after step 1, so no checkpoint was written; {ADVICE}", error
    )
    assert nothing_is_left(Path("r"))


def test_finite_weights_whose_predictions_are_not(commands: Commands) -> None:
    """1e30 is a float32: the checkpoint is written, and the test finds it out, as recsys.evaluate does."""
    status, [error] = commands("train", *STEP, *FAR, "trainer.batch_size=180", "data.split.validation=0")
    message = (
        "test: 20 of 20 predictions are NaN or infinite with the weights of this checkpoint; train again with a lower"
    )
    assert status == 2 and error.startswith(message), error
    assert not Path("r/metrics.json").exists()
    status, [error] = commands("evaluate", "run=r")
    assert status == 2 and error.startswith(message), error
    assert not [*Path("r").glob("evaluate-*")]


def test_the_loss_of_the_last_step(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs training_step does not look at every loss; the checkpoint does."""
    step = module.RecsysModule.training_step

    def unseen(self: module.RecsysModule, *arguments: object) -> torch.Tensor:
        loss = step(self, *arguments)  # type: ignore[arg-type]
        self.step.loss = loss * torch.nan
        return loss

    monkeypatch.setattr(module.RecsysModule, "training_step", unseen)
    status, [error] = commands("train", *STEP, "trainer.batch_size=160")
    assert status == 2 and re.search(rf"^the loss is nan after step 1, so no checkpoint was written; {ADVICE}", error)
    assert nothing_is_left(Path("r"))


def test_a_retrieval_model(commands: Commands) -> None:
    far = [*FAR, "optim.sparse.name=sgd", "optim.sparse.lr=1e30", "trainer.max_epochs=1", "trainer.batch_size=512"]
    status, [error] = commands("train", *SEQUENCES, "model=gru4rec", *far, "trainer.max_steps=1")
    assert status == 2
    assert re.search(r"^(validation: the scores of some items|weights of \S+) are NaN or infinite after step 1", error)
    assert nothing_is_left(Path("r"))


def test_a_closed_form_model(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    ease = ["model=ease", *(a for a in SEQUENCES if not a.startswith("model.dim"))]
    fit = EASE.fit

    def broken(self: EASE, *arguments: object) -> None:
        fit(self, *arguments)  # type: ignore[arg-type]
        next(iter(self.state_dict().values())).fill_(torch.nan)

    monkeypatch.setattr(EASE, "fit", broken)
    status, [error] = commands("train", *ease)
    assert status == 2 and re.search(r"^the fitted \S+ is NaN or infinite, so no checkpoint was written; try", error)
    assert nothing_is_left(Path("r"))
    monkeypatch.setattr(fitted_retrieval, "all_finite", lambda _: True)  # as in a run from before the check
    status, [error] = commands("train", *ease)
    assert status == 2 and error.startswith("test: the scores of some items are NaN or infinite; try other values")
    assert not Path("r/metrics.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("change", [[], BEYOND])
def test_two_processes_end_together_with_one_line(tmp_path: Path, change: list[str]) -> None:
    write_mine(tmp_path)
    rows = "160" if not change else "180"
    given = [*STEP, *FAR, *change, "trainer.devices=2", f"trainer.batch_size={rows}"]
    done = run_forked("recsys.train", *given, cwd=tmp_path, env=WARM, timeout=100)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1 and "Traceback" not in done.stderr, done.stderr
    assert re.search(r"(20 of 20 predictions|weights of \S+) are NaN or infinite after step 1", errors[0])
    assert nothing_is_left(tmp_path / "r")


def test_large_tables_are_checked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_checkpoint, "FINITE_ELEMENTS", 8)
    x = torch.zeros(5, 4)
    assert all(map(sharded_checkpoint.all_finite, (x, torch.arange(4), torch.zeros(0))))
    x[4, 3] = torch.inf
    assert not sharded_checkpoint.all_finite(x)


def test_batch_normalisation_over_one_row(commands: Commands) -> None:
    normal = [*STEP, "model.batch_norm=true"]
    status, [error] = commands("train", *normal, "trainer.batch_size=1")
    assert status == 2 and error.startswith("trainer.batch_size=1: ") and not Path("r").exists()
    few = ["data.split.validation=0.4", "data.split.test=0.595", "data.label.kind=regression"]  # one training row
    status, [error] = commands("train", *normal, *few, "trainer.batch_size=32")
    assert status == 2 and "a batch has 1 row in each process, and batch normalisation needs 2" in error, error
