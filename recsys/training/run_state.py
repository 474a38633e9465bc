"""What a checkpoint says of its run's progress."""

from pathlib import Path
from typing import Any

import torch


def loader_position(checkpoint: Path) -> dict[str, int]:
    """Where the training loader was: epoch and step."""
    [position] = _fit_loop(checkpoint)["state_dict"]["combined_loader"]
    assert isinstance(position, dict)
    return position


def logged_step(checkpoint: Path) -> int:
    """The last step that loggers know of: they count batches."""
    return _batches(_fit_loop(checkpoint))


def epochs_done(checkpoint: Path) -> int:
    """How many epochs the checkpoint's run had gone through, as Lightning counts them when it goes on."""
    return int(_fit_loop(checkpoint)["epoch_progress"]["current"]["processed"])


def _batches(fit_loop: dict[str, Any]) -> int:
    return int(fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"])


def _fit_loop(checkpoint: Path) -> dict[str, Any]:
    state = torch.load(checkpoint / "state.pt", weights_only=False, map_location="cpu")
    found = state["loops"]["fit_loop"]
    assert isinstance(found, dict)
    return found
