"""Runs that a command names by the address of their mirror, such as s3://bucket/run: fetched to this machine.

    outputs/fetched/KEY-STATE/NAME    a copy as mirror.json listed it; KEY is a digest of the address, STATE of the list

A copy never changes but for what commands write to it. Where mirror.json has changed, there is a new one, and the old
one's checkpoints are removed unless a process uses them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from recsys.files.atomic import remove_folder, write_text
from recsys.files.run_files import run_folder

if TYPE_CHECKING:
    from recsys.job.mirror import Mirror

FETCHED = Path("outputs/fetched")
_used = set[Path]()


def is_address(run: object) -> bool:
    """Return whether a run is named by the address of its mirror, not by its folder."""
    return "://" in str(run)


def local_run(run: str | Path, key: str = "run", checkpoint: str | None = "best") -> Path:
    """Return the folder of a run on this machine, fetched if its mirror is named and has changed since.

    Args:
        run: the run's folder, or the address of its mirror.
        key: the config key that names it.
        checkpoint: a checkpoint that is needed besides the best and the newest; None needs none at all.

    Raises UserError if there is no run, or it cannot be fetched.
    """
    if not is_address(run):
        return run_folder(run, key)
    from recsys.job.mirror import Mirror  # a folder needs none of its imports

    mirror = Mirror(str(run), FETCHED, key)
    while True:
        try:
            return _fetched(str(run), mirror, checkpoint)
        except Exception:
            before, mirror = mirror, Mirror(str(run), FETCHED, key)
            if mirror.listing == before.listing:  # else the run goes on, and has replaced what it had listed
                raise


def fetch_to_resume(address: str, run_dir: str | None) -> Path:
    """Return the folder in which a run goes on whose mirror is named. All of the copy is fetched if it is newer.

    run_dir: the folder; None for outputs/NAME

    Raises UserError if the address has no run or another one than the folder, or if it cannot be fetched.
    """
    from recsys.job.mirror import fetch

    run = Path("outputs", Path(address).name) if run_dir is None else Path(run_dir)
    run.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(run.with_name(f".{run.name}.fetch")):  # of torchrun's ranks, one fetches
        fetch(address, run, "resume")
    return run_folder(run, "resume")


def _fetched(address: str, mirror: Mirror, checkpoint: str | None) -> Path:
    """Return the folder of a copy, after fetching what is missing. One process at a time does so."""
    from recsys.job.mirror import LISTING

    key, state = (hashlib.sha256(content).hexdigest()[:8] for content in (address.encode(), mirror.listing))
    run = mirror.run = FETCHED / f"{key}-{state}" / Path(address).name
    names = mirror.checkpoints
    best = [name for name in names if name.startswith("best")]
    needed = {"", *([] if checkpoint is None else [*names[:1], *best[:1], checkpoint])}

    def is_missing(name: str) -> bool:
        return name in needed and not (run / "checkpoints" / name if name else run / LISTING).exists()

    run.mkdir(parents=True, exist_ok=True)
    with FileLock(FETCHED / f".{key}.lock"):
        _use(run)
        if any(map(is_missing, ["", *names])):
            mirror.fetch(is_missing)
            write_text(run / LISTING, mirror.listing.decode())
        for other in FETCHED.glob(f"{key}-*/*/checkpoints"):
            if other.parent != run:
                _remove_unused(other)
    return run


def _use(run: Path) -> None:
    """Lock a copy against removal until this process ends."""
    if run.resolve() in _used:
        return
    _used.add(run.resolve())
    with suppress(OSError):  # its file system has no locks
        fcntl.flock(os.open(run, os.O_RDONLY), fcntl.LOCK_SH)  # the descriptor stays open


def _remove_unused(checkpoints: Path) -> None:
    """Remove the checkpoints of an old copy unless a process uses it."""
    descriptor = os.open(checkpoints.parent, os.O_RDONLY)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_folder(checkpoints)
    os.close(descriptor)
