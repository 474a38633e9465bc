"""Divide the first lines of a text file into values: find the separator and the quotes that most lines agree on."""

import csv
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from recsys.data.raw.dialect import SPACES

SEPARATORS = ("\t", "\x01", "\x1f", "::", "||", ";;", ";", "|", ",", "~", "^")  # the surest first
MIN_STEADY = 0.8  # share of rows with the same number of values, from which a separator is one
MAX_ROWS = 400  # that a guess looks at
ESCAPED = re.compile(r'\\"')
AT_END = re.compile(r'\\"[,;\t|]|\\"\r?$', re.M)  # such as C:\dir\ at the end of a value


@dataclass
class DividedText:
    """Rows of text, and how they are divided into values."""

    separator: str = ","
    quote: str | None = '"'
    escape: bool = False  # whether a backslash stands before quotes within values
    line_breaks: bool = False  # whether quoted values hold line breaks
    rows: list[list[str]] = field(default_factory=list)
    width: int = 0  # the number of values of most rows; 0 if no separator divides them

    @property
    def share(self) -> float:
        """The share of the rows that have this number of values."""
        return sum(len(row) == self.width for row in self.rows) / max(len(self.rows), 1)


def table_of(text: str) -> DividedText:
    """Return the rows of a text by the separator on which most lines agree; a table of width 0 if there is none."""
    escape = '"' in text and len(AT_END.findall(text)) < MIN_STEADY * len(ESCAPED.findall(text))
    tables = {s: _divided(text, s, escape=escape) for s in SEPARATORS}
    valid = {s: t for s, t in tables.items() if t.width > 1 and t.share >= MIN_STEADY}
    for double, single in (("||", "|"), (";;", ";")):
        if double in valid:  # two single ones are an empty value, if single ones divide more rows
            alone = sum(any(single in value for value in row) for row in valid[double].rows)
            is_empty = tables[single].share > valid[double].share or alone > (1 - MIN_STEADY) * len(valid[double].rows)
            valid.pop(double if is_empty else single, None)
    if "," in valid and len(valid) > 1 and text.count(",") == len(re.findall(r"(?<![,\d])\d+,\d+(?![,\d])", text)):
        valid.pop(",")  # all commas are those of decimals, such as 1,5
    if valid:
        first = SEPARATORS.index
        return max(
            valid.values(),
            key=lambda t: (t.share >= 0.98, len(t.rows[0]) == t.width, t.width, -first(t.separator)),
        )
    lines = [line for line in text.splitlines() if line.strip()][:MAX_ROWS]
    [(width, often)] = Counter(len(line.split()) for line in lines).most_common(1) or [(0, 0)]
    if width < 2 or often < 0.98 * len(lines):  # as in prose
        return DividedText()
    usual = [line for line in lines if len(line.split()) == width]
    one_space = all(line.count(" ") == width - 1 and line == line.strip() for line in usual)
    return DividedText(" " if one_space else SPACES, None, rows=[line.split() for line in lines], width=width)


def _divided(text: str, separator: str, *, escape: bool) -> DividedText:
    """Return the first rows of a text by a separator. A quote opens a value only at its beginning."""
    if len(separator) > 1:
        rows = [line.split(separator) for line in text.splitlines() if line.strip()][:MAX_ROWS]
        table = DividedText(separator, None, rows=rows)
    else:
        opens = re.search(rf'(?:^|{re.escape(separator)}) ?"', text, re.M) is not None
        lines = text.splitlines(keepends=True)
        if escape:
            lines = [ESCAPED.sub('""', line) for line in lines]
        spaced = re.search(rf'{re.escape(separator)} "', text) is not None
        quoting = csv.QUOTE_MINIMAL if opens else csv.QUOTE_NONE
        reader = csv.reader(lines, delimiter=separator, quoting=quoting, skipinitialspace=spaced)  # type: ignore[arg-type]
        rows = list[list[str]]()
        with suppress(csv.Error):  # a value that is larger than one may be
            rows += (row for row in islice(reader, MAX_ROWS) if any(value.strip() for value in row))
        broken = any("\n" in value or "\r" in value for row in rows[:-1] for value in row)
        quote = '"' if opens or '"' not in text else None
        table = DividedText(separator, quote, escape and opens, broken, rows)
    table.width = Counter(map(len, table.rows)).most_common(1)[0][0] if table.rows else 0
    return table
