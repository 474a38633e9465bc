"""Recognise the format of a file from its first bytes, and the columns that it has."""

from pathlib import Path

from recsys.base.errors import UserError
from recsys.data.raw.dialect import MAGIC, check_line_ends
from recsys.files.json_text import parse_json
from recsys.files.user_files import problem_of
from recsys.new import layouts
from recsys.new.encodings import encoding_of
from recsys.new.find_dialect import dialect_of
from recsys.new.sample import head, readable

FIRST_BYTES = 1 << 20
MAX_KEYS = 1000  # of a JSON object that is a row
# bytes that no text holds; some separate values, or the values of lists
CONTROL = bytes(set(range(32)) - {*range(1, 6), *b"\t\n\v\f\r", *range(0x1C, 0x20)})
OTHERS = {  # first bytes -> what the file is
    b"\x93NUMPY": "is a NumPy array; write its columns as Parquet",
    b"\x80": "is no text, perhaps a pickle, which runs code when it is read; write Parquet",
}


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
            _check_object(line)
            return layouts.JsonLinesLayout(encoding=encoding).named(file)
        layout = dialect_of(text, encoding, header)
    except layouts.OtherRows as e:
        e.args = (f"{file}: {e}",)
        raise
    layout.reasons |= {"encoding": why} if why else {}
    return layout


def _check_object(line: str) -> None:
    """Raise OtherRows if a line of JSON is no row: one object of all rows, or a Python dict."""
    try:
        first = parse_json(line)
    except ValueError:
        what = "its lines begin as JSON objects do, and are none; write one object a line"
        raise layouts.OtherRows(what) from None
    if len(first) > MAX_KEYS:
        raise layouts.OtherRows("is one object of many keys; write an object of each on a line: its key and its value")
