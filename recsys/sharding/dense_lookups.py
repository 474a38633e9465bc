"""Unpooled lookups where FBGEMM's dense kernel on CPU adds the rows of each bag up though told not to (1.8)."""

from types import MethodType

import torch
from torch import Tensor, nn
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbedding
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def fix_dense_lookups(module: nn.Module) -> None:
    """Give the sharded module's dense unpooled lookups on CPU a forward of plain PyTorch."""
    collections = [m for m in module.modules() if isinstance(m, ShardedEmbeddingCollection)]
    lookups = [lookup for c in collections for lookup in c._lookups]  # not among its submodules
    for m in (m for lookup in lookups for m in lookup.modules()):
        if isinstance(m, BatchedDenseEmbedding) and m.emb_module.weights.device.type == "cpu":
            m.forward = MethodType(_rows, m)  # type: ignore[method-assign]


def _rows(kernel: BatchedDenseEmbedding, features: KeyedJaggedTensor) -> Tensor:
    """The row of each id, feature after feature, flattened: what BatchedDenseEmbedding returns on CUDA."""
    weights, at, tables = kernel.emb_module.weights, 0, []
    for rows, columns in zip(kernel._local_rows, kernel._local_cols, strict=True):
        tables.append(weights[at : at + rows * columns].view(rows, columns))
        at += rows * columns
    ids = features.values().long().split(features.length_per_key())
    found = [nn.functional.embedding(i, tables[t]) for i, t in zip(ids, kernel._feature_table_map, strict=True)]
    return torch.cat([f.flatten() for f in found])
