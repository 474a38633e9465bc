"""Small steps of a table, in each type of its numbers."""

import torch
from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.optimizers import sparse_optimizer
from recsys.sharding.planner import make_plan, shard


def after_small_steps(data_type: DataType, device: str, steps: int = 500) -> torch.Tensor:
    """Return the rows, which start as ones, after SGD steps of 1e-5."""
    table = EmbeddingBagConfig(name="t", embedding_dim=64, num_embeddings=8, feature_names=["f"], data_type=data_type)
    module = nn.ModuleDict({"tables": EmbeddingBagCollection([table], device=torch.device("meta"))})
    given = ShardingConfig(types=["table_wise"]), sparse_optimizer(SparseOptimConfig(name="sgd", lr=1e-5))
    at = torch.device(device)
    planned, sharders = make_plan(module, *given, device=at, batch_size=8, local_world_size=1)
    dmp = shard(module, planned, sharders, at)
    [weight] = dmp.state_dict().values()
    rows = weight.local_shards()[0].tensor
    assert rows.dtype == (torch.float16 if data_type == DataType.FP16 else torch.float32)
    rows.fill_(1.0)
    ids = KeyedJaggedTensor(["f"], torch.arange(8, device=at), lengths=torch.ones(8, dtype=torch.long, device=at))
    for _ in range(steps):
        dmp.module["tables"](ids).values().sum().backward()
    return rows.float().cpu()
