"""A rank that ends takes its job down, its own error told first; what is started again goes on."""

import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest
import torch
from jobs import COMMAND, TORCHRUN, TRAIN, Job, metrics, seconds_since
from omegaconf import DictConfig
from processes import run
from torch.distributed import HashStore
from torch.distributed.checkpoint.api import CheckpointException

from recsys.base import interrupts
from recsys.base.errors import Unavailable, UserError
from recsys.config.compose import compose
from recsys.distributed import failures
from recsys.distributed.ranks import Ranks, first_decides, process_group
from recsys.distributed.rendezvous import fresh_store
from recsys.job.resumed import AUTO
from recsys.job.run_config import RunConfig
from recsys.training.run_dir import RunFolder, allow_restarts, open_run_dir

STARTS = {
    "devices": [*COMMAND, "trainer.devices=2"],
    "torchrun": ["torch.distributed.run", "--nproc_per_node=2", *TRAIN],
}


@pytest.mark.parametrize(
    ("by", "how"),
    [
        ("devices", "kill"),
        pytest.param("devices", "raise", marks=pytest.mark.slow),
        pytest.param("torchrun", "kill", marks=pytest.mark.slow),
        pytest.param("torchrun", "raise", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_ends_takes_the_job_down_and_is_told_first(job: Job, home: Path, by: str, how: str) -> None:
    mark = home / f"{by}_{how}.mark"
    job.fork(*STARTS[by], f"run_dir={mark.stem}", f"model.how={how}", f"model.mark={mark}")
    assert job.wait() == [1], job.output.read_text()[-3000:]
    assert seconds_since(mark) < 60
    errors = job.errors()
    told = {
        ("devices", "kill"): "error: rank 1 was killed by signal 9 (SIGKILL)",
        ("torchrun", "kill"): "failed (exitcode: -9) local_rank: 1",
    }.get((by, how), "error: rank 1 on ")
    assert told in errors.splitlines()[0]
    assert ("the failing model's own error" in errors) == (how == "raise")
    assert "gloo/transport" not in errors
    if by == "devices":
        assert errors.count("error:") == 1


@pytest.mark.slow
def test_torchrun_restarts_the_ranks_and_the_run_goes_on(job: Job, home: Path, reference: dict[str, Any]) -> None:
    mark, run = home / "again.mark", home / "again"
    torchrun = [*TORCHRUN, "--nproc_per_node=2", "--max_restarts=2", *TRAIN]
    job.start([*torchrun, f"run_dir={run}", "model.how=kill", f"model.mark={mark}"])
    assert job.wait() == [0], job.output.read_text()[-3000:]
    assert f"resuming from {run}/checkpoints/step-00000010 (restart 1 of 2)" in job.output.read_text()
    assert metrics(run)["test"]["auc"] == pytest.approx(reference["test"]["auc"], abs=1e-6)
    assert [p.name for p in home.glob("again*") if p.is_dir()] == ["again"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=nope", "error: model=nope: no such choice"),  # found by each rank, before they meet
        pytest.param("trainer.batch_size=33", "not divisible by 2 processes", marks=pytest.mark.slow),  # by rank 0
    ],
)
def test_a_mistake_ends_torchrun_instead_of_being_restarted(job: Job, override: str, message: str) -> None:
    job.start([*TORCHRUN, "--nproc_per_node=2", "--max_restarts=3", *TRAIN, "run_dir=mistaken", override])
    assert job.wait() == [1]
    output = job.output.read_text()
    assert message in output
    assert [line.startswith("error: ") for line in output.splitlines()].count(True) == 1
    assert "got signal: 15" in output  # torchrun's, of the first start


@pytest.fixture
def cfg(tmp_path: Path) -> DictConfig:
    return compose("train", [f"run_dir={tmp_path}/a", "resume=auto"])


def complete(folder: Path) -> Path:
    """What looks like a checkpoint."""
    folder.mkdir(parents=True)
    (folder / ".metadata").touch()
    torch.save({"loops": {"fit_loop": {"epoch_progress": {"current": {"processed": 0}}}}}, folder / "state.pt")
    return folder


@pytest.mark.slow
def test_resume_auto_begins_where_there_is_no_run_and_else_goes_on(cfg: DictConfig, tmp_path: Path) -> None:
    assert open_run_dir(RunConfig.of(cfg)) == RunFolder(tmp_path / "a")
    assert open_run_dir(RunConfig.of(cfg)) == RunFolder(tmp_path / "a")  # begun, without a checkpoint yet
    complete(tmp_path / "a" / "checkpoints" / "step-00000010")
    found = open_run_dir(RunConfig.of(cfg))
    assert (found.path, found.resumed) == (tmp_path / "a", True)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    cfg.seed = 1
    with pytest.raises(UserError, match=r"run_dir=.*another config: seed is 0 there, 1 here"):
        open_run_dir(RunConfig.of(cfg))


def test_resume_auto_needs_a_name(cfg: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg.run_dir = None
    with pytest.raises(UserError, match="resume=auto: needs run_dir=DIR"):
        open_run_dir(RunConfig.of(cfg))
    cfg.resume = None
    allow_restarts(RunConfig.of(cfg), restarts=0)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    with pytest.raises(UserError, match="--max_restarts needs run_dir=DIR"):
        allow_restarts(RunConfig.of(cfg), restarts=0)


def test_a_restart_means_resume_auto(cfg: DictConfig) -> None:
    cfg.resume = None
    assert allow_restarts(RunConfig.of(cfg), restarts=0).resume is None
    assert allow_restarts(RunConfig.of(cfg), restarts=1).resume == AUTO


def test_whose_failure_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "GRACE_SECONDS", 0.0)
    gone = RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.2]:4411")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert "rank 1 on " in failures.describe(gone)
    assert "lost the connection to another rank" in failures.describe(gone)
    assert "Connection closed by peer" in failures.describe(gone)  # should the guess be wrong
    assert len(failures.describe(gone).splitlines()) == 1
    interface = RuntimeError("[enforce fail at /gloo/transport/tcp/device.cc:84] Unable to find address for: eth9")
    assert "failed:" in failures.describe(interface)
    own = failures.describe(ArithmeticError("mine"))
    assert own.startswith("error: rank 1 on ")
    assert own.endswith("ArithmeticError: mine\n")
    monkeypatch.delenv("WORLD_SIZE")
    assert failures.describe(gone).startswith("RuntimeError")


def test_the_launchers_signal_ends_a_rank_in_silence_while_it_describes_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.2]:4411")

    def describe(error: BaseException) -> str:
        raise interrupts.Interrupted(signal.SIGTERM)

    monkeypatch.setattr(failures, "describe", describe)
    monkeypatch.setenv(interrupts.QUIET, "1")
    assert failures.call(fail) == 128 + signal.SIGTERM
    assert capsys.readouterr() == ("", "")


def test_a_signal_during_a_collective_save_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch pickles the errors of all ranks, and raises them as one error."""

    def save() -> None:
        sent = pickle.loads(pickle.dumps(interrupts.Interrupted(signal.SIGINT)))
        raise CheckpointException("write", {0: (sent, StackSummary())})

    monkeypatch.delenv("RANK", raising=False)
    assert failures.call(save) == 128 + signal.SIGINT
    assert capsys.readouterr().err == f"error: {interrupts.message()}\n"


def test_ranks_meet_though_the_store_remembers_those_of_an_earlier_start() -> None:
    store, timeout = HashStore(), timedelta(seconds=20)
    for late in (0, 1, 2):  # whoever comes last

        def meet(rank: int, late: int = late) -> bytes:
            time.sleep(0.3 * (rank == late))
            mine = fresh_store(store, rank, 3, timeout)
            mine.set(f"address/{rank}", f"{late}/{rank}")
            return b" ".join(mine.get(f"address/{r}") for r in range(3))

        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(meet, range(3)))
        assert found == [b"%d/0 %d/1 %d/2" % (late, late, late)] * 3
    with pytest.raises(TimeoutError, match="not all ranks have started"):
        fresh_store(store, 1, 3, timedelta(seconds=0.2))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "NCCL error in: NCCLUtils.hpp:77\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
            "trainer.devices=2: two processes share a GPU, which NCCL refuses; start one process for each GPU that ",
        ),
        (
            "NCCL error in: ProcessGroupNCCL.cpp\nLast error:\nsocket",
            "trainer.devices=2: NCCL cannot connect the GPUs (so",
        ),
    ],
)
def test_what_nccl_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, message: str, said: str) -> None:
    """And each process names its GPU, so that NCCL connects before the first step."""
    given: list[Any] = []

    def refuse(*_: Any, device_id: Any, **__: Any) -> None:
        given.append(device_id)
        raise torch.distributed.DistBackendError(message)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.distributed, "init_process_group", refuse)
    monkeypatch.setattr("recsys.distributed.ranks._store", lambda *_: None)
    with pytest.raises(UserError) as error, process_group("gpu", 1, Ranks(1, 1, 2, 2)):
        pass
    assert str(error.value).startswith(said) and "\n" not in str(error.value)
    assert given == [torch.device("cuda", 1)]


def undecided(rank: int, world_size: int, kinds: list[type[UserError]]) -> list[tuple[str, int]]:
    """The error and the exit status of this rank, if rank 0 fails with each kind of error."""
    found = []
    for kind in kinds:

        def fail(kind: type[UserError] = kind) -> None:
            raise kind("no")

        try:
            first_decides(Ranks(rank, rank, world_size, world_size), fail)
        except (UserError, SystemExit) as e:
            found.append((type(e).__name__, e.status if isinstance(e, UserError) else int(str(e.code))))
    return found


def test_only_a_mistake_ends_a_job_that_could_be_started_again() -> None:
    """A store that does not answer ends all ranks with status 1, which torchrun starts again."""
    first, second = run(undecided, 2, [UserError, Unavailable])
    assert first == [("UserError", 2), ("Unavailable", 1)]
    assert second == [("SystemExit", 2), ("SystemExit", 1)]
