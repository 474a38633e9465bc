"""Words in the names of columns that say what a column holds; names.toml lists them, in several languages."""

import re
import tomllib
import unicodedata
from pathlib import Path

_WORDS = {
    name: tuple(text.split())
    for name, text in tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8")).items()
}
LABELS = _WORDS["labels"]
OUTCOMES = frozenset(_WORDS["outcomes"])
SPENT = frozenset(_WORDS["spent"])
PREDICTIONS = _WORDS["predictions"]
MODELS = _WORDS["models"]
AMOUNTS = _WORDS["amounts"]
PERHAPS_AMOUNTS = _WORDS["perhaps_amounts"]
RATINGS = _WORDS["ratings"]
EVENTS = _WORDS["events"]
EVENT_POSITIVES = _WORDS["event_positives"]
WEIGHTS = _WORDS["weights"]
USERS = _WORDS["users"]
SESSIONS = _WORDS["sessions"]
ITEMS = _WORDS["items"]
TIMES = _WORDS["times"]
BIRTHS = _WORDS["births"]
CODES = _WORDS["codes"]
RANGES = _WORDS["ranges"]
QUANTITIES = _WORDS["quantities"]
ID_WORDS = frozenset(_WORDS["id_words"])
ID_ENDINGS = _WORDS["id_endings"]
STATUSES = _WORDS["statuses"]
REFUSALS = _WORDS["refusals"]
CONTEXT = _WORDS["context"]
AFTER = _WORDS["after"]
REASONS = _WORDS["reasons"]
DURATIONS = _WORDS["durations"]
WATCHED = _WORDS["watched"]
LASTING = _WORDS["lasting"]
SURVEYS = _WORDS["surveys"]
KNOWN = frozenset({*LABELS, *RATINGS, *EVENTS, *WEIGHTS, *USERS, *ITEMS, *TIMES, *CODES, *QUANTITIES, *SESSIONS})


def words(name: str) -> list[str]:
    """Return the words of a column's name in small letters: userId, user_id and user-id:token are user, id."""
    name = re.sub(r":(token|float|token_seq|float_seq)$", "", name.strip())  # RecBole's types
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
    about = {
        *(
            "parent",
            "hashed",
            "index",
            "idx",
            "name",
            "the",
            "target",
            "buying",
            "pseudo",
            "from",
            "to",
            "source",
            "ean",
        ),
        *("click", "clicked", "viewed", "bought", "purchased", "played", "watched", "review", "rating", "unique"),
        *("anon", "anonymous", "sha", "md5", "नंबर", "आईडी"),
    }
    stems = [stem if (stem := w.removesuffix("id")) in among else w for w in name_words]  # beer_beerid
    rest = list(dict.fromkeys(w for w in stems if w not in ID_WORDS and w not in about))
    joined = "".join(name_words)
    ends = {joined.removesuffix(end) for end in ID_ENDINGS}
    return (len(rest) == 1 and rest[0] in among and len(name_words) <= 3) or joined in among or bool(ends & set(among))
