"""How this process asks the system for memory."""

import contextlib
import ctypes

GIB = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Let malloc reuse large buffers (of a step, of a block): given back to the system, each page faults again.

    Up to 32 MiB a buffer (glibc's limit) and 256 MiB in all; elsewhere than with glibc, nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL("libc.so.6")
        mmap_threshold, trim_threshold = -3, -1
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)
