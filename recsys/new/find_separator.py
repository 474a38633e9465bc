"""Find the separator and the quote that most lines of a text file agree on."""

import csv
import re
from collections import Counter
from collections.abc import Sequence

from recsys.data.raw.dialect import SPACES

SEPARATORS = ("\t", "\x01", "\x1f", "::", "||", ";;", "~~", "^^", ";", "|", ",", "~", "^")
STEADY = 0.8  # share of lines with the same number of fields, from which a separator is one


def _times(line: str) -> bool:
    return bool(re.search(r"\d\d:\d\d:\d\d", line))


def quote_of(lines: Sequence[str]) -> str | None:
    """Return the character that encloses values: the usual one if no line has any, None if quotes enclose no values."""
    for quote in ('"', "'"):
        lines = [line.replace(quote * 2, "") for line in lines]  # quotes within quotes, and empty values
        whole = "".join(lines)
        if quote not in whole:
            continue
        q = re.escape(quote)
        at_edges = len(re.findall(rf"(?:^|[^\w\s]|\s){q}|{q}(?:[^\w\s]|\s|$)", "\n".join(lines), re.M))
        even = sum(line.count(quote) % 2 == 0 for line in lines)
        opens = len(re.findall(rf"(?:^|[,;|\t:]) ?{q}", "\n".join(lines), re.M))
        closes = len(re.findall(rf"{q} ?(?:$|[,;|\t:])", "\n".join(lines), re.M))
        count = whole.count(quote)
        if even >= 0.98 * len(lines) and opens and min(opens, closes) * 2 >= 0.8 * count and at_edges:
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
        counts = Counter(count_fields(line, s, quote) for line in lines)
        fields_, often = counts.most_common(1)[0]
        share = often / len(lines)
        first = count_fields(lines[0], s, quote)
        agrees = abs(first - fields_) <= 1 or not lines[1:]
        if fields_ > 1 and share >= STEADY and agrees:
            valid[s] = (share, first == fields_, fields_)
    for double, single in (("||", "|"), (";;", ";"), ("~~", "~"), ("^^", "^")):
        if double in valid:
            alone = sum(single in line.replace(double, "") for line in lines)  # else a double one is an empty value
            valid.pop(double if alone > (1 - STEADY) * len(lines) else single, None)
    if "," in valid and set(valid) & {";", "\t", "|"} and _all_decimal(lines[1:] or lines):
        valid.pop(",")
    if valid:
        best = max(valid, key=lambda s: (valid[s][0] >= 0.98, valid[s][1], valid[s][2], -SEPARATORS.index(s)))
        return best, valid[best][2]
    return _spaces(lines)


def _all_decimal(lines: Sequence[str]) -> bool:
    """Return True if all commas are decimal commas, such as 1,5, with nothing but a separator around the numbers."""
    commas = sum(line.count(",") for line in lines)
    return commas > 0 and commas == sum(len(re.findall(r"(?<![,\d])\d+,\d+(?![,\d])", line)) for line in lines)


def _spaces(lines: Sequence[str]) -> tuple[str, int] | None:
    """Return a space, or runs of spaces, if they divide nearly all lines into as many fields, unlike prose."""
    counts = Counter(len(line.split()) for line in lines)
    number, often = counts.most_common(1)[0]
    if number < 2 or often < 0.98 * len(lines):
        return (":", 1 + lines[0].count(":")) if _colons(lines) else None
    if all(line.count(" ") == number - 1 and line == line.strip() for line in lines if len(line.split()) == number):
        return " ", number
    return SPACES, number


def _colons(lines: Sequence[str]) -> bool:
    return len({line.count(":") for line in lines}) == 1 and ":" in lines[0] and not _times(lines[-1])
