"""Sort rows by group in bounded memory: chunks of parsed rows -> chunks of arranged rows.

Rows are partitioned into piles by a hash of their group; the number of piles is chosen so that one pile fits into
memory. A pile contains whole groups; it is arranged and becomes a chunk. The two steps communicate only by files.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl

from recsys.base.console import bar, say
from recsys.data.features import GROUP
from recsys.data.features.blocks import ORDER, SPLIT
from recsys.data.features.group_features import arrange
from recsys.data.features.raw_types import RawType
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_index import shares
from recsys.data.prepare.chunks import ParsedChunk, in_sequence, write_chunk
from recsys.data.prepare.engine import Engine
from recsys.data.prepare.split import Splitter

PILE_ROWS = 1 << 18
PART_ROWS = 1 << 16
MAX_VALUES = 1 << 24  # maximum number of values of earlier rows that are held at once, but for one group: some 0.5 GB


def shuffle(
    data: ResolvedData,
    engine: Engine,
    chunks: list[ParsedChunk],
    splitter: Splitter,
    folder: Path,
    by: RawType | None = None,
) -> list[ParsedChunk]:
    """Return arranged chunks under `folder`; arrange them if they do not exist.

    by: the meaning of the groups' keys, of which one may be written in several forms
    """
    total = sum(c.rows for c in chunks)
    piles = -(-total // PILE_ROWS)
    folders = [folder / f"pile-{p:05d}" for p in range(piles)]
    pending = [(p, f) for p, f in enumerate(folders) if not (f / "chunk.json").exists()]
    rows = folder / "rows"
    with bar("grouping", 2 * total) as progress:
        progress.passes = 2
        if pending:
            shutil.rmtree(rows, ignore_errors=True)
            rows.mkdir(parents=True)
            job = partial(_partition, piles, splitter, rows, by)
            for _ in engine.map(job, list(enumerate(chunks)), progress.advance):
                pass
        for _ in engine.map(partial(_arrange_pile, data, rows), pending, progress.advance):
            pass
    shutil.rmtree(rows, ignore_errors=True)
    arranged = in_sequence((pile, None) for pile in folders)
    if data.group is not None and (tied := sum(c.info.get("tied", 0) for c in arranged)):
        seen = "see each other in the order of the files (data.group.ties=moment: they do not)"
        if data.has_moments:
            seen = "are one moment, and do not see each other (data.group.ties=order: in the order of the files)"
        share = f"share their {data.group.order} with another row of their {data.group.by}"
        say(f"{tied:,} of {total:,} rows {share}: they {seen}")
    return arranged


def _partition(
    piles: int,
    splitter: Splitter,
    folder: Path,
    by: RawType | None,
    numbered: tuple[int, ParsedChunk],
    advance: Callable[[float], None],
) -> None:
    """Write a chunk's rows, with decoded text, into the piles."""
    number, chunk = numbered
    values = chunk.values()
    for i, frame in enumerate(chunk.frames()):
        if splitter.config.by != "leave_one_out":
            frame = frame.with_columns(pl.Series(SPLIT, splitter.assign(frame, chunk.split)))
        frame = frame.with_columns(decode_column(name, frame, text) for name, text in values.items())
        frame = frame if by is None else frame.with_columns(by.canonical(frame[GROUP]))
        pile = (shares(frame[GROUP], 0) * piles).astype(int)
        for (p,), rows in (
            frame.with_columns(pl.Series("pile", pile)).partition_by("pile", as_dict=True, include_key=False).items()
        ):
            target = folder / f"{p:05d}"
            target.mkdir(exist_ok=True)
            rows.write_parquet(target / f"{number:05d}-{i:05d}.parquet", compression="lz4", statistics=False)
        advance(frame.height)


def decode_column(name: str, frame: pl.DataFrame, text: pl.Series) -> pl.Series:
    """Return a column of codes as text. text: the text of each code."""
    column = frame[name]
    if column.dtype != pl.List:
        return text.gather(column).alias(name)
    gathered = pl.element().map_batches(text.gather, return_dtype=pl.String, is_elementwise=True)
    return frame.select(pl.col(name).list.eval(gathered)).to_series()


def _arrange_pile(
    data: ResolvedData, folder: Path, numbered: tuple[int, Path], advance: Callable[[float], None]
) -> None:
    number, target = numbered
    files = sorted((folder / f"{number:05d}").glob("*.parquet"))
    frame = pl.concat([pl.read_parquet(f, glob=False) for f in files]) if files else pl.DataFrame()
    parts = (p for groups in some_groups(data, frame) for p in arrange(data, groups).iter_slices(PART_ROWS))
    # counted where features of rows with labels take rows that are earlier in time
    timed = data.group is not None and data.group.order is not None and data.look_backs and data.item_feature is None
    tied = frame.select(pl.struct(GROUP, ORDER).is_duplicated().sum()).item() if timed and files else 0
    write_chunk(target, [*data.text_columns, *data.query_columns], parts if files else (), tied)
    advance(frame.height)


def some_groups(data: ResolvedData, rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Divide a pile into whole groups whose lists of earlier rows fit into memory; short ones leave it as it is."""
    width = sum(look_back.rows for look_back in data.look_backs.values() if look_back.is_list)
    if rows.height * width <= MAX_VALUES:
        return [rows]
    some = pl.col("some").min().over(GROUP) // max(MAX_VALUES // width, 1)
    numbered = rows.sort(GROUP).with_row_index("some").with_columns(some)
    return numbered.partition_by("some", maintain_order=True, include_key=False)
