"""Train in float16: scale the loss, and skip the steps of all weights together whose gradients overflow."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from pytorch_lightning.plugins.precision import Precision
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torchrec.distributed.types import ShardedModule

from recsys.base.errors import NotFinite

FIRST = 2.0**16
GROWTH_STEPS = 2000  # without overflow, after which the scale is doubled
MAX_SKIPPED = 50  # steps, one after another, after which training fails


class Float16(Precision):
    """Lightning's plugin that runs steps in float16 where autocast does, without a scaler of its own."""

    precision: Literal["16-mixed"] = "16-mixed"

    def __init__(self, device: str) -> None:
        self._device = device

    @contextmanager
    def forward_context(self) -> Generator[None, None, None]:
        with torch.autocast(self._device, dtype=torch.float16):
            yield


class LossScale:
    """Scales the loss, so that gradients do not vanish in float16 (Micikevicius et al., Mixed Precision Training, 2018,
    https://arxiv.org/abs/1710.03740).

    FBGEMM's fused kernels update tables in the backward pass, where a scaler of dense weights cannot reach them. The
    backward pass therefore has two parts: the first one ends at the vectors that were looked up; `release` runs the
    second one, with unscaled gradients, only if all gradients of all processes are finite.

    Args:
        fixed: the scale; None for a dynamic one, which starts at FIRST, is doubled after GROWTH_STEPS steps without
            overflow, and halved after each overflow.

    value: the scale
    skipped: number of steps that were skipped
    """

    def __init__(self, model: nn.Module, fixed: float | None) -> None:
        self.value = FIRST if fixed is None else fixed
        self.skipped = 0
        self._fixed, self._good, self._bad = fixed is not None, 0, 0  # steps, one after another
        self._finite = True  # of the batches of a step so far
        self._vectors: list[tuple[Tensor, Tensor]] = []  # as looked up, and as the model gets them
        for module in model.modules():
            if isinstance(module, ShardedModule):
                self._cut(module)

    def _cut(self, module: Any) -> None:
        compute = module.compute_and_output_dist

        def detached(*args: Any, **kwargs: Any) -> Any:
            result = compute(*args, **kwargs)
            if torch.is_grad_enabled():
                result.callbacks.append(lambda found: tree_map_only(Tensor, self._detached, found))
            return result

        module.compute_and_output_dist = detached

    def _detached(self, vectors: Tensor) -> Tensor:
        if not vectors.requires_grad:
            return vectors
        self._vectors.append((vectors, vectors.detach().requires_grad_()))
        return self._vectors[-1][1]

    def release(self, dense: Iterable[Tensor]) -> None:
        """Run the backward pass of the tables, unless a gradient is not finite. Collective.

        dense: the dense weights, whose gradients stay scaled
        """
        vectors, self._vectors = [(v, d.grad) for v, d in self._vectors if d.grad is not None], []
        if self._finite:
            norm = nn.utils.get_total_norm([*_gradients(dense), *(g for _, g in vectors)])
            finite = torch.isfinite(norm).int()
            if dist.is_initialized() and dist.get_world_size() > 1:
                dist.all_reduce(finite, dist.ReduceOp.MIN)
            self._finite = bool(finite)
        if self._finite and vectors:
            torch.autograd.backward([v for v, _ in vectors], [g / self.value for _, g in vectors])

    def end_step(self, dense: Iterable[Tensor]) -> bool:
        """Unscale the gradients of the dense weights and return True, or return False if the step must be skipped.

        Raises NotFinite after MAX_SKIPPED steps that had to be skipped, one after another.
        """
        finite, self._finite = self._finite, True
        if finite:
            for gradient in _gradients(dense):
                gradient.div_(self.value)
            self._good, self._bad = self._good + 1, 0
            if not self._fixed and self._good % GROWTH_STEPS == 0:
                self.value *= 2
        else:
            self.skipped, self._good, self._bad = self.skipped + 1, 0, self._bad + 1
            if not self._fixed:
                self.value /= 2
            if self._bad == MAX_SKIPPED:
                raise NotFinite(f"the gradients of {MAX_SKIPPED} steps, one after another, are NaN or infinite")
        return finite

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "skipped": self.skipped, "good": self._good, "bad": self._bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self._good, self._bad = (int(state[name]) for name in ("skipped", "good", "bad"))
        if not self._fixed:
            self.value = float(state["value"])


def _gradients(weights: Iterable[Tensor]) -> list[Tensor]:
    return [w.grad for w in weights if w.grad is not None]
