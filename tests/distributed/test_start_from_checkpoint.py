"""A training that goes on from another run's checkpoint: its tables grow, and rows that got new values start afresh."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity import pieces
from processes import run
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.errors import UserError
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.losses.task import Task
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding import sharded_checkpoint
from recsys.sharding.optimizers import OPTIMIZERS
from recsys.sharding.sharded_model import Placement
from recsys.sharding.start_from import start_from
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

OLD, NEW, DIM, ROWS = 37, 50, 8, 12
FRESH = np.array([3, 19])  # rows of the old table that new values take
OPTIMIZERS = [*OPTIMIZERS, "adam", "partial_rowwise_adam"]
WORLDS = [(2, "column_wise"), (1, "row_wise"), (2, "data_parallel")]


class Model(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        spec = FeatureSpec(dense=(), sparse=(SparseFeature("a", rows, "a"),))
        self.embeddings = PooledEmbeddings(spec, DIM, device=torch.device("meta"))

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        return self.embeddings(sparse).flatten(1).sum(1, keepdim=True)


class Training:
    """A table of `rows` rows that trains; its first weights do not depend on the number of rows."""

    def __init__(self, rank: int, world_size: int, rows: int, kind: str, optimizer: str, seed: int = 0) -> None:
        self.rank, self.world_size = rank, world_size
        self.module = module = RecsysModule(
            lambda: Task(Model(rows)),
            Placement(
                ShardingConfig(types=[kind], column_block=4 if kind == "column_wise" else None),
                SparseOptimConfig(name=optimizer, lr=0.1),
                ROWS // world_size,
                world_size,
            ),
            Updates(make_optimizer=lambda params: torch.optim.SGD(params, lr=0.1)),
        )
        module.setup_model(torch.device("cpu"))
        self.dmp, self.optimizer = module.dmp, module.configure_optimizers()
        full = torch.randn(NEW, DIM, generator=torch.Generator().manual_seed(seed))
        [value] = [v for n, v in self.dmp.state_dict().items() if ".embedding" in n]
        with torch.no_grad():
            for piece, (r, c) in pieces(value):
                piece.copy_(full[r : r + piece.shape[0], c : c + piece.shape[1]])

    def steps(self, numbers: range, below: int) -> None:
        for number in numbers:
            g = torch.Generator().manual_seed(number)
            ids = torch.randint(0, below, (ROWS,), generator=g, dtype=torch.int32)
            labels = torch.randint(0, 2, (ROWS, 1), generator=g).float()
            mine = slice(self.rank * ROWS // self.world_size, (self.rank + 1) * ROWS // self.world_size)
            kjt = KeyedJaggedTensor(["a"], ids[mine], lengths=torch.ones(len(ids[mine]), dtype=torch.int32))
            self.optimizer.zero_grad()
            loss, _ = self.dmp(Batch(torch.zeros(len(ids[mine]), 0), kjt, labels[mine]))
            loss.backward()
            self.optimizer.step()

    def save(self, path: Path) -> None:
        m = self.module
        sharded_checkpoint.save(path, m.sharded, m.step.optimizers.rows, {"global_step": 4})

    def go_on(self, path: Path, fresh: np.ndarray) -> None:
        m = self.module
        start_from(path, m.sharded, m.step.optimizers.rows, {"a": fresh})
        if m.sharded.optimizer.counts_steps:
            self.dmp.fused_optimizer.set_optimizer_step(4)
        if m.step.optimizers.rows is not None:
            m.step.optimizers.rows.set_step(4)

    def local(self) -> dict[str, Any]:
        """This rank's pieces of the weights and of each optimizer state, with their first row and column."""
        m = self.module
        weights, states = sharded_checkpoint.local_tables(m.sharded, m.step.optimizers.rows)
        parts = {"weight": next(iter(weights.values()))} | {k.rpartition("/")[2]: s for k, s in states.items()}
        return {
            name: [((r.row, r.column), t.clone()) for r, t in zip(s.local_regions, s.local_tensors, strict=True)]
            for name, s in parts.items()
        }


def first(rank: int, world_size: int, folder: str, kind: str) -> None:
    for optimizer in OPTIMIZERS:
        trained = Training(rank, world_size, OLD, kind, optimizer)
        trained.steps(range(4), OLD)
        trained.save(Path(folder) / optimizer)


def second(rank: int, world_size: int, folder: str, kind: str) -> dict[str, Any]:
    found = {}
    for optimizer in OPTIMIZERS:
        given = Training(rank, world_size, NEW, kind, optimizer)  # its vocabulary was known from the start
        given.steps(range(4), OLD)
        grown = Training(rank, world_size, NEW, kind, optimizer)
        grown.go_on(Path(folder) / optimizer, np.empty(0, np.int64))
        at_once = grown.local()
        for training in (given, grown):
            training.steps(range(4, 8), NEW)
        taken = Training(rank, world_size, NEW, kind, optimizer, seed=9)
        before = taken.local()
        taken.go_on(Path(folder) / optimizer, FRESH)
        whole = {"given": given.local(), "grown": grown.local(), "taken": taken.local()}
        found[optimizer] = whole | {"at once": at_once, "before": before}
    return found


@pytest.fixture(
    scope="module",
    params=[
        WORLDS[0],
        pytest.param(WORLDS[1], marks=pytest.mark.slow),
        pytest.param(WORLDS[2], marks=pytest.mark.slow),
    ],
    ids=lambda w: f"{w[0]}-{w[1]}",
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Written by two processes, row-wise; read by another world and plan."""
    folder = str(tmp_path_factory.mktemp("go_on"))
    run(first, 2, folder, "row_wise")
    return run(second, request.param[0], folder, request.param[1])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_with_growth_equals_one_whose_vocabulary_was_given(trained: list[Any], optimizer: str) -> None:
    for rank in trained:
        for (name, given), grown in zip(
            rank[optimizer]["given"].items(), rank[optimizer]["grown"].values(), strict=True
        ):
            for (at, a), (_, b) in zip(given, grown, strict=True):
                torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6, msg=lambda m, n=name, p=at: f"{n} {p}: {m}")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_row_with_a_new_value_starts_afresh(trained: list[Any], optimizer: str) -> None:
    """Its weights are the initial ones, and no state of the old value is left; all other rows are the old ones."""
    for rank in trained:
        parts = rank[optimizer]
        for name in parts["taken"]:
            for ((row, _), now), (_, old), (_, initial) in zip(
                parts["taken"][name], parts["at once"][name], parts["before"][name], strict=True
            ):
                rows = torch.arange(row, row + len(now))
                fresh = torch.isin(rows, torch.from_numpy(FRESH)) | (rows >= OLD)
                torch.testing.assert_close(now[fresh], initial[fresh], rtol=0, atol=0)
                torch.testing.assert_close(now[~fresh], old[~fresh], rtol=0, atol=0)
                if name != "weight":
                    assert not now[fresh].any() and (old[~fresh].any() or not len(old[~fresh]))


def mistakes(rank: int, world_size: int, folder: str) -> list[str]:
    said = []
    for rows, optimizer in ((OLD - 1, "adagrad"), (OLD, "sgd")):
        with pytest.raises(UserError) as e:
            Training(rank, world_size, rows, "row_wise", optimizer).go_on(Path(folder) / "adagrad", FRESH)
        said.append(str(e.value))
    return said


def test_mistakes(tmp_path: Path) -> None:
    run(first, 1, str(tmp_path), "row_wise")
    [[smaller, other]] = run(mistakes, 1, str(tmp_path))
    assert smaller.endswith("table t_a is 37 rows x 8, but here 36 rows x 8")
    assert other.startswith("optim.sparse.name=sgd: start_from goes on with adagrad, as ")
