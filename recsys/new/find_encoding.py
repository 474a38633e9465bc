"""Find the encoding of a text file from its first bytes."""

import codecs
import re
from collections.abc import Sequence

from recsys.new.find_dialect import LINES
from recsys.new.known_names import KNOWN, words

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
