"""Schemas of `data.source`: raw files, their format, and side tables."""

from dataclasses import fields
from typing import Any

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from recsys.schema.fields import CHECKED, field


@dataclass(kw_only=True, config=CHECKED)
class TextConfig:
    """How the lines of a text file (CSV) are divided into values."""

    separator: str = field(",", 'a character, several characters such as "::", or \\s+ for any run of spaces and TABs')
    quote: str | None = field('"', "the character around values that contain the separator; null: quotes are text")
    escape: str | None = field(None, 'the character before quotes that are part of a quoted value: "\\\\" reads \\"')
    line_breaks_in_quotes: bool = field(False, "quoted values may hold line breaks; such a file is read as one chunk")
    encoding: str = field("utf-8", "a name that Python knows, such as latin-1, cp1252 or utf-16")
    comment: str | None = field(None, "lines that begin with this text are ignored")
    strip: bool = field(False, "remove the spaces around text, too; those around names and numbers are always removed")
    null_values: list[str] = field(list, "text that stands for a missing value, in any column")
    column_null_values: dict[str, list[str]] = field(dict, "more of them: column -> text")


def text_options(c: TextConfig) -> dict[str, Any]:
    """Return the settings of `c` that TextConfig declares, as arguments of another such config."""
    return {f.name: getattr(c, f.name) for f in fields(TextConfig)}


@dataclass(config=CHECKED)
class JoinConfig(TextConfig):
    """A side table in `file` under data.root, left-joined on the column `key`."""

    file: str
    key: str
    columns: dict[str, str] = field(
        dict, "name here -> name in the file, the key's included if they differ; empty: all columns of the file"
    )
    names: list[str] = field(list, "names of the file's columns, if it has no header")
    format: str | None = field(None, "csv | parquet | json | jsonl | arrow; null: by the end of the file's name")


@dataclass(config=CHECKED)
class PartConfig:
    """Files that hold some columns of a raw file; their rows are concatenated (formats split_binary and split_csv)."""

    files: list[str] = field(list)
    columns: list[str] = field(list, "in the order of a row")
    dtypes: list[str] = field(list, "NumPy dtypes of the columns, for split_binary")


@dataclass(config=CHECKED)
class ArrayConfig:
    """A .npy file whose rows have these columns."""

    file: str = field(
        "",
        "npy: file name or path relative to the raw file; {} is replaced by the part of the name that the files share",
    )
    columns: list[str] = field(list)


@dataclass(config=CHECKED)
class SourceConfig(TextConfig):
    """Settings of the raw files and their format."""

    format: str = field(
        "csv",
        "csv | parquet | jsonl | json | arrow | npy | libfm | svmlight | lists | sql | delta | "
        "iceberg; data.spec sets split_binary | split_csv",
    )
    files: list[str] = field(lambda: ["*"], "globs under data.root")
    header: bool = field(True, "whether the first line has the columns' names")
    columns: list[str] = field(list, "names, if the files have no header, or instead of the header's")
    optional_columns: list[str] = field(
        list,
        "columns (as the files name them) that some files lack: their values are missing in the rows of these files",
    )
    decimal: str = field(".", "the decimal mark of numbers in text")
    thousands: str | None = field(None, "the mark between groups of three digits")
    query: str | None = field(None, "sql: the query whose rows are read; data.root is the database's URL")
    query_timeout_s: PositiveFloat = field(3600.0, "seconds after which a query is given up")
    explode: Any = field(
        None,
        "one row for each element of a list: a column, [columns with lists of equal length], or, for text, "
        "{column: separator}; columns as the files name them",
    )
    rename: dict[str, str] = field(dict, "name here -> name in the file")
    joins: list[JoinConfig] = field(list, "side tables that are joined to the rows: a list of JoinConfig")
    arrays: dict[str, ArrayConfig] = field(dict, "npy: the arrays that hold a raw file's columns")
    parts: dict[str, list[PartConfig]] = field(dict, "parts of each raw file; set by data.spec")
