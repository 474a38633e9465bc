"""Tables in HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Column:
    name: str
    left: bool = False
    told: str = ""  # in the tooltip


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], kinds: Sequence[str] = (), cls: str = "") -> str:
    """Cells in HTML; those that begin with a <td are whole."""
    head = "".join(
        f'<th class="{"l" if c.left else ""}" data-t="{escape(c.told)}">{escape(c.name)}</th>'
        if c.told
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
