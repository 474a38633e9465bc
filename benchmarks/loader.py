"""python benchmarks/loader.py [SHAPE] [ROWS] [ROUNDS]: our loader against a bare polars scan of the same columns.

    loader           13 floats, 26 ids, a label: Criteo's shape
    loader_multihot  the same with lists of MLPerf's multi-hot sizes, 214 ids a row
    loader_lists     a list of 0 to 100 items and a label

Ours: the first epoch of a training, and the later ones of four, whose rows are kept in memory (up to a gigabyte, as by
default) or read again; shuffled, to tensors. Beside the scan, the least that any loader of shuffled rows does: the
same scan, whose rows are then put in random order in chunks as large as the loader's.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from steady import Claim, Clock, Sample, measure, timed

from recsys.base.memory import GIB, keep_freed_memory
from recsys.data.features import LABEL
from recsys.data.loader.parquet_loader import MIN_CHUNK_ROWS, ParquetLoader
from recsys.data.prepare.writer import PartWriter
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature

BATCH, LATER = 8192, 4
SCAN, SHUFFLED = "polars scan", "polars scan, then shuffled"
MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
ROWS = {"loader": 4_000_000, "loader_multihot": 400_000, "loader_lists": 1_000_000}
ABOUT = {"loader": "Criteo's shape", "loader_multihot": "MLPerf's multi-hot sizes", "loader_lists": "a list each"}


def ids(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return long-tailed ids: (n,) int32."""
    return np.minimum(rng.zipf(1.2, n), 100_000).astype(np.int32)


def lists(rng: np.random.Generator, lengths: np.ndarray) -> pl.Series:
    """Return lists of these lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pl.Series(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids(rng, int(offsets[-1])))))


def write(folder: Path, shape: str, rows: int) -> FeatureSpec:
    """Write rows as preparing does."""
    rng = np.random.default_rng(0)
    writer = PartWriter(folder)
    for start in range(0, rows, 250_000):
        n = min(250_000, rows - start)
        columns: dict[str, pl.Series | np.ndarray] = {LABEL: rng.integers(0, 2, n).astype(np.float32)}
        if shape == "loader_lists":
            columns["items"] = lists(rng, rng.integers(0, 101, n))
        else:
            columns |= {f"int_{i}": np.log1p(rng.geometric(0.02, n)).astype(np.float32) for i in range(13)}
            many = shape == "loader_multihot"
            columns |= {
                f"cat_{i}": lists(rng, np.full(n, size)) if many and size > 1 else ids(rng, n)
                for i, size in enumerate(MULTI_HOT)
            }
        writer.write(pl.DataFrame(columns))
    writer.flush()
    sparse = [SparseFeature(c, 100_001, c, multi_valued=isinstance(x, pl.Series)) for c, x in columns.items()]
    sparse = [f for f in sparse if f.name.startswith(("cat", "items"))]
    dense = tuple(DenseFeature(name) for name in columns if name.startswith("int"))
    return FeatureSpec(dense=dense, sparse=tuple(sorted(sparse, key=lambda f: f.multi_valued)))


def main() -> None:
    shape = sys.argv[1] if len(sys.argv) > 1 else "loader"
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else ROWS[shape]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    keep_freed_memory()  # as recsys.train does
    with tempfile.TemporaryDirectory() as folder:
        spec = write(Path(folder), shape, rows)
        files = sorted(Path(folder).glob("*.parquet"))

        def epochs(first: int, last: int, keep_bytes: int) -> Callable[[], Sample]:
            """Return a round that trains with a new loader up to an epoch, of which those from `first` on are timed."""

            def run() -> Sample:
                loader = ParquetLoader(
                    files, spec, batch_size=BATCH, training=True, shuffle=True, epochs=LATER, keep_bytes=keep_bytes
                )
                clock = Clock()
                for epoch in range(last):
                    if epoch == first:
                        clock = Clock()
                    for _ in loader:
                        pass
                return clock.sample((last - first) * rows)

            return run

        def shuffled() -> None:
            frame, rng = pl.scan_parquet(files).collect(), np.random.default_rng(0)
            for start in range(0, rows, MIN_CHUNK_ROWS):
                chunk = frame.slice(start, MIN_CHUNK_ROWS)
                chunk[rng.permutation(len(chunk))]

        measure(
            shape,
            f"Loader, shuffled batches of {BATCH:,} rows of {ABOUT[shape]}, from Parquet to tensors",
            {
                "first epoch": epochs(0, 1, GIB),
                "later epochs": epochs(1, LATER, GIB),
                "later epochs, none kept": epochs(1, LATER, 0),
                SCAN: timed(lambda: pl.scan_parquet(files).collect(), rows),
                SHUFFLED: timed(shuffled, rows),
            },
            [
                Claim("first epoch", SHUFFLED, 0.9),
                Claim("first epoch", SCAN),
                Claim("later epochs", SCAN, 0.9),
                Claim("later epochs, none kept", SCAN),
            ],
            rounds,
            "rows",
        )


if __name__ == "__main__":
    main()
