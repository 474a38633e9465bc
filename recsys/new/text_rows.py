"""Turn the lines of a text file into rows, by the format of the file."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from recsys.data.features.blocks import LINE, LIST
from recsys.data.raw.dialect import SPACES, UNIT
from recsys.data.raw.formats import column_names, read
from recsys.data.raw.nested import plain
from recsys.files.json_text import parse_json
from recsys.new import raw_bytes
from recsys.new.find_dialect import Dialect
from recsys.schema.data_schema import SourceConfig


def parse_lines(lines: list[str], dialect: Dialect) -> pl.DataFrame:
    """Return the rows of lines: the columns of the dialect as text, and null for an empty value."""
    if dialect.format == "jsonl":
        return json_frame(lines)
    if dialect.format != "csv":
        return lines_frame(lines, dialect)
    if dialect.separator == SPACES:
        lines = [UNIT.join(line.split()) for line in lines]
    elif dialect.quote is None or not any(dialect.quote in line for line in lines):
        lines = [line.replace(dialect.separator, UNIT) for line in lines]
    if dialect.quote and not dialect.line_breaks:  # without bad rows, such as a last one that was cut
        lines = [line for line in lines if line.count(dialect.quote) % 2 == 0] or lines
    separated = dialect.separator if dialect.quote and UNIT not in lines[0] and dialect.width > 1 else UNIT
    if separated != UNIT and dialect.strip:
        lines = [re.sub(rf"{re.escape(separated)} +(?={dialect.quote})", separated, line) for line in lines]
    names = [*dialect.columns, "__trailing__"] if dialect.trailing else dialect.columns
    frame = pl.read_csv(
        "\n".join(lines).encode(),
        schema=dict.fromkeys(names, pl.String),
        separator=separated,
        quote_char=None if separated == UNIT else dialect.quote,
        has_header=False,
        truncate_ragged_lines=True,
        ignore_errors=True,
    )
    frame = frame.select(dialect.columns)
    if dialect.strip:
        frame = frame.with_columns(pl.all().str.strip_chars())
    return frame.with_columns(pl.when(pl.all() == "").then(None).otherwise(pl.all()).name.keep())


def json_frame(lines: Sequence[str]) -> pl.DataFrame:
    """Return the rows of JSON lines, without damaged lines."""
    rows = []
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:  # a damaged line, or one that was cut
            continue
        rows.append(row)
    return _rows_frame(rows)


def _rows_frame(rows: Sequence[Any]) -> pl.DataFrame:
    flat = [_flat(row) for row in rows if isinstance(row, dict)]
    return pl.DataFrame(flat, infer_schema_length=None, strict=False) if flat else pl.DataFrame()


def json_array(file: Path) -> pl.DataFrame:
    """Return the rows of a JSON array of objects."""
    with raw_bytes.opened(file) as raw:
        rows = parse_json(raw.read())
    return plain(_rows_frame(rows), file)


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields under their paths: {"user": {"id": 7}} is {"user.id": 7}."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def lines_frame(lines: Sequence[str], dialect: Dialect) -> pl.DataFrame:
    """Return the rows of lines of libfm, svmlight, slots or lists as training reads them."""
    columns = dialect.columns
    if dialect.format == "libfm":
        widths = Counter(len(line.split()) for line in lines)
        columns = ["label", *(f"field_{i}" for i in range(1, widths.most_common(1)[0][0]))]
    source = SourceConfig(format=dialect.format, separator=dialect.separator, columns=columns, header=False)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        frame = pl.concat(block.frame for block in read(source, file, column_names(source, file)))
    if dialect.format == "lists":
        user = pl.col("user") if columns == ["user", "item"] else pl.col(LIST).rle_id().cast(pl.String)
        return frame.select(user, "item")
    return frame.drop(LINE)
