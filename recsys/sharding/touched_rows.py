"""Lookups on CPU whose gradients are those of the rows that a batch looks up, for tables that no fused kernel updates.

FBGEMM's dense kernel returns a gradient of the whole table, so that a step costs as much as the tables are large. Here,
a lookup gathers its distinct rows once, and autograd sees these rows only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from types import MethodType

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbedding, BatchedDenseEmbeddingBag
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

MODES = {PoolingMode.SUM: "sum", PoolingMode.MEAN: "mean"}
Touched = tuple[Tensor, Tensor]  # distinct rows (U,) of a block, ascending, and their gradients (U, dim)


@dataclass(eq=False)
class TouchedBlock:
    """Neighbouring tables of a kernel that have the same dim.

    rows: the weights (rows of all tables, dim), a view
    features: positions of the features that look these tables up, which are neighbours, too
    offsets: the row at which each feature's table begins (features,)
    replicas: the group of processes that have the same tables; None if the tables are sharded
    """

    rows: Tensor
    features: range
    offsets: Tensor
    replicas: dist.ProcessGroup | None = None
    looked_up: list[Touched] = field(default_factory=list)  # of each forward since the last step, rows instead of grads

    def gather(self, ids: Tensor, per_feature: list[int]) -> tuple[Tensor, Tensor]:
        """Return the distinct rows (U, dim) that the ids (N,) look up, and the place of each id among them (N,)."""
        at = ids.long() + self.offsets.repeat_interleave(torch.tensor(per_feature))
        if not torch.is_grad_enabled():
            return self.rows.detach(), at
        distinct, places = torch.unique(at, return_inverse=True)
        rows = self.rows.detach().index_select(0, distinct).requires_grad_()
        self.looked_up.append((distinct, rows))
        return rows, places

    def touched(self) -> Touched | None:
        """Return the rows that have been looked up since `clear`, and the sum of their gradients. Collective."""
        parts = [(at, rows.grad) for at, rows in self.looked_up if rows.grad is not None]
        if self.replicas is not None:  # take the parts of all ranks, in their order
            at = torch.cat([self.rows.new_zeros(0, dtype=torch.long), *(a for a, _ in parts)])
            grads = torch.cat([self.rows.new_zeros(0, self.rows.shape[1]), *(g for _, g in parts)])
            ranks = dist.get_world_size(self.replicas)
            counts = [torch.zeros(1, dtype=torch.long) for _ in range(ranks)]
            dist.all_gather(counts, torch.tensor([len(at)]), self.replicas)
            most = int(max(counts))
            every_at = [at.new_zeros(most) for _ in range(ranks)]
            every_grad = [grads.new_zeros(most, grads.shape[1]) for _ in range(ranks)]
            dist.all_gather(every_at, nn.functional.pad(at, (0, most - len(at))), self.replicas)
            dist.all_gather(every_grad, nn.functional.pad(grads, (0, 0, 0, most - len(at))), self.replicas)
            # gradients are divided by the number of ranks, as DDP does
            found = zip(every_at, every_grad, map(int, counts), strict=True)
            parts = [(a[:n], g[:n] / ranks) for a, g, n in found]
        if len(parts) <= 1:
            return parts[0] if parts else None
        distinct, places = torch.unique(torch.cat([at for at, _ in parts]), return_inverse=True)
        grads = self.rows.new_zeros(len(distinct), self.rows.shape[1])
        return distinct, grads.index_add_(0, places, torch.cat([g for _, g in parts]))

    def clear(self) -> None:
        """Forget the lookups, after a step."""
        self.looked_up.clear()


def use_touched_rows(module: nn.Module) -> None:
    """Replace the dense lookups on CPU of a sharded module, and the all-reduce of their replicas' gradients."""
    for collection in module.modules():
        if not isinstance(collection, ShardedEmbeddingCollection | ShardedEmbeddingBagCollection):
            continue
        lookups = collection._lookups  # private: lookups are not registered as submodules
        for i, lookup in enumerate(lookups):
            group = None
            if isinstance(lookup, DistributedDataParallel) and next(lookup.parameters()).device.type == "cpu":
                group, lookups[i] = lookup.process_group, lookup.module
            for kernel in lookups[i].modules():
                if isinstance(kernel, BatchedDenseEmbedding | BatchedDenseEmbeddingBag):
                    _replace_forward(kernel, group)


def blocks_of(w: Tensor) -> list[TouchedBlock]:
    """Return the blocks of the kernel that a table, or a kernel's weights, belongs to; none on GPUs."""
    return getattr(getattr(w, "_original_tensor", w), "blocks", [])  # private: TorchRec's slice has no other way back


def _replace_forward(kernel: BatchedDenseEmbedding | BatchedDenseEmbeddingBag, group: dist.ProcessGroup | None) -> None:
    weights = kernel.emb_module.weights
    if weights.device.type != "cpu":
        return
    # private: the kernel has the sizes of its tables, the table of each feature and its pooling nowhere else
    heights, dims, table_of = kernel._local_rows, kernel._local_cols, kernel._feature_table_map
    blocks: list[TouchedBlock] = []
    first = feature = 0
    for dim, tables in groupby(range(len(dims)), key=dims.__getitem__):
        starts, height = {}, 0
        for t in tables:
            starts[t] = height
            height += heights[t]
        features = range(feature, feature + sum(t in starts for t in table_of))
        rows = weights.detach()[first : first + height * dim].view(height, dim)
        blocks.append(TouchedBlock(rows, features, torch.tensor([starts[table_of[f]] for f in features]), group))
        first, feature = first + height * dim, features.stop
    weights.blocks = blocks  # type: ignore[attr-defined]
    bags = isinstance(kernel, BatchedDenseEmbeddingBag)
    kernel.forward = MethodType(_pooled if bags else _unpooled, kernel)  # type: ignore[method-assign]


def _pooled(kernel: BatchedDenseEmbeddingBag, features: KeyedJaggedTensor) -> Tensor:
    """Return the pooled vectors of each row of the batch (B, dims of all features), as FBGEMM's kernel does."""
    ids, offsets, batch = features.values(), features.offsets().long(), features.stride()
    lengths, bounds = features.length_per_key(), features.offset_per_key()
    pooled = []
    for block in blocks_of(kernel.emb_module.weights):
        f = block.features
        rows, places = block.gather(ids[bounds[f.start] : bounds[f.stop]], lengths[f.start : f.stop])
        bags = offsets[f.start * batch : f.stop * batch] - bounds[f.start]
        vectors = nn.functional.embedding_bag(places, rows, bags, mode=MODES[kernel._pooling])
        dim = rows.shape[1]
        pooled.append(vectors.view(len(f), batch, dim).transpose(0, 1).reshape(batch, len(f) * dim))
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)


def _unpooled(kernel: BatchedDenseEmbedding, features: KeyedJaggedTensor) -> Tensor:
    """Return the row of each id, feature after feature, flattened, as the kernel does on CUDA.

    On CPU, FBGEMM 1.8's kernel would pool them.
    """
    ids, lengths, bounds = features.values(), features.length_per_key(), features.offset_per_key()
    vectors = []
    for block in blocks_of(kernel.emb_module.weights):
        f = block.features
        rows, places = block.gather(ids[bounds[f.start] : bounds[f.stop]], lengths[f.start : f.stop])
        vectors.append(nn.functional.embedding(places, rows).flatten())
    return torch.cat(vectors)
