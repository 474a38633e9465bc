"""Find how the columns of text write numbers, missing values and several values: decimal commas, NA, Action|Comedy."""

from dataclasses import dataclass, field

import polars as pl

from recsys.new.column_kinds import mean

NULLS = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "none", "NaN", "nan", "?", r"\N", "-", "--", ".")
SURE_NULLS = frozenset({"NULL", "null", "NaN", "nan", "N/A", "n/a", "#N/A", "<NA>", "?", r"\N"})
MIN_ALIKE = 0.99  # share of the texts of a column that have to be alike
DECIMAL_COMMA = r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?$"
THOUSANDS_COMMA = r"^[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?$"
THOUSANDS_POINT = r"^\d{1,3}(\.\d{3})+(,|$)"
SIGN = r"(?:\p{Sc}|[%‰])"  # of a currency or a share
AMOUNT = rf"^[+-]?{SIGN}?\s?\d{{1,3}}(?:[\s.,]?\d{{3}})*(?:[.,]\d+)?\s?{SIGN}?$"
SEPARATORS = ("\x01", "\x02", "\x03", "\x1d", "|", ";", "^", ",", "::", "/", " ")  # of values, the surest first
MAX_WORDS = 4  # of texts that spaces divide into values; longer texts are prose, unless their words have digits
MIN_REPEATS = 2  # how often each value of a list occurs


@dataclass
class Marks:
    """How all columns of text write numbers and missing values."""

    null_values: list[str] = field(default_factory=list)  # texts that stand for missing values
    decimal: str = "."
    thousands: str | None = None
    doubt: str = ""  # why the marks are not certain


def marks_of(frame: pl.DataFrame) -> Marks:
    """Find the marks in numbers, and the text that stands for missing values, in all columns together."""
    marks, nulls, dotted = Marks(), set[str](), False
    for name in frame.select(pl.col(pl.String)).columns:
        values = frame[name].drop_nulls().str.strip_chars()
        plain = values.filter(~values.is_in(NULLS) & (values != ""))
        if not plain.len():
            continue
        commas = plain.filter(plain.str.contains(",", literal=True))
        points, thousands = (mean(plain.str.contains(p)) >= MIN_ALIKE for p in (DECIMAL_COMMA, THOUSANDS_COMMA))
        if commas.len() and (points or thousands) and not _are_pairs_of_ids(plain):
            if points and thousands:
                marks.doubt = f"is {commas[0]} in {name} more than a thousand? The comma is taken for a decimal mark"
            if thousands and not points:
                marks.thousands = ","
            else:
                marks.decimal = ","
                marks.thousands = "." if plain.str.contains(THOUSANDS_POINT).any() else marks.thousands
        dotted |= mean(plain.head(1000).str.contains(r"^-?\d+\.\d+$")) > 0.5
        sure = values.is_in(SURE_NULLS)
        are_numbers = mean(as_numbers(plain, marks).is_not_null()) >= MIN_ALIKE
        nulls |= {*values.filter(sure | values.is_in(NULLS) if are_numbers else sure)}
        if values.is_in(["NA"]).any() and mean(plain.str.len_chars() == 2) <= 0.9:  # NA of countries is Namibia
            nulls.add("NA")
    if marks.thousands == "." and dotted:
        marks.thousands = None
    if marks.decimal == "," and dotted:
        marks.doubt = "some columns have decimal commas and others decimal points; the commas are taken"
    if marks.thousands == marks.decimal:
        marks.thousands = None
    marks.doubt = marks.doubt if marks.decimal == "," and not marks.thousands else ""
    marks.null_values = [n for n in NULLS if n in nulls]
    return marks


def as_numbers(values: pl.Series, marks: Marks) -> pl.Series:
    """Return the values as numbers by the marks; null for values that are not numbers."""
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        if marks.thousands is not None:
            values = values.str.replace_all(marks.thousands, "", literal=True)
        if marks.decimal != ".":
            values = values.str.replace(marks.decimal, ".", literal=True)
    numbers = values.cast(pl.Float64, strict=False).fill_nan(None)
    return numbers.set(numbers.is_infinite(), None)  # 1e400 is not a number to the readers of rows either


def separator_of_values(head: pl.Series) -> str | None:
    """Return the separator of several values in a text, None if a text is one value."""
    often = (s for s in SEPARATORS if mean(head.str.contains(s, literal=True)) >= 0.05)
    return next((s for s in often if _separates(head, s)), None)


def _are_pairs_of_ids(plain: pl.Series) -> bool:
    """Return True for texts such as 12,45 whose parts are of one kind, as two ids of a list are, and not decimals."""
    parts = plain.str.split_exact(",", 1).struct.unnest().drop_nulls()
    if parts.height < 20 or not mean(plain.str.count_matches(",") <= 1):
        return False
    left, right = (parts[name].unique() for name in parts.columns)
    return not right.str.starts_with("0").any() and mean(right.is_in(left.implode())) > 0.5


def _separates(head: pl.Series, separator: str) -> bool:
    """Return True if the separator divides texts into parts that occur again and again in other texts."""
    if separator == "/" and head.str.contains(r"^(https?:)?/").any():
        return False
    lengths, parts, whole = head.str.split(separator).list.len(), _parts(head, separator), head.n_unique()
    distinct = max(parts.n_unique(), 1)
    repeats = parts.len() / distinct
    if mean(parts.str.contains(r"^[-+]?\d*\.\d+$|^\d{1,3}(,\d{3})*\+?$")) > 0.5 and separator in (",", " "):
        return separator == "," and mean(parts.str.contains(r"^\d{3}$")) < 0.3 and repeats >= MIN_REPEATS
    if separator == " ":
        is_prose = mean(lengths) > MAX_WORDS and mean(parts.str.contains(r"\d")) < 0.9
        return not is_prose and repeats >= 5 and lengths.n_unique() >= 3 and whole >= max(20, 2 * distinct)
    if separator == "," and mean(parts.str.contains(" ")) > 0.5:  # as in: Smith, John
        return repeats >= MIN_REPEATS and distinct <= 0.5 * whole
    several = _parts(head.unique(), separator)
    shared = mean(several.is_in(several.filter(several.is_duplicated()).implode()))  # parts of several texts
    if repeats < MIN_REPEATS or (distinct >= whole and shared < 0.5):
        return False
    return lengths.n_unique() > 1 or distinct <= 0.5 * whole or (shared > 0.8 and mean(lengths) > 3)


def _parts(texts: pl.Series, separator: str) -> pl.Series:
    parts = texts.str.split(separator).explode().str.strip_chars()
    return parts.filter(parts != "")
