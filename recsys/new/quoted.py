"""Recognise quoted values that hold line breaks, or quotes after a backslash."""

import re

from recsys.data.raw.dialect import BREAK, CARRIAGE, without_breaks, without_carriages
from recsys.schema.data_schema import TextConfig

SEPARATORS = (",", ";", "\t", "|")
ESCAPED = re.compile(r'\\"')
AT_END = re.compile(r'\\"[,;\t|]|\\"\r?$', re.M)  # such as C:\dir\ at the end of a value
MENDED = 0.1  # share of the lines with an open quote that may remain


def escapes(text: str) -> bool:
    """Return True if backslashes stand before quotes within values."""
    return len(AT_END.findall(text)) < 0.8 * len(ESCAPED.findall(text))


def broken_by(text: str) -> str | None:
    """Return the separator of values that hold line breaks, None if no value does. text: without escapes"""
    before = _open(text)
    if not before:
        return None
    after = {s: _open(plain(text, s, escape=False, line_breaks=True)) for s in SEPARATORS}
    best = min(after, key=lambda s: after[s])
    return best if after[best] < MENDED * before else None


def plain(text: str, separator: str, *, escape: bool, line_breaks: bool) -> str:
    """Return the text with quotes doubled instead of escaped, and spaces instead of line breaks within values.

    Args:
        text: the text.
        separator: the separator of values.
        escape: whether backslashes stand before quotes.
        line_breaks: whether values hold line breaks.
    """
    if "\r" in text:
        text = without_carriages(text.encode()).decode().replace(CARRIAGE, " ")
    if escape:
        text = ESCAPED.sub('""', text)
    if line_breaks:
        whole, _ = without_breaks(TextConfig(separator=separator), text.encode(), at_end=True)
        text = whole.decode().replace(BREAK, " ")
    return text


def _open(text: str) -> int:
    """Return the number of lines with an odd number of quotes."""
    return sum(line.count('"') % 2 for line in text.split("\n"))
