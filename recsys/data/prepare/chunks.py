"""Raw files in chunks, each read once for all: typed rows and the values they are made of, kept under a fingerprint.

READ/<fingerprint of the chunk's bytes and of what is read of them>/
    rows-00000.parquet ...       typed rows, text as codes
    values/<column>.parquet      the text of each code
    bad-00000.parquet ...        rows that cannot be read: line, reason, text
    chunk.json                   how many of each
"""

import hashlib
import json
import os
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from recsys.atomic import beside
from recsys.config.schema_data import DataConfig, SourceConfig, SparseConfig
from recsys.data.prepare.dictionary import TextCoder
from recsys.data.raw import sources
from recsys.data.raw.blocks import LINE, BadRow, Block
from recsys.data.raw.formats import pieces
from recsys.data.raw.ranges import FileRange
from recsys.data.raw.text import READERS
from recsys.data.transforms import (
    PLACE,
    dense_columns,
    label_column,
    sparse_columns,
    text_columns,
    typed,
)
from recsys.data.transforms.columns import differences

READ_FORMAT = 2  # raise it when the same bytes would be read differently
TYPERS = READERS  # blocks typed at once, while others are parsed


@dataclass(frozen=True)
class Chunk:
    """A piece of a raw file; `digest` stands for the file's content, `split` where whole files are assigned."""

    file: Path
    digest: str
    piece: FileRange
    split: int | None

    def key(self, spec: str) -> str:
        text = json.dumps([READ_FORMAT, spec, self.digest, self.piece.start, self.piece.stop])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ParsedChunk:
    """A chunk that was read: `first_row` is the place of its first row among all rows."""

    folder: Path
    first_row: int
    split: int | None = None

    @cached_property
    def info(self) -> dict[str, Any]:
        info = json.loads((self.folder / "chunk.json").read_text())
        assert isinstance(info, dict)
        return info

    @property
    def rows(self) -> int:
        return int(sum(self.info["rows"]))

    def frames(self, columns: Collection[str] | None = None) -> Iterator[pl.DataFrame]:
        """Its typed rows (or those columns of them, where there are such), part by part, with their places."""
        place = self.first_row
        for i, rows in enumerate(self.info["rows"]):
            file = self.folder / f"rows-{i:05d}.parquet"
            there = None if columns is None else [c for c in pl.read_parquet_schema(file) if c in {*columns, PLACE}]
            frame = pl.read_parquet(file, columns=there)
            if not frame.columns:
                frame = pl.DataFrame({PLACE: range(place, place + rows)})
            if PLACE not in frame.columns:  # arranged rows bring their own
                frame = frame.with_columns(pl.int_range(place, place + rows, dtype=pl.Int64).alias(PLACE))
            yield frame
            place += rows

    def values(self, columns: Collection[str] | None = None) -> dict[str, pl.Series]:
        """By column of text (of all, or of those), the text of each code."""
        files = (self.folder / "values").glob("*.parquet")
        return {f.stem: pl.read_parquet(f)["value"] for f in files if columns is None or f.stem in columns}

    def bad(self) -> Iterator[pl.DataFrame]:
        for file in sorted(self.folder.glob("bad-*.parquet")):
            yield pl.read_parquet(file)


def cut(data: DataConfig, files: list[tuple[Path, int | None]], digests: dict[Path, str]) -> list[Chunk]:
    """All chunks, in the order of their rows."""
    if data.source.format == "lists":  # whose rows say which file they are of
        digests = {f: f"{d} {f}" for f, d in digests.items()}
    return [Chunk(f, digests[f], piece, split) for f, split in files for piece in pieces(data.source, f)]


def read_chunk(data: DataConfig, chunk: Chunk, folder: Path, advance: Callable[[float], None]) -> None:
    """Make `folder`, whole or not at all. Bad rows are set aside with their line, counted from the chunk's first."""
    building = beside(folder, unique=True)
    building.mkdir(parents=True)
    try:
        _read_into(building, data, chunk, advance)
        if folder.exists() and not (folder / "chunk.json").exists():  # what was left of it
            shutil.rmtree(folder, ignore_errors=True)
        os.replace(building, folder)
    except OSError:
        if not (folder / "chunk.json").exists():  # else another process was quicker
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def remove_chunk(folder: Path) -> None:
    """Whole or not at all, too: a part of it would pass for all of it."""
    removing = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    try:
        folder.rename(removing)
    except FileNotFoundError:  # equal pieces are one folder
        return
    shutil.rmtree(removing, ignore_errors=True)


def _read_into(folder: Path, data: DataConfig, chunk: Chunk, advance: Callable[[float], None]) -> None:
    coder = TextCoder(text_columns(data))
    rows: list[int] = []
    bad = lines = 0

    def type_and_write(block: Block, number: int) -> tuple[int, int, int]:
        frame, wrong = typed(data, block)
        write_rows(folder, number, coder.encode(frame.drop(LINE)))
        if wrong:
            _write_bad(wrong, folder / f"bad-{number:05d}.parquet")
        return frame.height, len(wrong), block.lines

    def finish(done: tuple[int, int, int]) -> None:
        nonlocal bad, lines
        rows.append(done[0])
        bad, lines = bad + done[1], max(lines, done[2])
        advance(done[0])

    with ThreadPoolExecutor(TYPERS, thread_name_prefix="type") as pool:
        waiting: deque[Future[tuple[int, int, int]]] = deque()
        try:
            for number, block in enumerate(sources.read_blocks(data, chunk.file, chunk.piece)):
                waiting.append(pool.submit(type_and_write, block, number))
                if len(waiting) > TYPERS:
                    finish(waiting.popleft().result())
            while waiting:
                finish(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()
    write_values(folder, coder)
    write_info(folder, {"rows": rows, "bad": bad, "lines": lines})


def write_rows(folder: Path, number: int, coded: pl.DataFrame) -> None:
    coded.write_parquet(folder / f"rows-{number:05d}.parquet", compression="lz4", statistics=False)


def write_values(folder: Path, coder: TextCoder) -> None:
    (folder / "values").mkdir()
    for name, values in coder.values().items():
        values.alias("value").to_frame().write_parquet(folder / "values" / f"{name}.parquet", compression="lz4")


def write_info(folder: Path, info: dict[str, Any]) -> None:
    (folder / "chunk.json").write_text(json.dumps(info))


def _write_bad(bad: list[BadRow], file: Path) -> None:
    pl.DataFrame([asdict(b) for b in bad]).select("line", "reason", "text").write_parquet(file)


def source_spec(source: SourceConfig) -> dict[str, Any]:
    """How rows are read, whatever their files are called; what they are parts of is in the chunks' digests."""
    return {k: v for k, v in asdict(source).items() if k not in ("files", "parts")}


def _as(c: SparseConfig) -> Any:
    """What its values are typed as; ids that are no rows are bad."""
    return ["id", c.rows] if c.encode == "id" else c.encode == "quantiles"


def read_spec(data: DataConfig, sides: dict[str, str]) -> str:
    """All of the config that typed rows depend on, as text; `sides` stands for the side tables' content."""
    source = source_spec(data.source)
    label = [label_column(data), data.label.at_least]
    dense = {c.typed: [c.column, c.reads] for c in dense_columns(data).values()}
    sparse = {n: [c.column, c.cross, c.pattern, c.split, c.max_length, _as(c)] for n, c in sparse_columns(data).items()}
    split = [data.split.by, data.split.column] if data.split.column else None
    group = [data.group.by, data.group.order] if data.group else None
    derive = [*data.derive.items()]  # in order: one may read another
    moments = sorted(differences(data))
    return json.dumps([source, sides, derive, label, dense, sparse, split, group, moments, data.where], sort_keys=True)
