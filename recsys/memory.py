"""Memory: units, and how this process asks the system for it."""

import contextlib
import ctypes

GIB = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Let malloc reuse large buffers instead of giving them back to the system, after which each page faults again.

    It keeps up to 32 MiB a buffer (glibc's limit) and 256 MiB in all. Without glibc this does nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL("libc.so.6")
        mmap_threshold, trim_threshold = -3, -1
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)
