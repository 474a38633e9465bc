"""Exponential moving average of the dense weights, used for evaluation and prediction."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed import DistributedModelParallel

from recsys.models.common.layers import BATCH_NORMS
from recsys.training.combined_optimizer import split_parameters


def unwrapped(name: str) -> str:
    """Return the name of a weight without the wrappers of TorchRec and DistributedDataParallel."""
    return ".".join(part for part in name.split(".") if part not in ("_dmp_wrapped_module", "module"))


def averaged_weights(dmp: DistributedModelParallel, plan: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return what is averaged: the dense weights and the statistics of batch normalisation. plan: that of the tables"""
    dense, _ = split_parameters(dmp, plan)
    statistics = {
        f"{name}.{buffer}": getattr(m, buffer)
        for name, m in dmp.named_modules()
        if isinstance(m, BATCH_NORMS) and m.track_running_stats
        for buffer in ("running_mean", "running_var")
    }
    return dense | statistics


class Ema:
    """Exponential moving average of weights: average <- decay * average + (1 - decay) * weight after every step.

    See Polyak & Juditsky 1992, https://epubs.siam.org/doi/10.1137/0330046. Embedding tables are not averaged, because
    the average of rarely updated rows would lag behind. The effective decay is min(decay, (1 + steps) / (10 + steps)),
    so that the initial weights are forgotten quickly.
    """

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._weights = dict(weights)
        self._average = {name: w.detach().clone() for name, w in weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, w in self._weights.items():
            self._average[name].lerp_(w.detach(), 1 - decay)

    def restart(self) -> None:
        """Start again from the current weights."""
        self.steps = 0
        for name, w in self._weights.items():
            self._average[name].copy_(w.detach())

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and their averages."""
        for name, w in self._weights.items():
            old = w.detach().clone()
            w.copy_(self._average[name])
            self._average[name].copy_(old)

    def state_dict(self) -> dict[str, object]:
        return {"steps": self.steps, "average": {n: a.cpu() for n, a in self._average.items()}}

    @staticmethod
    @torch.no_grad()
    def put(weights: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Copy a saved average into `weights`, for prediction. Both may be wrapped in different ways."""
        plain = {unwrapped(name): w for name, w in weights.items()}
        for name, saved in state["average"].items():  # type: ignore[attr-defined]
            plain[unwrapped(name)].copy_(saved)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.steps = state["steps"]  # type: ignore[assignment]
        for name, saved in state["average"].items():  # type: ignore[attr-defined]
            self._average[name].copy_(saved)
