"""Faults of storage: what can happen to a file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np


def flip(file: Path, rng: np.random.Generator) -> None:
    """Flip a bit of each of 64 bytes in a row, or of all if there are fewer."""
    content = np.frombuffer(file.read_bytes(), np.uint8).copy()
    start = int(rng.integers(max(len(content) - 63, 1)))
    content[start : start + 64] ^= np.uint8(1 << int(rng.integers(8)))
    file.write_bytes(content.tobytes())


def cut(file: Path, rng: np.random.Generator) -> None:
    """Cut the file short."""
    size = file.stat().st_size
    with file.open("r+b") as f:
        f.truncate(int(rng.integers(size)) if size else 0)


def empty(file: Path, rng: np.random.Generator) -> None:
    file.write_bytes(b"")


def delete(file: Path, rng: np.random.Generator) -> None:
    file.unlink()


def zero(file: Path, rng: np.random.Generator) -> None:
    """Fill the second half with zeros, as a file system may after a power failure."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2].ljust(len(content), b"\0"))


DAMAGES: dict[str, Callable[[Path, np.random.Generator], None]] = {
    f.__name__: f for f in (flip, cut, empty, delete, zero)
}


def copy(source: Path, target: Path) -> Path:
    """Copy a folder with its hidden files and times."""
    shutil.copytree(source, target, symlinks=True)
    return target
