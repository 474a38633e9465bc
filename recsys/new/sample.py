"""Read a sample of rows from the head, the middle and the tail of raw files, in bounded time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.raw.byte_ranges import is_compressed
from recsys.data.raw.nested import plain
from recsys.data.raw.storage import partitions
from recsys.new import quoted, raw_bytes
from recsys.new.find_dialect import fields, without_excel
from recsys.new.layout import Layout, readable
from recsys.new.text_rows import json_array, parse_lines

ROWS = 200_000
CELLS = 20_000_000
LIBFM_ROWS = 50_000
MOST_FILES = 64
MOST_WHOLE = 5  # files, if each is read whole or in several pieces


@dataclass
class Sample:
    """Rows of raw files: text, or the types of the file.

    frame: the rows of the sample
    rows: the number of rows of all files, estimated
    """

    frame: pl.DataFrame
    rows: int


def read_sample(files: Sequence[Path], layout: Layout, layouts: Mapping[Path, Layout] | None = None) -> Sample:
    """Read rows of some of the files, evenly. layouts: of files whose columns differ"""
    some = _chosen(files, MOST_WHOLE if layout.format in ("json", "npz", "npy", "arrow") else MOST_FILES)
    n = len(files)
    readers = {"parquet": _parquet, "arrow": _arrow, "npz": _npz, "npy": _npz}
    if layout.dialect is None:  # an array of objects; {key: value, ...} has a dialect
        readers["json"] = _json
    share = min(MOST_WHOLE / len(some), 1)
    most = max(min(ROWS, CELLS // max(len(layout.columns), 1)) // len(some), 100)
    parts = []
    for f in some:
        with readable(f):
            part = readers.get(layout.format, _text)(f, (layouts or {}).get(f, layout), most, share)
        folders = partitions(f, None).items()
        part.frame = part.frame.with_columns(
            pl.lit(v, pl.String).alias(name) for name, v in folders if name not in part.frame.columns
        )
        parts.append(part)
    frame = plain(_hexadecimal(pl.concat([p.frame for p in parts], how="diagonal_relaxed")), files[0])
    return Sample(frame, round(sum(p.rows for p in parts) * n / len(some)))


def _hexadecimal(frame: pl.DataFrame) -> pl.DataFrame:
    """Return bytes that are not text, such as UUIDs, as hexadecimal digits."""
    odd = [n for n, dtype in frame.schema.items() if dtype == pl.Binary and not _are_texts(frame[n])]
    return frame.with_columns(pl.col(odd).bin.encode("hex")) if odd else frame


def _are_texts(values: pl.Series) -> bool:
    try:
        values.cast(pl.String)
    except pl.exceptions.PolarsError:
        return False
    return True


def rows_of(files: Sequence[Path], layout: Layout) -> int:
    """Return about how many rows files of one layout hold, by the first one's."""
    file, size = files[0], sum(f.stat().st_size for f in files)
    if layout.format == "parquet":
        return round(pq.read_metadata(file).num_rows * size / file.stat().st_size)
    if layout.dialect is None or layout.dialect.encoding.startswith("utf-16"):
        return size // 100
    head = raw_bytes.head(file, 1 << 16)
    packed = raw_bytes.PACKED if is_compressed(file) else 1
    return round(packed * size * head.count(b"\n") / max(len(head), 1))


def _chosen(files: Sequence[Path], most: int) -> list[Path]:
    """Return at most so many files: the first, the last, and one of each of as many equal parts of those between.

    The place within a part is random, so that no period of the files, such as 24 files a day, can hide values.
    """
    if len(files) <= most:
        return list(files)
    bounds = np.linspace(1, len(files) - 1, most - 1).astype(int)
    places = np.random.default_rng(0).integers(bounds[:-1], bounds[1:])
    return [files[0], *(files[i] for i in places), files[-1]]


def thinned(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most so many rows: three runs, at the head, in the middle and at the tail, and nothing between."""
    if frame.height <= most:
        return frame
    run = most // 4
    starts = [round(i * (frame.height - run) / 3) for i in range(4)]
    return pl.concat([frame.slice(s, run) for s in starts])


def _text(file: Path, layout: Layout, most: int, share: float) -> Sample:
    dialect = layout.dialect
    assert dialect is not None
    most = min(most, LIBFM_ROWS) if dialect.format in ("libfm", "svmlight") else most
    wide = dialect.encoding.startswith("utf-16")  # cannot be cut at line feeds
    pieces, size = raw_bytes.pieces(file, share=share) if not wide else ([raw_bytes.head(file)], file.stat().st_size)
    read = sum(map(len, pieces))
    lines: list[str] = []
    for piece in pieces:
        text = piece.decode(dialect.encoding, errors="replace").removeprefix("\ufeff")
        text = quoted.plain(text, dialect.separator, escape=dialect.escape, line_breaks=dialect.line_breaks)
        lines += [line.rstrip("\r") for line in text.split("\n")]
    lines = without_excel(lines)
    rows = round(len(lines) * max(size, read) / max(read, 1))
    lines = [line for line in lines if line.strip() and not (dialect.comment and line.startswith(dialect.comment))]
    if dialect.header and dialect.format == "csv":
        header = lines[0]
        lines = [line for line in lines if line != header]  # also those repeated where files were joined
    if dialect.line_breaks:  # a piece may begin within a value
        lines = [line for line in lines if len(fields(line, dialect)) == dialect.width + dialect.trailing]
    if not lines:
        raise UserError(f"{file}: has no rows, only a header or comments")
    if len(lines) > most:
        lines = thinned(pl.DataFrame({"x": lines}), most)["x"].to_list()
    frame = parse_lines(lines, dialect)
    if dialect.format == "lists":  # a line has several rows
        rows = round(rows * frame.height / len(lines))
    return Sample(frame, rows)


def _json(file: Path, _: Layout, most: int, _share: float) -> Sample:
    frame = json_array(file)
    return Sample(thinned(frame, most), frame.height)


def _parquet(file: Path, _: Layout, most: int, share: float) -> Sample:
    with pq.ParquetFile(file) as parquet:
        groups, total = parquet.num_row_groups, parquet.metadata.num_rows
        some = sorted({0, groups // 2, groups - 1} & set(range(groups)))[: 3 if share == 1 else 1]
        parts = []
        for group in some:
            for batch in parquet.iter_batches(batch_size=max(most // len(some), 1), row_groups=[group]):
                parts.append(pl.from_arrow(pa.Table.from_batches([batch])))
                break
    if not parts:
        raise UserError(f"{file}: has no rows")
    frame = pl.concat([p for p in parts if isinstance(p, pl.DataFrame)], how="diagonal_relaxed")
    return Sample(frame, total)


def _arrow(file: Path, _: Layout, most: int, _share: float) -> Sample:
    with file.open("rb") as f:
        frame = pl.read_ipc(f)
    return Sample(thinned(frame, most), frame.height)


def _npz(file: Path, _: Layout, most: int, _share: float) -> Sample:
    loaded = np.load(file, allow_pickle=False, mmap_mode="r" if file.suffix == ".npy" else None)
    arrays = {file.stem: loaded} if isinstance(loaded, np.ndarray) else {n: loaded[n] for n in loaded.files}
    total = max((len(a) for a in arrays.values() if a.ndim), default=0)
    frame = pl.DataFrame({n: a[:most] for n, a in arrays.items() if a.ndim in (1, 2) and len(a) == total})
    return Sample(frame, total)
