"""python benchmarks/online.py [ROUNDS]: rows of Criteo's columns to arrays, with numpy and dicts against with polars.

13 numbers (fill, log, standardise) and 26 values with vocabularies; one row and 1,000 rows a call, one thread. The rows
are those of the sample, or have numbers that never repeat; each call gets rows, or columns, just read from JSON, whose
text no dict has hashed yet. All ways run in turn in one process, and their arrays are compared bit for bit.
"""

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")

from steady import Claim, Clock, Sample, measure

from recsys.config.compose import compose
from recsys.data.features.arrays import Arrays
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import read_sources
from recsys.job.run_config import RunConfig
from recsys.online.row_transforms import RowTransforms

SAMPLE = 100_000
Row = dict[str, Any]
Columns = dict[str, list[Any]]


def criteo(folder: Path) -> tuple[RowTransforms, list[Row]]:
    """Prepare the sample; return its pipeline and its last rows, with numbers as numbers, as JSON has them."""
    cfg = compose("train", ["data=criteo", f"data.sample.rows={SAMPLE}", f"data.prepared={folder}"])
    prepared = prepare(RunConfig.of(cfg).data)
    [file] = read_sources.find_files(prepared.fitted.data)
    raw = [b.frame.drop("__line__") for b in read_sources.read_blocks(prepared.fitted.data, file)][-1].tail(10_000)
    rows = [{k: v for k, v in row.items() if k != "label"} for row in raw.to_dicts()]
    numbers = [{k: int(v) if v is not None and k.startswith("int_") else v for k, v in row.items()} for row in rows]
    return RowTransforms.load(prepared.folder), numbers


def never_repeating(rows: list[Row], seed: int) -> list[Row]:
    """Return the rows with other numbers, all different."""
    generator = random.Random(seed)  # nosec B311 (rows of a benchmark)
    return [{k: generator.expovariate(0.02) if k.startswith("int_") else v for k, v in row.items()} for row in rows]


def same(a: Arrays, b: Arrays) -> bool:
    return a.dense.tobytes() == b.dense.tobytes() and a.ids.tobytes() == b.ids.tobytes()


def by_column(rows: list[Row]) -> Columns:
    return {name: [row[name] for row in rows] for name in rows[0]}


def by_call(call: Callable[[Any], Arrays], batches: list[str], rows: int) -> Callable[[], Sample]:
    """Return a round of a call for each batch, whose JSON is read before the clock starts."""

    def run() -> Sample:
        given = [json.loads(batch) for batch in batches]
        clock = Clock()
        for batch in given:
            call(batch)
        return clock.sample(rows * len(batches))

    return run


def ways(pipeline: RowTransforms, rows: list[Row], size: int) -> dict[str, Callable[[], Sample]]:
    """Return rounds of `size` rows a call from rows, from columns and through polars, whose arrays are the same."""
    calls = 200 if size == 1 else 10
    batches = [rows[i * size : (i + 1) * size] for i in range(calls)]
    texts, columns = [json.dumps(b) for b in batches], [json.dumps(by_column(b)) for b in batches]

    def polars(rows: list[Row]) -> Arrays:
        return Arrays.from_frame(pipeline.frame(rows), pipeline.features, pipeline.fitted.matrices)

    def arrays_of_columns(columns: Columns) -> Arrays:
        return pipeline.arrays_of_columns(columns, size)

    expected = polars(batches[0])
    assert same(pipeline.arrays(batches[0]), expected) and same(arrays_of_columns(by_column(batches[0])), expected)
    return {
        "rows": by_call(pipeline.arrays, texts, size),
        "columns": by_call(arrays_of_columns, columns, size),
        "polars": by_call(polars, texts, size),
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    contestants: dict[str, Callable[[], Sample]] = {}
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        pipeline, sample = criteo(Path(folder))
        for kind in ("", ", numbers that never repeat"):
            for size in (1, 1000):
                rows = never_repeating(sample, size) if kind else sample
                names = {way: f"{way}, {size:,} a call{kind}" for way in ("rows", "columns", "polars")}
                contestants |= {names[way]: round_ for way, round_ in ways(pipeline, rows, size).items()}
                claims += [Claim(names[way], names["polars"]) for way in ("rows", "columns")]
        measure("online", "Raw rows of Criteo's columns to arrays, one thread", contestants, claims, rounds, "rows")


if __name__ == "__main__":
    main()
