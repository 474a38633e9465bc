"""trainer.pipeline: TorchRec's pipelines train what a plain loop trains, to the last bit."""

from collections import deque
from pathlib import Path

import pytest
from checkpoint_states import assert_same
from forks import ok, run_forked
from hypothesis import given
from hypothesis import strategies as st
from torchrec.distributed.dist_data import SplitsAllToAllAwaitable

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.loader.device_copies import with_upcoming
from recsys.job.run_config import RunConfig
from recsys.models.dnn import DNN
from recsys.training.run import Run, train

DATA = ["data=criteo", "data.sample.rows=2500", "trainer.batch_size=128", "trainer.threads=1", "model.dim=8"]
BUSY = [  # validations and checkpoints within epochs, and steps of several batches
    *("trainer.max_epochs=2", "trainer.validate_every_n_steps=6", "checkpoint.every_n_steps=15"),
    *("trainer.early_stopping.patience=null", "optim.ema=0.9"),
    *("schedule=polynomial", "optim.scheduler.warmup_steps=5", "optim.scheduler.decay_steps=20"),
]


def run(home: Path, name: str, *more: str) -> Run:
    return train(compose("train", [*DATA, f"data.prepared={home}/prepared", *more, f"run_dir={home / name}"]))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines")
    run(folder, "none", "model=deepfm", *BUSY)
    return folder


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist"])
def test_a_pipeline_trains_what_the_plain_loop_trains(home: Path, tmp_path: Path, pipeline: str) -> None:
    run(home, pipeline, "model=deepfm", *BUSY, f"trainer.pipeline={pipeline}")
    assert_same(home / "none", home / pipeline, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["stem", "ple"])
def test_models_with_lists_of_modules_have_a_pipeline(model: str, tmp_path: Path) -> None:
    """TorchRec's own pipeline traces into their modules, and ends the run where one of them asks for a shape."""
    given = ["data=sample_tasks", "data.sample.rows=1000", f"model={model}", "trainer.max_steps=3"]
    run(tmp_path, "run", *given, "trainer.pipeline=sparse_dist")


def test_one_process_tells_itself_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of ids that processes send each other are a collective, and a wait for its result."""
    told = SplitsAllToAllAwaitable.__init__
    calls = []
    monkeypatch.setattr(SplitsAllToAllAwaitable, "__init__", lambda *a, **k: (calls.append(1), told(*a, **k))[1])
    run(home, "alone", "model=dnn", "trainer.pipeline=sparse_dist", "trainer.max_steps=3")
    assert not calls


@pytest.mark.slow
def test_gradients_that_accumulate(home: Path, tmp_path: Path) -> None:
    for pipeline in ("none", "sparse_dist"):
        more = ["trainer.accumulate=3", "trainer.max_epochs=2", f"trainer.pipeline={pipeline}"]
        run(home, f"{pipeline}-3", "model=dcnv2", *more)
    assert_same(home / "none-3", home / "sparse_dist-3", tmp_path)


@pytest.mark.slow
def test_a_run_that_goes_on_in_a_pipeline(home: Path, tmp_path: Path) -> None:
    """The batches that the pipeline held when it stopped, within an epoch, are trained once."""
    given = ["model=deepfm", *BUSY, "trainer.pipeline=sparse_dist"]
    run(home, "stopped", *given, "trainer.max_steps=17")
    train(compose("train", [*DATA, f"data.prepared={home}/prepared", *given, f"resume={home / 'stopped'}"]))
    assert_same(home / "none", home / "stopped", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["rowwise", "tablewise", "columnwise"])
def test_two_processes(tmp_path: Path, sharding: str) -> None:
    for pipeline in ("none", "sparse_dist"):
        given = [*DATA, *BUSY, "model=dlrm", "model.bottom_mlp=[8]", f"sharding={sharding}", "trainer.devices=2"]
        given += [f"trainer.pipeline={pipeline}", f"run_dir={pipeline}", "data.prepared=prepared"]
        ok(run_forked("recsys.train", *given, cwd=tmp_path))
    assert_same(tmp_path / "none", tmp_path / "sparse_dist", tmp_path)


def test_a_model_that_cannot_be_traced_trains_without(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forward = DNN.forward
    monkeypatch.setattr(DNN, "forward", lambda self, x, sparse: forward(self, x, sparse) if len(x) else None)
    assert run(home, "untraced", "model=dnn", "trainer.pipeline=sparse_dist").metrics["train"]["steps"] == 15
    line = "trainer.pipeline=sparse_dist: DNN trains with pipeline=base: torch.fx cannot trace its forward pass ("
    assert line in capsys.readouterr().err


def test_what_does_not_exist_is_refused(home: Path) -> None:
    with pytest.raises(UserError, match=r"^trainer.pipeline=prefetch: reads rows of tables that a GPU caches"):
        run(home, "prefetch", "trainer.pipeline=prefetch", "trainer.accelerator=cpu")
    with pytest.raises(UserError, match=r"^trainer.pipeline=fast: must be auto, none, base, sparse_dist or prefetch"):
        run(home, "fast", "trainer.pipeline=fast")


@pytest.mark.parametrize(
    ("model", "accelerator", "pipeline"),
    [
        ("model=dlrm data=criteo", "cpu", "none"),
        ("model=dlrm data=criteo", "gpu", "sparse_dist"),
        ("model=sasrec data=sample_sequences", "gpu", "base"),
    ],
)
def test_the_default(model: str, accelerator: str, pipeline: str) -> None:
    cfg = RunConfig.of(compose("train", [*model.split(), f"trainer.accelerator={accelerator}"]))
    assert cfg.pipeline == pipeline


@given(st.integers(0, 9), st.integers(0, 4))
def test_the_next_batches_are_known(batches: int, ahead: int) -> None:
    upcoming: deque[int] = deque()
    for i, batch in enumerate(with_upcoming((n for n in range(batches)), upcoming, ahead)):  # type: ignore[arg-type]
        assert batch == i and list(upcoming) == list(range(batches))[i + 1 : i + 1 + ahead]
    assert not upcoming
