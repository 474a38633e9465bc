"""The checkpoints of a run: their folders, and which of them is the newest and the best."""

from collections.abc import Sequence
from pathlib import Path


def checkpoints_of(run_dir: Path, kinds: Sequence[str] = ("step", "best")) -> list[Path]:
    """Return the checkpoints of a run, the newest first.

    If a step-N and a best-N have the same number of steps, step-N, which is written last, comes first.
    """
    found = [p for kind in kinds for p in (run_dir / "checkpoints").glob(f"{kind}-*") if p.is_dir()]
    return sorted(found, key=lambda p: (p.name.rsplit("-", 1)[1], p.name.startswith("step")), reverse=True)


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Return the checkpoint with the most steps, or None."""
    return next(iter(checkpoints_of(run_dir)), None)


def best_checkpoint(run_dir: Path) -> Path | None:
    """Return the best checkpoint by validation, or the newest if nothing was validated."""
    return next(iter(checkpoints_of(run_dir, ["best"])), None) or newest_checkpoint(run_dir)
