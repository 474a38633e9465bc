"""Measure a model whose tables are larger than the memory of the machine.

    python benchmarks/serving/larger_than_memory.py ARTEFACT folder=DIR [gb=20] [memory_gb=2] [seconds=60] [rows=64]

Copies the graph of an exported DLRM to DIR, with a table of `gb` GB of random numbers in the place of its own. A second
process then takes all memory of this machine but `memory_gb` GB, so that the kernel can keep no more of the table.
Requests look up rows whose frequencies follow Zipf's law (exponent 1), as those of ids in logs do. Two orders of the
rows are measured: by frequency, as recsys numbers the values of vocabularies, and none, as hashes number them.

Prints, for the second half of the time: the share of the looked-up rows that were in memory, and the latency of a call.
Needs Linux, `gb` GB of disk, and no swap.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from recsys.export.artefact.graph_io import TableSession, open_session

KEYS = {"folder": "", "gb": "20", "memory_gb": "2", "seconds": "60", "rows": "64"}
BLOCK = 1 << 28  # bytes that are written, and taken, at once
PRIME = 2_654_435_761  # of Knuth's multiplicative hash
TAKE = """
import sys, time
held, left = [], float(sys.argv[1]) * 2**30
def available():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
open("/proc/self/oom_score_adj", "w").write("1000")
while (free := available() - left) > 2**24:
    held.append(bytearray(int(min(free, 2**28))))
    for i in range(0, len(held[-1]), 4096):
        held[-1][i] = 1
print("held", flush=True)
time.sleep(86400)
"""


def write_model(artefact: Path, folder: Path, size: int) -> int:
    """Write the graph with a table of `size` bytes; return the number of its rows."""
    shutil.copy(artefact / "model.onnx", folder)
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    [table] = [i for i in model.graph.initializer if i.external_data]
    place = {e.key: e for e in table.external_data}
    width = table.dims[1]
    rows = size // (4 * width)
    table.dims[0], place["length"].value = rows, str(rows * 4 * width)
    file = folder / place["location"].value
    file.parent.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    with file.open("wb") as f:
        while (left := rows * 4 * width - f.tell()) > 0:
            f.write(generator.random(min(left, BLOCK) // 4, dtype=np.float32).tobytes())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # the table's padding row and the starts of its features belong to the graph: all features read from row 0
    for i in model.graph.initializer:
        if i.name.endswith("starts"):
            i.CopyFrom(onnx.numpy_helper.from_array(np.zeros_like(onnx.numpy_helper.to_array(i)), i.name))
    onnx.save(model, str(folder / "model.onnx"))
    return rows


def resident(address: int, rows: np.ndarray, bytes_of_a_row: int) -> float:
    """Return the share of the lookups whose page is in memory."""
    page, vector = mmap.PAGESIZE, ctypes.c_ubyte()
    libc, found = ctypes.CDLL(None), 0
    pages, lookups = np.unique(rows.astype(np.int64) * bytes_of_a_row // page, return_counts=True)
    for at, number in zip(pages, lookups, strict=True):
        libc.mincore(ctypes.c_void_p(address + int(at) * page), ctypes.c_size_t(page), ctypes.byref(vector))
        found += (vector.value & 1) * int(number)
    return found / len(rows)


def measure(session: Any, address: int, table_rows: int, rows: int, seconds: float, *, by_frequency: bool) -> str:
    """Send requests of `rows` rows for some seconds; return the figures of the second half."""
    shapes = {i.name: i.shape[1] for i in session.get_inputs()}
    generator, times, shares = np.random.default_rng(1), list[float](), list[float]()
    dense = np.zeros((rows, shapes["dense"]), np.float32)
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        rank = (table_rows ** generator.random((rows, shapes["ids"]))).astype(np.int64) - 1  # Zipf, exponent 1
        ids = rank if by_frequency else rank * PRIME % (table_rows - 1)
        if now > began + seconds / 2:
            shares.append(resident(address, ids.ravel(), 64))
        started = time.perf_counter()
        session.run(None, {"dense": dense, "ids": ids.astype(np.int32)})
        if now > began + seconds / 2:
            times.append(time.perf_counter() - started)
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    order = "by frequency" if by_frequency else "none"
    line = f"order {order}, rows {rows}: in memory {np.mean(shares):.4f}, p50 {p50:.2f} ms, p99 {p99:.2f} ms"
    return f"{line}, {len(times)} calls"


def main() -> None:
    words = [a for a in sys.argv[1:] if "=" not in a]
    options = KEYS | dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
    if len(words) != 1 or set(options) != set(KEYS) or not options["folder"]:
        sys.exit(__doc__)
    folder = Path(options["folder"])
    folder.mkdir(parents=True)
    table_rows = write_model(Path(words[0]), folder, int(float(options["gb"]) * 2**30))
    print(f"a table of {options['gb']} GB, {table_rows:,} rows, and {options['memory_gb']} GB of memory", flush=True)
    taker = subprocess.Popen([sys.executable, "-c", TAKE, options["memory_gb"]], stdout=subprocess.PIPE)
    assert taker.stdout is not None
    try:
        taker.stdout.readline()
        for by_frequency in (True, False):
            session = open_session(folder / "model.onnx")
            assert isinstance(session, TableSession)
            [table] = session.tables.values()
            address = table.ctypes.data
            for rows in (1, int(options["rows"])):
                more = {"by_frequency": by_frequency}
                print(measure(session, address, table_rows, rows, float(options["seconds"]), **more), flush=True)
    finally:
        taker.kill()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
