"""State of the checkpoint that a run resumes from: epochs, steps, position of the loader.

Each process reads it once.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.files.manifest import DamagedFile
from recsys.sharding.stored_checkpoint import load_plain

STATE = "state.pt"
KEYS = {"epoch": int, "global_step": int, "pytorch-lightning_version": str, "loops": dict}  # that Lightning reads
VERSION = re.compile(r"\d+(\.\w+)+$")


@dataclass(frozen=True)
class RunState:
    """A checkpoint's state.pt, as Lightning and the module wrote it."""

    checkpoint: Path
    state: dict[str, Any]

    @classmethod
    def load(cls, checkpoint: Path) -> "RunState":
        """Load the state of `checkpoint` onto the CPU. Raises DamagedFile if it cannot be read."""
        state = load_plain(checkpoint / STATE)
        fits = isinstance(state, dict) and all(isinstance(state.get(key), kind) for key, kind in KEYS.items())
        if not fits or not VERSION.match(state["pytorch-lightning_version"]):
            raise DamagedFile(checkpoint / STATE, "does not hold the state of a run")
        return cls(checkpoint, state)

    @property
    def loader_position(self) -> dict[str, int]:
        """Epoch and step of the training loader."""
        [position] = self._fit_loop["state_dict"]["combined_loader"]
        assert isinstance(position, dict)
        return position

    @property
    def batches(self) -> int:
        """Number of trained batches; loggers count from 0 the one that they log."""
        return int(self._fit_loop["epoch_loop.batch_progress"]["total"]["ready"])

    @property
    def epochs_done(self) -> int:
        """Number of finished epochs, as Lightning counts them when it resumes."""
        return int(self._fit_loop["epoch_progress"]["current"]["processed"])

    @property
    def _fit_loop(self) -> dict[str, Any]:
        fit_loop = self.state["loops"]["fit_loop"]
        assert isinstance(fit_loop, dict)
        return fit_loop
