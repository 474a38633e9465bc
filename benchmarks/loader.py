"""python benchmarks/loader.py [ROWS] [ROUNDS]: our loader against a bare polars scan of the same columns.

Criteo's shape: 13 floats, 26 ids, a label. Ours: a new loader each round and an older one, shuffled, to tensors.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from steady import Claim, measure, timed

from recsys.data.loader import ParquetLoader
from recsys.data.prepare.writer import PartWriter
from recsys.data.transforms import LABEL
from recsys.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.memory import keep_freed_memory

BATCH = 8192
SCAN = "polars scan"


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
    keep_freed_memory()  # as recsys.train does
    with tempfile.TemporaryDirectory() as folder:
        spec = write(Path(folder), rows)
        files = sorted(Path(folder).glob("*.parquet"))

        def loader() -> ParquetLoader:
            return ParquetLoader(files, spec, batch_size=BATCH, training=True, shuffle=True)

        def epoch(of: ParquetLoader) -> None:
            for _ in of:
                pass

        later = loader()
        epoch(later)
        measure(
            "loader",
            f"Loader, shuffled batches of {BATCH:,} rows of Criteo's shape, from Parquet to tensors",
            {
                "first epoch": timed(lambda: epoch(loader()), rows),
                "later epochs": timed(lambda: epoch(later), rows),
                SCAN: timed(lambda: pl.scan_parquet(files).collect(), rows),
            },
            [Claim("first epoch", SCAN, 0.6), Claim("later epochs", SCAN, 0.9)],
            rounds,
            "rows",
        )


if __name__ == "__main__":
    main()
