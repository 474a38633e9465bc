"""Recognise the format of a file from its first bytes, and the columns that it has."""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

from recsys.base.errors import UserError
from recsys.data.raw.dialect import MAGIC, SPACES, check_line_ends
from recsys.files.json_text import parse_json
from recsys.files.user_files import problem_of
from recsys.new import layouts
from recsys.new.known_names import KNOWN, words
from recsys.new.layouts import EXCEL, CsvLayout, LibFmLayout, ListsLayout, OtherRows
from recsys.new.sample import head, readable
from recsys.new.value_marks import NULLS

FIRST_BYTES = 1 << 20
MAX_LINES = 20_000  # that are looked at
MAX_NORMALIZED = 400  # lines that charset-normalizer looks at
MIN_ALONE = 0.8  # share of the bytes above 127 that stand alone in Latin letters
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
MAX_KEYS = 1000  # of a JSON object that is a row
# bytes that no text holds; some separate values, or the values of lists
CONTROL = bytes(set(range(32)) - {*range(1, 6), *b"\t\n\v\f\r", *range(0x1C, 0x20)})
OTHERS = {  # first bytes -> what the file is
    b"\x93NUMPY": "is a NumPy array; write its columns as Parquet",
    b"\x80": "is no text, perhaps a pickle, which runs code when it is read; write Parquet",
}
MIN_WIDTH = 3  # values of a row, from which a first line with another number of them is a title
MIN_LENGTHS = 3  # different numbers of items on lines that are lists
NO_MARKS = frozenset("\"'+-._ \t\\<([{?")  # characters that rows may begin with
LIBFM = re.compile(r"^[+-]?[\d.]+( +\w+:1(\.0*)?)+ *$")
HINTS = {  # a pattern of lines that are not rows -> how to write them; {} is the first line
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
SEPARATORS = ("\t", "\x01", "\x1f", "::", "||", ";;", ";", "|", ",", "~", "^")  # the surest first
MIN_STEADY = 0.8  # share of rows with the same number of values, from which a separator is one
MAX_ROWS = 400  # that a guess looks at
ESCAPED = re.compile(r'\\"')
AT_END = re.compile(r'\\"[,;\t|]|\\"\r?$', re.M)  # such as C:\dir\ at the end of a value


def layout_of(file: Path, header: bool | None = None) -> layouts.Layout:
    """Return the format of a file by its first bytes. Raises UserError if it is of no known format.

    header: whether the first line of text names the columns; None to look at it
    """
    if problem := problem_of(file):
        raise UserError(f"{file}: {problem}")
    with readable(file):
        first = head(file, FIRST_BYTES) if file.suffix != ".npz" else b"PK"
        if first.startswith(b"PAR1"):
            return layouts.ParquetLayout().named(file)
        if first.startswith(b"ARROW1"):
            return layouts.ArrowLayout().named(file)
        if first.startswith(b"PK"):  # an archive of another kind than .zip, which is opened
            what = "an archive of NumPy arrays" if file.suffix == ".npz" else "an Excel workbook or another archive"
            raise UserError(f"{file}: is {what}; write its rows as CSV or Parquet, such as by polars.read_excel(FILE)")
        kinds = {what for start, what in OTHERS.items() if first.startswith(start)}
        for what in (*kinds, *(f"holds {kind}" for magic, kind in MAGIC.items() if first.startswith(magic))):
            raise UserError(f"{file}: {what}")
        return _text_layout(file, first, header)


def encoding_of(text: bytes) -> tuple[str, str]:
    """Return the encoding of a piece of text, and why it is not certain; an empty reason if it is."""
    for mark, name in MARKS:
        if text.startswith(mark):
            return name, ""
    lines = text.split(b"\n")[:MAX_LINES]
    lines = lines[:-1] or lines  # the last one may be cut in a character
    not_utf8 = [line for line in lines if not _decodes(line, "utf-8")]
    few = len(not_utf8) <= len(lines) // 200 and any(not line.isascii() for line in lines if line not in not_utf8)
    if few or not not_utf8:
        return "utf-8", ""
    return _likeliest(not_utf8), "a guess: some bytes are no UTF-8"


def is_known(names: Sequence[str]) -> bool:
    """Return whether names of columns can be trusted in a guessed encoding: plain letters, or words that are known."""
    foreign = [name for name in names if not name.isascii()]
    return not foreign or any(w in KNOWN and not w.isascii() for name in foreign for w in words(name))


def _text_layout(file: Path, first: bytes, header: bool | None) -> layouts.Layout:
    """Return the layout of a text file. Raises OtherRows if its rows have to be converted first."""
    encoding, why = encoding_of(first)
    control = len(first) - len(first.translate(None, CONTROL))
    if not encoding.startswith("utf-16") and control > len(first) // 100:
        raise UserError(f"{file}: is neither text nor Parquet, Arrow or JSON; convert it to one of them")
    text = first.decode(encoding, errors="replace").removeprefix("\ufeff")
    if not text.strip():
        raise UserError(f"{file}: has no text")
    check_line_ends(text, file)
    text = text[: text.rfind("\n") + 1] or text if len(first) == FIRST_BYTES else text  # the last line may be cut
    line = next(line for line in text.splitlines() if line.strip())
    start = "".join(text[:1000].split())[:2]
    try:
        if start in ("[{", "[]"):
            return layouts.JsonArrayLayout().named(file) if start == "[{" else layouts.JsonArrayLayout()
        if start == "[[" or line.strip() == "{":
            hint = "write each row on a line, such as jq -c '.[]' FILE > rows.jsonl"
            raise layouts.OtherRows(f"holds JSON arrays or objects over several lines; {hint}")
        if start[:1] == "{":
            try:
                keys = len(parse_json(line))
            except ValueError:
                what = "its lines are no JSON objects; write each by json.dumps (ast.literal_eval reads Python dicts)"
                raise layouts.OtherRows(what) from None
            if keys > MAX_KEYS:
                raise layouts.OtherRows("is one object of many keys; write its keys and values as rows, one a line")
            return layouts.JsonLinesLayout(encoding=encoding).named(file)
        layout = dialect_of(text, encoding, header)
    except layouts.OtherRows as e:
        e.args = (f"{file}: {e}",)
        raise
    layout.reasons |= {"encoding": why} if why else {}
    return layout


def _likeliest(lines: Sequence[bytes]) -> str:
    """Return the likeliest encoding of lines that are not UTF-8.

    Bytes above 127 that stand alone are accents of Latin letters; other alphabets have them in runs.
    """
    from charset_normalizer import from_bytes

    text = b"\n".join(lines[:MAX_NORMALIZED])
    runs = re.findall(rb"[\x80-\xff]+", text)
    best = None if sum(len(run) == 1 for run in runs) > MIN_ALONE * len(runs) else from_bytes(text).best()
    names = ["cp1252" if best is None else best.encoding, "latin-1"]
    return next(name for name in names if all(_decodes(line, name) for line in lines))


def _decodes(line: bytes, encoding: str) -> bool:
    try:
        line.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        return False
    return True


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
        valid.pop(",")  # every comma is a decimal comma, as in 1,5
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
    """Return what comment lines begin with, and the text without them. A header line that begins with # stays."""
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
