"""Find out how the lines of a text file are divided into values: format, separator, quote, comment, header."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from recsys.data.raw.dialect import SPACES
from recsys.new import layouts
from recsys.new.known_names import KNOWN, words
from recsys.new.layouts import CsvLayout, OtherRows
from recsys.new.separators import STEADY, count_fields, quote_of, separator_of
from recsys.new.value_marks import NULLS

MAX_LINES = 400  # that a guess looks at
MIN_ROWS = 3  # after a first line that is no row
MIN_LENGTHS = 3  # different numbers of items on lines that are lists
NO_MARKS = frozenset("\"'+-._ \t\\<([{?")  # characters that rows may begin with
LIBFM = re.compile(r"^[+-]?[\d.]+( +\w+:1(\.0*)?)+ *$")
SVMLIGHT = re.compile(r"^[+-]?[\d.]+( +\w+:[+-]?[\d.]+([eE][+-]?\d+)?)+ *(#.*)?$")
SLOTS = re.compile(r"^(\S+[ ,;])?[\w.-]+:[^:\s]*([ ,;][\w.-]+:[^:\s]*)+\s*$")  # user:7 item:3 item:9
RECORD = re.compile(r"^[A-Za-z][\w/ .-]{0,40}:( |$)")  # a line of a record of several lines, and a heading
HEADING = re.compile(r"^\w+: *$")
NUMBER = re.compile(r"^[+-]?(\d+([.,]\d*)*|[.,]\d+)([eE][+-]?\d+)?$")


def dialect_of(lines: Sequence[str], encoding: str = "utf-8", header: bool | None = None) -> CsvLayout:
    """Return how a file is read, by its first lines without line ends.

    Args:
        header: whether the first line names the columns; None to look at it.

    Raises:
        OtherRows: the rows have to be converted before they can be read.
    """
    lines = lines[1:] if lines and layouts.EXCEL.fullmatch(lines[0].rstrip("\r")) else lines
    comment, lines = _comment([line for line in lines if line.strip()][:MAX_LINES])
    if not lines:
        return CsvLayout(encoding=encoding)
    if (other := _other_format(lines)) is not None:
        return replace(other, encoding=encoding, comment=comment, first=lines[0])
    layout = CsvLayout(encoding=encoding, comment=comment, first=lines[0])
    lines = _without_title(layout, lines)
    layout.quote = quote_of(lines)
    separator_and_width = separator_of(lines, layout.quote)
    if separator_and_width is None:
        items = _lists(lines)
        return layout if items is None else replace(items, encoding=encoding, comment=comment, first=lines[0])
    layout.separator, layout.width = separator_and_width
    is_plain = layout.separator == "\t" and not any('"' in line for line in lines)
    if len(layout.separator) > 1 or is_plain:
        layout.quote = None
    if layout.separator not in (SPACES, " "):  # spaces may surround values
        values = [v for line in lines[:100] for v in layout.fields(line)[1:]]
        layout.strip = sum(v != v.strip() for v in values) > 0.02 * len(values)
    rows = [layout.fields(line) for line in lines]
    # all lines end with a separator, and the first one does not name or fill the column after it
    ends = [row[-1] for row in rows[1:] if len(row) == layout.width]
    unfilled = len(rows[0]) < layout.width or not (rows[0][-1].strip() or any(map(_is_number, rows[0])))
    layout.trailing = bool(ends) and layout.width > 2 and unfilled and not any(v.strip() for v in ends)
    layout.width -= layout.trailing
    first_rows = [row[: layout.width] for row in rows[:200] if len(row) >= layout.width - 1]
    layout.header, layout.sure_of_header = _find_header(first_rows) if header is None else (header, True)
    _name_columns(layout, rows[0])
    return layout


def _other_format(lines: Sequence[str]) -> CsvLayout | None:
    """Return the layout of lines that are not a table; None for a table. Raises OtherRows for other rows."""

    def share(pattern: re.Pattern[str]) -> float:
        return sum(bool(pattern.match(line)) for line in lines) / len(lines)

    if share(LIBFM) > STEADY:
        [(width, _)] = Counter(len(line.split()) for line in lines).most_common(1)
        return layouts.LibFmLayout(header=False, columns=["label", *(f"field_{i}" for i in range(1, width))])
    if share(SVMLIGHT) > STEADY:
        raise OtherRows("its lines hold a label and number:value; write the YAML by hand, with source.format: svmlight")
    if share(SLOTS) > STEADY and not re.search(r"\d\d:\d\d", lines[0]):
        raise OtherRows("its lines hold pairs slot:value; write one JSON object a line, with a key for each slot")
    if share(RECORD) > STEADY or (HEADING.match(lines[0]) and not all(map(HEADING.match, lines))):
        what = f"lines such as {lines[0].strip()[:40]} belong to a row of several lines"
        raise OtherRows(f"{what}; write all values of a row on one line, as CSV or JSON lines")
    return None


def _lists(lines: Sequence[str]) -> CsvLayout | None:
    """Return the layout of lines of different numbers of short words, which are lists of items; None for others."""
    for separator in (" ", "\t", ",", ";", "|"):
        parts = [row for line in lines if (row := [p for p in line.strip().split(separator) if p])]
        tokens = [p for row in parts for p in row]
        if sum(len(row) > 1 for row in parts) < 0.5 * len(lines) or len({len(row) for row in parts}) < MIN_LENGTHS:
            continue
        ids = sum(bool(re.search(r"\d", p)) for p in tokens)
        if ids <= 0.9 * len(tokens) or not all(re.fullmatch(r"[\w.-]{1,40}", p) for p in tokens):
            continue
        if all(row[0] == str(len(row) - 1) for row in parts):
            raise OtherRows("each line begins with the number of the values that follow; remove it: cut -d ' ' -f 2-")
        firsts, later = [row[0] for row in parts], {p for row in parts for p in row[1:]}
        count_up = all(f.isdecimal() for f in firsts) and all(int(a) < int(b) for a, b in pairwise(firsts))
        by_user = len(set(firsts)) == len(firsts) and (count_up or not later & set(firsts))
        columns = ["user", "item"] if by_user else ["item"]
        why = "the first value of each line occurs once" if by_user else "first values occur in several lines: no user"
        return layouts.ListsLayout(separator=separator, header=False, columns=columns, reasons={"columns": why})
    return None


def _without_title(layout: CsvLayout, lines: list[str]) -> list[str]:
    """Return the rows without a first line that has another number of fields than all others.

    If it begins with a character that no row begins with, it is a comment. Raises OtherRows for a title.
    """
    first, rest = lines[0], lines[1:]
    middle = lines[len(lines) // 4 :]
    quote = quote_of(middle)
    separator_and_width = separator_of(middle, quote) if len(middle) >= MIN_ROWS else None
    if separator_and_width is None or separator_and_width[1] < MIN_ROWS or separator_and_width[0] in (" ", SPACES):
        return lines  # spaces also divide prose and lists of items
    separator, width = separator_and_width
    count = count_fields(first, separator, quote)
    filled = sum(bool(v.strip()) for v in first.split(separator))
    if abs(count - width) <= 1 and filled > 1:
        return lines
    mark = first[0]
    is_mark = not mark.isalnum() and mark not in NO_MARKS and mark not in separator
    if is_mark and layout.comment is None and not any(line.startswith(mark) for line in rest):
        layout.comment, layout.reasons["comment"] = mark, "the first line is no row of the table"
        return rest
    has = f"its first line fills {min(count, filled)} of the {width} fields of other lines"
    raise OtherRows(f"{has}; remove the lines above the names of the columns and those below the rows")


def _comment(lines: list[str]) -> tuple[str | None, list[str]]:
    """Return the text that comment lines begin with, and the other lines; a header that begins with # is not one."""
    for mark in ("#", "%", "//"):
        rest = [line for line in lines if not line.startswith(mark)]
        if not rest or not lines[0].startswith(mark):
            continue
        found = separator_of(lines, None) if len(rest) == len(lines) - 1 else None
        if found is not None and count_fields(lines[0], found[0], None) == found[1]:
            return None, lines  # it has as many fields as the rows
        return mark, rest
    return None, lines


def _is_number(text: str) -> bool:
    """Return True for 7, -1.5, 1e-3, 1,5 and 1.234.567,8."""
    return bool(NUMBER.match(text.strip()))


def _find_header(rows: Sequence[Sequence[str]]) -> tuple[bool, bool]:
    """Return whether the first row names the columns, as it differs from those below it, and whether that is sure."""
    first = [v.strip() for v in rows[0]] if rows else []
    known = sum(bool(set(words(v)) & KNOWN) for v in first)
    has_numbers = any(map(_is_number, first))
    if len(rows) < 2:
        return bool(first) and not has_numbers, True  # the names of a file without rows
    below = [[v.strip() for v in r] for r in rows[1:]]
    columns = [[r[i] for r in below if i < len(r) and r[i] and r[i] not in NULLS] for i in range(len(first))]
    if has_numbers:  # pandas names columns without names 0, 1, 2, ...
        names = [v for v in first if v]
        is_count = names == [str(i) for i in range(len(names))] and len(first) > MIN_ROWS
        may_name = known > 0 and len(set(names)) == len(names) and "" not in first
        return is_count or may_name, is_count or not may_name
    blank = sum(not v or v in NULLS for v in first)
    # text above numbers alone names them, also where several other columns have no name
    above = any(v and values and all(map(_is_number, values)) for v, values in zip(first, columns, strict=True))
    too_long = sum(len(v) > 80 for v in first) * 2 >= len(first)
    if too_long or (blank > max(1, len(first) // 20) and not (above and blank == first.count(""))):
        return False, True
    for_, against = 0, 0
    for name, column in zip(first, columns, strict=True):
        if not column or not name:
            continue
        if sum(map(_is_number, column)) > 0.9 * len(column):
            for_ += 2
        elif name in column or _shape(name) in {_shape(v) for v in column[:20]}:
            against += 2
        elif len(set(column)) * 2 <= len(column) or len({len(v) for v in column}) == 1:
            for_ += 1
    is_header = for_ + known > against and (for_ > 0 or known * 2 >= len(first))
    return is_header, abs(for_ + known - against) > 1 or (known > 0) == is_header


def _shape(value: str) -> str:
    """Return a value with its digits as 9 and its words as a, if it has both or is a time: user_000007 is a_9."""
    shape = re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", value))
    return shape if "9" in shape else value


def _name_columns(layout: CsvLayout, first: Sequence[str]) -> None:
    """Name the columns by the header; give names to those that it lacks, and to all if there is no header."""
    if not layout.header:
        layout.columns = [f"column_{i}" for i in range(1, layout.width + 1)]
        return
    given = [v.strip().lstrip("\ufeff") for v in first]
    names = given[: layout.width]
    if len(names) == layout.width - 1:  # R leaves out the name of the rows
        names = ["row", *names]
    clean: list[str] = []
    for i, name in enumerate(names, 1):
        name = "" if name == "*" else name  # all columns, in SQL and in polars
        new, n = name or f"column_{i}", 2
        while new in clean:
            new, n = f"{name or 'column'}_{n}", n + 1
        clean.append(new)
    layout.columns = clean + [f"column_{i}" for i in range(len(clean) + 1, layout.width + 1)]
    layout.renamed = given != layout.columns and not (layout.trailing and names == layout.columns)
    if layout.renamed:
        layout.reasons["columns"] = "the header names some columns twice, not at all or *"
