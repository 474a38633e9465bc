"""Find the encoding of text: by its mark, UTF-8, or the likeliest one by charset-normalizer."""

import codecs
import re
from collections.abc import Sequence

from recsys.new.known_names import KNOWN, words

MAX_LINES = 20_000  # that are looked at
MAX_NORMALIZED = 400  # lines that charset-normalizer looks at
LATIN = ("cp1252", "cp1250", "cp1254")
MIN_ALONE = 0.8  # share of the bytes above 127 that stand alone in Latin letters
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


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
