"""python benchmarks/prepare_wide.py [ROWS] [COLUMNS]: preparing wide data, by the number of columns.

Three quarters of the columns are dense, a quarter sparse; the file is CSV. The same rows are prepared with a quarter,
half and all of the columns. The time of a cell must not grow with the number of columns.

    prepare: `prepare` from nothing: digest, read, split, fit (log, vocabularies), apply, write
    load: read the fitted transforms, as every command does that opens a run
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.console import quiet
from recsys.data.prepare.prepared import prepare
from recsys.schema.data_schema import DataConfig, LabelConfig
from recsys.schema.source_schema import SourceConfig


def write(folder: Path, rows: int, columns: int) -> DataConfig:
    """Write a.csv to a new folder, and return the config that prepares it."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    dense = [f"d{i}" for i in range(columns * 3 // 4)]
    sparse = [f"s{i}" for i in range(columns - len(dense))]
    values = np.char.add("v", np.arange(50).astype(str))
    frame = pl.DataFrame(
        {"label": rng.integers(0, 2, rows)}
        | {name: rng.random(rows).round(4) for name in dense}
        | {name: values[rng.integers(0, 50, rows)] for name in sparse}
    )
    frame.write_csv(folder / "a.csv")
    return DataConfig(
        name="wide",
        root=str(folder),
        prepared=str(folder / "prepared"),
        source=SourceConfig(files=["*.csv"]),
        label=LabelConfig(column="label"),
        dense=dict.fromkeys(dense),
        sparse=dict.fromkeys(sparse),
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000
    quiet()
    results = []
    for columns in (most // 4, most // 2, most):
        with tempfile.TemporaryDirectory() as name:
            data = write(Path(name) / "raw", rows, columns)
            start = time.perf_counter()
            prepared = prepare(data)
            took = time.perf_counter() - start
            start = time.perf_counter()
            assert len(prepared.fitted.features.sparse) == len(data.sparse)
            load = time.perf_counter() - start
        cell = took / rows / columns * 1e9
        print(
            f"{columns:,} columns x {rows:,} rows: prepare {took:.1f} s, {cell:,.0f} ns a cell; load {load:.2f} s",
            flush=True,
        )
        results.append({"columns": columns, "rows": rows, "seconds": took, "load_seconds": load})
    file = Path(__file__).parent / "results" / "prepare_wide.json"
    file.write_text(json.dumps({"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
