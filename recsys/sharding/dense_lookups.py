"""Workaround for FBGEMM 1.8's dense kernel on CPU, which pools the rows of unpooled lookups."""

from types import MethodType

import torch
from torch import Tensor, nn
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbedding
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def fix_dense_lookups(module: nn.Module) -> None:
    """Replace the forward of a sharded module's dense unpooled lookups on CPU by plain PyTorch."""
    collections = [m for m in module.modules() if isinstance(m, ShardedEmbeddingCollection)]
    lookups = [lookup for c in collections for lookup in c._lookups]  # lookups are not registered as submodules
    for m in (m for lookup in lookups for m in lookup.modules()):
        if isinstance(m, BatchedDenseEmbedding) and m.emb_module.weights.device.type == "cpu":
            m.forward = MethodType(_rows, m)  # type: ignore[method-assign]


def _rows(kernel: BatchedDenseEmbedding, features: KeyedJaggedTensor) -> Tensor:
    """Return the row of each id, feature after feature, flattened, as BatchedDenseEmbedding does on CUDA."""
    weights, at, tables = kernel.emb_module.weights, 0, []
    # private: the kernel has its tables' sizes nowhere else
    for height, columns in zip(kernel._local_rows, kernel._local_cols, strict=True):
        tables.append(weights[at : at + height * columns].view(height, columns))
        at += height * columns
    ids = features.values().long().split(features.length_per_key())
    rows = [nn.functional.embedding(i, tables[t]) for i, t in zip(ids, kernel._feature_table_map, strict=True)]
    return torch.cat([r.flatten() for r in rows])
