"""Compare the weights and optimizer states of runs."""

from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from recsys.files.run_files import newest_checkpoint


def state(folder: Path, tmp: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a run's newest checkpoint, by name. tmp: a file to write"""
    newest = newest_checkpoint(folder)
    assert newest is not None
    dcp_to_torch_save(newest, tmp)
    found: dict[str, torch.Tensor] = {}

    def flat(value: object, name: str) -> None:
        if isinstance(value, dict):
            for key, v in value.items():
                flat(v, f"{name}/{key}")
        elif isinstance(value, torch.Tensor):
            found[name] = value

    flat(torch.load(tmp, weights_only=False), "")
    return found


def assert_same(a: Path, b: Path, tmp: Path) -> None:
    """Assert that the newest checkpoints of two runs have the same tensors."""
    one, other = state(a, tmp / "a.pt"), state(b, tmp / "b.pt")
    assert one.keys() == other.keys() and len(one) > 10
    assert all(torch.equal(value, other[name]) for name, value in one.items())
