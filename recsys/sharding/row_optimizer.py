"""Optimizer of the rows that a batch looks up, for the tables that FBGEMM's fused kernels cannot update.

On CPU, `touched_rows` gives it the gradients of the rows that were looked up; on GPUs it takes the rows of a dense
gradient that are not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from recsys.sharding.optimizers import SparseOptimizer
from recsys.sharding.touched_rows import Touched, TouchedBlock, blocks_of


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
        at = grad.abs().amax(dim=1).nonzero().squeeze(1)
        return at, grad[at]

    def clear(self) -> None:
        """Forget the lookups, after a step."""
        if self.block is not None:
            self.block.clear()
