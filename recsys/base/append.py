"""Append to files that others read at any time, so that a write either is whole or leaves nothing."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def append(path: Path, data: bytes, *, header: bytes = b"", sync: bool = True) -> None:
    """Append bytes to a file, all of them or none. A line that a killed process has written in part is ended first.

    Args:
        path: the file, which is created if it is missing.
        data: one or more whole lines.
        header: what a file that is empty begins with.
        sync: return when the bytes are on disk.

    Raises:
        OSError: they cannot be written; the file has the size that it had before.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # what another process appends is not cut off with a failed write
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        rest = memoryview((b"\n" if is_torn else b"" if size else header) + data)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if sync:
                os.fsync(descriptor)
        except OSError:
            with suppress(OSError):  # not a file of a disk
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
