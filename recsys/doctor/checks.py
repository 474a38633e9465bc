"""The checks of the doctor. No check depends on another one."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recsys.base import packages as installed
from recsys.base.cores import allowed_cores
from recsys.base.errors import UserError
from recsys.base.memory import GIB
from recsys.doctor.probe import SECONDS
from recsys.schema.command_schemas import DoctorConfig

PACKAGES = ("torch", "torchrec", "pytorch-lightning", "hydra-core", "omegaconf", "polars", "pyarrow", "wandb", "optuna")
MIN_FREE_GIB, LOW_FREE_GIB = 0.5, 5  # what the samples need; what most public data sets need
MIN_SHARED_MIB = 512
ROOT_FIX = "data.root=DIR, the folder of the raw files"
BYTES = 128 << 20  # bytes to copy, write and read to measure speeds

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    state: "note" if training works without it, perhaps more slowly
    what: the thing that was checked
    result: one line
    fix: the command or setting that fixes it; empty if `result` says what to do
    """

    state: State
    what: str
    result: str
    fix: str = ""


def packages(_: DoctorConfig) -> Iterator[Finding]:
    """Check the installed packages and their versions."""
    python = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] < (3, 14)
    yield Finding("ok" if fits else "problem", "Python", python, "" if fits else "use Python 3.11, 3.12 or 3.13")
    for name in PACKAGES:
        found = installed.version_of(name)
        yield Finding("ok", name, found) if found else Finding("problem", name, "missing", f"pip install {name}")
    fbgemm = next(((n, v) for n in ("fbgemm-gpu", "fbgemm-gpu-cpu") if (v := installed.version_of(n))), None)
    try:
        installed.check_versions()
        yield Finding("ok", "torch, torchrec, fbgemm", f"match ({' '.join(fbgemm or ())})")
    except installed.VersionMismatch as e:
        yield Finding("problem", "torch, torchrec, fbgemm", e.problem, e.command)
    missing = [extra for extra, modules in installed.EXTRAS.items() if not all(map(installed.is_installed, modules))]
    if missing:
        fix = f"if you need one, such as {missing[0]}: {installed.install_command(missing[0])}"
        yield Finding("note", "extras", "not installed: " + ", ".join(missing), fix)
    if installed.is_installed("pyspark") and shutil.which("java") is None:
        yield Finding("note", "Java", "not installed; engine=spark needs it", "install a Java 17 runtime")


def kernels(_: DoctorConfig) -> Iterator[Finding]:
    """Run kernels and collectives on each device."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    gpus: list[list[str]] = []  # name, memory and driver of each
    with suppress(OSError, subprocess.SubprocessError):
        lines = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
        gpus = [line.split(", ") for line in lines if line.strip()]
    on_gpus = {"cuda": "FBGEMM's kernels on the GPU", "nccl": "collectives on the GPU (NCCL)"}
    has_kernels = installed.version_of("fbgemm-gpu") is not None
    tests = {"cpu": "FBGEMM's kernels on the CPU", "gloo": "collectives on the CPU (gloo)"}
    found = _probe(tests | (on_gpus if gpus and has_kernels else {}))
    yield from found[:2]
    if why := installed.no_compiler(gpu=bool(gpus)):
        yield Finding("note", "compiler", why)
    if not gpus:
        yield Finding("note", "GPUs", "none; training runs on the CPU")
        return
    names = ", ".join(f"{name} ({memory})" for name, memory, _ in gpus)
    yield Finding("ok", "GPUs", f"{names} (driver {gpus[0][2]})")
    if not has_kernels:
        fix = "uv sync --no-group cpu --group cuda"
        yield Finding("problem", on_gpus["cuda"], "fbgemm-gpu-cpu has no GPU kernels", fix)
    yield from found[2:]


def machine(cfg: DoctorConfig) -> Iterator[Finding]:
    """Check cores, memory and disk."""
    import numpy as np

    yield Finding("ok", "CPU cores", str(allowed_cores()))
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():  # on Linux
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines())
        free, total = (int(lines[name].split()[0]) << 10 for name in ("MemAvailable", "MemTotal"))
        low = free < 2 * GIB
        fix = "close other programs, or lower loader.buffer_rows and trainer.batch_size" if low else ""
        yield Finding("note" if low else "ok", "memory", f"{free / GIB:.1f} GiB free of {total / GIB:.1f}", fix)
    source, times = np.ones(BYTES // 8), []
    target = np.empty_like(source)
    for _ in range(3):
        begun = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begun)
    speed = 2 * BYTES / min(times) / 1e9  # read and written, the best of three
    del source, target
    yield Finding("ok", "copying memory", f"{speed:.1f} GB/s")
    shared = Path("/dev/shm")  # nosec B108
    if shared.is_dir() and (size := shutil.disk_usage(shared).total) < MIN_SHARED_MIB << 20:
        small = f"{size >> 20} MiB: processes on one machine may need to share {MIN_SHARED_MIB} MiB"
        yield Finding("note", str(shared), small, "docker run --shm-size=8g ...")
    yield from _disk(Path(cfg.data.prepared))


def data(cfg: DoctorConfig) -> Iterator[Finding]:
    """Check that the data of the config can be read."""
    from recsys.job.run_config import data_of

    config = data_of(cfg.data)
    what = f"data={config.name}"
    if config.root is None and config.sample is not None:
        yield Finding("note", what, "data.root is not set: the built-in sample is used", f"{what} data.root=DIR")
        return
    if config.root is None and not config.source.parts:
        yield Finding("problem", what, "data.root is not set", ROOT_FIX)
        return
    from recsys.data.prepare.check_data import check_data, check_raw_files, names_files
    from recsys.data.raw.read_sources import read_blocks

    if not names_files(config):
        yield Finding("note", what, f"format {config.source.format} is read when the data is prepared")
        return
    try:
        check_data(config)
        files = check_raw_files(config)
        block = next(iter(read_blocks(config, files[0][0])))
    except (UserError, OSError) as e:
        fix = ROOT_FIX if str(e).startswith("data.root=") else ""  # other messages say themselves what to change
        yield Finding("problem", what, str(e), fix)
        return
    size = sum(f.stat().st_size for f, _ in files if f.exists())
    yield Finding("ok", what, f"{len(files)} files, {size / GIB:.2f} GiB; columns: {len(block.frame.columns)}")


CHECKS: dict[str, Callable[[DoctorConfig], Iterator[Finding]]] = {
    "packages": packages,
    "devices and kernels": kernels,
    "machine": machine,
    "data": data,
}


def _probe(tests: dict[str, str]) -> list[Finding]:
    """Run tests in processes of their own, since a mismatched kernel may crash its process.

    Args:
        tests: name of each test of recsys.doctor.probe, and what it tests.
    """
    command = [sys.executable, "-m", "recsys.doctor.probe", *tests]
    why = ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=(len(tests) + 1) * SECONDS)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            why = lines[-1] if done.returncode > 0 and lines else f"the process ended by signal {-done.returncode}"
    except subprocess.TimeoutExpired:
        why = "PyTorch cannot be imported: no answer"
    findings = []
    for name, what in tests.items():
        result: dict[str, Any] = {"failed": why} if why else json.loads(done.stdout.splitlines()[-1])[name]
        fix = "uv sync --reinstall-package torch --reinstall-package fbgemm-gpu-cpu"
        if name in ("cuda", "nccl"):
            fix = "nvidia-smi; then: uv sync --no-group cpu --group cuda"
        problem = result.get("failed") or ("" if result["right"] else "returns wrong numbers")
        speed = result.get("lookups_per_second")
        works = f"works; {speed / 1e6:,.1f} million rows looked up and updated per second" if speed else "works"
        findings.append(Finding("problem", what, problem, fix) if problem else Finding("ok", what, works))
    return findings


def _disk(folder: Path) -> Iterator[Finding]:
    """Check the disk of prepared data: free space, and the speed of writing and of reading past the page cache."""
    what, existing = f"disk of data.prepared={folder}", folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    fix = "data.prepared=DIR on another disk"
    free = shutil.disk_usage(existing).free / GIB
    state: State = "ok" if free >= LOW_FREE_GIB else "note" if free >= MIN_FREE_GIB else "problem"
    yield Finding(state, what, f"{free:.1f} GiB free", "" if state == "ok" else fix)
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".recsys-doctor-") as f:
            block = os.urandom(1 << 20)
            begun = time.perf_counter()
            for _ in range(BYTES >> 20):
                f.write(block)
            f.flush()
            os.fsync(f.fileno())
            written = BYTES / (time.perf_counter() - begun) / 1e6
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begun = time.perf_counter()
            with open(f.name, "rb", buffering=0) as reading:
                while reading.read(1 << 20):
                    pass
            read = BYTES / (time.perf_counter() - begun) / 1e6
    except OSError as e:
        yield Finding("problem", what, f"cannot be written: {e.strerror}", fix)
        return
    yield Finding("ok", what, f"writes {written:,.0f} MB/s, reads {read:,.0f} MB/s")
