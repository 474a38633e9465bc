"""Base classes of the formats of raw files, the values of `data.source.format`. `formats.py` lists the formats."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import ELEMENT, LINE, Block
from recsys.data.raw.byte_ranges import WHOLE, FileRange, Projection, is_compressed
from recsys.data.raw.dialect import is_ascii_compatible
from recsys.schema.source_schema import SourceConfig


class RawFormat(ABC):
    """A format of raw files.

    Attributes:
        name: its name in the config.
        range_bytes, range_rows: about the size of a range of text, and of other files.
        suffixes: of side tables that have this format; empty if side tables cannot have it.
        names_columns: whether files name their columns, so that a file may lack one (`optional_columns`).
        has_header: whether a file may begin with a line of names (`header`).
        explodes: whether its lists can become rows (`explode`).
        untyped: whether all values are text, and an empty one is missing.
        names_file: whether rows contain the name of their file.
        has_head: whether the first rows of a file can be read without the others.
        needs_spec: whether only `data.spec` can describe its files.
    """

    name: ClassVar[str]
    range_bytes: ClassVar[int] = 128 << 20
    range_rows: ClassVar[int] = 1 << 19
    suffixes: ClassVar[tuple[str, ...]] = ()
    names_columns: ClassVar[bool] = False
    has_header: ClassVar[bool] = False
    explodes: ClassVar[bool] = False
    untyped: ClassVar[bool] = False
    names_file: ClassVar[bool] = False
    has_head: ClassVar[bool] = False
    needs_spec: ClassVar[bool] = False

    @abstractmethod
    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        """Return a frame without rows that has the columns of a file and their types, without reading its rows.

        Raises:
            UserError: the file does not have this format.
        """

    @abstractmethod
    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        """Read the raw rows of a range of a file, in bounded memory, with their lines and the bad rows.

        Args:
            names: the columns of a file that does not name them itself.
            file_range: one of `ranges`; lines (Parquet: rows) count from 1 at its beginning.
        """

    def ranges(self, source: SourceConfig, file: Path) -> list[FileRange]:
        """Cut a file into ranges of about `range_bytes` or `range_rows` that can be read apart."""
        return [WHOLE]

    def head(self, source: SourceConfig, file: Path, size: int) -> FileRange:
        """Return the range of the first `size` bytes of text; all of a file that cannot be cut."""
        return WHOLE

    def files(self, source: SourceConfig, file: Path) -> list[Path]:
        """Return the files that make up a raw file: usually itself."""
        return [file]

    def expected_rows(self, file: Path, file_range: FileRange) -> float | None:
        """Return about how many rows a range has, for a progress bar; None if that is not known."""
        return None


class TextFormat(RawFormat):
    """A format whose rows are lines of text, which may be compressed (.gz, .bz2, .xz, .zst, .zip)."""

    untyped = True
    has_head = True

    def can_be_cut(self, source: SourceConfig, file: Path) -> bool:
        """Return whether a file can be read from the middle."""
        return not is_compressed(file) and is_ascii_compatible(source.encoding)

    def ranges(self, source: SourceConfig, file: Path) -> list[FileRange]:
        size = file.stat().st_size
        if not self.can_be_cut(source, file):
            return [WHOLE]
        starts = range(0, max(size, 1), self.range_bytes)
        return [FileRange(start, min(start + self.range_bytes, size)) for start in starts]

    def head(self, source: SourceConfig, file: Path, size: int) -> FileRange:
        return FileRange(0, size) if self.can_be_cut(source, file) else WHOLE

    def expected_rows(self, file: Path, file_range: FileRange) -> float | None:
        if file_range.stop is None:
            return None
        with file.open("rb") as f:
            f.seek(file_range.start)
            first = f.read(1 << 16)
        size = file_range.stop - file_range.start
        return size / (len(first) / max(first.count(b"\n"), 1)) if first else 0


def check_column_names(names: list[str], file: Path) -> None:
    """Raise UserError if two columns have the same name, or one has a name that is reserved."""
    if twice := repeated(names):
        bare = ", ".join(str(i) for i, name in enumerate(names, 1) if not name)
        unnamed = f"columns {bare} have no name; list the names of all columns in data.source.columns"
        raise UserError(f"{file}: {f'two columns are named {twice[0]}; rename one' if twice[0] else unnamed}")
    for name in (LINE, ELEMENT):
        if name in names:
            raise UserError(f"{file}: a column is named {name}, which is reserved; rename it")


def repeated(names: list[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]
