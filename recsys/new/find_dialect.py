"""Find out how the lines of a text file are divided into values: format, separator, quote, comment, header."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from recsys.data.raw import slots
from recsys.data.raw.dialect import SPACES
from recsys.new import layouts
from recsys.new.find_separator import STEADY, count_fields, quote_of, separator_of
from recsys.new.known_names import KNOWN, plain, words
from recsys.new.layouts import CsvLayout, OtherRows, TextLayout
from recsys.new.value_marks import NULLS

LINES = 400  # lines that a guess looks at
FEWEST_ROWS = 3  # after a first line that is no row
NO_MARKS = frozenset("\"'+-._ \t\\<([{?")  # characters that rows may begin with
HEADING = re.compile(r"^\w+: *$")  # Netflix: 1: stands above the ratings of film 1
HEADINGS = (
    "lines such as {} hold a value of all lines below them; write it into each of these lines: "
    "awk -F: '/:$/ {{v = $1; next}} {{print $0 \",\" v}}' FILES > rows.csv"
)
RECORDS = (
    "records of several lines, each `name: value` ({}: ...); write one JSON object a record: "
    "python -c \"import json,sys; [print(json.dumps(dict(l.split(': ', 1) for l in r.splitlines() if ': ' in l))) "
    "for r in sys.stdin.read().split('\\n\\n') if r.strip()]\" < FILE > rows.jsonl"
)
LINE_FORMATS: dict[type[TextLayout], re.Pattern[str]] = {
    layouts.LibFmLayout: re.compile(r"^[+-]?[\d.]+( +\w+:1(\.0*)?)+ *$"),
    layouts.SvmLightLayout: re.compile(r"^[+-]?[\d.]+( +\w+:[+-]?[\d.]+([eE][+-]?\d+)?)+ *(#.*)?$"),
}
SLOT = re.compile(r"^[A-Za-z0-9_.-]{1,60}:[^:]*$")
MOST_TITLE = 20  # lines above or below a table
NUMBER = re.compile(r"^[+-]?(\d+([.,]\d*)*|[.,]\d+)([eE][+-]?\d+)?$")


def dialect_of(lines: Sequence[str], encoding: str = "utf-8", header: bool | None = None) -> TextLayout:
    """Return how a file is read, by its first lines without line ends.

    Args:
        header: whether the first line names the columns; None to look at it.

    Raises:
        OtherRows: the rows have to be converted before they can be read.
    """
    whole = layouts.without_excel([line for line in lines if line.strip()])
    comment, lines = _comment(whole[:LINES])
    if not lines:
        return CsvLayout(encoding=encoding)
    problem = _several_lines(lines)
    if problem is None and (other := _other_format(lines)) is not None:
        return replace(other, encoding=encoding, comment=comment, first=lines[0])
    uncommented = [line for line in whole if comment is None or not line.startswith(comment)]
    if problem := problem or _title(uncommented):
        raise OtherRows(problem)
    layout = CsvLayout(encoding=encoding, comment=comment, first=lines[0])
    lines = _without_title(layout, lines)
    layout.quote = quote_of(lines)
    separator_and_width = separator_of(lines, layout.quote)
    if separator_and_width is None:
        items = _lists(lines)
        return layout if items is None else replace(items, encoding=encoding, comment=comment, first=lines[0])
    layout.separator, layout.width = separator_and_width
    if len(layout.separator) > 1:
        layout.quote = None
    if layout.separator not in (SPACES, " "):  # spaces may surround values
        values = [v for line in lines[:100] for v in layout.fields(line)[1:]]
        layout.strip = sum(v != v.strip() for v in values) > 0.02 * len(values)
    if layout.separator == "\t" and not any('"' in line for line in lines):
        layout.quote = None
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


def _several_lines(lines: Sequence[str]) -> str | None:
    """Return how to write rows on a line each, if they are records of several lines, or have headings; None if not."""
    names = [line.partition(": ")[0] if ": " in line else "" for line in lines]
    different, period = set(names) - {""}, next((i for i, n in enumerate(names[1:], 1) if n == names[0]), 0)
    repeat = period >= 2 and len(different) <= 2 * period and names.count(names[0]) >= FEWEST_ROWS  # in an order
    are_names = all(re.fullmatch(r"[A-Za-z][\w/ .-]{0,40}", n) for n in different)
    if repeat and are_names and sum(n != "" for n in names) > STEADY * len(names):
        return RECORDS.format(names[0])
    has_headings = HEADING.match(lines[0]) and not all(HEADING.match(line) for line in lines)
    return HEADINGS.format(lines[0].strip()) if has_headings else None


def _other_format(lines: Sequence[str]) -> TextLayout | None:
    """Return the layout of lines that are not a table; None for a table."""
    if all(line.lstrip().startswith("{") for line in lines):
        return layouts.JsonLinesLayout()
    if (in_slots := _slots(lines)) is not None:
        return in_slots
    for layout, pattern in LINE_FORMATS.items():
        if sum(bool(pattern.match(line)) for line in lines) > STEADY * len(lines):
            return layout(separator=" ", width=len(lines[0].split()))
    return None


def _slots(lines: Sequence[str]) -> TextLayout | None:
    """Return the layout of lines of slot:value, in which a slot occurs several times, or a label is a slot."""
    if sum(":" in line for line in lines) <= STEADY * len(lines):
        return None
    for separator in (" ", ",", ";"):
        leading, names = slots.slots(list(lines), separator)
        rows = [slots.parts(line, separator)[leading:] for line in lines]
        fits = sum(len(row) > 1 and all(SLOT.match(f) for f in row) for row in rows)
        keys = [[f.partition(":")[0] for f in row] for row in rows]
        often = [n for n in names if sum(n in row for row in keys) > len(lines) / 4]
        repeated = any(len(set(row)) < len(row) for row in keys)
        if fits > STEADY * len(lines) and (repeated or leading != 1) and len(often) > 1 and leading <= 5:
            columns = ["label"] if leading == 1 else [f"field_{i}" for i in range(1, leading + 1)]
            reasons = {"columns": "the fields without a slot"} if leading > 1 else {}
            width = leading + len(names)
            return layouts.SlotsLayout(separator=separator, width=width, leading=columns, reasons=reasons)
    return None


def _lists(lines: Sequence[str]) -> TextLayout | None:
    """Return the layout of lines of different numbers of short words, which are lists of items; None for others."""
    for separator in (" ", "\t", ",", ";", "|"):
        parts = [row for line in lines if (row := [p for p in line.strip().split(separator) if p])]
        tokens = [p for row in parts for p in row]
        if sum(len(row) > 1 for row in parts) < 0.5 * len(lines):
            continue
        ids = sum(bool(re.search(r"\d", p)) for p in tokens)
        if ids <= 0.9 * len(tokens) or not all(re.fullmatch(r"[\w.:-]{1,40}", p) for p in tokens):
            continue
        firsts, later = [row[0] for row in parts], {p for row in parts for p in row[1:]}
        count_up = all(f.isdecimal() for f in firsts) and all(int(a) < int(b) for a, b in pairwise(firsts))
        by_user = len(set(firsts)) == len(firsts) and (count_up or not later & set(firsts))
        columns = ["user", "item"] if by_user else ["item"]
        why = "the first value of each line occurs once" if by_user else "first values occur in several lines: no user"
        return layouts.ListsLayout(
            separator=separator, width=len(columns), columns=columns, leading=columns, reasons={"columns": why}
        )
    return None


def _title(lines: Sequence[str]) -> str | None:
    """Return how to remove the title above a table, as spreadsheets write it; None if no title stands there."""
    middle = lines[len(lines) // 4 :][:LINES]
    quote = quote_of(middle)
    separator_and_width = separator_of(middle, quote) if len(middle) >= FEWEST_ROWS else None
    if separator_and_width is None or separator_and_width[1] < FEWEST_ROWS or len(separator_and_width[0]) > 1:
        return None
    separator, width = separator_and_width
    table = CsvLayout(separator=separator, quote=quote)
    ends = (*lines[: MOST_TITLE + 1], *lines[-MOST_TITLE:])
    filled = [sum(bool(v.strip()) for v in table.fields(line)) for line in ends]
    few = width // 3
    first = next((i for i, n in enumerate(filled) if n > few), 0)
    is_title = 0 < first <= MOST_TITLE and filled[first] >= STEADY * width
    if not is_title or any(map(_is_number, lines[first].split(separator))):
        return None
    last = next(i for i, n in enumerate(reversed(filled)) if n > few)
    if first == 1 and not last and count_fields(lines[0], separator, quote) != width:
        return None  # `_without_title` says it
    tail = f" | head -n -{last}" if last else ""
    what = f", and its last {last} {'line is' if last == 1 else 'lines are'} a footer" if last else ""
    hint = f"remove them: tail -n +{first + 1} FILE{tail} > rows.csv"
    return f"its first {first} lines are a title{what}; {hint}"


def _without_title(layout: TextLayout, lines: list[str]) -> list[str]:
    """Return the rows without a first line that has another number of fields than all others.

    If it begins with a character that no row begins with, it is a comment. Raises OtherRows otherwise.
    """
    first, rest = lines[0], lines[1:]
    quote = quote_of(rest)
    of_all = separator_of(lines, quote)
    if of_all is not None and all(count_fields(line, of_all[0], quote) == of_all[1] for line in lines):
        return lines
    separator_and_width = separator_of(rest, quote) if len(rest) >= FEWEST_ROWS else None
    if separator_and_width is None or separator_and_width[1] < 3:
        return lines
    separator, width = separator_and_width
    count = count_fields(first, separator, quote)
    if abs(count - width) <= 1 or any(count_fields(line, separator, quote) != width for line in rest):
        return lines
    mark = first[0]
    is_mark = not mark.isalnum() and mark not in NO_MARKS and mark not in separator
    if is_mark and layout.comment is None and not any(line.startswith(mark) for line in rest):
        layout.comment, layout.reasons["comment"] = mark, "the first line is no row of the table"
        return rest
    if separator not in (" ", SPACES, ":"):  # these also divide prose and lists of items
        has = f"its first line has {count} of the {width} fields of all other lines"
        raise OtherRows(f"{has}; remove it, or put # before it")
    return lines


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
    if len(rows) < 2:
        half = bool(rows) and sum(plain(v) in KNOWN for v in rows[0]) * 2 >= len(rows[0])
        return half and not any(map(_is_number, rows[0])), True
    first = [v.strip() for v in rows[0]]
    below = [[v.strip() for v in r] for r in rows[1:]]
    columns = [[r[i] for r in below if i < len(r) and r[i] and r[i] not in NULLS] for i in range(len(first))]
    if any(map(_is_number, first)):
        return _names_and_numbers(first, columns)
    blank = sum(not v or v in NULLS for v in first)
    # text above numbers alone names them, also where several other columns have no name
    above = any(v and below and all(map(_is_number, below)) for v, below in zip(first, columns, strict=True))
    if blank > max(1, len(first) // 20) and not (above and blank == first.count("")):
        return False, True
    if sum(len(v) > 80 for v in first) * 2 >= len(first):
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
    known = sum(bool(set(words(v)) & KNOWN) for v in first)
    is_header = for_ + known > against and (for_ > 0 or known * 2 >= len(first))
    return is_header, abs(for_ + known - against) > 1 or (known > 0) == is_header


def _names_and_numbers(first: Sequence[str], columns: Sequence[Sequence[str]]) -> tuple[bool, bool]:
    """Return whether a first row with numbers is a header, and whether that is sure.

    pandas names columns without names 0, 1, 2, ...; a table may also have columns that are named by the ids of
    features, such as click,purchase,101,121. Its names stand above numbers.
    """
    given = [v for v in first if v]
    if given == [str(i) for i in range(len(given))] and len(first) > 3:
        return True, True
    named = [(v, below) for v, below in zip(first, columns, strict=True) if v and not _is_number(v) and v not in NULLS]
    above = sum(bool(below) and all(map(_is_number, below)) for _, below in named)
    known = sum(bool(set(words(v)) & KNOWN) for v, _ in named)
    numbers = [v for v in first if _is_number(v)]
    distinct = len(set(numbers)) == len(numbers)
    unlike = all(v not in below for v, below in named)
    is_header = bool(named) and distinct and unlike and (known > 1 or (known > 0 and above > 0) or above > 1)
    return is_header, is_header or not (above and distinct)


def _shape(value: str) -> str:
    """Return a value with its digits as 9 and its words as a, if it has both or is a time: user_000007 is a_9."""
    shape = re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", value))
    return shape if "9" in shape else value


def _name_columns(layout: TextLayout, first: Sequence[str]) -> None:
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
