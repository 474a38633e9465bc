"""Leave out the rows of rare users and items, again and again, until all that are left are frequent (`data.k_core`).

What is left is the k-core of the graph of users and items, whatever is removed first: Seidman, Network structure and
minimum degree, 1983. Memory is that of the counts of the values; rows pass through files, chunk by chunk.

CORE/rows/NUMBER.parquet       place and values of the rows that are left of a chunk
CORE/counts/COLUMN/NUMBER.parquet, CORE/COLUMN.parquet     counts of the values in a chunk, and in all of them
CORE/chunk-NUMBER/             the chunk without the rows that are left out
CORE/core.json                 what was removed; it is written before the chunks
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.data.features.blocks import PLACE
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.prepare.chunks import ParsedChunk, in_sequence, write_chunk
from recsys.data.prepare.engine import Engine
from recsys.data.prepare.shuffle import decode_column
from recsys.files.atomic import write_json

CORE = "core"
REMOVED = "core.json"
VALUE, COUNT = "value", "count"


def k_core(data: ResolvedData, engine: Engine, chunks: list[ParsedChunk], folder: Path) -> list[ParsedChunk]:
    """Return the chunks without the rows whose users or items (`data.k_core`) are rare; their rows are numbered anew.

    Args:
        folder: the folder to write in; a chunk that a killed run has written there is not written again.

    Raises:
        UserError: no row is left.
    """
    if not (folder / REMOVED).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _find(data, engine, chunks, folder)
    removed = json.loads((folder / REMOVED).read_text(encoding="utf-8"))
    say(described(removed))
    if not removed["rows"][1]:
        raise UserError(f"data.k_core={dict(data.k_core)}: no row is left of {removed['rows'][0]:,}; lower the numbers")
    numbered = [(n, c) for n, c in enumerate(chunks) if not (folder / f"chunk-{n:05d}").exists()]
    with bar("k-core", sum(c.rows for _, c in numbered)) as progress:
        for _ in engine.map(partial(_write_chunk, data, folder), numbered, progress.advance):
            pass
    return in_sequence((folder / f"chunk-{n:05d}", chunk.split) for n, chunk in enumerate(chunks))


def described(removed: Mapping[str, Any]) -> str:
    """Describe what was removed in one line."""
    (before, after), rounds = removed["rows"], removed["rounds"]
    values = ", ".join(f"{name} {b:,} -> {a:,}" for name, (b, a) in removed["values"].items())
    return f"data.k_core: {before - after:,} of {before:,} rows are left out, in {rounds} rounds; values: {values}"


def _find(data: ResolvedData, engine: Engine, chunks: list[ParsedChunk], folder: Path) -> None:
    """Find the rows of the k-core: CORE/rows, and the values that are left: CORE/COLUMN.parquet."""
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    rows, rounds = [sum(c.rows for c in chunks)], 0
    with bar("k-core", unit="rows counted") as progress:
        while rounds < 2 or 0 < rows[-1] < rows[-2]:
            shutil.rmtree(folder / "counts", ignore_errors=True)
            job = partial(_count, data, folder, rounds)
            rows.append(sum(engine.map(job, list(enumerate(chunks)), progress.advance)))
            for name, column in data.core_columns.items() if rows[-1] else ():
                total = engine.total(sorted((folder / "counts" / column).glob("*.parquet")), [VALUE], 1)
                frequent = total.filter(pl.col(COUNT) >= data.k_core[name])
                frequent.write_parquet(folder / f"{column}.parquet")
                before.setdefault(name, total.height)
                after[name] = frequent.height
            rounds += 1
    shutil.rmtree(folder / "counts", ignore_errors=True)
    values = {name: [before.get(name, 0), after.get(name, 0)] for name in data.core_columns}
    write_json(folder / REMOVED, {"rounds": rounds - 2 + (not rows[-1]), "rows": [rows[0], rows[-1]], "values": values})


def _count(
    data: ResolvedData, folder: Path, rounds: int, numbered: tuple[int, ParsedChunk], advance: Callable[[float], None]
) -> int:
    """Keep the rows of a chunk whose values were frequent in the last round, and count their values.

    Return the number of rows.
    """
    number, chunk = numbered
    file = folder / "rows" / f"{number:05d}.parquet"
    columns = list(data.core_columns.values())
    if rounds:
        rows = pl.read_parquet(file, glob=False)
        for column in columns:
            frequent = pl.read_parquet(folder / f"{column}.parquet", glob=False, columns=[VALUE])
            rows = rows.join(frequent, left_on=column, right_on=VALUE, how="semi")
    else:
        text = chunk.values(columns)
        rows = pl.concat(
            f.select(PLACE, *(decode_column(c, f, text[c]) if c in text else f[c] for c in columns))
            for f in chunk.frames(columns)
        )
        # a missing value is no user and no item
        rows = rows.filter(pl.col(c).is_not_null() & (pl.col(c).cast(pl.String) != "") for c in columns)
        file.parent.mkdir(exist_ok=True)
    rows.write_parquet(file, compression="lz4", statistics=False)
    for column in columns if rows.height else ():
        counts = folder / "counts" / column
        counts.mkdir(parents=True, exist_ok=True)
        sums = rows.group_by(pl.col(column).alias(VALUE)).len(COUNT)
        sums.write_parquet(counts / f"{number:05d}.parquet", compression="lz4")
    advance(rows.height)
    return rows.height


def _write_chunk(
    data: ResolvedData, folder: Path, numbered: tuple[int, ParsedChunk], advance: Callable[[float], None]
) -> None:
    number, chunk = numbered
    places = pl.read_parquet(folder / "rows" / f"{number:05d}.parquet", glob=False, columns=[PLACE])
    text = chunk.values()

    def kept() -> Iterator[pl.DataFrame]:
        for frame in chunk.frames():
            rows = frame.join(places, on=PLACE, how="semi").drop(PLACE)
            yield rows.with_columns(decode_column(name, rows, values) for name, values in text.items())
            advance(frame.height)

    write_chunk(folder / f"chunk-{number:05d}", data.text_columns, kept())
