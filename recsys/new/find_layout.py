"""Recognise the format of a file from its first bytes, and the columns that it has."""

import codecs
import re
from collections.abc import Sequence
from pathlib import Path

from recsys.base.errors import UserError
from recsys.data.raw.dialect import MAGIC, check_line_ends
from recsys.files.json_text import parse_json
from recsys.files.user_files import problem_of
from recsys.new import layouts
from recsys.new.find_dialect import dialect_of
from recsys.new.known_names import KNOWN, words
from recsys.new.sample import head, readable

FIRST_BYTES = 1 << 20
MAX_LINES = 20_000  # that are looked at
MAX_NORMALIZED = 400  # lines that charset-normalizer looks at
LATIN = ("cp1252", "cp1250", "cp1254")
MIN_ALONE = 0.8  # share of the bytes above 127 that stand alone in Latin letters
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
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
    return _likeliest(lines[0], not_utf8), "a guess: some bytes are no UTF-8"


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


def _likeliest(first: bytes, lines: Sequence[bytes]) -> str:
    """Return the likeliest encoding of lines that are not UTF-8: one in which names of columns are known, if any.

    Bytes above 127 that stand alone are accents of Latin letters; other alphabets have them in runs.
    """
    from charset_normalizer import from_bytes

    text = b"\n".join([first, *lines[:MAX_NORMALIZED]])
    runs = re.findall(rb"[\x80-\xff]+", text)
    latin = sum(len(run) == 1 for run in runs) > MIN_ALONE * len(runs)
    matches = from_bytes(text, threshold=0.5, cp_isolation=[*LATIN] if latin else None)
    names = dict.fromkeys(name for m in matches for name in (m.encoding, *m.could_be_from_charset))
    fit = [name for name in names if all(_decodes(line, name) for line in lines) and (name in LATIN) == latin]
    western = ["cp1252"] if latin and all(_decodes(line, "cp1252") for line in lines) else []

    def known(name: str) -> int:
        return sum(not w.isascii() and w in KNOWN for w in words(first.decode(name, errors="replace")))

    return max([*western, *fit], key=known, default="latin-1")


def _decodes(line: bytes, encoding: str) -> bool:
    try:
        line.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        return False
    return True
