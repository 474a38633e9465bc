"""The CPU cores that this process may use, which may be fewer than the machine has, and the threads that it takes."""

import math
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OMP, POLARS = "OMP_NUM_THREADS", "POLARS_MAX_THREADS"  # read by PyTorch, MKL, Arrow and faiss; by polars
STORE = "RECSYS_STORE"  # the file in which the ranks that launch.spawn started meet; those of torchrun have none
ROOT = Path("/")


@dataclass(frozen=True)
class Cores:
    """The cores that this process may use.

    of_machine: those that the machine has
    why: what allows fewer; empty if nothing does
    """

    count: int
    of_machine: int
    why: str = ""

    def __str__(self) -> str:
        reason = f": {self.why} allows no more" if self.why else ""
        return f"{self.count} of {self.of_machine} are available to this process{reason}"


def allowed_cores(root: Path = ROOT) -> Cores:
    """Return the cores of the affinity mask, or as many as the CPU quota of the container allows if these are fewer.

    root: the folder of proc/ and sys/
    """
    machine = os.cpu_count() or 1
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    quota = min(map(math.ceil, _quotas(root)), default=machine)
    count = max(1, min(machine, mask, quota))
    if count == machine:
        return Cores(count, machine)
    return Cores(count, machine, "its affinity mask" if mask == count else "the CPU quota of its cgroup")


def threads_of(processes: int = 1, env: Mapping[str, str] = os.environ, *, root: Path = ROOT) -> int:
    """Return the threads that one of the processes on this machine should take, by OMP_NUM_THREADS at most.

    Where nobody has set OMP_NUM_THREADS, torchrun sets it to 1, so that this value does not count.
    """
    share = max(1, allowed_cores(root).count // processes)
    given = env.get(OMP, "").partition(",")[0]  # of nested loops, the outermost
    if given == "1" and "TORCHELASTIC_RUN_ID" in env and STORE not in env:
        given = ""
    return most_threads(min(share, int(given)) if given.isdecimal() and int(given) else share, env)


def threads_taken(given: int | None, processes: int) -> int:
    """Return the threads of PyTorch in each process of a training. given: trainer.threads"""
    return threads_of(processes) if given is None else most_threads(given)


def reading_threads() -> int:
    """Return the threads that read files, which wait for the disk half of the time."""
    return max(2, threads_of() // 2)


def most_threads(threads: int, env: Mapping[str, str] = os.environ) -> int:
    """Return the threads, no more than OMP_THREAD_LIMIT: with more, MKL's sparse products are wrong."""
    limit = env.get("OMP_THREAD_LIMIT", "")
    return min(threads, int(limit)) if limit.isdecimal() and int(limit) else threads


def limit_threads(env: MutableMapping[str, str], *, root: Path = ROOT) -> None:
    """Let libraries take no more threads than this process should; they read the variables when they are imported.

    What the user has set stays, but no threads for polars: 0 ends a process in Rust.
    """
    if env.get(POLARS, "").isdecimal() and not int(env[POLARS]):
        del env[POLARS]
    cores = allowed_cores(root)
    if cores.why:
        env.setdefault(OMP, str(cores.count))
    if OMP in env:
        env.setdefault(POLARS, str(threads_of(1, env, root=root)))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the cores that each quota on this process pays for: of its cgroup, and of those around it."""
    with suppress(OSError):
        lines = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()]
        for controllers, path in [line[1:] for line in lines if len(line) == 3]:
            names = controllers.split(",")
            if controllers and "cpu" not in names:
                continue
            for mount in {controllers, "cpu"} if controllers else {""}:  # version 1 has a folder of each controller
                top = root / "sys/fs/cgroup" / mount
                place = top / path.lstrip("/")
                for folder in (place, *(p for p in place.parents if p.is_relative_to(top))):
                    yield from _quota(folder, "cpu.max" if not controllers else "cpu.cfs_quota_us")


def _quota(folder: Path, name: str) -> list[float]:
    with suppress(OSError, ValueError, ZeroDivisionError):
        parts = (folder / name).read_text(encoding="utf-8").split()
        if name == "cpu.cfs_quota_us":
            parts += (folder / "cpu.cfs_period_us").read_text(encoding="utf-8").split()
        quota, period = (int(part) for part in parts)  # "max" is no number
        return [quota / period] if quota > 0 else []
    return []
