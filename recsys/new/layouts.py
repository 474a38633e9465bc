"""How a raw file is read: a class for each format, with its keys of `source:` and the way a sample of it is read.

To recognise another format, add its class here, and let find_layout.py return it.
"""

import csv
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, LIST
from recsys.data.raw import json_lines
from recsys.data.raw.arrow_files import polars_frame
from recsys.data.raw.dialect import SPACES
from recsys.data.raw.formats import FORMATS, column_names, read
from recsys.files.json_text import parse_json
from recsys.new import raw_bytes
from recsys.new.raw_bytes import Sample, json_array, json_frame, thinned
from recsys.new.separators import plain_quotes
from recsys.schema.source_schema import SourceConfig

Key = tuple[str, ...]  # what files of the same columns have in common

EXCEL = re.compile(r"sep=.")  # the first line that Excel writes to name the separator; the reader skips it
MIN_SHARED = 0.6  # of the columns of two files, from which they may hold rows of the same kind
MAX_KEYS = 1000  # of a JSON object that is a row
MAX_SPARSE_LINES = 50_000  # of a sample of lines whose values have numbers instead of names


class OtherRows(UserError):
    """Text whose rows have to be converted before they can be read."""


@dataclass(kw_only=True)
class Layout(ABC):
    """How a file is read, in the words of `source:`, and why."""

    format: ClassVar[str] = ""
    joins: ClassVar[bool] = False  # whether a side table may have this format
    takes_marks: ClassVar[bool] = False  # whether `source:` may say which values are missing
    reads_whole: ClassVar[bool] = False  # whether a sample reads the whole file
    names_fields: ClassVar[bool] = False  # whether each row names its values, so that rows may lack columns
    holds_items: ClassVar[bool] = False  # whether each value is an item
    holds_indices: ClassVar[bool] = False  # whether whole numbers are indices of features, never quantities
    holds_quantities: ClassVar[bool] = False  # whether whole numbers are quantities, never indices
    is_csv: ClassVar[bool] = False

    columns: list[str] = field(default_factory=list)
    header: bool = True  # whether the file begins with the names of its columns
    renamed: bool = False  # whether `columns` replaces the names of the header
    sure_of_header: bool = True
    separator: str = ""
    width: int = 0  # the number of columns of a line
    first: str = ""  # the first line
    comment: str | None = None
    reasons: dict[str, str] = field(default_factory=dict)  # key of `source:` -> why it has its value

    @property
    def typed(self) -> bool:
        """Whether the columns have types, not only text."""
        return self.format in FORMATS and not FORMATS[self.format].untyped

    @property
    def names_columns(self) -> bool:
        """Whether the names of the columns stand in the file."""
        return self.header or self.names_fields

    def key(self, others: Mapping[Key, "Layout"]) -> Key:
        """Return what files of the same columns have in common. others: the layouts of the keys of other files"""
        return (self.format, *sorted(self.columns))

    def options(self) -> dict[str, Any]:
        """Return the keys of `source:` but the format and the files."""
        return {}

    @abstractmethod
    def sample(self, file: Path, most: int, share: float) -> Sample:
        """Return at most so many rows of a file. share: of the bytes that a sample of one file reads"""


class ParquetLayout(Layout):
    """Columns in row groups, of which the first, the middle and the last one make the sample."""

    format, joins = "parquet", True

    def sample(self, file: Path, most: int, share: float) -> Sample:
        with pq.ParquetFile(file) as parquet:
            groups, total = parquet.num_row_groups, parquet.metadata.num_rows
            some = sorted({0, groups // 2, groups - 1} & set(range(groups)))[: 3 if share == 1 else 1]
            size = max(most // max(len(some), 1), 1)
            batches = [b for group in some for b in [*parquet.iter_batches(size, row_groups=[group])][:1]]
        if not batches:
            raise UserError(f"{file}: has no rows")
        frames = [polars_frame(pa.Table.from_batches([batch])) for batch in batches]
        return Sample(pl.concat(frames, how="diagonal_relaxed"), total)


class ArrowLayout(Layout):
    """An Arrow IPC file."""

    format, reads_whole = "arrow", True

    def sample(self, file: Path, most: int, share: float) -> Sample:
        with file.open("rb") as f:
            frame = pl.read_ipc(f)
        return Sample(thinned(frame, most), frame.height)


class JsonArrayLayout(Layout):
    """A JSON array of objects."""

    format, joins, takes_marks, reads_whole = "json", True, True, True

    def sample(self, file: Path, most: int, share: float) -> Sample:
        frame = json_array(file)
        return Sample(thinned(frame, most), frame.height)


@dataclass(kw_only=True)
class TextLayout(Layout):
    """Lines of text."""

    keys: ClassVar[tuple[str, ...]] = ()  # of `source:`, besides those of all text
    most_lines: ClassVar[int] = 1 << 60  # of a sample

    header: bool = False
    encoding: str = "utf-8"
    separator: str = ","
    quote: str | None = '"'
    escape: bool = False  # whether a backslash stands before quotes within values
    line_breaks: bool = False  # whether quoted values hold line breaks
    strip: bool = False
    trailing: bool = False  # whether lines end with a separator, after which there is no column
    leading: list[str] = field(default_factory=list)  # the columns whose values have no name on their lines

    @property
    def cut_anywhere(self) -> bool:
        """Whether the bytes of a file can be cut at line feeds."""
        return not self.encoding.startswith("utf-16")

    def key(self, others: Mapping[Key, Layout]) -> Key:
        return (self.format, self.separator, *(self.columns if self.header else [str(self.width)]))

    def completed(self, lines: Sequence[str], file: Path) -> "TextLayout":
        """Return the layout with the names of its columns, by the first lines of a file.

        Raises OtherRows, without the name of the file, if the rows have to be converted before they can be read.
        """
        self.columns = self.columns or (self.parse(list(lines[:200])).columns if self.names_fields else [])
        return self

    def options(self) -> dict[str, Any]:
        columns = self.leading if self.names_fields else self.columns
        values = {
            "separator": self.separator,
            "quote": self.quote,
            "escape": "\\" if self.escape else None,
            "line_breaks_in_quotes": self.line_breaks,
            "encoding": self.encoding,
            "comment": self.comment,
            "strip": self.strip,
            "header": self.header or not self.is_csv,
            "columns": list(columns) if self.renamed or not self.header else [],
        }
        usual, keys = SourceConfig(), (*self.keys, "encoding", "comment", "strip")
        options = {k: v for k, v in values.items() if k in keys and (k == "separator" or v != getattr(usual, k))}
        if "columns" in options and not self.names_fields:
            self.reasons.setdefault("columns", "the file has no header")
        return options

    def sample(self, file: Path, most: int, share: float) -> Sample:
        if self.cut_anywhere:
            pieces, size = raw_bytes.pieces(file, share=share)
        else:
            pieces, size = [raw_bytes.head(file)], file.stat().st_size
        lines: list[str] = []
        for piece in pieces:
            text = piece.decode(self.encoding, errors="replace").removeprefix("\ufeff")
            text = plain_quotes(text, self.separator, escape=self.escape, line_breaks=self.line_breaks)
            lines += [line.rstrip("\r") for line in text.split("\n")]
        lines, read_bytes = without_excel(lines), sum(map(len, pieces))
        rows = len(lines) * max(size, read_bytes) / max(read_bytes, 1)
        lines = [line for line in lines if line.strip() and not (self.comment and line.startswith(self.comment))]
        lines = self.rows_among(lines)
        if not lines:
            raise UserError(f"{file}: has no rows, only a header or comments")
        if len(lines) > (most := min(most, self.most_lines)):
            lines = thinned(pl.DataFrame({"x": lines}), most)["x"].to_list()
        frame = self.parse(lines)
        return Sample(frame, round(rows) if not self.holds_items else round(rows * frame.height / len(lines)))

    def rows_among(self, lines: list[str]) -> list[str]:
        """Return the lines that are rows."""
        return lines

    def unnamed_columns(self, lines: Sequence[str]) -> list[str]:
        """Return the columns whose names do not stand on lines, for a reader of these lines."""
        return self.columns if self.is_csv else self.leading

    def parse(self, lines: list[str]) -> pl.DataFrame:
        """Return the rows of lines, as training reads them, without rows that it cannot read."""
        source = SourceConfig(
            format=self.format,
            separator=self.separator,
            columns=self.unnamed_columns(lines),
            header=False,
            quote=self.quote,
            strip=self.strip,
        )
        with TemporaryDirectory() as folder:
            file = Path(folder) / "rows"
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            frame = pl.concat(block.frame for block in read(source, file, column_names(source, file))).drop(LINE)
        return frame.with_columns(pl.all().str.strip_chars().replace("", None)) if self.strip else frame

    def fields(self, line: str) -> list[str]:
        """Return the values of a line."""
        line = line.rstrip("\r")
        if self.separator == SPACES:
            values = line.split()
        elif self.quote is not None and self.quote in line and len(self.separator) == 1:
            reader = csv.reader([line], delimiter=self.separator, quotechar=self.quote, skipinitialspace=self.strip)
            values = next(reader, [])
        else:
            values = line.split(self.separator)
        return [v.strip() for v in values] if self.strip else values


class CsvLayout(TextLayout):
    """Values between separators."""

    format, joins, takes_marks, is_csv = "csv", True, True, True
    keys = ("separator", "quote", "escape", "line_breaks_in_quotes", "header", "columns")

    def rows_among(self, lines: list[str]) -> list[str]:
        if self.header:  # it stands in the middle, too, where files were joined
            header = lines[0]
            lines = [line for line in lines if line != header]
        if self.line_breaks:  # a piece may begin within a value
            lines = [line for line in lines if len(self.fields(line)) == self.width + self.trailing]
        return lines


class ListsLayout(TextLayout):
    """Lines of items, perhaps after a user."""

    format, takes_marks, holds_items = "lists", True, True
    keys = ("separator", "quote", "columns")

    def parse(self, lines: list[str]) -> pl.DataFrame:
        user = pl.col("user") if "user" in self.columns else pl.col(LIST).rle_id().cast(pl.String)
        return super().parse(lines).select(user, "item")


class LibFmLayout(TextLayout):
    """A label, and indices of features with the value 1."""

    format, takes_marks, holds_indices, most_lines, keys = "libfm", True, True, MAX_SPARSE_LINES, ("columns",)

    def unnamed_columns(self, lines: Sequence[str]) -> list[str]:
        [(width, _)] = Counter(len(line.split()) for line in lines).most_common(1)
        return ["label", *(f"field_{i}" for i in range(1, width))]


class SvmLightLayout(TextLayout):
    """A label, and numbered values."""

    format, most_lines, names_fields, holds_quantities = "svmlight", MAX_SPARSE_LINES, True, True

    def key(self, others: Mapping[Key, Layout]) -> Key:
        return (self.format,)


class JsonLinesLayout(TextLayout):
    """A JSON object on each line."""

    format, joins, takes_marks, names_fields = "jsonl", True, True, True

    def key(self, others: Mapping[Key, Layout]) -> Key:
        names = set(self.columns)
        for key, other in others.items():
            if other.format == self.format and len(names & {*other.columns}) >= MIN_SHARED * len(
                names | {*other.columns}
            ):
                return key
        return (self.format, *self.columns)

    def completed(self, lines: Sequence[str], file: Path) -> TextLayout:
        try:
            first = parse_json(lines[0])
        except ValueError:
            first = None
        if isinstance(first, dict) and len(first) > MAX_KEYS:
            raise OtherRows("is one object of many keys; write an object of each on a line, with its key and its value")
        if not isinstance(first, dict):
            what = "its lines begin as JSON objects do, and are none; write one object a line"
            raise OtherRows(json_lines.python_objects(lines[0], file) or what)
        self.columns = self.parse(list(lines[:200])).columns
        return self

    def parse(self, lines: list[str]) -> pl.DataFrame:
        return json_frame(lines)


def without_excel(lines: list[str]) -> list[str]:
    """Return the lines without a first line such as sep=;"""
    return lines[1:] if lines and EXCEL.fullmatch(lines[0].rstrip("\r")) else lines
