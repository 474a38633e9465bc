"""Optimizers of embedding tables: their rule, their states and FBGEMM's kernel. A new one is a class of this file.

FBGEMM's fused kernels apply a rule in the backward pass. `RowOptimizer` applies it to the tables that they cannot
update: replicas (data_parallel), tables whose gradients accumulate and, on CPUs, tables with Adam or weight decay.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import Tensor
from torch.optim.adamw import adamw

from recsys.base.errors import UserError
from recsys.schema.run_schema import SparseOptimConfig

# the fused kernel reads and writes each row once, PyTorch's single operations do so several times
_adamw = partial(adamw, max_exp_avg_sqs=[], fused=True, amsgrad=False, maximize=False)

Share = float | Tensor  # dim / width of the table; (R,) if the rows' tables differ in it


class SparseOptimizer(ABC):
    """An optimizer of tables, with its settings from `optim.sparse`.

    Attributes:
        name: its name in `optim.sparse.name` and in checkpoints.
        kernel: FBGEMM's rule.
        rowwise: the states in FBGEMM's order, and whether a row has one number, instead of one per element.
        cpu_kernel: whether FBGEMM's CPU kernels have this rule.
        counts_steps: whether the rule is Adam's: the number of steps corrects the bias of its averages, which would
            also move rows without a gradient (`every_row`).
    """

    name: ClassVar[str]
    kernel: ClassVar[EmbOptimType]
    rowwise: ClassVar[Mapping[str, bool]]
    cpu_kernel: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = False

    def __init__(self, config: SparseOptimConfig) -> None:
        self.config = config
        if config.every_row and not self.counts_steps:
            raise UserError(
                f"optim.sparse.every_row=true: applies only to Adam; {self.name} does not move rows without a gradient"
            )

    def is_fused(self, device: torch.device, accumulate: int = 1) -> bool:
        """Return whether FBGEMM's kernels update the tables.

        Its CPU kernels accept weight_decay but do not apply it; no kernel updates rows that a batch does not touch, and
        fused kernels update tables in every backward pass, so that gradients cannot accumulate.

        Args:
            accumulate: number of batches whose gradients are summed for one step.
        """
        c = self.config
        applied = device.type != "cpu" or (self.cpu_kernel and not c.weight_decay)
        return accumulate == 1 and not c.every_row and applied

    def fused_params(self, share: float = 1.0) -> dict[str, Any]:
        """Return FBGEMM's parameters.

        Args:
            share: dim / width of padded tables. Row-wise rules take the mean over the width, of which only `dim`
                columns have a gradient. Their state is therefore `share` times that of an unpadded table; scaling the
                step by sqrt(share) corrects for this.
        """
        c, scale = self.config, share**0.5 if any(self.rowwise.values()) else 1.0
        params: dict[str, Any] = {"optimizer": self.kernel, "learning_rate": c.lr * scale, **self._rates(scale)}
        return params if c.clip is None else params | {"gradient_clipping": True, "max_gradient": c.clip}

    def _rates(self, scale: float) -> dict[str, Any]:
        return {"eps": self.config.eps * scale, "weight_decay": self.config.weight_decay}

    def fresh_state(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the states of rows (R, dim) that have never been looked up: each (R,) or (R, dim)."""
        return {n: rows.new_zeros(len(rows)) if one else torch.zeros_like(rows) for n, one in self.rowwise.items()}

    @classmethod
    def state_bytes(cls, rows: int, dim: int) -> tuple[int, int]:
        """Return the bytes of a shard's float32 states: of those with a number per row, and of those per element."""
        by_row = sum(cls.rowwise.values())
        return 4 * rows * by_row, 4 * rows * dim * (len(cls.rowwise) - by_row)

    @abstractmethod
    def update(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any], share: Share, step: int
    ) -> None:
        """Update weights and states of some rows in place.

        Args:
            w, g: (R, dim) weights and gradients.
            state: each (R,) or (R, dim).
            group: lr, eps, betas and weight_decay.
            share: see Share.
            step: the number of steps so far, this one included.
        """


class Sgd(SparseOptimizer):
    """w -= lr g."""

    name, kernel = "sgd", EmbOptimType.EXACT_SGD
    rowwise: ClassVar[Mapping[str, bool]] = {}

    def __init__(self, config: SparseOptimConfig) -> None:
        super().__init__(config)
        if config.weight_decay:
            raise UserError(
                "optim.sparse.weight_decay: FBGEMM's SGD has none; set it to 0, or use rowwise_adagrad or adagrad"
            )

    def _rates(self, scale: float) -> dict[str, Any]:
        return {}

    def update(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any], share: Share, step: int
    ) -> None:
        w.sub_(g, alpha=group["lr"])


class Adagrad(SparseOptimizer):
    """s += g^2; w -= lr g / (sqrt(s) + eps). weight_decay is L2: g += weight_decay * w."""

    name, kernel = "adagrad", EmbOptimType.EXACT_ADAGRAD
    rowwise: ClassVar[Mapping[str, bool]] = {"sum": False}

    def update(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any], share: Share, step: int
    ) -> None:
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        w.addcdiv_(g, self._root(state["sum"], g, share).add_(group["eps"]), value=-group["lr"])

    def _root(self, total: Tensor, g: Tensor, share: Share) -> Tensor:
        return total.add_(g.square()).sqrt()


class RowwiseAdagrad(Adagrad):
    """s += mean_d(g^2), one s per row; w -= lr g / (sqrt(s) + eps)."""

    name, kernel = "rowwise_adagrad", EmbOptimType.EXACT_ROWWISE_ADAGRAD
    rowwise: ClassVar[Mapping[str, bool]] = {"sum": True}

    def _rates(self, scale: float) -> dict[str, Any]:
        return super()._rates(scale) | {"weight_decay_mode": WeightDecayMode.L2}  # FBGEMM's default ignores the decay

    def _root(self, total: Tensor, g: Tensor, share: Share) -> Tensor:
        return (total.add_(g.square().mean(dim=1)) / share).sqrt_()[:, None]


class Adam(SparseOptimizer):
    """m, v as in Kingma & Ba 2015, with bias correction by the global step.

    weight_decay is decoupled: w -= lr * weight_decay * w. With every_row, rows without a gradient are updated, too, as
    by torch.optim.Adam: their averages decay, and they move on. A row that few batches touch moves further, because its
    average of gradients acts in later steps.
    """

    name, kernel = "adam", EmbOptimType.ADAM
    rowwise: ClassVar[Mapping[str, bool]] = {"exp_avg": False, "exp_avg_sq": False}
    cpu_kernel, counts_steps = False, True

    def _rates(self, scale: float) -> dict[str, Any]:
        c = self.config
        rates = {"eps": c.eps * scale, "weight_decay": c.weight_decay / scale}  # which FBGEMM multiplies by the lr
        return rates | {"beta1": c.beta1, "beta2": c.beta2}

    def update(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any], share: Share, step: int
    ) -> None:
        (beta1, beta2), steps = group["betas"], [torch.full((), step - 1.0, device=w.device)]  # _adamw counts this one
        rates = {k: group[k] for k in ("lr", "eps", "weight_decay")} | {"beta1": beta1, "beta2": beta2}
        _adamw([w], [g], [state["exp_avg"]], [state["exp_avg_sq"]], state_steps=steps, **rates)


class PartialRowwiseAdam(Adam):
    """Adam with one v per row, from mean_d(g^2)."""

    name, kernel = "partial_rowwise_adam", EmbOptimType.PARTIAL_ROWWISE_ADAM
    rowwise: ClassVar[Mapping[str, bool]] = {"exp_avg": False, "exp_avg_sq": True}

    def update(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any], share: Share, step: int
    ) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(g, alpha=1 - beta1)
        square.mul_(beta2).add_(g.square().mean(dim=1), alpha=1 - beta2)
        root = (square / (share * (1 - beta2**step))).sqrt_().add_(group["eps"])
        if group["weight_decay"]:
            w.mul_(1 - lr * group["weight_decay"])
        w.addcdiv_(mean, root[:, None], value=-lr / (1 - beta1**step))


OPTIMIZERS = {c.name: c for c in (RowwiseAdagrad, Adagrad, Sgd, Adam, PartialRowwiseAdam)}


def sparse_optimizer(config: SparseOptimConfig) -> SparseOptimizer:
    """Return the optimizer of `optim.sparse`. Raises UserError for an option that does not apply.

    >>> sparse_optimizer(SparseOptimConfig(name="adagrad")).state_bytes(rows=1000, dim=16)
    (0, 64000)
    """
    return OPTIMIZERS[config.name](config)
