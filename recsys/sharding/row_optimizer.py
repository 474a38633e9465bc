"""Optimizers of the rows that a batch looks up, equal to FBGEMM's fused ones.

They train the tables that FBGEMM's fused backward cannot: replicas (data_parallel), tables whose gradients accumulate
and, on CPU, tables with Adam or partial row-wise Adam. On CPU, `touched_rows` gives them the gradients of the rows that
were looked up; on GPUs they take the rows of a dense gradient that are not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from recsys.schema.run_schema import SparseOptimConfig
from recsys.sharding.touched_rows import Touched, TouchedBlock, blocks_of

# the fused kernel reads and writes each row once, PyTorch's single operations do so several times
_adamw = partial(adamw, max_exp_avg_sqs=[], fused=True, amsgrad=False, maximize=False)


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
        self._parts = list(self._make_parts())  # now, so that a checkpoint can be loaded into their state

    def _make_parts(self) -> Iterator[_Part]:
        """Create the state of all rows that are updated together, of which each table's state is a view."""
        tables = [w for group in self.param_groups for w in group["params"]]
        of_block: dict[TouchedBlock, list[Tensor]] = {}
        for w in tables:
            if blocks := [b for b in blocks_of(w) if b.rows.shape[1] == w.shape[1]]:
                before = [b for b in blocks if b.rows.storage_offset() <= w.storage_offset()]
                of_block.setdefault((before or blocks)[-1], []).append(w)
        for block, inside in of_block.items():
            yield self._part(block.rows, inside, block)
        for w in tables:
            if not blocks_of(w):
                yield self._part(w.detach(), [w], None)

    def _part(self, rows: Tensor, tables: list[Tensor], block: TouchedBlock | None) -> _Part:
        state = self._fresh_state(rows)
        shares: list[tuple[slice, float]] = []
        for w in tables:
            start = (w.storage_offset() - rows.storage_offset()) // max(rows.shape[1], 1)
            of_table = slice(start, start + w.shape[0])
            self.state[w] = {k: x[of_table] for k, x in state.items()} | ({"step": 0} if "adam" in self.rule else {})
            shares.append((of_table, self._shares.get(w, 1.0)))
        if len({share for _, share in shares}) <= 1:
            return _Part(rows, tables, state, shares[0][1] if shares else 1.0, block)
        share_of_row = rows.new_ones(len(rows))
        for of_table, share in shares:
            share_of_row[of_table] = share
        return _Part(rows, tables, state, share_of_row, block)

    def _fresh_state(self, rows: Tensor) -> dict[str, Tensor]:
        full, one = lambda: torch.zeros_like(rows), lambda: rows.new_zeros(len(rows))
        makers: dict[str, dict[str, Callable[[], Tensor]]] = {
            "sgd": {},
            "rowwise_adagrad": {"sum": one},
            "adagrad": {"sum": full},
            "adam": {"exp_avg": full, "exp_avg_sq": full},
            "partial_rowwise_adam": {"exp_avg": full, "exp_avg_sq": one},
        }
        return {name: make() for name, make in makers[self.rule].items()}

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
        lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]
        if self.every_row:
            g = torch.zeros_like(part.rows).index_copy_(0, at, g)

        def take(x: Tensor) -> Tensor:
            return x if self.every_row else x.index_select(0, at)

        def put(x: Tensor, rows: Tensor) -> None:
            if not self.every_row:
                x.index_copy_(0, at, rows)

        w, share = take(part.rows), take(part.share) if isinstance(part.share, Tensor) else part.share
        if decay and self.rule in ("rowwise_adagrad", "adagrad"):
            g = g + decay * w
        if self.rule == "sgd":
            w.sub_(g, alpha=lr)
        elif "adagrad" in self.rule:
            rowwise = self.rule == "rowwise_adagrad"
            total = take(part.state["sum"]).add_(g.square().mean(dim=1) if rowwise else g.square())
            put(part.state["sum"], total)
            root = (total / share).sqrt_()[:, None] if rowwise else total.sqrt()
            w.addcdiv_(g, root.add_(eps), value=-lr)
        else:
            (beta1, beta2), step = group["betas"], self.state[part.tables[0]]["step"]
            mean, square = take(part.state["exp_avg"]), take(part.state["exp_avg_sq"])
            if self.rule == "adam":
                steps = [torch.full((), step - 1.0, device=w.device)]  # _adamw counts this one, too
                rates = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": decay}
                _adamw([w], [g], [mean], [square], state_steps=steps, **rates)
            else:
                mean.mul_(beta1).add_(g, alpha=1 - beta1)
                square.mul_(beta2).add_(g.square().mean(dim=1), alpha=1 - beta2)
                root = (square / (share * (1 - beta2**step))).sqrt_().add_(eps)
                if decay:
                    w.mul_(1 - lr * decay)
                w.addcdiv_(mean, root[:, None], value=-lr / (1 - beta1**step))
            put(part.state["exp_avg"], mean)
            put(part.state["exp_avg_sq"], square)
        put(part.rows, w)


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
