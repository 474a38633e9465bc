"""Find out whether each text of a column holds several values, and what separates them."""

import polars as pl

from recsys.new.statistics import largest, mean

# separators of several values, the surest first
PARTS = ("\x01", "\x02", "\x03", "\x1d", "|", ";", "^", ",", "::", "/", " ")
STOP_WORDS = frozenset(
    ("the", "a", "an", "and", "of", "in", "to", "for", "with", "is", "on", "at", "by", "from", "this")
)
RANGE = r"^\D*\d{1,3}(,\d{3})*\s*(\+|(-|–|to|bis)\s*\D?\d{1,3}(,\d{3})*)\D*$"  # 1,000 - 5,000 and 10,000+
MOSTLY_RANGES = 0.5  # share of texts that are ranges, whose commas divide thousands
MOST_NUMBERS = 64  # in a text
MOSTLY_FRACTIONS = 0.9  # share of texts with a decimal point, if the texts hold fractions


def same_numbers(head: pl.Series) -> tuple[str, int] | None:
    """Return the separator and the number of fractions that each text holds, None if they hold something else."""
    for separator in (" ", ";", "|"):
        counts = head.str.count_matches(separator, literal=True)
        width = round(largest(counts)) + 1
        if not 2 <= width <= MOST_NUMBERS or counts.n_unique() > 1:
            continue
        numbers = head.str.split(separator).explode().cast(pl.Float64, strict=False)
        if not numbers.null_count() and mean(head.str.contains(r"\d\.\d")) > MOSTLY_FRACTIONS:
            return separator, width
    return None


def separator_of_values(head: pl.Series) -> str | None:
    """Return the separator of several values in a text, None if a text is one value."""
    return next((s for s in PARTS if mean(head.str.contains(s, literal=True)) >= 0.05 and _separates(head, s)), None)


def _separates(head: pl.Series, separator: str) -> bool:
    """Return True if the separator divides texts into parts that occur again and again in other texts."""
    if separator == "," and mean(head.str.contains(RANGE)) > MOSTLY_RANGES:
        return False
    if separator == "/" and head.str.contains(r"^(https?:)?/").any():
        return False
    lengths = head.str.split(separator).list.len()
    parts = _parts(head, separator)
    whole, distinct = head.n_unique(), parts.n_unique()
    repeats = parts.len() / max(distinct, 1)
    if separator == " ":
        return not _is_prose(parts) and repeats >= 5 and whole >= max(20, 2 * distinct) and lengths.n_unique() >= 3
    if separator == "," and mean(parts.str.contains(" ")) > 0.5:  # as in: Smith, John
        return repeats >= 2 and distinct <= 0.5 * whole
    shared = mean(_parts(head.unique(), separator).value_counts()["count"] > 1)  # parts of several different texts
    if repeats < 2 or (distinct >= whole and shared < 0.5):
        return False
    return lengths.n_unique() > 1 or distinct <= 0.5 * whole or (shared > 0.8 and mean(lengths) > 3)


def _parts(texts: pl.Series, separator: str) -> pl.Series:
    parts = texts.str.split(separator).explode().str.strip_chars()
    return parts.filter(parts != "")


def _is_prose(parts: pl.Series) -> bool:
    """Return True if stop words are among the words."""
    return mean(parts.head(20_000).str.to_lowercase().is_in(STOP_WORDS)) > 0.02
