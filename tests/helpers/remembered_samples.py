"""Writing the built-in samples once: the files of each are kept for all processes of the session, and copied."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from recsys.data.samples import SAMPLES

MAX_ROWS = 100_000  # larger ones are few, and take space


def remember_samples(home: Path) -> None:
    """Let preparation take samples from `home` that were written there before, from now on."""
    for kind, write in SAMPLES.items():
        SAMPLES[kind] = remembered(kind, write, home)


def remembered(kind: str, write: Callable[..., None], home: Path) -> Callable[..., None]:
    """Return a function that writes a sample to `home` the first time."""

    def copy(folder: Path, *, rows: int, seed: int, progress: Callable[[int], Any] = lambda _: None) -> None:
        kept = home / f"{kind}-{rows}-{seed}"
        if rows > MAX_ROWS:
            write(folder, rows=rows, seed=seed, progress=progress)
            return
        if not kept.exists():
            written = Path(mkdtemp(dir=home))
            write(written, rows=rows, seed=seed)
            try:
                os.rename(written, kept)
            except OSError:  # another process was first
                shutil.rmtree(written)
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        progress(rows)

    return copy
