"""python benchmarks/loader.py [ROWS] [ROUNDS]: our loader against a bare polars scan of the same columns.

Criteo's shape: 13 floats, 26 ids, a label. Ours: a new loader each round (its first epoch), shuffled, to tensors.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from recsys.data.loader import ParquetLoader
from recsys.data.prepare.writer import PartWriter
from recsys.data.transforms import LABEL
from recsys.features import DenseFeature, FeatureSpec, SparseFeature

BATCH = 8192


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
        ours, scans = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            seen = sum(b.rows for b in ParquetLoader(files, spec, batch_size=BATCH, training=True, shuffle=True))
            ours.append(seen / (time.perf_counter() - start))
            start = time.perf_counter()
            height = pl.scan_parquet(files).collect().height
            scans.append(height / (time.perf_counter() - start))
            print(f"ours {ours[-1] / 1e6:.2f}M rows/s, polars scan {scans[-1] / 1e6:.2f}M: {ours[-1] / scans[-1]:.2f}")
    ratio = statistics.median(a / b for a, b in zip(ours, scans, strict=True))
    print(f"median ratio {ratio:.2f} (target 0.30)")
    result = {"rows": rows, "rounds": rounds, "ours": ours, "polars_scan": scans, "median_ratio": ratio}
    target = Path(__file__).parent / "results" / "loader.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
