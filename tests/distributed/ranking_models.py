"""Logits of small ranking models after two steps of training on any number of ranks."""

from dataclasses import replace

import torch
from small_models import SMALL, TASKS
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel
from recsys.losses.task import Task
from recsys.models.dlrm import DLRM
from recsys.models.dnn import DNN
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.training.module import RecsysModule
from recsys.training.module_settings import Updates

ROWS = 8  # of a step, over all ranks
FEATURES = FeatureSpec(
    dense=(DenseFeature("d0"), DenseFeature("d1")),
    sparse=(
        SparseFeature("user", 11, "ids"),
        SparseFeature("item", 7, "goods"),
        SparseFeature("tags", 5, "tags", pooling="mean", multi_valued=True),
    ),
)


def batch(step: int, rank: int, world_size: int, labels: int) -> Batch:
    """Return this rank's rows of a step."""
    g = torch.Generator().manual_seed(step)
    lengths = torch.stack([torch.ones(ROWS, dtype=torch.int32)] * 2 + [torch.randint(0, 4, (ROWS,), generator=g).int()])
    ids = [
        [torch.randint(0, f.cardinality, (int(n),), generator=g) for n in own]
        for f, own in zip(FEATURES.sparse, lengths, strict=True)
    ]
    dense, targets = torch.randn(ROWS, 2, generator=g), torch.randint(0, 2, (ROWS, 2), generator=g).float()
    mine = slice(rank * ROWS // world_size, (rank + 1) * ROWS // world_size)
    kjt = KeyedJaggedTensor(
        [f.name for f in FEATURES.sparse],
        torch.cat([bag for feature in ids for bag in feature[mine]]).int(),
        lengths=lengths[:, mine].flatten().int(),
    )
    return Batch(dense[mine], kjt, targets[mine, :labels])


def train_all(rank: int, world_size: int) -> dict[str, Tensor]:
    """Return the logits of the same rows on every rank, by model."""
    found = {m.__name__: _train(m, options, rank, world_size) for m, options in (SMALL | TASKS).items()}
    for model in (DNN, DLRM):  # one concatenates tables of several dims, one projects them
        found[f"{model.__name__} with dims"] = _train(
            model, SMALL[model], rank, world_size, dims={"ids": 4, "tags": 12}
        )
    return found


def _train(
    model: type, options: dict[str, object], rank: int, world_size: int, dims: dict[str, int] | None = None
) -> Tensor:
    torch.manual_seed(3)
    features = replace(FEATURES, sparse=tuple(replace(f, dim=(dims or {}).get(f.table)) for f in FEATURES.sparse))
    if model in TASKS:
        features = replace(features, labels=(BinaryLabel("click"), BinaryLabel("bought")))
    labels = features.labels
    optim = SparseOptimConfig(name="adagrad", lr=0.1, eps=1e-4)
    module = RecsysModule(
        lambda: Task(model(features, **options), labels=labels),
        Placement(ShardingConfig(types=["row_wise"]), optim, ROWS // world_size, world_size),
        Updates(make_optimizer=lambda params: torch.optim.SGD(params, lr=0.1)),
    )
    module.setup_model(torch.device("cpu"))
    optimizer = module.configure_optimizers()
    for step in range(2):
        optimizer.zero_grad()
        loss, _ = module.dmp(batch(step, rank, world_size, len(labels)))
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits: Tensor = module.dmp(batch(9, 0, 1, len(labels)))[1]
    return logits.cpu()
