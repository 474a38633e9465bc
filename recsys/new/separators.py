"""Find the separator and the quote that most lines of a text file agree on, and make quoted values plain."""

import csv
import re
from collections import Counter
from collections.abc import Sequence

from recsys.data.raw.dialect import BREAK, CARRIAGE, SPACES, without_breaks, without_carriages
from recsys.schema.source_schema import TextConfig

SEPARATORS = ("\t", "\x01", "\x1f", "::", "||", ";;", ";", "|", ",", "~", "^")
STEADY = 0.8  # share of lines with the same number of fields, from which a separator is one
ESCAPED = re.compile(r'\\"')
AT_END = re.compile(r'\\"[,;\t|]|\\"\r?$', re.M)  # such as C:\dir\ at the end of a value


def quoting_of(text: str) -> tuple[bool, str | None]:
    """Return whether backslashes escape quotes within values, and the separator of values that hold line breaks."""
    if '"' not in text or text.lstrip()[:1] in ("{", "["):
        return False, None
    escape = len(AT_END.findall(text)) < 0.8 * len(ESCAPED.findall(text))

    def odd_lines(text: str) -> int:
        return sum(line.count('"') % 2 for line in text.split("\n"))

    text = plain_quotes(text, ",", escape=escape, line_breaks=False)
    if not (before := odd_lines(text)):
        return escape, None
    after = {s: odd_lines(plain_quotes(text, s, escape=False, line_breaks=True)) for s in (",", ";", "\t", "|")}
    best = min(after, key=lambda s: after[s])
    return escape, best if after[best] < 0.1 * before else None


def plain_quotes(text: str, separator: str, *, escape: bool, line_breaks: bool) -> str:
    """Return the text with quotes doubled instead of escaped, and spaces instead of line breaks within values."""
    if "\r" in text:
        text = without_carriages(text.encode()).decode().replace(CARRIAGE, " ")
    if escape:
        text = ESCAPED.sub('""', text)
    if line_breaks:
        whole, _ = without_breaks(TextConfig(separator=separator), text.encode(), at_end=True)
        text = whole.decode().replace(BREAK, " ")
    return text


def quote_of(lines: Sequence[str]) -> str | None:
    """Return the character that encloses values: the usual one if no line has any, None if quotes enclose no values."""
    for quote in ('"', "'"):
        text, q = "\n".join(line.replace(quote * 2, "") for line in lines), re.escape(quote)
        if quote not in text:
            continue
        opens = len(re.findall(rf"(?:^|[,;|\t:]) ?{q}", text, re.M))
        closes = len(re.findall(rf"{q} ?(?:$|[,;|\t:])", text, re.M))
        even = sum(line.count(quote) % 2 == 0 for line in text.split("\n"))
        if even >= 0.98 * len(lines) and min(opens, closes) * 2 >= STEADY * text.count(quote):
            return quote
        if quote == '"':
            return None  # such as inches: 5"
    return '"'


def count_fields(line: str, separator: str, quote: str | None) -> int:
    """Return the number of fields of a line."""
    if separator == SPACES:
        return len(line.split())
    if quote is not None and quote in line and len(separator) == 1:
        return len(next(csv.reader([line], delimiter=separator, quotechar=quote, skipinitialspace=True), []))
    return line.count(separator) + 1


def separator_of(lines: Sequence[str], quote: str | None) -> tuple[str, int] | None:
    """Return the separator and the number of fields of most lines; None if the lines differ too much."""
    valid: dict[str, tuple[float, bool, int]] = {}
    for s in SEPARATORS:
        [(width, often)] = Counter(count_fields(line, s, quote) for line in lines).most_common(1)
        first = count_fields(lines[0], s, quote)
        if width > 1 and often >= STEADY * len(lines):
            valid[s] = (often / len(lines), first == width, width)
    for double, single in (("||", "|"), (";;", ";")):
        if double in valid:
            alone = sum(single in line.replace(double, "") for line in lines)  # else a double one is an empty value
            valid.pop(double if alone > (1 - STEADY) * len(lines) else single, None)
    if "," in valid and len(valid) > 1:  # all commas may be those of decimals, such as 1,5
        rest = "\n".join(lines[1:] or lines)
        if rest.count(",") == len(re.findall(r"(?<![,\d])\d+,\d+(?![,\d])", rest)):
            valid.pop(",")
    if valid:
        best = max(valid, key=lambda s: (valid[s][0] >= 0.98, valid[s][1], valid[s][2], -SEPARATORS.index(s)))
        return best, valid[best][2]
    [(width, often)] = Counter(len(line.split()) for line in lines).most_common(1)
    if width < 2 or often < 0.98 * len(lines):  # as in prose
        return None
    usual = [line for line in lines if len(line.split()) == width]
    one_space = all(line.count(" ") == width - 1 and line == line.strip() for line in usual)
    return " " if one_space else SPACES, width
