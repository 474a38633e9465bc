"""A checkpoint is read by any plan and world size, optimizers' state included, and training goes on as if never moved."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forks import fork
from parity import Case, Trained, blocks_of, reference
from processes import run

from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.losses.task import Task
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding import sharded_checkpoint
from recsys.sharding.optimizers import OPTIMIZERS
from recsys.sharding.reshard import rewrite
from recsys.sharding.sharded_model import Placement
from recsys.sharding.stored_checkpoint import StoredCheckpoint
from recsys.training.module import RecsysModule

ROWWISE = ["rowwise_adagrad", "partial_rowwise_adam"]

WORLDS = [4, 2, 1, 2]
CHAINS = {  # the plans that follow each other in each world
    "with columns": (
        OPTIMIZERS,
        [["row_wise", "grid_shard"], ["column_wise"], ["table_wise"], ["mixed", "data_parallel"]],
    ),
    "by rows": (ROWWISE, [["row_wise"], ["table_row_wise"], ["table_wise"], ["data_parallel"]]),
}
PARAMETRISED = "test_training_goes_on_as_if_it_had_never_moved"
EACH, LAST = 3, 20  # steps with each plan of a chain, and with its last


def save(trained: Trained, path: Path, step: int) -> None:
    m = trained.module
    state: dict[str, Any] = {"global_step": step}
    sharded_checkpoint.save(path, m.sharded, m.step.optimizers.rows, state)


def load(trained: Trained, path: Path) -> int:
    m = trained.module
    state = torch.load(path / "state.pt", weights_only=False)
    sharded_checkpoint.load_all(path, m.sharded, m.step.optimizers.rows, state["global_step"])
    if m.sharded.optimizer.counts_steps:
        trained.dmp.fused_optimizer.set_optimizer_step(state["global_step"])
    return int(state["global_step"])


def stage(rank: int, world_size: int, folder: str, number: int, keys: list[tuple[str, str]]) -> dict[str, Any]:
    """One world's part of chains: under each plan, go on from the last checkpoint, and write the next."""
    found: dict[str, Any] = {}
    for chain, optimizer in keys:
        kinds = CHAINS[chain][1]
        step = EACH * sum(map(len, kinds[:number]))
        logits, blocks = [], []
        for kind in kinds[number]:
            wide = kind == "table_wise"  # padding changes on the way, too
            trained = Trained(Case(kind, optimizer, decay=False, padding="64" if wide else "16"))
            place = Path(folder) / chain / optimizer
            if step:
                assert load(trained, place / f"step-{step}") == step
            steps = LAST if kind == "data_parallel" else EACH
            logits += [trained.step(step + i) for i in range(steps)]
            blocks += [blocks_of(trained.module.sharded.plan)] * steps
            step += steps
            save(trained, place / f"step-{step}", step)
        found[chain, optimizer] = logits, blocks
    return found


@pytest.fixture(scope="module")
def moved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, Any]]:
    """The folder of checkpoints; logits of every step, of all ranks' rows, and the tables' column blocks in it.

    Of the chains that the chosen tests ask for.
    """
    folder = tmp_path_factory.mktemp("chains")
    keys = {("with columns", "rowwise_adagrad")}  # for the test that rewrites
    for item in request.session.items:
        keys |= {item.callspec.params["key"]} if item.originalname == PARAMETRISED else set()  # type: ignore[attr-defined]
    found: dict[Any, Any] = {}
    for number, world_size in enumerate(WORLDS):
        ranks = run(stage, world_size, str(folder), number, sorted(keys))
        for key in ranks[0]:
            logits, blocks = found.get(key, ([], []))
            new = map(torch.cat, zip(*(r[key][0] for r in ranks), strict=True))
            found[key] = [*logits, *new], [*blocks, *ranks[0][key][1]]
    return folder, found


@pytest.mark.few(1)
@pytest.mark.parametrize("key", [(c, o) for c, (optimizers, _) in CHAINS.items() for o in optimizers], ids="-".join)
def test_training_goes_on_as_if_it_had_never_moved(moved: Any, key: tuple[str, str]) -> None:
    """Against plain torch in one process, over all plans and the 20 steps after the last move.

    1e-4: float32 sums in another order. Row-wise state has a number a row
    and column block: the reference keeps it by the blocks of the step's plan.
    """
    logits, blocks = moved[1][key]
    expected, _ = reference(Case("", key[1], decay=False), blocks)
    assert len(logits) >= 3 * EACH + LAST
    for step, got in enumerate(logits):
        torch.testing.assert_close(got, expected[step], rtol=1e-4, atol=1e-4, msg=lambda m, s=step: f"step {s}: {m}")


def test_rewritten_for_another_plan_it_holds_the_same(moved: Any, tmp_path: Path) -> None:
    """Offline, against what the chain's processes wrote: column-wise by two becomes table-wise."""
    stored = StoredCheckpoint(moved[0] / "with columns" / "rowwise_adagrad" / f"step-{3 * EACH}")
    assert {e["type"] for e in stored.plan["tables"]} == {"column_wise"}
    entries = [e | {"shards": [], "type": "data_parallel"} for e in stored.plan["tables"]]
    rewrite(stored, tmp_path / "whole", entries, 1)
    whole = StoredCheckpoint(tmp_path / "whole")
    for e in entries:
        weight, state = f"model.{e['parameter']}", f"tables.{e['parameter']}/sum"
        torch.testing.assert_close(whole.read(weight), stored.read(weight), rtol=0, atol=0)
        assert stored.size(state) == [e["rows"], 2]
        torch.testing.assert_close(whole.read(state), stored.read(state).mean(1, keepdim=True))
        assert whole.read(state).any()


def killed_while_saving(folder: str, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    trained = Trained(Case("none", "rowwise_adagrad"))
    path = Path(folder) / "step-1"
    save(trained, path, 1)
    torch.save(trained.predict(), Path(folder) / "predictions")
    trained.step(0)
    real = sharded_checkpoint.dcp.save

    def save_half(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    sharded_checkpoint.dcp.save = save_half
    save(trained, path, 2)


def test_a_kill_during_the_save_leaves_the_previous_one_loadable(tmp_path: Path) -> None:
    killed = fork(killed_while_saving, str(tmp_path), str(tmp_path / "store"))
    assert killed.wait() == -signal.SIGKILL
    [found] = run(read_one, 1, str(tmp_path / "step-1"))
    torch.testing.assert_close(found, torch.load(tmp_path / "predictions"))


def read_one(rank: int, world_size: int, path: str) -> Any:
    trained = Trained(Case("none", "rowwise_adagrad"))
    trained.step(5)
    sharded_checkpoint.load_model(Path(path), trained.module.sharded)
    return trained.predict()


LARGE = FeatureSpec(dense=(), sparse=(SparseFeature("a", 1 << 22, "a"),))  # x 128 columns: 2 GiB


class LargeModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = PooledEmbeddings(LARGE, 128, device=torch.device("meta"))

    def forward(self, dense: torch.Tensor, sparse: Any) -> torch.Tensor:
        return self.embeddings(sparse).flatten(1).sum(1, keepdim=True)


def large(rank: int, world_size: int, path: str, kind: str) -> tuple[float, float, float]:
    """Saves where there is no checkpoint, else loads; GiB that it took beyond what was there before, and of the shard."""
    module = RecsysModule(
        lambda: Task(LargeModel()),
        Placement(ShardingConfig(types=[kind]), SparseOptimConfig(), batch_size=8, local_world_size=world_size),
    )
    module.setup_model(torch.device("cpu"))
    [weight] = [v for k, v in module.dmp.state_dict().items() if k.endswith("t_a.weight")]
    shards = [s.tensor for s in weight.local_shards()]
    before = reset_peak()
    if not Path(path).exists():
        sharded_checkpoint.save(Path(path), module.sharded, None, {"global_step": 1})
    else:
        for s in shards:
            s.zero_()
        sharded_checkpoint.load_all(Path(path), module.sharded, None, step=1)
    taken = (peak() - before) / 2**30
    return taken, sum(s.nbytes for s in shards) / 2**30, float(sum(s.square().sum(dtype=torch.float64) for s in shards))


def reset_peak() -> int:
    """Bytes resident now, from where the peak is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")]
    return int(line.split()[1]) << 10


@pytest.mark.slow
def test_memory_while_saving_and_loading_stays_near_the_shard(tmp_path: Path) -> None:
    """A table of 2 GiB, written by one process, read by four, by two in columns, and written by those."""
    path = str(tmp_path / "large")
    [(saving, whole, checksum)] = run(large, 1, path, "table_wise")
    assert whole == 2.0
    assert saving < 0.25, f"saving took {saving:.2f} GiB beside the table's {whole:.2f}"
    for world_size, kind in ((4, "row_wise"), (2, "column_wise")):
        ranks = run(large, world_size, path, kind)
        assert sum(r[2] for r in ranks) == pytest.approx(checksum)
        for loading, shard, _ in ranks:
            print(f"{kind} at {world_size}: {loading:.3f} GiB beside a shard of {shard:.2f}")
            assert shard == pytest.approx(whole / world_size)
            assert loading < 0.25, f"loading took {loading:.2f} GiB beside the shard's {shard:.2f}"
