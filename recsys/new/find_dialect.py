"""Find out how the lines of a text file are divided into values: format, separator, quote, comment, header."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from recsys.data.raw.dialect import SPACES
from recsys.new.known_names import KNOWN, words
from recsys.new.layouts import EXCEL, CsvLayout, LibFmLayout, ListsLayout, OtherRows
from recsys.new.separators import MAX_ROWS, MIN_STEADY, DividedText, table_of
from recsys.new.value_marks import NULLS

MIN_WIDTH = 3  # values of a row, from which a first line with another number of them is a title
MIN_LENGTHS = 3  # different numbers of items on lines that are lists
NO_MARKS = frozenset("\"'+-._ \t\\<([{?")  # characters that rows may begin with
LIBFM = re.compile(r"^[+-]?[\d.]+( +\w+:1(\.0*)?)+ *$")
HINTS = {  # lines that are no rows -> how to write them; the first line stands for {}
    r"^[+-]?[\d.]+( +\w+:[+-]?[\d.]+([eE][+-]?\d+)?)+ *(#.*)?$": (
        "its lines hold a label and number:value; write the YAML by hand, with source.format: svmlight"
    ),
    r"^(\S+[ ,;])?[\w.-]+:[^:\s]*([ ,;][\w.-]+:[^:\s]*)+\s*$": (
        "its lines hold pairs slot:value; write one JSON object a line, with a key for each slot"
    ),
    r"^[A-Za-z][\w/ .-]{0,40}:( |$)": "lines such as {} are parts of a row; write all values of a row on one line",
}
HEADING = re.compile(r"^\w+: *$")  # 1: stands above the ratings of film 1
NUMBER = re.compile(r"^[+-]?(\d+([.,]\d*)*|[.,]\d+)([eE][+-]?\d+)?$")


def dialect_of(text: str, encoding: str = "utf-8", header: bool | None = None) -> CsvLayout:
    """Return how a file is read, by its first lines.

    Args:
        header: whether the first line names the columns; None to look at it.

    Raises:
        OtherRows: the rows have to be converted before they can be read.
    """
    first, _, rest = text.partition("\n")
    comment, text = _comment(rest if EXCEL.fullmatch(first.rstrip("\r")) else text)
    lines = [line for line in text.splitlines() if line.strip()][:MAX_ROWS]
    layout = CsvLayout(encoding=encoding, comment=comment, first=lines[0].rstrip("\r") if lines else "")
    if not lines:
        return layout
    if _share(LIBFM, lines) > MIN_STEADY:
        [(width, _)] = Counter(len(line.split()) for line in lines).most_common(1)
        return LibFmLayout(header=False, columns=["label", *(f"field_{i}" for i in range(1, width))])
    is_heading = HEADING.match(lines[0]) and not all(map(HEADING.match, lines))
    for pattern, hint in HINTS.items():
        if is_heading or (_share(re.compile(pattern), lines) > MIN_STEADY and not re.search(r"\d\d:\d\d", lines[0])):
            hint = [*HINTS.values()][-1] if is_heading else hint
            raise OtherRows(hint.format(lines[0].strip()[:40]))
    table = table_of(text)
    if not table.width:
        return _lists(lines, layout) or layout
    rows = _without_title(layout, table)
    layout.separator, layout.quote, layout.width = table.separator, table.quote, table.width
    layout.escape, layout.line_breaks_in_quotes = "\\" if table.escape else None, table.line_breaks
    if layout.separator == "\t" and '"' not in text:
        layout.quote = None
    if layout.separator not in (SPACES, " "):  # spaces may surround values
        values = [v for row in rows[:100] for v in row[1:]]
        layout.strip = sum(v != v.strip() for v in values) > 0.02 * len(values)
    # all lines end with a separator, and the first one does not name or fill the column after it
    ends = [row[-1] for row in rows[1:] if len(row) == layout.width]
    unfilled = len(rows[0]) < layout.width or not (rows[0][-1].strip() or any(map(_is_number, rows[0])))
    layout.trailing = bool(ends) and layout.width > 2 and unfilled and not any(v.strip() for v in ends)
    layout.width -= layout.trailing
    first_rows = [row[: layout.width] for row in rows[:200] if len(row) >= layout.width - 1]
    layout.header, layout.sure_of_header = _find_header(first_rows) if header is None else (header, True)
    _name_columns(layout, rows[0])
    return layout


def _share(pattern: re.Pattern[str], lines: Sequence[str]) -> float:
    return sum(bool(pattern.match(line)) for line in lines) / len(lines)


def _comment(text: str) -> tuple[str | None, str]:
    """Return what comment lines begin with, and the text without them; a header that begins with # is not one."""
    mark = next((m for m in ("#", "%", "//") if text.startswith(m)), None)
    if mark is None:
        return None, text
    lines = text.splitlines(keepends=True)
    table = table_of(text)
    commented = [line for line in lines if line.startswith(mark)]
    if len(commented) == len(lines) or (len(commented) == 1 and table.width > 1 and len(table.rows[0]) == table.width):
        return None, text
    return mark, "".join(line for line in lines if not line.startswith(mark))


def _lists(lines: Sequence[str], layout: CsvLayout) -> CsvLayout | None:
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
        if len(set(firsts)) < len(firsts) or (later & set(firsts) and not count_up):
            raise OtherRows("its lines are lists of items, and do not begin with their user; write it before its items")
        return ListsLayout(
            separator=separator,
            header=False,
            columns=["user", "item"],
            encoding=layout.encoding,
            comment=layout.comment,
            reasons={"columns": "the first value of each line occurs once"},
        )
    return None


def _without_title(layout: CsvLayout, table: DividedText) -> list[list[str]]:
    """Return the rows without a first line that has another number of values than all others.

    If it begins with a character that no row begins with, it is a comment. Raises OtherRows for a title.
    """
    first, *rest = table.rows
    filled = sum(bool(v.strip()) for v in first)
    if table.width < MIN_WIDTH or table.separator in (" ", SPACES) or not rest:
        return table.rows  # spaces also divide prose and lists of items
    if abs(len(first) - table.width) <= 1 and filled > 1:
        return table.rows
    mark = layout.first[0]
    is_mark = not mark.isalnum() and mark not in NO_MARKS and mark not in table.separator
    if is_mark and layout.comment is None and not any(row[0].startswith(mark) for row in rest):
        layout.comment, layout.reasons["comment"] = mark, "the first line is no row of the table"
        return rest
    has = f"its first line fills {min(len(first), filled)} of the {table.width} values of other lines"
    raise OtherRows(f"{has}; remove the lines above the names of the columns and those below the rows")


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
        is_count = names == [str(i) for i in range(len(names))] and len(first) > MIN_WIDTH
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
