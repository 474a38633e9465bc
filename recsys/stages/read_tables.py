"""Read the tables of a pipeline: users, items, events and requests."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.value_types import as_time
from recsys.files.data_files import matching, named_by
from recsys.files.text_values import as_text
from recsys.files.user_files import problem_of
from recsys.schema.pipeline_schema import TableConfig


def read_table(table: TableConfig, root: Path, key: str, needs: tuple[str, ...] = ()) -> pl.DataFrame:
    """Return a table with the names of its columns in the pipeline.

    Args:
        table: the files and their columns.
        root: folder from which relative paths start.
        key: the config key of the table, for messages.
        needs: columns that must be there and name users or items; they are read as text, and rows without them are
            left out.

    Raises UserError for a file or a column that is not there, or a file that cannot be read.
    """
    given = table.file
    files: list[Path] = []
    for name in given:
        found = named_by(name) if Path(name).is_absolute() else sorted({*matching(root, name)})
        if not found:
            raise UserError(f"{key}.file={name}: no such file in {root.resolve()}")
        for file in found:
            if problem := problem_of(file):
                raise UserError(f"{key}.file={name}: {file} {problem}")
        files += found
    frame = pl.concat([_read(f, table, key) for f in files], how="diagonal_relaxed")
    if table.columns is not None:
        for name, raw_name in table.columns.items():
            if raw_name not in frame.columns:
                hint = did_you_mean(raw_name, frame.columns)
                raise UserError(f"{key}.columns.{name}: {files[0]} has no column {raw_name}{hint}")
        frame = frame.select(pl.col(raw_name).alias(name) for name, raw_name in table.columns.items())
    for name in needs:
        if name not in frame.columns:
            hint = did_you_mean(name, frame.columns)
            raise UserError(f"{key}: {files[0]} has no column {name}{hint}; rename one with {key}.columns.{name}=NAME")
    return frame.with_columns(as_text(pl.col(n), frame.schema[n]) for n in needs).drop_nulls(needs)


def _read(file: Path, table: TableConfig, key: str) -> pl.DataFrame:
    try:
        if file.suffix == ".parquet":
            return pl.read_parquet(file, glob=False)
        if file.suffix in (".jsonl", ".ndjson"):
            return pl.read_ndjson(file.read_bytes(), infer_schema_length=None)
        names, quote = table.names, table.quote
        separator = table.separator or ("\t" if file.suffix == ".tsv" else ",")
        separator = separator.replace("\\t", "\t")  # as a shell passes it on
        source: Path | bytes = file
        if table.encoding.lower().replace("-", "") != "utf8" or len(separator) > 1:
            text = file.read_text(encoding=table.encoding)
            if len(separator) > 1:  # polars divides at one byte
                text, separator = text.replace(separator, "\x1f"), "\x1f"
            source = text.encode()
        how = {"separator": separator, "quote_char": quote, "has_header": names is None, "new_columns": names}
        frame = pl.read_csv(source, infer_schema_length=None, glob=False, **how)  # type: ignore[arg-type]
        if whole := [n for n, dtype in frame.schema.items() if dtype.is_numeric()]:  # 0007 is text
            texts = pl.read_csv(source, infer_schema=False, glob=False, **how).select(whole)  # type: ignore[arg-type]
            frame = frame.with_columns(x for x in texts if x.str.contains("^[+-]?0[0-9]").any())
        return frame
    except (pl.exceptions.PolarsError, OSError, UnicodeError, LookupError) as e:
        first = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        hint = "set its separator, quote or encoding"
        raise UserError(f"{key}.file: {file} cannot be read ({first[:200]}); {hint}") from e


def check_times(frame: pl.DataFrame, column: str, key: str) -> None:
    """Raise UserError for a value that is neither a number nor a time: it would sort wrongly, and fail in requests."""
    bad = frame.filter(pl.col(column).is_not_null() & as_time(column, frame.schema[column]).is_null())
    if bad.height:
        what = f"{bad[column][0]!r} is neither a number nor a time ({bad.height:,} of {frame.height:,} rows)"
        raise UserError(f"{key}: column {column}: {what}; correct or remove them")


def distinct_rows(frame: pl.DataFrame, column: str, key: str) -> pl.DataFrame:
    """Return the table if its keys are distinct. Raises UserError for one that appears twice."""
    twice = frame.filter(pl.col(column).is_duplicated())
    if twice.height:
        raise UserError(f"{key}: has more than one row for {column} {twice[column][0]}; keep one")
    return frame
