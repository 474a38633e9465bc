"""Find out how the lines of a text file are divided into values: encoding, separator, quote, comment, header."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from recsys.data.raw import slots
from recsys.data.raw.dialect import SPACES
from recsys.new.find_separator import STEADY, count_fields, quote_of, separator_of
from recsys.new.known_names import KNOWN, plain, words
from recsys.new.value_marks import NULLS

LINES = 400  # lines that a guess looks at
LIST_SEPARATORS = (" ", "\t", ",", ";", "|")
COMMENTS = ("#", "%", "//")
FEWEST_ROWS = 3  # after a first line that is no row
EXCEL = re.compile(r"sep=.")  # the first line that Excel writes to name the separator; the reader skips it
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
SVMLIGHT = re.compile(r"^[+-]?[\d.]+( +\w+:[+-]?[\d.]+([eE][+-]?\d+)?)+ *(#.*)?$")
LIBFM = re.compile(r"^[+-]?[\d.]+( +\w+:1(\.0*)?)+ *$")
SLOT = re.compile(r"^[A-Za-z0-9_.-]{1,60}:[^:]*$")
LONGEST_NAME = 80  # of a column, usually
MOST_TITLE = 20  # lines above or below a table
MOST_LEADING = 6  # fields without a slot at the start of a line
NUMBER = re.compile(r"^[+-]?(\d+([.,]\d*)*|[.,]\d+)([eE][+-]?\d+)?$")


@dataclass
class Dialect:
    """How a text file is read, in the words of `source:`, and why."""

    format: str = "csv"  # csv | lists | libfm | svmlight | slots | jsonl
    encoding: str = "utf-8"
    separator: str = ","
    quote: str | None = '"'
    escape: bool = False  # a backslash stands before quotes within values
    line_breaks: bool = False  # quoted values hold line breaks
    comment: str | None = None
    strip: bool = False
    header: bool = False
    columns: list[str] = field(default_factory=list)  # their names; with a header too, where its names cannot be used
    renamed: bool = False  # `columns` replaces the header's names
    width: int = 0  # number of columns
    sure_of_header: bool = True
    first: str = ""  # the first line
    trailing: bool = False  # lines end with a separator, after which there is no column
    title: str = ""  # how the first line differs from all others, if it is no row and cannot be skipped
    reasons: dict[str, str] = field(default_factory=dict)  # key -> why


def dialect_of(lines: Sequence[str], encoding: str = "utf-8", header: bool | None = None) -> Dialect:
    """Return the dialect of a file from its first lines, without line ends. header: None to look for it"""
    dialect = Dialect(encoding=encoding)
    whole = without_excel([line for line in lines if line.strip()])
    dialect.comment, lines = _comment(whole[:LINES])
    if not lines:
        return dialect
    dialect.first = lines[0]
    if _as_other_format(dialect, lines):
        return dialect
    title = _around_table([line for line in whole if dialect.comment is None or not line.startswith(dialect.comment)])
    if title is not None:
        dialect.title = title
        return dialect
    lines = _without_title(dialect, lines)
    dialect.quote = quote_of(lines)
    separator_and_width = separator_of(lines, dialect.quote)
    if separator_and_width is None:
        _as_list(dialect, lines)
        return dialect
    dialect.separator, dialect.width = separator_and_width
    if len(dialect.separator) > 1:
        dialect.quote = None
    dialect.strip = _padded(lines, dialect)
    if dialect.separator == "\t" and not any('"' in line for line in lines):
        dialect.quote = None
    rows = [fields(line, dialect) for line in lines]
    dialect.trailing = _trailing(rows, dialect.width)
    dialect.width -= dialect.trailing
    first_rows = [row[: dialect.width] for row in rows[:200] if len(row) >= dialect.width - 1]
    dialect.header, dialect.sure_of_header = _find_header(first_rows) if header is None else (header, True)
    _name_columns(dialect, rows[0])
    return dialect


def _as_other_format(dialect: Dialect, lines: Sequence[str]) -> bool:
    """Return True for lines that are not a table: set their format, or write into `title` why they are unreadable."""
    if _are_records(lines):
        dialect.title = RECORDS.format(lines[0].partition(":")[0])
        return True
    if all(line.lstrip().startswith("{") for line in lines):
        dialect.format = "jsonl"
        return True
    if _as_slots(dialect, lines):
        return True
    for name, pattern in (("libfm", LIBFM), ("svmlight", SVMLIGHT)):
        if sum(bool(pattern.match(line)) for line in lines) > STEADY * len(lines):
            dialect.format, dialect.separator, dialect.width = name, " ", len(lines[0].split())
            return True
    if HEADING.match(lines[0]) and not all(HEADING.match(line) for line in lines):
        dialect.title = HEADINGS.format(lines[0].strip())
        return True
    return False


def _as_slots(dialect: Dialect, lines: Sequence[str]) -> bool:
    """Return True for lines of slot:value, in which a slot occurs several times, or a label is a slot."""
    if sum(":" in line for line in lines) <= STEADY * len(lines):
        return False
    for separator in (" ", ",", ";"):
        few = [slots.parts(line, separator) for line in lines]
        leading, names = slots.slots(list(lines), separator)
        fields = [row[leading:] for row in few]
        fits = sum(len(row) > 1 and all(SLOT.match(f) for f in row) for row in fields)
        keys = [[f.partition(":")[0] for f in row] for row in fields]
        often = [n for n in names if sum(n in row for row in keys) > len(lines) / 4]
        repeated = any(len(set(row)) < len(row) for row in keys)
        if fits > STEADY * len(lines) and (repeated or leading != 1) and len(often) > 1 and leading < MOST_LEADING:
            dialect.format, dialect.separator, dialect.width = "slots", separator, leading + len(names)
            dialect.columns = ["label"] if leading == 1 else [f"field_{i}" for i in range(1, leading + 1)]
            if leading > 1:
                dialect.reasons["columns"] = "the fields without a slot"
            return True
    return False


def _are_records(lines: Sequence[str]) -> bool:
    """Return True for records of several lines `name: value`, whose names repeat in an order."""
    names = [line.partition(": ")[0] if ": " in line else "" for line in lines]
    different = set(names) - {""}
    period = next((i for i, name in enumerate(names[1:], 1) if name == names[0]), 0)
    if (
        period < 2
        or len(different) > 2 * period
        or not all(re.fullmatch(r"[A-Za-z][\w/ .-]{0,40}", n) for n in different)
    ):
        return False
    return sum(name != "" for name in names) > STEADY * len(names) and names.count(names[0]) >= FEWEST_ROWS


def without_excel(lines: list[str]) -> list[str]:
    """Return the lines without a first line such as sep=;"""
    return lines[1:] if lines and EXCEL.fullmatch(lines[0].rstrip("\r")) else lines


def _around_table(lines: Sequence[str]) -> str | None:
    """Return how to remove the title above a table, as spreadsheets write it; None if no title stands there."""
    middle = lines[len(lines) // 4 :][:LINES]
    quote = quote_of(middle)
    separator_and_width = separator_of(middle, quote) if len(middle) >= FEWEST_ROWS else None
    if separator_and_width is None or separator_and_width[1] < FEWEST_ROWS or len(separator_and_width[0]) > 1:
        return None
    separator, width = separator_and_width
    filled = [
        sum(bool(v.strip()) for v in next(csv.reader([line], delimiter=separator, quotechar=quote), []))
        for line in (*lines[: MOST_TITLE + 1], *lines[-MOST_TITLE:])
    ]
    few = width // 3
    first = next((i for i, n in enumerate(filled) if n > few), 0)
    if (
        not 0 < first <= MOST_TITLE
        or filled[first] < STEADY * width
        or any(map(_is_number, lines[first].split(separator)))
    ):
        return None
    last = next(i for i, n in enumerate(reversed(filled)) if n > few)
    if first == 1 and not last and count_fields(lines[0], separator, quote) != width:
        return None  # `_without_title` says it
    ends = f" | head -n -{last}" if last else ""
    what = f", and its last {last} {'line is' if last == 1 else 'lines are'} a footer" if last else ""
    return f"its first {first} lines are a title{what}; remove them: tail -n +{first + 1} FILE{ends} > rows.csv"


def _without_title(dialect: Dialect, lines: list[str]) -> list[str]:
    """Return the rows without a first line that has another number of fields than all others.

    If it begins with a character that no row begins with, it is a comment; otherwise, `dialect.title` says what it is.
    """
    first, rest = lines[0], lines[1:]
    quote = quote_of(rest)
    if (all_ := separator_of(lines, quote)) is not None and all(
        count_fields(line, all_[0], quote) == all_[1] for line in lines
    ):
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
    if is_mark and dialect.comment is None and not any(line.startswith(mark) for line in rest):
        dialect.comment, dialect.reasons["comment"] = mark, "the first line is no row of the table"
        return rest
    if separator not in (" ", SPACES, ":"):  # these also divide prose and lists of items
        dialect.title = (
            f"its first line has {count} of the {width} fields of all other lines; remove it, or put # before it"
        )
        return rest
    return lines


def _comment(lines: list[str]) -> tuple[str | None, list[str]]:
    """Return the text that comment lines begin with, and the other lines; a header that begins with # is not one."""
    for mark in COMMENTS:
        comments = [line for line in lines if line.startswith(mark)]
        rest = [line for line in lines if not line.startswith(mark)]
        if not comments or not rest or not lines[0].startswith(mark):
            continue
        if (
            len(comments) == 1
            and (separator_and_width := separator_of(lines, None))
            and count_fields(lines[0], separator_and_width[0], None) == separator_and_width[1]
        ):
            return None, lines  # it has as many fields as the rows
        return mark, rest
    return None, lines


def _as_list(dialect: Dialect, lines: Sequence[str]) -> None:
    """Take lines of different numbers of short words for lists of items; set the width to 0 for other lines."""
    for separator in LIST_SEPARATORS:
        parts = [row for line in lines if (row := [p for p in line.strip().split(separator) if p])]
        tokens = [p for row in parts for p in row]
        if sum(len(row) > 1 for row in parts) < 0.5 * len(lines):
            continue
        simple = sum(bool(re.fullmatch(r"[\w.:-]{1,40}", p)) for p in tokens)
        ids = sum(bool(re.search(r"\d", p)) for p in tokens)
        if simple == len(tokens) and ids > 0.9 * len(tokens):
            dialect.format, dialect.separator, dialect.header, dialect.quote = "lists", separator, False, '"'
            firsts = [row[0] for row in parts]
            later = {p for row in parts for p in row[1:]}
            by_user = len(set(firsts)) == len(firsts) and (_counts_up(firsts) or not later & set(firsts))
            dialect.columns = ["user", "item"] if by_user else ["item"]
            dialect.reasons["columns"] = (
                "the first value of each line occurs once"
                if by_user
                else "first values occur in several lines: no user"
            )
            dialect.width = len(dialect.columns)
            return
    dialect.width = 0


def _counts_up(values: Sequence[str]) -> bool:
    """Return True for 1 2 3 ...: mostly increasing numbers."""
    numbers = [int(v) for v in values if v.isdecimal()]
    return len(numbers) == len(values) and all(a < b for a, b in pairwise(numbers))


def _padded(lines: Sequence[str], dialect: Dialect) -> bool:
    """Return True if spaces surround values, so that they have to be removed."""
    if dialect.separator in (SPACES, " "):
        return False
    values = [v for line in lines[:100] for v in _raw_fields(line, dialect)[1:]]
    return sum(v != v.strip() for v in values) > 0.02 * len(values)


def _raw_fields(line: str, dialect: Dialect) -> list[str]:
    if dialect.separator == SPACES:
        return line.split()
    if dialect.quote is not None and dialect.quote in line and len(dialect.separator) == 1:
        return next(
            csv.reader([line], delimiter=dialect.separator, quotechar=dialect.quote, skipinitialspace=dialect.strip), []
        )
    return line.split(dialect.separator)


def fields(line: str, dialect: Dialect) -> list[str]:
    """Return the values of a line."""
    raw = _raw_fields(line.rstrip("\r"), dialect)
    return [v.strip() for v in raw] if dialect.strip else raw


def _trailing(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Return True if all lines end with a separator, and the first one does not name or fill the column after it."""
    same = [r for r in rows[1:] if len(r) == width]
    empty = all(not r[-1].strip() for r in same) and (len(rows[0]) < width or not rows[0][-1].strip())
    return bool(same) and width > 2 and empty and (len(rows[0]) < width or not any(map(_is_number, rows[0])))


def _is_number(text: str) -> bool:
    """Return True for 7, -1.5, 1e-3, 1,5 and 1.234.567,8."""
    return bool(NUMBER.match(text.strip()))


def _find_header(rows: Sequence[Sequence[str]]) -> tuple[bool, bool]:
    """Return whether the first row names the columns, as it differs from those below it, and whether that is sure."""
    if len(rows) < 2:
        half = bool(rows) and sum(plain(v) in KNOWN for v in rows[0]) * 2 >= len(rows[0])
        return half and not any(map(_is_number, rows[0])), True
    first, rest = [v.strip() for v in rows[0]], rows[1:]
    if any(map(_is_number, first)):
        return _names_and_numbers(first, rest)
    blank = sum(not v or v in NULLS for v in first)
    if blank > max(1, len(first) // 20) or sum(len(v) > LONGEST_NAME for v in first) * 2 >= len(first):
        return False, True
    for_, against = 0, 0
    for i, name in enumerate(first):
        column = [r[i].strip() for r in rest if i < len(r) and r[i].strip() and r[i].strip() not in NULLS]
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


def _names_and_numbers(first: Sequence[str], rest: Sequence[Sequence[str]]) -> tuple[bool, bool]:
    """Return whether a first row with numbers is a header, and if that is sure.

    pandas names columns without names 0, 1, 2, ...; a table may also have columns that are named by the ids of
    features, such as click,purchase,101,121. Its names stand above numbers.
    """
    given = [v for v in first if v]
    if given == [str(i) for i in range(len(given))] and len(first) > 3:
        return True, True
    named = [i for i, v in enumerate(first) if v and not _is_number(v) and v not in NULLS]
    below = {i: [v for r in rest if i < len(r) and (v := r[i].strip()) and v not in NULLS] for i in named}
    above = [i for i in named if below[i] and all(map(_is_number, below[i]))]
    known = sum(bool(set(words(first[i])) & KNOWN) for i in named)
    numbers = [v for v in first if _is_number(v)]
    distinct = len(set(numbers)) == len(numbers)
    unlike = all(first[i] not in below[i] for i in named)
    is_header = bool(named) and distinct and unlike and (known > 1 or (known > 0 and above != []) or len(above) > 1)
    return is_header, is_header or not (above and distinct)


def _shape(value: str) -> str:
    """Return a value with its digits as 9 and its words as a, if it has both or is a time: user_000007 is a_9."""
    shape = re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", value))
    return shape if "9" in shape else value


def _name_columns(dialect: Dialect, first: Sequence[str]) -> None:
    """Name the columns by the header; give names to those that it lacks, and to all if there is no header."""
    if not dialect.header:
        dialect.columns = [f"column_{i}" for i in range(1, dialect.width + 1)]
        return
    names = [v.strip().lstrip("\ufeff") for v in first][: dialect.width]
    if len(names) == dialect.width - 1:  # R leaves out the name of the rows
        names = ["row", *names]
    clean: list[str] = []
    for i, name in enumerate(names, 1):
        name = "" if name == "*" else name  # all columns, in SQL and in polars
        new, n = name or f"column_{i}", 2
        while new in clean:
            new, n = f"{name or 'column'}_{n}", n + 1
        clean.append(new)
    dialect.columns = clean + [f"column_{i}" for i in range(len(clean) + 1, dialect.width + 1)]
    dialect.renamed = [v.strip().lstrip("\ufeff") for v in first] != dialect.columns
    if dialect.trailing and names == dialect.columns:
        dialect.renamed = False
    if dialect.renamed:
        dialect.reasons["columns"] = "the header names some columns twice, not at all or *"
