"""Tables with fewer rows than processes are trained like all others, whatever the sharding says."""

from typing import Any

import pytest
import torch
from processes import run
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.losses.task import Task
from recsys.models.dlrm import DLRM
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.sharding.sharders import TYPES
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

RANKS, BATCH = 4, 3
ROWS = {"a": 2, "b": 2, "c": 5}  # 5 rows in 4 shards of at most 2 rows would leave one of them empty


def train(rank: int, _: int, cases: list[tuple[str, str]]) -> list[tuple[dict[str, str], list[float]]]:
    return [losses(rank, kind, optimizer) for kind, optimizer in cases]


def losses(rank: int, kind: str, optimizer: str) -> tuple[dict[str, str], list[float]]:
    """Train three steps with a sharding type, and return the plan's type of each table and the losses."""
    sparse = tuple(SparseFeature(name, rows, name) for name, rows in ROWS.items())
    features = FeatureSpec(dense=(DenseFeature("x"),), sparse=sparse)
    torch.manual_seed(0)
    module = RecsysModule(
        lambda: Task(DLRM(features, dim=8, bottom_mlp=(8,), top_mlp=(4,), device=torch.device("meta"))),
        Placement(
            ShardingConfig(types=[kind], column_block=4),
            SparseOptimConfig(name=optimizer),
            batch_size=BATCH,
            local_world_size=RANKS,
        ),
        Updates(make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
    )
    module.setup_model(torch.device("cpu"))
    [combined] = [module.configure_optimizers()]
    found = []
    for step in range(3):
        combined.zero_grad()
        loss, _ = module.dmp(batch(rank, step))
        loss.backward()
        combined.step()
        found.append(float(loss))
    return {t["vocabulary"]: t["type"] for t in module.sharded.plan}, found


def batch(rank: int, step: int) -> Batch:
    ids = torch.tensor([(rank + step + row) % rows for rows in ROWS.values() for row in range(BATCH)])
    sparse = KeyedJaggedTensor.from_lengths_sync(list(ROWS), ids, torch.ones(len(ids), dtype=torch.int32))
    return Batch(torch.full((BATCH, 1), float(rank)), sparse, torch.tensor([[0.0], [1.0], [1.0]]))


CASES = [(kind, optimizer) for kind in TYPES for optimizer in ("adagrad", "adam")]


@pytest.fixture(scope="module")
def ranks() -> list[Any]:
    return run(train, RANKS, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_tables_smaller_than_the_world(ranks: list[Any], case: tuple[str, str]) -> None:
    kind, optimizer = case
    by_row = kind in ("row_wise", "table_row_wise", "grid_shard")
    same = CASES.index(("data_parallel", optimizer))
    for rank in ranks:
        types, found = rank[CASES.index(case)]
        assert set(types.values()) == {"table_wise" if by_row else kind}
        assert found == pytest.approx(rank[same][1], rel=1e-5)
