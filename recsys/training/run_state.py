"""State of the checkpoint that a run resumes from: epochs, steps, position of the loader.

Each process reads it once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.sharding.safe_reader import load_plain

STATE = "state.pt"


@dataclass(frozen=True)
class RunState:
    """A checkpoint's state.pt, as Lightning and the module wrote it."""

    checkpoint: Path
    state: dict[str, Any]

    @classmethod
    def load(cls, checkpoint: Path) -> "RunState":
        """Load the state of `checkpoint` onto the CPU. Raises DamagedFile if it cannot be read."""
        return cls(checkpoint, load_plain(checkpoint / STATE))

    @property
    def loader_position(self) -> dict[str, int]:
        """Epoch and step of the training loader."""
        [position] = self._fit_loop["state_dict"]["combined_loader"]
        assert isinstance(position, dict)
        return position

    @property
    def batches(self) -> int:
        """Number of trained batches, which is the step that loggers use."""
        return int(self._fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"])

    @property
    def epochs_done(self) -> int:
        """Number of finished epochs, as Lightning counts them when it resumes."""
        return int(self._fit_loop["epoch_progress"]["current"]["processed"])

    @property
    def _fit_loop(self) -> dict[str, Any]:
        fit_loop = self.state["loops"]["fit_loop"]
        assert isinstance(fit_loop, dict)
        return fit_loop
