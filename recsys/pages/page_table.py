"""Tables and legends as plain data, which macros.html writes."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from recsys.pages.elements import MAX_VALUE_LENGTH, plain


@dataclass(frozen=True)
class Paint:
    """Name and colour of a line or part, the same on the whole page. number: what it is highlighted by"""

    name: str
    colour: str = "var(--other)"
    number: int | None = None
    faded: bool = False


@dataclass(frozen=True)
class Column:
    """A column: its name, alignment and the tooltip of its head."""

    name: str
    left: bool = False
    tooltip: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell with more than a text.

    text: text, or a chart
    kind: its classes
    tip: its tooltip
    mark: colour of a square before the text
    run: number of the line that is highlighted while the pointer is here
    link: id of the element that the text leads to
    sort: value by which its column is sorted
    chip, chip_kind: short text on a background, and its class
    below: smaller lines under the text
    """

    text: str = ""
    kind: str = ""
    tip: str = ""
    mark: str = ""
    run: int | None = None
    link: str = ""
    sort: float | None = None
    chip: str = ""
    chip_kind: str = ""
    below: Sequence["Cell"] = ()


Cells = Sequence[str | Cell]


def columns(names: Iterable[str], left: Container[str] = ()) -> list[Column]:
    """Return columns with these names; those in `left` are aligned to the left."""
    return [Column(name, name in left) for name in names]


@dataclass(frozen=True)
class PageTable:
    """A table.

    kinds: classes of the rows
    kind: class of the table
    first: number of rows shown; further ones are collapsed if they are many
    keep: a row that is always shown
    """

    columns: Sequence[Column]
    rows: Sequence[Cells]
    kinds: Sequence[str] = ()
    kind: str = ""
    first: int = 40
    keep: int = 0

    @property
    def parts(self) -> list[list[tuple[str, Cells]]]:
        """The (kind, cells) of the rows that are shown, and of the collapsed ones."""
        rows = list(zip(self.kinds or [""] * len(self.rows), self.rows, strict=True))
        if len(rows) <= self.first * 6 // 5:
            return [rows, []]
        kept = [rows[self.keep]] if self.keep >= self.first else []
        return [rows[: self.first] + kept, [r for i, r in enumerate(rows) if i >= self.first and i != self.keep]]


def cut(text: str, longest: int = MAX_VALUE_LENGTH, kind: str = "") -> Cell:
    """Return a cell with the beginning of a text; its tooltip has what was cut off."""
    return Cell(plain(text, longest), kind, plain(text, 400) if len(text) > longest else "")
