"""A few steps of models that retrieve, on some ranks, each with its share of the rows: to be compared."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.evaluation.evaluators import RetrievalEvaluator
from recsys.evaluation.retrieval_counts import candidate_shard
from recsys.evaluation.retrieval_metrics import RetrievalMetrics
from recsys.evaluation.retrieval_protocols import Protocols
from recsys.interface.batch import Batch, JaggedIds
from recsys.interface.candidates import Candidates
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.losses import FullSoftmax
from recsys.losses.task import RetrievalTask
from recsys.models.neumf import NeuMF
from recsys.models.sasrec import SASRec
from recsys.models.two_tower import TwoTower
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

N, ROWS, LENGTH = 31, 8, 5
ABOUT = FeatureSpec(
    dense=(DenseFeature("price"),), sparse=(SparseFeature("tags", 7, "tags", "mean", multi_valued=True),), labels=()
)
SPEC = FeatureSpec(
    dense=(),
    sparse=(
        SparseFeature("user", 9, "user"),
        SparseFeature("item", N - 3, "item", multi_valued=True, sequence=True),  # three candidates are cold
    ),
    labels=(),
    item="item",
    items=ABOUT,
)


def candidates() -> Candidates:
    g = torch.Generator().manual_seed(3)
    lengths = torch.randint(0, 4, (N,), generator=g)
    popularity = torch.randint(1, 9, (N,), generator=g).float()
    popularity[[0, -3, -2, -1]] = 0
    return Candidates(
        popularity,
        torch.randn(N, 1, generator=g),
        {"tags": torch.randint(0, 7, (int(lengths.sum()),), generator=g, dtype=torch.int32)},
        {"tags": torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])},
    )


def batch(step: int, rank: int, world_size: int) -> Batch:
    """This rank's rows: all lists are of one length, so that the mean of ranks' means is the mean."""
    g = torch.Generator().manual_seed(step)
    users, items = torch.randint(0, 9, (ROWS,), generator=g), torch.randint(1, N - 3, (ROWS, LENGTH), generator=g)
    mine = slice(rank * ROWS // world_size, (rank + 1) * ROWS // world_size)
    users, items = users[mine], items[mine]
    rows = len(users)
    sparse = KeyedJaggedTensor(
        ["user", "item"],
        torch.cat([users, items.flatten()]).int(),
        lengths=torch.cat([torch.ones(rows), torch.full((rows,), LENGTH)]).int(),
    )
    one = torch.ones(rows, dtype=torch.long)
    targets = torch.where(users == 0, N - 1, items[:, -1])  # the last candidate is cold
    more = {"targets": JaggedIds(targets, one), "history": JaggedIds(items[:, :-1].flatten(), one * (LENGTH - 1))}
    return Batch(torch.zeros(rows, 0), sparse, torch.zeros(rows, 0), **more, first_row=mine.start)  # type: ignore[arg-type]


def model(kind: str) -> nn.Module:
    meta = torch.device("meta")
    torch.manual_seed(0)
    if kind == "sasrec":
        return SASRec(SPEC, dim=8, dropout=0.0, max_length=LENGTH, init_std=0.3, device=meta)
    if kind == "neumf":
        return NeuMF(SPEC, user="user", dim=4, mlp=[6, 5], init_std=0.3, device=meta)
    return TwoTower(SPEC, dim=8, user_mlp=[6], item_mlp=[6], out=8, normalise=False, init_std=0.3, device=meta)


def train_all(rank: int, world_size: int, cases: list[tuple[str, str]]) -> list[Any]:
    """Of each (model, plan type): after a few steps the vectors of the candidates that this rank scores, and the metrics
    of the last step's rows."""
    return [_train(rank, world_size, *case) for case in cases]


def _train(rank: int, world_size: int, kind: str, types: str) -> tuple[Tensor, dict[str, float]]:
    protocols = Protocols(k=(1, 5), protocols=("full", "uniform"), negatives=5)
    evaluator = RetrievalEvaluator(RetrievalMetrics(protocols, candidates().popularity.numpy()))
    module = RecsysModule(
        lambda: RetrievalTask(model(kind), FullSoftmax(), candidates()),
        Placement(
            ShardingConfig(types=[types], column_block=4 if types == "column_wise" else None),
            SparseOptimConfig(name="adagrad", lr=0.1, eps=1e-4),
            batch_size=ROWS // world_size,
            local_world_size=world_size,
        ),
        # not Adam, which would make steps of noise: a softmax is indifferent to the item tower's last bias
        Updates(make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1)),
        evaluator=evaluator,
    )
    module.setup_model(torch.device("cpu"))
    optimizer = module.configure_optimizers()
    for step in range(3):
        optimizer.zero_grad()
        loss, _ = module.dmp(batch(step, rank, world_size))
        loss.backward()
        optimizer.step()
    module.eval()
    evaluator.begin(module.sharded.task, None)
    assert evaluator.items is not None
    vectors, (mine, most) = evaluator.items.clone(), candidate_shard(N)
    assert len(vectors) == len(mine) <= most == -(-N // world_size)
    task, some = module.dmp.module, mine[: 5 * rank]  # the first rank asks for nothing, as often as the others ask
    assert torch.allclose(task.item_vectors(some, 5 * world_size, chunk=2), vectors[: len(some)], atol=1e-6)
    with torch.no_grad():
        module._evaluate(batch(3, rank, world_size))
    found = evaluator.compute()
    assert np.isfinite(list(found.values())).all()
    return vectors, found


def train_unequal(rank: int, world_size: int) -> Tensor:
    """The vectors of all items with ids after two steps in which the ranks look up different numbers of ids, and so of
    the features of items.
    """

    def make_task() -> RetrievalTask:
        sasrec: Any = model("sasrec")
        sasrec.items.dense = None  # its gradients are averaged over the ranks in a step of the whole model only
        return RetrievalTask(sasrec, FullSoftmax(), candidates())

    module = RecsysModule(
        make_task,
        Placement(
            ShardingConfig(types=["row_wise"]), SparseOptimConfig(name="sgd", lr=0.1), ROWS, local_world_size=world_size
        ),
        Updates(make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1)),
    )
    module.setup_model(torch.device("cpu"))
    optimizer, items = module.configure_optimizers(), module.dmp.module.model.items
    for step in range(2):
        optimizer.zero_grad()
        ids = torch.arange(1, 12) * (step + 1) % (N - 3)
        weights = torch.linspace(-1, 1, len(ids))[:, None]
        mine = slice(None) if world_size == 1 else (slice(0, 2), slice(2, None))[rank]  # 2 and 9 ids
        (items(ids[mine]) * weights[mine]).sum().mul(world_size).backward()  # TorchRec divides by the ranks
        optimizer.step()
    with torch.no_grad():
        return items(torch.arange(N - 3))  # type: ignore[no-any-return]
