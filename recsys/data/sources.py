"""Raw files as a stream of frames, one file after another, in bounded memory.

Every reader yields `Block`s: the rows that have the right number of fields, as strings (CSV, libfm)
or in the file's own types (Parquet), the line each row came from, and the rows that did not fit.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from recsys.errors import UserError, did_you_mean
from recsys.schema import DataConfig, JoinConfig, SourceConfig

BLOCK_BYTES = 32 << 20
BLOCK_ROWS = 250_000
LINE = "__line__"  # the line (CSV, libfm) or row (Parquet) of a raw row, from 1


@dataclass(frozen=True)
class BadRow:
    file: str
    line: int
    reason: str
    text: str


@dataclass
class Block:
    file: Path
    frame: pl.DataFrame  # raw columns and LINE
    bad: list[BadRow] = field(default_factory=list)


def files_of(data: DataConfig, globs: list[str] | None = None) -> list[Path]:
    """The raw files under data.root, sorted by name; a root that is itself a file stands for itself."""
    assert data.root is not None
    root = Path(data.root).expanduser()
    if not root.exists():
        raise UserError(f"data.root={data.root}: no such folder or file")
    if root.is_file():
        found = [root]
    else:
        globs = globs or list(data.source.files)
        found = sorted({p for g in globs for p in root.glob(g) if p.is_file() and not p.name.startswith(".")})
        if not found:
            there = sorted(p.name for p in root.iterdir())[:8]
            raise UserError(
                f"data.root={data.root}: no file matches {', '.join(globs)} "
                f"(there: {', '.join(there) or 'nothing'}); set data.source.files"
            )
    for path in found:
        if path.stat().st_size == 0:
            raise UserError(f"{path}: the file is empty")
    return found


def column_names(source: SourceConfig, file: Path) -> list[str]:
    """The raw columns of `file`, from its header or schema alone, before any row is read."""
    if source.format == "parquet":
        try:
            return list(pq.read_schema(file).names)
        except pa.ArrowInvalid as e:
            raise UserError(f"{file}: not a Parquet file ({e})") from e
    if source.header and source.format == "csv":
        with _open(file) as lines:
            first = lines.readline()
        if not first.strip():
            raise UserError(f"{file}: its first line is empty, not a header; set data.source.header=false")
        names = pacsv.open_csv(pa.BufferReader(first), parse_options=_parse_options(source)).schema.names
        return [name.lstrip("\ufeff") for name in names]
    if not source.columns:
        raise UserError("data.source.columns: needed where the files have no header")
    return list(source.columns)


def check_columns(data: DataConfig, file: Path, *, labelled: bool = True) -> None:
    """Raises UserError where the config names a column that `file` (with its joins) lacks."""
    raw = column_names(data.source, file)
    for here, there in data.source.rename.items():
        if there not in raw:
            raise UserError(f"data.source.rename.{here}: {file.name} has no column {there}{did_you_mean(there, raw)}")
    have = set(raw) | set(data.source.rename)
    for join in data.source.joins:
        side = column_names(_join_source(join), _side_file(data, join))
        if join.key not in have:
            raise UserError(f"data.source.joins: {file.name} has no column {join.key}{did_you_mean(join.key, have)}")
        for here, there in ({join.key: join.key} | dict(join.columns)).items():
            if there not in side:
                raise UserError(f"data.source.joins: {join.file} has no column {there}{did_you_mean(there, side)}")
            have.add(here)
    have |= set(data.derive)
    wanted = {f"data.dense.{n}": (c.column if c and c.column else n) for n, c in data.dense.items()}
    wanted |= {f"data.sparse.{n}": (c.column if c and c.column else n) for n, c in data.sparse.items()}
    if labelled:
        wanted["data.label"] = data.label.column
        if data.split.by == "time":
            wanted["data.split"] = data.split.column or ""
    for who, column in wanted.items():
        if column not in have:
            raise UserError(f"{who}: {file.name} has no column {column}{did_you_mean(column, have)}")


def read_blocks(data: DataConfig, file: Path, *, unlabelled: bool = False) -> Iterator[Block]:
    """The raw rows of `file`, joined with the side tables and with derived columns.

    unlabelled: the file may lack the label column (a header-less file then has one column less).
    """
    source = data.source
    names = column_names(source, file)
    if unlabelled and not source.header and source.format == "csv":
        names = _without_label(source, data.label.column, file, names)
    readers = {"csv": _read_csv, "parquet": _read_parquet, "libfm": _read_libfm}
    sides = [(join, _side_table(data, join)) for join in source.joins]
    for block in readers[source.format](source, file, names):
        frame = block.frame.rename({there: here for here, there in source.rename.items() if there in names})
        for join, side in sides:
            frame = frame.join(side, on=join.key, how="left", maintain_order="left")
        for column, sql in data.derive.items():
            frame = frame.with_columns(_derived(column, sql, frame))
        block.frame = frame
        yield block


def _derived(column: str, sql: str, frame: pl.DataFrame) -> pl.Expr:
    try:
        expr = pl.sql_expr(sql).alias(column)
        frame.head(0).select(expr)
        return expr
    except pl.exceptions.PolarsError as e:
        raise UserError(f"data.derive.{column}: {sql!r}: {str(e).splitlines()[0]}") from e


def _open(file: Path) -> Any:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")


def _parse_options(source: SourceConfig, handler: Any = None) -> pacsv.ParseOptions:
    return pacsv.ParseOptions(
        delimiter=source.separator,
        quote_char=source.quote or False,
        newlines_in_values=False,
        ignore_empty_lines=False,
        invalid_row_handler=handler,
    )


def _read_csv(source: SourceConfig, file: Path, names: list[str]) -> Iterator[Block]:
    all_bad: list[BadRow] = []
    told = 0

    def skip(row: pacsv.InvalidRow) -> str:
        reason = f"{row.actual_columns} fields, not {row.expected_columns}"
        all_bad.append(BadRow(str(file), row.number or 0, reason, row.text))
        return "skip"

    first_line = 2 if source.header else 1
    with _open(file) as raw:
        try:
            reader = pacsv.open_csv(
                raw,
                read_options=pacsv.ReadOptions(
                    block_size=BLOCK_BYTES,
                    column_names=names,
                    skip_rows=1 if source.header else 0,
                    use_threads=False,  # so that bad rows come with their line
                    encoding="utf8",
                ),
                parse_options=_parse_options(source, skip),
                convert_options=pacsv.ConvertOptions(
                    column_types={name: pa.string() for name in names},
                    strings_can_be_null=True,
                    null_values=[""],
                    quoted_strings_can_be_null=False,
                ),
            )
            line = first_line
            for batch in reader:
                frame = pl.from_arrow(pa.Table.from_batches([batch]))
                assert isinstance(frame, pl.DataFrame)
                lines, line = _lines(line, frame.height, [b.line for b in all_bad])
                yield Block(file, frame.with_columns(lines), all_bad[told:])
                told = len(all_bad)
        except (pa.ArrowInvalid, gzip.BadGzipFile, EOFError) as e:
            what = str(e).splitlines()[0][:160]
            raise UserError(
                f"{file}: cannot be read as CSV with separator {source.separator!r} and "
                f"{len(names)} columns: {what}"
            ) from e
    if told < len(all_bad):
        nothing = pl.DataFrame(schema={name: pl.String for name in names} | {LINE: pl.Int64})
        yield Block(file, nothing, all_bad[told:])


def _lines(first: int, good: int, bad: list[int]) -> tuple[pl.Series, int]:
    """The line of each of `good` rows from `first` on, the bad rows' lines left out; the line after them."""
    bad_lines = np.sort(np.array([b for b in bad if b >= first], dtype=np.int64))
    good_before = bad_lines - first - np.arange(len(bad_lines))
    rows = np.arange(good)
    lines = first + rows + np.searchsorted(good_before, rows, side="right")
    return pl.Series(LINE, lines, dtype=pl.Int64), int(lines[-1]) + 1 if good else first


def _read_parquet(source: SourceConfig, file: Path, names: list[str]) -> Iterator[Block]:
    row = 1
    with pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(batch_size=BLOCK_ROWS):
            frame = pl.from_arrow(pa.Table.from_batches([batch]))
            assert isinstance(frame, pl.DataFrame)
            yield Block(file, frame.with_columns(pl.int_range(row, row + frame.height).alias(LINE)))
            row += frame.height


def _read_libfm(source: SourceConfig, file: Path, names: list[str]) -> Iterator[Block]:
    """'label index:value index:value ...': the i-th index is the i-th column's id, as a string."""
    lines = SourceConfig(separator="\x01", quote=None, header=False)
    for block in _read_csv(lines, file, ["text"]):
        fields = block.frame.select(LINE, "text", parts=pl.col("text").str.split(" "))
        fits = pl.col("parts").list.len() == len(names)
        for row in fields.filter(~fits).iter_rows(named=True):
            reason = f"{len(row['parts'] or [])} fields, not {len(names)}"
            block.bad.append(BadRow(str(file), row[LINE], reason, row["text"] or ""))
        block.frame = fields.filter(fits).select(
            LINE,
            pl.col("parts").list.get(0).alias(names[0]),
            *(
                pl.col("parts").list.get(i).str.extract(r"^([^:]+):", 1).alias(name)
                for i, name in enumerate(names[1:], start=1)
            ),
        )
        yield block


def _without_label(source: SourceConfig, label: str, file: Path, names: list[str]) -> list[str]:
    """The columns of a header-less file that may lack the label, told by its first line's fields."""
    with _open(file) as lines:
        fields = lines.readline().decode(errors="replace").rstrip("\r\n").split(source.separator)
    rest = [n for n in names if n != label]
    return rest if len(fields) == len(rest) else names


def _join_source(join: JoinConfig) -> SourceConfig:
    return SourceConfig(format="parquet" if join.file.endswith(".parquet") else "csv", separator=join.separator, quote=join.quote)


def _side_file(data: DataConfig, join: JoinConfig) -> Path:
    root = Path(data.root or "").expanduser()
    path = (root.parent if root.is_file() else root) / join.file
    if not path.is_file():
        raise UserError(f"data.source.joins: no such file: {path}")
    return path


def _side_table(data: DataConfig, join: JoinConfig) -> pl.DataFrame:
    source = _join_source(join)
    file = _side_file(data, join)
    read = _read_parquet if source.format == "parquet" else _read_csv
    side = pl.concat([b.frame for b in read(source, file, column_names(source, file))])
    side = side.select(pl.col(there).alias(here) for here, there in ({join.key: join.key} | dict(join.columns)).items())
    if side[join.key].n_unique() != side.height:
        raise UserError(f"data.source.joins: {join.file} has more than one row for a value of {join.key}")
    return side
