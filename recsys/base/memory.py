"""Memory units, and settings of this process's memory allocator."""

import contextlib
import ctypes
from pathlib import Path

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


def available_memory() -> int | None:
    """Return the bytes that this process may still allocate; None outside of Linux.

    In a container with a limit (cgroup v2), the memory that is left below the limit counts, if it is less.
    """
    file, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if not file.exists():
        return None
    lines = dict(line.split(":", 1) for line in file.read_text(encoding="utf-8").splitlines())
    available = int(lines["MemAvailable"].split()[0]) << 10
    if not limit.exists() or (text := limit.read_text(encoding="utf-8").strip()) == "max":
        return available
    used = int((limit.parent / "memory.current").read_text(encoding="utf-8"))
    cached = dict(line.split() for line in (limit.parent / "memory.stat").read_text(encoding="utf-8").splitlines())
    return min(available, int(text) - used + int(cached["inactive_file"]))
