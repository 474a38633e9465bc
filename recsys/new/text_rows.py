"""Turn the lines of a text file into rows, by the format of the file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from recsys.data.raw import slots, svmlight
from recsys.data.raw.dialect import SPACES, UNIT
from recsys.data.raw.nested import plain
from recsys.files.json_text import parse_json
from recsys.new import raw_bytes
from recsys.new.find_dialect import Dialect


def parse_lines(lines: list[str], dialect: Dialect) -> pl.DataFrame:
    """Return the rows of lines: the columns of the dialect as text, and null for an empty value."""
    if dialect.format == "jsonl":
        return json_frame(lines)
    if dialect.format == "libfm":
        return _libfm_frame(lines)
    if dialect.format == "svmlight":
        return svmlight_frame(lines)
    if dialect.format == "slots":
        return slots_frame(lines, dialect)
    if dialect.format == "lists":
        return _lists_frame(lines, dialect)
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


def _libfm_frame(lines: Sequence[str]) -> pl.DataFrame:
    rows = [line.split() for line in lines]
    width = max({len(r) for r in rows}, key=lambda n: sum(len(r) == n for r in rows))
    same = [[r[0], *(x.partition(":")[0] for x in r[1:])] for r in rows if len(r) == width]
    names = ["label", *(f"field_{i}" for i in range(1, width))]
    return pl.DataFrame(same, schema=dict.fromkeys(names, pl.String), orient="row")


def svmlight_frame(lines: Sequence[str]) -> pl.DataFrame:
    """Return the rows of svmlight lines: the label, and a column for each index with 0 where a line lacks it."""
    rows = []
    for label, *others in filter(None, map(svmlight.parts, lines)):
        pairs = (x.partition(":") for x in others)
        rows.append({svmlight.LABEL: label} | {svmlight.column(key): value for key, _, value in pairs})
    frame = pl.DataFrame(rows, infer_schema_length=None)
    numbers = [c for c in frame.columns if c[1:].isdigit()]
    names = [c for c in frame.columns if not c[1:].isdigit()]
    return frame.select(*names, pl.col(sorted(numbers, key=lambda c: int(c[1:]))).fill_null("0"))


def slots_frame(lines: Sequence[str], dialect: Dialect) -> pl.DataFrame:
    """Return the rows of lines of slot:value; the values of a repeated slot are joined by the separator."""
    _, names = slots.slots(list(lines), dialect.separator)
    rows = []
    for line in lines:
        fields = slots.parts(line, dialect.separator)
        row = dict(zip(dialect.columns, fields, strict=False))
        for field in fields[len(dialect.columns) :]:
            name, _, value = field.partition(":")
            row[name] = f"{row[name]}{dialect.separator}{value}" if name in row else value
        rows.append(row)
    schema = dict.fromkeys([*dialect.columns, *names], pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.rename({n: svmlight.column(n) for n in names})


def _lists_frame(lines: Sequence[str], dialect: Dialect) -> pl.DataFrame:
    parts = [[p for p in line.split(dialect.separator) if p] for line in lines]
    if dialect.columns == ["user", "item"]:
        rows = [(r[0], item) for r in parts for item in r[1:]]
    else:
        rows = [(str(i), item) for i, r in enumerate(parts) for item in r]
    names = ["user" if dialect.columns == ["user", "item"] else "list", "item"]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
