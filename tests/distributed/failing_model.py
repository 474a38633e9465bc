"""A user's model that ends its process on one rank at one step, once: what tests make a job fail with."""

import os
import signal
from pathlib import Path
from typing import Any

from torch import Tensor

from recsys.interface.features import FeatureSpec
from recsys.models.dlrm import DLRM


class Failing(DLRM):
    """A small DLRM that fails on `rank` at its training step `step`.

    how: kill (the process, as the kernel does where memory runs out), raise, or never
    mark: a file that is made before the failure and, being there, prevents another
    """

    def __init__(self, features: FeatureSpec, *, rank: int, step: int, how: str, mark: str, device: Any = None) -> None:
        super().__init__(features, dim=8, bottom_mlp=(8,), top_mlp=(8,), device=device)
        self._rank, self._step, self._how, self._mark = rank, step, how, Path(mark)
        self._steps = 0

    def forward(self, dense: Tensor, sparse: Any) -> Tensor:
        self._steps += self.training
        if self._how != "never" and self._steps == self._step and int(os.environ.get("RANK", 0)) == self._rank:
            self._fail()
        return super().forward(dense, sparse)

    def _fail(self) -> None:
        if self._mark.exists():
            return
        self._mark.touch()
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ArithmeticError("the failing model's own error")
