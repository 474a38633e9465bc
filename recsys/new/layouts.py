"""How a raw file is read: a class for each format, with its keys of `source:`.

To recognise another format, add its class here, and let find_layout.py return it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from recsys.base.errors import UserError
from recsys.data.raw.formats import FORMATS, column_names
from recsys.schema.source_schema import SourceConfig

Key = tuple[str, ...]  # what files of the same columns have in common

EXCEL = re.compile(r"sep=.")  # the first line that Excel writes to name the separator; the reader skips it
MIN_SHARED = 0.6  # of the columns of two files, from which they may hold rows of the same kind


class OtherRows(UserError):
    """Text whose rows have to be converted before they can be read."""


@dataclass(kw_only=True)
class Layout:
    """How a file is read, in the words of `source:`, and why."""

    format: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ()  # of `source:`, which may differ from its defaults
    joins: ClassVar[bool] = False  # whether a side table may have this format
    takes_marks: ClassVar[bool] = False  # whether `source:` may say which values are missing
    names_fields: ClassVar[bool] = False  # whether each row names its values, so that rows may lack columns
    holds_items: ClassVar[bool] = False  # whether each value is an item
    holds_indices: ClassVar[bool] = False  # whether whole numbers are indices of features, never quantities
    is_csv: ClassVar[bool] = False

    columns: list[str] = field(default_factory=list)
    header: bool = True  # whether the file begins with the names of its columns
    renamed: bool = False  # whether `columns` replaces the names of the header
    sure_of_header: bool = True
    width: int = 0  # the number of columns of a line
    first: str = ""  # the first line
    separator: str = ","
    quote: str | None = '"'
    escape: str | None = None  # the character before quotes within values
    line_breaks_in_quotes: bool = False
    encoding: str = "utf-8"
    comment: str | None = None
    strip: bool = False
    trailing: bool = False  # whether lines end with a separator, after which there is no column
    reasons: dict[str, str] = field(default_factory=dict)  # key of `source:` -> why it has its value

    @property
    def typed(self) -> bool:
        """Whether the columns have types, not only text."""
        return self.format in FORMATS and not FORMATS[self.format].untyped

    def key(self, others: Mapping[Key, "Layout"]) -> Key:
        """Return what files of the same columns have in common. others: the layouts of the keys of other files"""
        return (self.format, *sorted(self.columns))

    def options(self) -> dict[str, Any]:
        """Return the keys of `source:` but the format and the files."""
        usual, given = SourceConfig(), self.renamed or not self.header
        values = {key: getattr(self, key) for key in self.keys if key != "columns" or given}
        options = {k: v for k, v in values.items() if k == "separator" or v != getattr(usual, k)}
        if "columns" in options:
            self.reasons.setdefault("columns", "the file has no header")
        return options

    def source(self) -> SourceConfig:
        """Return the config that reads the file."""
        return SourceConfig(format=self.format, **self.options())

    def named(self, file: Path) -> "Layout":
        """Return the layout with the columns that the reader of rows finds in a file."""
        self.columns = column_names(self.source(), file)
        return self


class ParquetLayout(Layout):
    """Columns in row groups."""

    format, joins = "parquet", True


class ArrowLayout(Layout):
    """An Arrow IPC file."""

    format = "arrow"


class JsonArrayLayout(Layout):
    """A JSON array of objects."""

    format, joins, takes_marks = "json", True, True


class JsonLinesLayout(Layout):
    """A JSON object on each line."""

    format, joins, takes_marks, names_fields, keys = "jsonl", True, True, True, ("encoding", "comment")

    def key(self, others: Mapping[Key, Layout]) -> Key:
        names = set(self.columns)
        for key, other in others.items():
            both = {*other.columns}
            if other.format == self.format and len(names & both) >= MIN_SHARED * len(names | both):
                return key
        return super().key(others)


class CsvLayout(Layout):
    """Values between separators."""

    format, joins, takes_marks, is_csv = "csv", True, True, True
    keys: ClassVar[tuple[str, ...]] = (
        *("separator", "quote", "escape", "line_breaks_in_quotes", "encoding", "comment", "strip"),
        *("header", "columns"),
    )

    def key(self, others: Mapping[Key, Layout]) -> Key:
        return (self.format, self.separator, *(self.columns if self.header else [str(self.width)]))


class ListsLayout(CsvLayout):
    """Lines of items, perhaps after a user."""

    format, joins, holds_items, is_csv = "lists", False, True, False
    keys = ("separator", "encoding", "comment", "columns")


class LibFmLayout(CsvLayout):
    """A label, and indices of features with the value 1."""

    format, joins, holds_indices, is_csv = "libfm", False, True, False
    keys = ("columns",)
