"""A user's model that writes down which rows it trains on."""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from recsys.interface.features import FeatureSpec
from recsys.models.dlrm import DLRM


class Recording(DLRM):
    """A small DLRM that appends the first dense feature of each training row to a file of its process in `folder`."""

    def __init__(self, features: FeatureSpec, *, folder: str, device: Any = None) -> None:
        super().__init__(features, dim=8, bottom_mlp=(8,), top_mlp=(8,), device=device)
        self._folder = Path(folder)

    def forward(self, dense: Tensor, sparse: Any) -> Tensor:
        if self.training:
            with (self._folder / str(os.getpid())).open("a") as f:
                f.writelines(f"{row:.0f}\n" for row in dense[:, 0].tolist())
        return super().forward(dense, sparse)
