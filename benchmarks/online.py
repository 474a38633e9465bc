"""python benchmarks/online.py [ROUNDS]: rows of Criteo's columns to arrays, by column against through polars.

13 numbers (fill, log, standardise) and 26 values with vocabularies; one row and 1,000 rows a call, one thread. The rows
are those of the sample, or have numbers that never repeat; each call gets rows just read from JSON, whose text no dict
has hashed yet. Both ways run in turn in one process, and their arrays are compared bit for bit.
"""

import csv
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")

from recsys.config.compose import compose
from recsys.config.settings import data_config
from recsys.data.arrays import Arrays
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import sources
from recsys.serving.pipeline import Pipeline

SAMPLE = 100_000
Row = dict[str, Any]


def criteo(folder: Path) -> tuple[Pipeline, list[Row]]:
    """Prepare the sample; return its pipeline and its last rows, with numbers as numbers, as JSON has them."""
    cfg = compose("train", ["data=criteo", f"data.sample.rows={SAMPLE}", f"data.prepared={folder}"])
    prepared = prepare(data_config(cfg))
    [file] = sources.find_files(prepared.fitted.data)
    raw = [b.frame.drop("__line__") for b in sources.read_blocks(prepared.fitted.data, file)][-1].tail(10_000)
    rows = [{k: v for k, v in row.items() if k != "label"} for row in raw.to_dicts()]
    numbers = [{k: int(v) if v is not None and k.startswith("int_") else v for k, v in row.items()} for row in rows]
    return Pipeline.load(prepared.folder), numbers


def never_repeating(rows: list[Row], seed: int) -> list[Row]:
    """Return the rows with other numbers, all different."""
    generator = random.Random(seed)
    return [{k: generator.expovariate(0.02) if k.startswith("int_") else v for k, v in row.items()} for row in rows]


def same(a: Arrays, b: Arrays) -> bool:
    return a.dense.tobytes() == b.dense.tobytes() and a.ids.tobytes() == b.ids.tobytes()


def seconds(call: Callable[[list[Row]], Arrays], batches: list[str]) -> float:
    """Return the median time of a call. batches: rows as JSON"""
    times = []
    for batch in batches:
        rows = json.loads(batch)
        start = time.perf_counter()
        call(rows)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    results = []
    with tempfile.TemporaryDirectory() as folder:
        pipeline, sample = criteo(Path(folder))

        def polars(rows: list[Row]) -> Arrays:
            return Arrays.from_frame(pipeline.frame(rows), pipeline.features, pipeline.fitted.matrices)

        for kind in ("sample", "numbers that never repeat"):
            for size, calls in ((1, 200), (1000, 10)):
                rows = sample if kind == "sample" else never_repeating(sample, size)
                assert same(pipeline.arrays(rows[:1000]), polars(rows[:1000]))
                batches = [json.dumps(rows[i * size : (i + 1) * size]) for i in range(calls)]
                times = [(seconds(pipeline.arrays, batches), seconds(polars, batches)) for _ in range(rounds)]
                fast, slow = (statistics.median(x) for x in zip(*times, strict=True))
                ratio = statistics.median(b / a for a, b in times)
                results.append(
                    [kind, size, round(fast * 1e3, 4), round(slow * 1e3, 3), int(size / fast), round(ratio, 1)]
                )
                print(f"{kind}, {size} rows: {fast * 1e3:.3f} ms, {size / fast:,.0f} rows/s; "
                      f"polars {slow * 1e3:.2f} ms: {ratio:.1f} times as fast")  # fmt: skip
    with (Path(__file__).parent / "results" / "online.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["rows", "rows_a_call", "ms", "polars_ms", "rows_per_s", "ratio"], *results])


if __name__ == "__main__":
    main()
