"""Recognise the format and the encoding of a file from its first bytes, and the columns that it has."""

import codecs
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from recsys.base.errors import UserError
from recsys.data.raw.dialect import MAGIC, check_line_ends
from recsys.files.user_files import problem_of
from recsys.new import layouts, raw_bytes
from recsys.new.find_dialect import LINES, dialect_of
from recsys.new.find_separator import plain_quotes, quoting_of
from recsys.new.known_names import KNOWN, words
from recsys.new.raw_bytes import json_array, readable

ALPHABETS = {  # encodings of other letters than Latin ones
    "gb18030": "Chinese", "big5": "Chinese", "cp932": "Japanese", "euc_jp": "Japanese", "cp949": "Korean",
    "cp1251": "Cyrillic", "koi8_r": "Cyrillic", "cp1253": "Greek", "cp1255": "Hebrew", "cp1256": "Arabic",
    "cp874": "Thai",
}  # fmt: skip
LATIN = ("cp1252", "cp1250", "cp1254")
PORTUGUESE = frozenset("ãõÃÕêÊ".encode("cp1252"))  # letters that cp1250 would make ă, ő and ę
TURKISH = 20  # letters of the first lines that are Turkish in cp1254 and Icelandic in cp1252
MIXED = 0.2  # share of words with letters of two alphabets


def encoding_of(text: bytes) -> tuple[str, str]:
    """Return the encoding of a piece of text, and the reason if it is not certain."""
    for mark, name in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if text.startswith(mark):
            return name, ""
    for name, first in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, other_bytes = text[first:1000:2], text[1 - first : 1000 : 2]
        if len(text) > 1 and zeros.count(0) > 0.8 * len(zeros) and not other_bytes.count(0):
            return name, "every other byte is 0"
    lines = text.split(b"\n")[: 50 * LINES]
    lines = lines[:-1] or lines  # the last one may be cut in a character
    not_utf8 = [line for line in lines if not _decodes(line, "utf-8")]
    few = len(not_utf8) <= len(lines) // 200 and any(not line.isascii() for line in lines if line not in not_utf8)
    return ("utf-8", "") if few or not not_utf8 else _likeliest(not_utf8)


def _likeliest(lines: Sequence[bytes]) -> tuple[str, str]:
    """Return the likeliest encoding of lines that are not UTF-8, and the reason.

    charset-normalizer orders those that fit by their letters. Names of columns that are known in one of them, and not
    in the first one, decide against it.
    """
    from charset_normalizer import from_bytes

    matches = from_bytes(b"\n".join(lines[:LINES]), cp_isolation=[*ALPHABETS, *LATIN], threshold=0.5)
    fit = dict.fromkeys(name for m in matches for name in (m.encoding, *m.could_be_from_charset))
    fit = dict.fromkeys(name for name in fit if all(_decodes(line, name) for line in lines))
    fit = dict.fromkeys(name for name in fit if name in LATIN or not _mixes_letters(lines[:LINES], name))
    best = max(fit, key=lambda name: _known_names(lines[0], name), default="latin-1")
    head = b"\n".join(lines[:LINES])
    used = {b for b in head if b > 127}
    turkish = len(re.findall(rb"[\xf0\xfe\xfd\xdd\xde\xd0]", head)) > TURKISH and 0xE6 not in used
    if best in (*LATIN, "latin-1") and turkish:
        return "cp1254", "a guess: bytes above 127 are not UTF-8, and make Turkish letters; look at them"
    if best in ALPHABETS:
        return best, f"a guess: bytes above 127 are not UTF-8, and make {ALPHABETS[best]} letters; look at them"
    differ = {b for b in used if _letter(b, "cp1250") != _letter(b, "cp1252")}
    if best == "cp1250" and differ <= PORTUGUESE and all(_decodes(line, "cp1252") for line in lines):
        best = "cp1252"
    czech = {0xF8, 0x9A, 0x9E} & used and {0xEC, 0xE8} & used  # ě or č with ř, š or ž in cp1250
    polish_or_hungarian = {0xB3, 0xB9} <= used or {0xF5, 0xFB} <= used  # ą and ł, or ő with ű
    romanian = 0xE3 in used and {0xBA, 0xFE} & used  # ă with ş or ţ
    if best in ("cp1250", "cp1252", "latin-1") and (czech or polish_or_hungarian or romanian):
        return "cp1250", "a guess: some bytes are not UTF-8, and make Czech, Polish or Hungarian letters; look at them"
    if "cp1252" in fit and _known_names(lines[0], "cp1252") == _known_names(lines[0], best):
        best = "cp1252"
    return best, "a guess: some bytes are not UTF-8; check letters such as é and ü"


def _letter(byte: int, encoding: str) -> str:
    return bytes([byte]).decode(encoding, errors="replace")


def _mixes_letters(lines: Sequence[bytes], encoding: str) -> bool:
    """Return True if words have letters of two alphabets, as accents have that were read in another encoding."""
    foreign_words = [w for line in lines for w in re.findall(r"[^\W\d_]+", line.decode(encoding)) if not w.isascii()]
    return sum(bool(re.search("[A-Za-z]", w)) for w in foreign_words) > MIXED * len(foreign_words)


def _known_names(line: bytes, encoding: str) -> int:
    """Return the number of words of a line that are not ASCII and known in the names of columns."""
    return sum(w in KNOWN and len(w) > 1 and not w.isascii() for w in words(line.decode(encoding, errors="replace")))


def _decodes(line: bytes, encoding: str) -> bool:
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


FIRST_BYTES = 1 << 20
# bytes that no text holds; some separate values, or the values of lists
CONTROL = bytes(set(range(32)) - {*range(1, 6), *b"\t\n\v\f\r", *range(0x1C, 0x20)})
FOREIGN: dict[Callable[[Path, bytes], bool], str] = {
    lambda _, first: first.startswith(b"PK") and (b"xl/" in first or b"[Content_Types].xml" in first[:1000]): (
        "is an Excel workbook; save its sheet as CSV, or write Parquet: polars.read_excel(FILE)"
    ),
    lambda file, first: (
        first[:1] == b"\x80" and first[1:2] in (b"\2", b"\3", b"\4", b"\5") and file.suffix != ".parquet"
    ): ("is a pickle, which runs code when it is read; if you trust it: pandas.read_pickle(FILE).to_parquet()"),
    # a length of 8 bytes, its checksum, and a message tf.train.Example
    lambda _, first: 12 < int.from_bytes(first[:8], "little") < 1 << 24 and first[12:13] == b"\n": (
        "holds TFRecords; write them as Parquet, for example from tensorflow_datasets or tf.data"
    ),
}


def layout_of(file: Path, header: bool | None = None) -> layouts.Layout:
    """Return the format of a file by its first bytes. Raises UserError if it is of no known format.

    header: whether the first line of text names the columns; None to look at it
    """
    if problem := problem_of(file):
        raise UserError(f"{file}: {problem}")
    with readable(file):
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return layouts.NpzLayout(columns=list(arrays.files))
        first = raw_bytes.head(file, FIRST_BYTES)
        if first.startswith(b"PAR1"):
            return layouts.ParquetLayout(columns=pq.read_schema(file).names)
        if first.startswith(b"ARROW1"):
            with file.open("rb") as f:  # not by its name, in which brackets are globs for polars
                return layouts.ArrowLayout(columns=list(pl.read_ipc_schema(f)))
        if first.startswith(b"\x93NUMPY"):
            return layouts.NpyLayout(columns=[file.stem])
        kinds = {f"holds {kind}" for magic, kind in MAGIC.items() if first.startswith(magic)}
        for what in (*(hint for is_foreign, hint in FOREIGN.items() if is_foreign(file, first)), *kinds):
            raise UserError(f"{file}: {what}")
        return _text_layout(file, first, header)


def _text_layout(file: Path, first: bytes, header: bool | None) -> layouts.Layout:
    """Return the layout of a text file. Raises OtherRows if its rows have to be converted first."""
    encoding, why = encoding_of(first)
    control = len(first) - len(first.translate(None, CONTROL))
    if not encoding.startswith("utf-16") and control > len(first) // 100:
        raise UserError(f"{file}: is neither text nor Parquet, Arrow or NumPy; convert it to one of them")
    text = first.decode(encoding, errors="replace").removeprefix("\ufeff")
    if not text.strip():
        raise UserError(f"{file}: has no text")
    check_line_ends(text, file)
    escape, broken_by = quoting_of(text)
    text = plain_quotes(text, broken_by or ",", escape=escape, line_breaks=broken_by is not None)
    lines = text.splitlines() if "\n" not in text else [line.rstrip("\r") for line in text.split("\n")]
    second = text[1:].lstrip()[:1] if first[:1] == b"[" else ""
    if second == "[":
        raise UserError(f"{file}: is one JSON array of arrays; write one object a line (JSON lines)")
    if second in ("{", "]"):
        return layouts.JsonArrayLayout(columns=json_array(file).columns)
    if lines[0].strip() == "{":
        rows = re.search(r'"([\w-]+)":\s*\[\s*\{', text)
        hint = f"write each row on a line, such as jq -c '.{rows[1] if rows else 'ROWS'}[]' FILE > rows.jsonl"
        raise layouts.OtherRows(f"{file}: holds JSON objects over several lines; {hint}")
    try:
        layout = dialect_of(lines[:-1] if len(first) == FIRST_BYTES else lines, encoding, header)
        layout.reasons |= {"encoding": why} if why else {}
        if layout.is_csv and layout.quote == '"':
            layout.escape, layout.line_breaks = escape, layout.separator == broken_by
        return layout.completed(lines, file)
    except layouts.OtherRows as e:
        e.args = (f"{file}: {e}",)
        raise
