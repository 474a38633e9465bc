"""Sessions of ONNX Runtime."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.errors import UserError


def open_session(file: Path, threads: int = 1) -> Any:
    """Load a graph on the CPU. Tables beside it are memory-mapped, so that processes share them.

    threads: number of threads of one call

    Raises UserError if onnxruntime is not installed or cannot load the graph.
    """
    try:
        import onnxruntime as ort
    except ImportError as e:
        raise UserError("onnxruntime is not installed; run: pip install 'recsys[serve]'") from e
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the CPU to others
    try:
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime's own errors have no common base
        raise UserError(f"{file}: onnxruntime {ort.__version__} cannot load it: {str(e).splitlines()[0]}") from e
    _expect_random_reads(file.parent)
    return session


def _expect_random_reads(folder: Path) -> None:
    """Let the kernel read single pages of the mapped tables. It would read up to megabytes around each row otherwise.

    This matters for tables that are larger than the memory (benchmarks/serving/larger_than_memory.py).
    """
    for start, size in mapped(folder):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_RANDOM)


def mapped(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the address and the size of each file under a folder that this process has mapped (Linux)."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).is_relative_to(folder.resolve()):
            start, _, end = fields[0].partition("-")
            yield int(start, 16), int(end, 16) - int(start, 16)
