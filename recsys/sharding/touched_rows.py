"""Lookups on CPU whose gradients are those of the rows that a batch looks up, for tables that no fused kernel updates.

FBGEMM's dense kernel returns a gradient of the whole table, so that a step costs as much as the tables are large. Here,
a lookup gathers its distinct rows once, and autograd sees these rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbedding, BatchedDenseEmbeddingBag
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.sharding.optimizers import SparseOptimizer

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
        bags = offsets[f.start * batch : f.stop * batch + 1] - bounds[f.start]
        pooled.append(_look_up(rows, places, bags, len(f), kernel._pooling))
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)


def _look_up(rows: Tensor, places: Tensor, offsets: Tensor, features: int, pooling: PoolingMode) -> Tensor:
    """Pool rows (U, dim), which all features share, by FBGEMM: its gradient takes a sixth of nn.EmbeddingBag's time.

    places: (N,) the row of each id; offsets: (features * B + 1,) of their bags -> (B, features * dim)
    """
    (height, dim), width = rows.shape, features * rows.shape[1]
    begins, heights = torch.zeros(features, dtype=torch.long), torch.tensor([0] * features + [height])
    sizes = (begins, torch.arange(0, width + 1, dim, dtype=torch.int32), width, dim, heights, height.bit_length())
    look_up: Callable[..., Tensor] = torch.ops.fbgemm.dense_embedding_codegen_lookup_function
    return look_up(rows.view(-1), *sizes, places, offsets, pooling.value, None, None)


def _unpooled(kernel: BatchedDenseEmbedding, features: KeyedJaggedTensor) -> Tensor:
    """Return the row of each id, feature after feature, flattened, as on CUDA: a bag each, as FBGEMM pools on CPUs."""
    ids, lengths, bounds = features.values(), features.length_per_key(), features.offset_per_key()
    vectors = []
    for block in blocks_of(kernel.emb_module.weights):
        f = block.features
        rows, places = block.gather(ids[bounds[f.start] : bounds[f.stop]], lengths[f.start : f.stop])
        vectors.append(_look_up(rows, places, torch.arange(len(places) + 1), 1, PoolingMode.SUM).flatten())
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors)


class RowOptimizer(Optimizer):
    """Update the rows of each parameter (rows, dim) that have a gradient, by FBGEMM's rule.

    As FBGEMM does, it also updates rows of a batch whose gradient is exactly zero, except on GPUs.

    Args:
        shares: dim / width of padded tables. As in FBGEMM, the row-wise state of such a table is a mean over the width;
            the steps are corrected so that they equal those with a mean over `dim`.
    """

    def __init__(
        self, params: Iterable[Tensor], rule: SparseOptimizer, shares: Mapping[Tensor, float] | None = None
    ) -> None:
        c = rule.config
        self.rule, self._shares = rule, shares or {}
        super().__init__(
            params, {"lr": c.lr, "eps": c.eps, "betas": (c.beta1, c.beta2), "weight_decay": c.weight_decay}
        )
        # now, so that a checkpoint can be loaded into their state
        tables = [w for group in self.param_groups for w in group["params"]]
        of_block: dict[TouchedBlock, list[Tensor]] = {}
        for w in tables:
            if blocks := [b for b in blocks_of(w) if b.rows.shape[1] == w.shape[1]]:
                before = [b for b in blocks if b.rows.storage_offset() <= w.storage_offset()]
                of_block.setdefault((before or blocks)[-1], []).append(w)
        # rows that are updated together, of whose state each table's state is a view
        self._parts = [self._part(block.rows, inside, block) for block, inside in of_block.items()]
        self._parts += [self._part(w.detach(), [w], None) for w in tables if not blocks_of(w)]

    def _part(self, rows: Tensor, tables: list[Tensor], block: TouchedBlock | None) -> _Part:
        state = self.rule.fresh_state(rows)
        shares: list[tuple[slice, float]] = []
        for w in tables:
            start = (w.storage_offset() - rows.storage_offset()) // max(rows.shape[1], 1)
            of_table = slice(start, start + w.shape[0])
            self.state[w] = {k: x[of_table] for k, x in state.items()} | ({"step": 0} if self.rule.counts_steps else {})
            shares.append((of_table, self._shares.get(w, 1.0)))
        if len({share for _, share in shares}) <= 1:
            return _Part(rows, tables, state, shares[0][1] if shares else 1.0, block)
        share_of_row = rows.new_ones(len(rows))
        for of_table, share in shares:
            share_of_row[of_table] = share
        return _Part(rows, tables, state, share_of_row, block)

    def set_step(self, step: int) -> None:
        """Set the number of steps that Adam's bias correction counts."""
        for state in self.state.values():
            state |= {"step": step} if "step" in state else {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for part in self._parts:
            part.clear()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self._parts:
            touched = part.touched()  # collective for replicas
            for w in part.tables:
                if "step" in self.state[w]:
                    self.state[w]["step"] += 1
            if touched is not None and part.rows.numel():
                self._update(part, *touched)
            part.clear()

    def _update(self, part: _Part, at: Tensor, g: Tensor) -> None:
        """Update the rows `at` (U,) of a part, whose gradients are g (U, dim)."""
        [group] = self.param_groups
        step, share = self.state[part.tables[0]].get("step", 0), part.share
        if self.rule.config.every_row:
            every = torch.zeros_like(part.rows).index_copy_(0, at, g)
            self.rule.update(part.rows, every, part.state, group, share, step)
            return
        w, state = part.rows.index_select(0, at), {n: x.index_select(0, at) for n, x in part.state.items()}
        share = share.index_select(0, at) if isinstance(share, Tensor) else share
        self.rule.update(w, g, state, group, share, step)
        part.rows.index_copy_(0, at, w)
        for name, x in state.items():
            part.state[name].index_copy_(0, at, x)


@dataclass
class _Part:
    """Rows that are updated together.

    rows: the weights (rows, dim), a view
    tables: the parameters that they belong to
    state: the optimizer's state, of which each table's state is a view
    share: dim / width of the tables, for each row if they differ
    block: the lookups of these rows on CPU; None on GPUs, where tables[0] has a dense gradient
    """

    rows: Tensor
    tables: list[Tensor]
    state: dict[str, Tensor]
    share: float | Tensor
    block: TouchedBlock | None

    def touched(self) -> Touched | None:
        """Return the rows that have a gradient, and their gradients."""
        if self.block is not None:
            return self.block.touched()
        grad = self.tables[0].grad
        if grad is None:
            return None
        at = grad.any(dim=1).nonzero().squeeze(1)  # without a copy of the gradient, which is as large as the table
        return at, grad[at]

    def clear(self) -> None:
        """Forget the lookups, after a step."""
        if self.block is not None:
            self.block.clear()
