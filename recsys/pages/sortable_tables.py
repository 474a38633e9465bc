"""Sortable tables in HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Column:
    """A column: its name, alignment and the tooltip of its head."""

    name: str
    left: bool = False
    tooltip: str = ""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], kinds: Sequence[str] = (), cls: str = "") -> str:
    """Return a table of cells in HTML. A cell that begins with <td is a whole element.

    Args:
        kinds: classes of the rows.
        cls: class of the table.
    """
    head = "".join(
        f'<th class="{"l" if c.left else ""}" data-t="{escape(c.tooltip)}">{escape(c.name)}</th>'
        if c.tooltip
        else f'<th class="{"l" if c.left else ""}">{escape(c.name)}</th>'
        for c in columns
    )
    lines = []
    for i, row in enumerate(rows):
        cells = "".join(
            cell if cell.startswith("<td") else f'<td class="l">{cell}</td>' if c.left else f"<td>{cell}</td>"
            for cell, c in zip(row, columns, strict=True)
        )
        lines.append(f'<tr class="{kinds[i]}">{cells}</tr>' if kinds and kinds[i] else f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="{cls}"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody>'
        "</table></div>"
    )
