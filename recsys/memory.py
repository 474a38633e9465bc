"""Memory units, and settings of this process's memory allocator."""

import contextlib
import ctypes

GIB = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Let malloc reuse large buffers instead of giving them back to the system, after which each page faults again.

    malloc then keeps buffers of up to 32 MiB each (glibc's limit), 256 MiB in total. Without glibc this does nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL("libc.so.6")
        mmap_threshold, trim_threshold = -3, -1
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)
