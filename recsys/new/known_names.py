"""Words in the names of columns that say what a column holds; names.toml lists them, in several languages."""

import re
import tomllib
import unicodedata
from pathlib import Path


class _Names:
    """The lists of names.toml, such as NAMES.labels."""

    def __init__(self) -> None:
        text = Path(__file__).with_name("names.toml").read_text(encoding="utf-8")
        self._lists = {name: tuple(words.split()) for name, words in tomllib.loads(text).items()}

    def __getattr__(self, name: str) -> tuple[str, ...]:
        return self._lists[name]


RECBOLE = re.compile(r":(token|float|token_seq|float_seq)$")  # types that RecBole's files write behind names of columns
NAMES = _Names()
KNOWN = {  # words that say what a column is
    word
    for names in (NAMES.labels, NAMES.ratings, NAMES.events, NAMES.weights, NAMES.users, NAMES.items, NAMES.times)
    for word in (*names, *NAMES.codes, *NAMES.quantities, *NAMES.sessions)
}


def words(name: str) -> list[str]:
    """Return the words of a column's name in small letters: userId, user_id and user-id:token are user, id."""
    name = RECBOLE.sub("", name.strip())
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    letters = (c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in ascii_letters(name))
    return "".join(letters).split()


def ascii_letters(name: str) -> str:
    """Return a name in small letters without accents: Artículo is articulo. Other alphabets keep their marks."""
    letters = unicodedata.normalize("NFKD", name.lower())
    return unicodedata.normalize("NFC", "".join(c for c in letters if not "\u0300" <= c < "\u0370"))


def plain(name: str) -> str:
    """Return the words joined by underscores."""
    return "_".join(words(name))


def rank_of(name: str, among: tuple[str, ...]) -> int | None:
    """Return the place of a column's name among known names, None if it is not one of them."""
    whole = plain(name)
    shorter = (whole.removeprefix("is_"), whole.removesuffix("_flag"), whole.removesuffix("_flg"))
    for form in (whole, whole.replace("_", ""), *shorter):
        if form in among:
            return among.index(form)
    return None


def has_word(name: str, among: tuple[str, ...]) -> bool:
    """Return True if one of the words of a column's name is among the known ones."""
    return any(w in among for w in [*words(name), plain(name), plain(name).replace("_", "")])


def names_an_id_of(name: str, among: tuple[str, ...]) -> bool:
    """Return True for user, user_id, userId, uid, reviewerID and the like, but not for user_age."""
    name_words = words(name)
    stems = [stem if (stem := w.removesuffix("id")) in among else w for w in name_words]  # beer_beerid
    rest = list(dict.fromkeys(w for w in stems if w not in NAMES.id_words and w not in NAMES.about_ids))
    joined = "".join(name_words)
    ends = {joined.removesuffix(end) for end in NAMES.id_endings}
    return (len(rest) == 1 and rest[0] in among and len(name_words) <= 3) or joined in among or bool(ends & set(among))
