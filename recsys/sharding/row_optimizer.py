"""Optimizers of the rows that a batch looks up, equal to FBGEMM's fused ones.

They train the tables that FBGEMM's fused backward cannot: replicas (data_parallel), tables whose gradients accumulate
and, on CPU, tables with Adam or partial row-wise Adam. On CPU, `touched_rows` gives them the gradients of the rows that
were looked up; on GPUs they take the rows of a dense gradient that are not zero.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from recsys.schema.run_schema import SparseOptimConfig
from recsys.sharding.touched_rows import Block, Touched, blocks_of


class RowOptimizer(Optimizer):
    """One of FBGEMM's update rules, for the rows of each parameter (rows, dim) that have a gradient.

    - rowwise_adagrad: s += mean_d(g^2); w -= lr g / (sqrt(s) + eps), one s per row
    - adagrad: as above, with one s per element
    - adam: m, v as in Kingma & Ba 2015, with bias correction by the global step
    - partial_rowwise_adam: as adam, with one v per row, from mean_d(g^2)

    With every_row, Adam also updates the rows without a gradient, as torch.optim.Adam does: their averages decay, and
    they move on. A row that few batches touch moves further, because its average of gradients acts in later steps, too.

    weight_decay is L2 (g += weight_decay * w) for Adagrad and decoupled (w -= lr * weight_decay * w) for Adam, as in
    FBGEMM. As FBGEMM does, it also updates rows of a batch whose gradient is exactly zero, except on GPUs.

    Args:
        shares: dim / width of padded tables. As in FBGEMM, the row-wise state of such a table is a mean over the width;
            the steps are corrected so that they equal those with a mean over `dim`.
    """

    def __init__(
        self, params: Iterable[Tensor], config: SparseOptimConfig, shares: Mapping[Tensor, float] | None = None
    ) -> None:
        self.rule, self.every_row, self._shares = config.name, config.every_row, shares or {}
        super().__init__(
            params,
            {
                "lr": config.lr,
                "eps": config.eps,
                "betas": (config.beta1, config.beta2),
                "weight_decay": config.weight_decay,
            },
        )
        for group in self.param_groups:  # create the state now, so that a checkpoint can be loaded into it
            for w in group["params"]:
                self.state[w] = self._fresh_state(w)

    def _fresh_state(self, w: Tensor) -> dict[str, Any]:
        rows, full = w.new_zeros(w.shape[0]), lambda: torch.zeros_like(w, requires_grad=False)
        states: dict[str, dict[str, Any]] = {
            "sgd": {},
            "rowwise_adagrad": {"sum": rows},
            "adagrad": {"sum": full()} if self.rule == "adagrad" else {},
            "adam": {"step": 0, "exp_avg": full(), "exp_avg_sq": full()} if self.rule == "adam" else {},
            "partial_rowwise_adam": {"step": 0, "exp_avg": full(), "exp_avg_sq": rows}
            if "partial" in self.rule
            else {},
        }
        return states[self.rule]

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for block in self._blocks():
            block.clear()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        touched = {block: block.touched() for block in self._blocks()}  # one call for all tables of a block
        for group in self.param_groups:
            for w in group["params"]:
                if "step" in self.state[w]:
                    self.state[w]["step"] += 1
                if w.numel() and (gradient := _gradient(w, touched)) is not None:
                    self._update(w, *gradient, self.state[w], group)
        for block in touched:
            block.clear()

    def _blocks(self) -> list[Block]:
        return list(dict.fromkeys(b for group in self.param_groups for w in group["params"] for b in blocks_of(w)))

    def _update(self, w: Tensor, at: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update the rows `at` (U,) of w, whose gradients are g (U, dim)."""
        rows: Tensor | slice = at
        if self.every_row:
            rows, g = slice(None), torch.zeros_like(w, requires_grad=False).index_copy_(0, at, g)
        share = self._shares.get(w, 1.0)
        if group["weight_decay"] and self.rule in ("rowwise_adagrad", "adagrad"):
            g = g + group["weight_decay"] * w[rows]
        if self.rule == "sgd":
            delta = g
        elif self.rule == "rowwise_adagrad":
            state["sum"][rows] += g.square().mean(dim=1)
            delta = g / ((state["sum"][rows] / share).sqrt()[:, None] + group["eps"])
        elif self.rule == "adagrad":
            state["sum"][rows] += g.square()
            delta = g / (state["sum"][rows].sqrt() + group["eps"])
        else:
            beta1, beta2 = group["betas"]
            second = g.square().mean(dim=1) if "partial" in self.rule else g.square()
            state["exp_avg"][rows] = beta1 * state["exp_avg"][rows] + (1 - beta1) * g
            state["exp_avg_sq"][rows] = beta2 * state["exp_avg_sq"][rows] + (1 - beta2) * second
            m = state["exp_avg"][rows] / (1 - beta1 ** state["step"])
            share = share if "partial" in self.rule else 1.0
            v = (state["exp_avg_sq"][rows] / share / (1 - beta2 ** state["step"])).sqrt() + group["eps"]
            delta = m / (v[:, None] if v.dim() == 1 else v) + group["weight_decay"] * w[rows]
        w[rows] -= group["lr"] * delta


def _gradient(w: Tensor, touched: Mapping[Block, Touched | None]) -> Touched | None:
    """Return the rows of a table that have a gradient, and their gradients."""
    if blocks := blocks_of(w):
        start = w.storage_offset()
        block = next(b for b in reversed(blocks) if b.rows.storage_offset() <= start)
        if (of_block := touched[block]) is None:
            return None
        first = (start - block.rows.storage_offset()) // w.shape[1]
        at, grads = of_block
        low, high = torch.searchsorted(at, torch.tensor([first, first + w.shape[0]])).tolist()
        return at[low:high] - first, grads[low:high]
    if w.grad is None:
        return None
    at = w.grad.abs().amax(dim=1).nonzero().squeeze(1)
    return at, w.grad[at]
