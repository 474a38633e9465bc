"""Read raw files in chunks. A chunk is parsed once and kept under a fingerprint.

READ/<fingerprint of the chunk's bytes and of the config that parses them>/
    rows-00000.arrow ...         parsed rows, text as codes
    values/<column>.parquet      the text of each code
    bad-00000.parquet ...        rows that cannot be read: line, reason, text, value
    chunk.json                   the number of rows, bad rows and lines, and medians of its times
    manifest.json                digests of the files, which are checked when they are read
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from recsys.base.console import say
from recsys.data.features import parse_rows
from recsys.data.features.blocks import ELEMENT, LINE, PLACE, Block
from recsys.data.features.find_types import sampled_types
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import Moment, Time
from recsys.data.raw import read_sources
from recsys.data.raw.byte_ranges import FileRange
from recsys.data.raw.derive import FeatureInputs
from recsys.data.raw.formats import FORMATS
from recsys.data.raw.text import READERS, in_order
from recsys.files import manifest
from recsys.files.atomic import beside, remove_folder, whole_folder
from recsys.files.manifest import DamagedFile, Entry
from recsys.schema.source_schema import SourceConfig

INFO = "chunk.json"
READ_FORMAT = 5  # increase it if a change makes the same bytes parse differently
FEATURES = ~cs.starts_with("__")  # their numbers are Float64 when read, whatever their type on disk
PARSERS = READERS  # threads that turn blocks into parsed rows, while others read CSV


class TextCoder:
    """Assigns codes to the values of each column: 0, 1, ... in the order of first appearance.

    It is thread-safe, but with several threads the order of the codes is arbitrary.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        space = uuid.uuid4().hex
        self._kinds = {c: pl.Categorical(pl.Categories(c, namespace=space)) for c in columns}
        # polars drops the values of a category type that no series uses; the code of "" is 0
        self._alive = [pl.Series([""], dtype=kind) for kind in self._kinds.values()]
        self._sizes: dict[str, list[int]] = {c: [0] for c in self._kinds}

    def encode(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace text by UInt32 codes, and lists of text by lists of codes. Missing values and lists become empty."""
        columns, schema = [], frame.schema
        for name, kind in self._kinds.items():
            x = pl.col(name)
            if schema[name] == pl.List:
                columns.append(x.fill_null([]).cast(pl.List(kind)).to_physical())
            else:
                columns.append(x.cast(kind).to_physical().fill_null(0))
        coded = frame.with_columns(columns)
        for name, sizes in self._sizes.items():
            codes = coded[name]
            last = codes.list.max().max() if codes.dtype == pl.List else codes.max()
            sizes.append(0 if last is None else int(last) + 1)  # type: ignore[arg-type]
        return coded

    def values(self) -> dict[str, pl.Series]:
        """Return the text of each code, by column."""
        return {
            name: pl.int_range(max(sizes), dtype=pl.UInt32, eager=True).cat.to(self._kinds[name]).cast(pl.String)
            for name, sizes in self._sizes.items()
        }


@dataclass(frozen=True)
class Chunk:
    """A range of a raw file. digest: digest of its content; split: the file's split, with data.split.by=files."""

    file: Path
    digest: str
    file_range: FileRange
    split: int | None

    def key(self, spec: str) -> str:
        """Return the fingerprint of the chunk. spec: what `read_spec` returns."""
        text = json.dumps([READ_FORMAT, spec, self.digest, self.file_range.start, self.file_range.stop])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ParsedChunk:
    """A chunk that was parsed. first_row: the number of its first row among all rows."""

    folder: Path
    first_row: int
    split: int | None = None

    @cached_property
    def info(self) -> dict[str, Any]:
        self._check(INFO)
        info = json.loads((self.folder / INFO).read_text(encoding="utf-8"))
        assert isinstance(info, dict)
        return info

    @cached_property
    def _unchecked(self) -> dict[str, Entry]:
        """The manifest's entries of the files that were not read yet."""
        return manifest.read(self.folder) or {}

    def _check(self, name: str) -> Path:
        """Return the path of a file that is as it was written. Raises DamagedFile."""
        if (entry := self._unchecked.pop(name, None)) is not None:
            manifest.check_file(self.folder, name, entry)
        return self.folder / name

    @property
    def rows(self) -> int:
        return int(sum(self.info["rows"]))

    def frames(self, columns: Collection[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield the parsed rows with their row numbers, part by part. columns: columns to read, if they exist."""
        place = self.first_row
        for i, rows in enumerate(self.info["rows"]):
            file = self._check(f"rows-{i:05d}.arrow")
            names = None if columns is None else [c for c in pl.read_ipc_schema(file) if c in {*columns, PLACE}]
            whole = pl.scan_ipc(file, glob=False).with_columns((cs.by_dtype(pl.Float32) & FEATURES).cast(pl.Float64))
            frame = (whole if names is None else whole.select(names)).collect()
            if not frame.columns:
                frame = pl.DataFrame({PLACE: range(place, place + rows)})
            if PLACE not in frame.columns:  # arranged rows have it already
                frame = frame.with_columns(pl.int_range(place, place + rows, dtype=pl.Int64).alias(PLACE))
            yield frame
            place += rows

    def values(self, columns: Collection[str] | None = None) -> dict[str, pl.Series]:
        """Return the text of each code, for all columns of text or those in `columns`."""
        files = [f for f in (self.folder / "values").glob("*.parquet") if columns is None or f.stem in columns]
        return {f.stem: pl.read_parquet(self._check(f"values/{f.name}"), glob=False)["value"] for f in files}

    def bad(self) -> Iterator[pl.DataFrame]:
        """Yield frames (line, reason, text, value) of the bad rows."""
        for file in sorted(self.folder.glob("bad-*.parquet")):
            yield pl.read_parquet(self._check(file.name), glob=False)


def cut_chunks(data: ResolvedData, files: list[tuple[Path, int | None]], digests: dict[Path, str]) -> list[Chunk]:
    """Return all chunks in the order of their rows. files: each with its split, or None."""
    rows_format = FORMATS[data.source.format]
    if rows_format.names_file or data.source.explode is not None:  # rows contain the name of their file
        digests = {f: f"{d} {f}" for f, d in digests.items()}
    return [Chunk(f, digests[f], r, split) for f, split in files for r in rows_format.ranges(data.source, f)]


def read_chunk(data: ResolvedData, pending: tuple[Chunk, Path], advance: Callable[[float], None]) -> None:
    """Parse a chunk and write it to its folder atomically. Lines of bad rows count from the chunk's first line."""
    chunk, folder = pending
    building = beside(folder, unique=True)
    building.mkdir(parents=True)
    try:
        _read_into(building, data, chunk, advance)
        if folder.exists() and not (folder / INFO).exists():  # the rest of an incomplete removal
            shutil.rmtree(folder, ignore_errors=True)
        os.replace(building, folder)
        for unfinished in folder.parent.glob(f".{folder.name}.*"):  # of processes that were killed, or come too late
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError:
        if not (folder / INFO).exists():  # otherwise, another process has written the chunk in the meantime
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _read_into(folder: Path, data: ResolvedData, chunk: Chunk, advance: Callable[[float], None]) -> None:
    coder = TextCoder(data.text_columns)
    rows: list[int] = []
    medians: dict[str, list[Any]] = {name: [] for name in data.moments}
    types: dict[str, Any] = {}  # of the first block's rows
    inputs = sorted(FeatureInputs.from_config(data).raw)
    bad = lines = 0

    def parse_and_write(numbered: tuple[int, Block]) -> tuple[int, int, int, list[Any]]:
        """Return the number of rows, bad rows and lines, and the medians."""
        number, block = numbered
        if not number:
            types.update(sampled_types(data, inputs, block.frame))
        frame, bad_rows = parse_rows(data, block)
        write_rows(folder, number, coder.encode(frame.drop(LINE, ELEMENT, strict=False)))
        if bad_rows:
            columns = ("line", "reason", "text", "value")
            schema = {"line": pl.Int64} | dict.fromkeys(columns[1:], pl.String)
            values = [[getattr(b, c) for c in columns] for b in bad_rows]
            pl.DataFrame(values, schema, orient="row").write_parquet(folder / f"bad-{number:05d}.parquet")
        return frame.height, len(bad_rows), block.lines, [frame[name].median() for name in medians]

    blocks = enumerate(read_sources.read_blocks(data, chunk.file, chunk.file_range))
    with closing(in_order(parse_and_write, blocks, PARSERS, "parse")) as results:
        for good, wrong, read, middle in results:
            rows.append(good)
            for of_column, x in zip(medians.values(), middle, strict=True):
                of_column.append(x)
            bad, lines = bad + wrong, max(lines, read)
            advance(good)
    write_values(folder, coder)
    write_info(folder, {"rows": rows, "bad": bad, "lines": lines, "medians": medians, "types": types})


def write_rows(folder: Path, number: int, coded: pl.DataFrame) -> None:
    """Write a part of a chunk's coded rows: codes and numbers in narrower types if these hold them exactly.

    Parquet with lz4 takes three times as long, for two thirds of the bytes.
    """
    numbers = (cs.by_dtype(pl.Float64) & FEATURES).as_expr()
    exact = coded.select((numbers.cast(pl.Float32).cast(pl.Float64) == numbers).all())
    codes = [s.shrink_dtype() for s in coded.get_columns() if s.dtype == pl.UInt32]
    narrow = coded.with_columns(*(pl.col(s.name).cast(pl.Float32) for s in exact if s.all()), *codes)
    narrow.write_ipc(folder / f"rows-{number:05d}.arrow", compression="uncompressed")


def write_values(folder: Path, coder: TextCoder) -> None:
    """Write the texts of the codes of each column."""
    (folder / "values").mkdir()
    for name, values in coder.values().items():
        values.alias("value").to_frame().write_parquet(folder / "values" / f"{name}.parquet", compression="lz4")


def write_info(folder: Path, info: dict[str, Any]) -> None:
    """Write chunk.json, whose presence marks a complete chunk, and the manifest."""
    (folder / INFO).write_text(json.dumps(info))
    manifest.write(folder, manifest.entries_of(folder))


def write_chunk(folder: Path, columns: Iterable[str], frames: Iterable[pl.DataFrame], tied: int = 0) -> None:
    """Write frames of parsed rows, with decoded text in `columns`, as a chunk, atomically. tied: see shuffle.py"""
    coder, parts = TextCoder(columns), list[int]()
    with whole_folder(folder) as building:
        for frame in frames:
            write_rows(building, len(parts), coder.encode(frame))
            parts.append(frame.height)
        write_values(building, coder)
        write_info(building, {"rows": parts, "bad": 0, "lines": 0, "tied": tied})


def in_sequence(chunks: Iterable[tuple[Path, int | None]]) -> list[ParsedChunk]:
    """Return the chunks of these folders and splits that have rows, which are numbered through all of them."""
    numbered: list[ParsedChunk] = []
    for folder, split in chunks:
        first = numbered[-1].first_row + numbered[-1].rows if numbered else 0
        numbered.append(ParsedChunk(folder, first, split))
    return [c for c in numbered if c.rows]


def is_chunk(folder: Path) -> bool:
    """Return whether the folder holds a whole chunk. What is left of a damaged one is removed."""
    if not (folder / INFO).exists():
        return False
    try:
        manifest.check(folder, [INFO])
    except DamagedFile as e:
        say(f"{e}; its chunk of the raw files is read again")
        remove_folder(folder)
        return False
    return True


def source_spec(source: SourceConfig) -> dict[str, Any]:
    """Return the settings that determine how rows are read, without names of files; the chunks' digests cover parts."""
    return {k: v for k, v in asdict(source).items() if k not in ("files", "parts", "query_timeout_s")}


def label_spec(label: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a label that enter the fingerprints of data, without a later key that is null."""
    return {k: v for k, v in label.items() if k != "otherwise" or v is not None}


def read_spec(data: ResolvedData, sides: dict[str, str]) -> str:
    """Return the part of the config that parsed rows depend on, as JSON. sides: digests of the side tables."""
    source = source_spec(data.source)
    label = [[label_spec(asdict(c)) for c in data.label_configs.values()], data.weight_column]
    label += [data.position_column] * (data.position_column is not None)
    dense = {
        c.parsed: [c.column, c.value_type.reads, asdict(c.value_type) or None] for c in data.dense_columns.values()
    }
    sparse = {n: [*c.source.fingerprint(), c.encoder.parsed_as] for n, c in data.sparse_columns.items()}
    split: list[str | None] | None = [data.split.by, data.split.column] if data.split.column else None
    if data.split.rows is not None:
        split = [*(split or []), "rows", data.split.rows]
    group = [data.group.by, data.group.order] if data.group else None
    derive = [*data.derive.items()]  # in order: one may read another
    types = {name: value_type for name, (_, value_type, _) in data.parsed_columns.items()}
    moments = sorted(name for name, t in types.items() if isinstance(t, Moment))
    if data.moments or moments or any(isinstance(t, Time) for t in types.values()):
        moments.append("instants, with fractions of seconds")  # before, a zone's clock was read, to the second
    return json.dumps([source, sides, derive, label, dense, sparse, split, group, moments, data.where], sort_keys=True)
