"""python benchmarks/loader.py [ROWS] [ROUNDS]: our loader against a bare polars scan of the same columns.

Criteo's shape: 13 floats, 26 ids, a label. Ours: a new loader each round and an older one, shuffled, to tensors.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from steady import Sample, measure

from recsys.data.loader import ParquetLoader
from recsys.data.prepare.writer import PartWriter
from recsys.data.transforms import LABEL
from recsys.features import DenseFeature, FeatureSpec, SparseFeature

BATCH = 8192
AGAINST = "polars scan"


def write(folder: Path, rows: int) -> FeatureSpec:
    """Rows with long-tailed ids, as preparing writes them."""
    rng = np.random.default_rng(0)
    writer = PartWriter(folder)
    for start in range(0, rows, 250_000):
        n = min(250_000, rows - start)
        columns = {LABEL: rng.integers(0, 2, n).astype(np.float32)}
        columns |= {f"int_{i}": np.log1p(rng.geometric(0.02, n)).astype(np.float32) for i in range(13)}
        columns |= {f"cat_{i}": np.minimum(rng.zipf(1.2, n), 100_000).astype(np.int32) for i in range(26)}
        writer.write(pl.DataFrame(columns))
    writer.close()
    return FeatureSpec(
        dense=tuple(DenseFeature(f"int_{i}") for i in range(13)),
        sparse=tuple(SparseFeature(f"cat_{i}", 100_001, f"cat_{i}") for i in range(26)),
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        spec = write(Path(folder), rows)
        files = sorted(Path(folder).glob("*.parquet"))

        def loader() -> ParquetLoader:
            return ParquetLoader(files, spec, batch_size=BATCH, training=True, shuffle=True)

        later = loader()

        def epoch(of: ParquetLoader) -> int:
            return sum(batch.rows for batch in of)

        def timed(job: Callable[[], int]) -> Sample:
            start, cpu = time.perf_counter(), time.process_time()
            seen = job()
            return Sample(seen, time.perf_counter() - start, time.process_time() - cpu)

        epoch(later)
        jobs = {
            AGAINST: lambda: pl.scan_parquet(files).collect().height,
            "first epoch": lambda: epoch(loader()),
            "later epochs": lambda: epoch(later),
        }
        measure("loader", {name: partial(timed, job) for name, job in jobs.items()}, AGAINST, rounds, "rows")


if __name__ == "__main__":
    main()
