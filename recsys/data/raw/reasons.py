"""Count rows that cannot be read by their reasons, and say it in one line."""

import re
from collections import Counter
from collections.abc import Callable, Iterable

from recsys.base.errors import UserError
from recsys.data.features.blocks import BadRow
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.raw.text import ESCAPED

MAX_REASONS = 2  # shown in a message
QUOTES = (
    "if quoted values hold line breaks, set data.source.line_breaks_in_quotes=true; if quotes are part of the text, "
    "data.source.quote=null"
)
HINTS = {  # the end of a reason -> what may help
    "is neither 0 nor 1": "data.label.positive=[TEXT] names the texts that are 1, data.label.at_least=N a threshold",
    "is not a number": "if that means a missing value, add it to data.source.null_values",
    "is not a time": "convert it by data.derive",
    "is neither a number nor a time": "convert it by data.derive",
    "not UTF-8 text": "data.source.encoding names another encoding, such as latin-1",
    "a quote is not closed": QUOTES,
    "a quoted field spans several lines": QUOTES,
    ESCAPED: "data.source.escape='\\' reads \\\" as a quote within a value",
}

COMMA = re.compile(r"\s*[+-]?[\d.' ]*\d,\d+\s*$|\s*[+-]?\d{1,3}(,\d{3})+(\.\d+)?\s*$")  # 1.234,5 or 1,234.5


class Reasons:
    """Counts rows by the reason why they cannot be read, with an example of each.

    Args:
        bad: the first ones.
        place: returns where one of them is.
    """

    def __init__(self, bad: Iterable[BadRow] = (), place: Callable[[BadRow], str] = str) -> None:
        self._rows: Counter[str] = Counter()
        self._first: dict[str, tuple[str | None, str]] = {}  # value and place of the first row of each reason
        for b in bad:
            self.add(b.reason, 1, place(b), b.value)

    def add(self, reason: str, rows: int, place: str, value: str | None) -> None:
        """Add rows that cannot be read for the same reason.

        Args:
            reason: why they cannot be read.
            rows: their number.
            place: where the first one is.
            value: the text of the first one that cannot be read.
        """
        self._rows[reason] += rows
        self._first.setdefault(reason, (value, place))

    def __str__(self) -> str:
        """Return the most frequent reasons in one line."""
        texts, most = [], self._rows.most_common(MAX_REASONS)
        for reason, rows in most:
            hint = next((f"; {hint}" for end, hint in HINTS.items() if reason.endswith(end)), "")
            if m := re.fullmatch(r"label (.+) is missing", reason):
                where = f'"{m[1]} IS NOT NULL"' if m[1].isidentifier() else f"'\"{m[1]}\" IS NOT NULL'"
                hint = f"; data.where={where} leaves them out"
            value, place = self._first[reason]
            example = place if value is None else f"{value[:40]!r}, {place}"
            if reason.endswith("is not a number") and COMMA.match(value or ""):
                hint = "; data.source.decimal and data.source.thousands name the marks of numbers"
            texts.append(f"{rows:,} {_rows(rows)}: {reason} (such as {example}){hint}")
        if others := sum(self._rows.values()) - sum(rows for _, rows in most):
            texts.append(f"{others:,} {_rows(others)} for other reasons")
        return "; ".join(texts)


def _rows(n: int) -> str:
    return "row" if n == 1 else "rows"


def judge(where: str, data: ResolvedData, rows: int, bad: int, reasons: Reasons, listed: str = "") -> str | None:
    """Return a line about the bad rows, or None.

    Args:
        where: what is read, such as data=NAME.
        rows: the number of rows, bad ones included.
        bad: the number of bad rows.
        listed: where they are listed, if anywhere.

    Raises:
        UserError: the share of bad rows is above data.max_bad_rows.
    """
    if bad > data.max_bad_rows * rows:
        limit = f"data.max_bad_rows={data.max_bad_rows}"
        raise UserError(f"{where}: {bad:,} of {rows:,} rows cannot be read, more than {limit}: {reasons}{listed}")
    return f"{where}: {bad:,} of {rows:,} rows could not be read: {reasons}{listed}" if bad else None
