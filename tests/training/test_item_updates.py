"""The warning about item vectors that Adam cannot move, and the runs that get it."""

from pathlib import Path

import pytest
from forks import run_forked

from recsys.config.compose import compose
from recsys.job.run_config import RunConfig
from recsys.training.advice import short_training


def warning(*overrides: str, interactions: float = 25, epochs: float = 5) -> str | None:
    return short_training(RunConfig.of(compose("train", ["data=sample_sequences", *overrides])), interactions, epochs)


RATES = "optim.sparse.lr=0.001", "optim.dense.lr=0.001"


def test_the_bound_is_the_number_of_updates_times_the_rate() -> None:
    """0.001 x 25 interactions x 8 epochs is twice the deviation of GRU4Rec's initial vectors, 0.1."""
    found = warning("model=gru4rec", *RATES, epochs=7.99)
    assert found is not None and "\n" not in found
    assert found.startswith("optim.sparse.lr=0.001 is too low for 25 interactions per item and 7.99 epochs: ")
    assert "set trainer.max_epochs=8 or more, or raise optim.sparse.lr" in found
    assert warning("model=gru4rec", *RATES, epochs=8.01) is None
    assert warning("model=gru4rec", *RATES, interactions=40, epochs=5.01) is None
    assert warning("model=gru4rec", *RATES, "model.init_std=0.05") is None


@pytest.mark.parametrize("model", ["gru4rec", "sasrec", "bert4rec", "hstu", "transformer"])
def test_defaults_of_sequence_models_do_not_warn_of_five_epochs(model: str) -> None:
    assert warning(f"model={model}") is None
    assert warning(f"model={model}", epochs=0.1) is not None


def test_other_optimizers_do_not_warn() -> None:
    assert warning("model=gru4rec", "optim.sparse.name=rowwise_adagrad", *RATES, epochs=0.1) is None
    assert warning("model=gru4rec", "optim.sparse.lr=0", epochs=0.1) is None
    assert warning("model=gru4rec", "optim.sparse.every_row=true", *RATES, epochs=0.1) is None


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 6])
def test_a_run_of_few_epochs_warns_once(tmp_path: Path, epochs: int) -> None:
    """1,734 training interactions of 200 items, at a rate of 0.005: 0.043 in an epoch, and 0.2 are needed."""
    arguments = ["model=gru4rec", "data=sample_sequences", "data.sample.rows=2000", "trainer.threads=1"]
    done = run_forked("recsys.train", *arguments, f"trainer.max_epochs={epochs}", cwd=tmp_path, env={"COLUMNS": "500"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("optim.sparse.lr=0.005 is too low for ") == (epochs == 1)
