"""Models of a user's behaviour, trained for some steps on row-wise sharded tables, and the logits of each rank."""

from typing import Any

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.losses.task import Task
from recsys.models.bst import BST
from recsys.models.dien import DIEN
from recsys.models.din import DIN
from recsys.models.hstu_rank import HSTURank
from recsys.models.sdim import SDIM
from recsys.models.sim import SIM
from recsys.models.target_attention import TargetAttention
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

STEPS, ROWS = 3, 16  # rows a step, over all ranks
ITEMS, KINDS = 31, 6
SPEC = FeatureSpec(
    dense=(DenseFeature("x"),),
    sparse=(
        SparseFeature("user", 19, "user"),
        SparseFeature("item", ITEMS, "item"),
        SparseFeature("kind", KINDS, "kind"),
        SparseFeature("items", ITEMS, "item", multi_valued=True, sequence=True),
        SparseFeature("kinds", KINDS, "kind", multi_valued=True, sequence=True),
        SparseFeature("pauses", 7, "pause", multi_valued=True, sequence=True),
    ),
)
MODELS: dict[str, Any] = {
    "din": lambda **more: DIN(SPEC, dim=8, init_std=0.5, **more),
    "target_attention": lambda **more: TargetAttention(SPEC, dim=8, init_std=0.5, **more),
    "bst": lambda **more: BST(SPEC, dim=8, init_std=0.5, **more),
    "dien": lambda **more: DIEN(SPEC, dim=8, auxiliary=0.0, init_std=0.5, **more),  # ranks draw other items
    "sim": lambda **more: SIM(SPEC, dim=8, k=2, init_std=0.5, **more),
    "sdim": lambda **more: SDIM(SPEC, dim=8, init_std=0.5, **more),
    "hstu_rank": lambda **more: HSTURank(SPEC, dim=8, times="pauses", init_std=0.5, **more),
}


def batch(step: int, rank: int, world_size: int) -> Batch:
    """Return this rank's rows of a step; at step 1 the last rank's histories are empty."""
    g = torch.Generator().manual_seed(step)
    sizes = torch.randint(0, 5, (ROWS,), generator=g)
    sizes[0] = 0
    if step == 1:
        sizes[ROWS // 2 :] = 0
    bags = []
    for f in SPEC.sparse:
        lengths = sizes if f.multi_valued else torch.ones_like(sizes)
        bags.append([torch.randint(0, f.cardinality, (int(n),), generator=g) for n in lengths])
    dense = torch.randn(ROWS, 1, generator=g)
    labels = torch.randint(0, 2, (ROWS, 1), generator=g).float()
    mine = slice(rank * ROWS // world_size, (rank + 1) * ROWS // world_size)
    own = [bag for feature in bags for bag in feature[mine]]
    sparse = KeyedJaggedTensor(
        [f.name for f in SPEC.sparse],
        torch.cat(own).int(),
        lengths=torch.tensor([len(bag) for bag in own], dtype=torch.int32),
    )
    return Batch(dense[mine], sparse, labels[mine])


def train_all(rank: int, world_size: int, names: list[str]) -> list[tuple[list[Tensor], set[str]]]:
    """Train each model; return this rank's logits of each step, and the sharding types of the tables."""
    found = []
    for name in names:
        torch.manual_seed(0)
        make = MODELS[name]
        module = RecsysModule(
            lambda make=make: Task(make(device=torch.device("meta"))),
            Placement(
                ShardingConfig(types=["row_wise"]),
                SparseOptimConfig(name="rowwise_adagrad", lr=0.1),
                ROWS // world_size,
                world_size,
            ),
            Updates(make_optimizer=lambda params: torch.optim.SGD(params, lr=0.1)),
        )
        module.setup_model(torch.device("cpu"))
        optimizer: Any = module.configure_optimizers()
        logits = [_step(module.dmp, optimizer, batch(step, rank, world_size)) for step in range(STEPS)]
        found.append((logits, {table["type"] for table in module.sharded.plan}))
    return found


def _step(model: nn.Module, optimizer: Any, rows: Batch) -> Tensor:
    optimizer.zero_grad()
    loss, logits = model(rows)
    loss.backward()
    optimizer.step()
    return logits.detach()
