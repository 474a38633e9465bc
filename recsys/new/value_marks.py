"""Find how the columns of text write numbers, missing values and several values.

Such as decimal commas, 2.233,58 € and 45,5 %, NA and -, and Action|Comedy.
"""

import re
from dataclasses import dataclass, field

import polars as pl

from recsys.new.statistics import counts_of, largest, mean

NULLS = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "none", "NaN", "nan", "?", r"\N", "-", "--", ".")
SURE_NULLS = frozenset({"NULL", "null", "NaN", "nan", "N/A", "n/a", "#N/A", "<NA>", "?", r"\N"})
DECIMAL_COMMA = r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?$"
THOUSANDS_COMMA = r"^[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?$"
SPACES_WITHIN = "\u202f\u00a0\u2009"  # narrow, unbreakable and thin spaces, which divide groups of three digits
THOUSANDS_SPACE = rf"^[+-]?\d{{1,3}}([ {SPACES_WITHIN}]\d{{3}})*([.,]\d+)?$"
PLAIN_SPACE = r"^[+-]?\d{1,3}( \d{3})+,\d{1,2}$"  # 39 725,00
AMOUNT_SPACES = " " + SPACES_WITHIN  # between thousands
AMOUNT = rf"[+-]?\d[\d.,]*(?:[{AMOUNT_SPACES}]\d{{3}}(?:[.,]\d+)?)*"
CURRENCY = "€|\\$|£|¥|₹|EUR|USD|GBP|CHF|JPY|CNY|INR|zł|PLN|kr|SEK|NOK|DKK|Kč|₺|TL|₽|руб|R\\$|₩|元|円"
MEASURE = "%|‰|°C|kg|g|km|m|cm|mm|m²|l|ml|h|min|s|ms|kB|KB|MB|GB"
UNIT = rf"^\s*((?:{CURRENCY})\s?)?{AMOUNT}(\s?(?:{CURRENCY}|{MEASURE}))?\s*$"
AMOUNTS = 0.995  # share of texts that are amounts with a unit
# separators of several values, the surest first
VALUE_SEPARATORS = ("\x01", "\x02", "\x03", "\x1d", "|", ";", "^", ",", "::", "/", " ")
STOP_WORDS = ("the", "a", "an", "and", "of", "in", "to", "for", "with", "is", "on", "at", "by", "from", "this")
RANGE = r"^\D*\d{1,3}(,\d{3})*\s*(\+|(-|–|to|bis)\s*\D?\d{1,3}(,\d{3})*)\D*$"  # 1,000 - 5,000 and 10,000+


@dataclass
class Marks:
    """How all columns of text write numbers and missing values."""

    null_values: list[str] = field(default_factory=list)  # texts that stand for missing values
    decimal: str = "."
    thousands: str | None = None


def marks_of(frame: pl.DataFrame) -> Marks:
    """Find the marks in numbers, and the text that stands for missing values, in all columns together."""
    marks, dotted, nulls = Marks(), False, set[str]()
    for name in frame.select(pl.col(pl.String)).columns:
        numbers = frame[name].cast(pl.Float64, strict=False).fill_nan(None)
        if numbers.null_count() == frame[name].null_count():
            dotted |= bool(frame[name].head(100).str.contains(".", literal=True).any())
            continue  # nothing but numbers as Python writes them
        values = frame[name].drop_nulls().str.strip_chars()
        plain = values.filter(~values.is_in(NULLS))
        if not plain.len():
            continue
        spaces = plain.str.extract(f"([{SPACES_WITHIN}])").drop_nulls()
        if mean(plain.str.contains(PLAIN_SPACE)) > 0.1:  # otherwise, lists of codes
            spaces = plain.str.extract("( )").drop_nulls()
        has_comma = plain.str.contains(",", literal=True).any()
        if spaces.len() and mean(plain.str.contains(THOUSANDS_SPACE)) >= 0.99:
            marks.thousands, marks.decimal = spaces[0], "," if has_comma else marks.decimal
        elif has_comma and not _are_pairs_of_ids(plain):
            points, thousands = (mean(plain.str.contains(p)) >= 0.99 for p in (DECIMAL_COMMA, THOUSANDS_COMMA))
            groups = plain.str.contains(r"\.|^[+-]?\d{1,3}(,\d{3})+$").any()
            if thousands and (groups or not points):
                marks.thousands = ","
            elif points:
                marks.decimal = ","
                if plain.str.contains(r"^\d{1,3}(\.\d{3})+(,|$)").any():
                    marks.thousands = "."
        dotted |= mean(plain.head(1000).str.contains(r"^-?\d+\.\d+$")) > 0.5
        sure = values.is_in(SURE_NULLS)
        numeric = mean(as_numbers(plain, marks).is_not_null()) >= 0.99
        nulls |= {*values.filter(sure | values.is_in(NULLS) if numeric else sure)}
        if values.is_in(["NA"]).any() and mean(plain.str.len_chars() == 2) <= 0.9:  # NA of countries is Namibia
            nulls.add("NA")
    if (dotted and marks.thousands == ".") or marks.thousands == marks.decimal:  # 3,000 is 3 beside 67,95
        marks.thousands = None
    marks.null_values = [n for n in NULLS if n in nulls]
    return marks


def _are_pairs_of_ids(plain: pl.Series) -> bool:
    """Return True for texts such as 12,45 whose parts are of one kind, as two ids of a list are, and not decimals."""
    parts = plain.str.split_exact(",", 1).struct.unnest().drop_nulls()
    if parts.height < 20 or not mean(plain.str.count_matches(",") <= 1):
        return False
    left, right = (parts[name].unique() for name in parts.columns)
    return not right.str.starts_with("0").any() and mean(right.is_in(left.implode())) > 0.5


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


def number_sql(values: pl.Series) -> tuple[pl.Series, str] | None:
    """Return numbers with a unit or a currency, and the SQL that makes them of the column {}; None for other text.

    All values have the same unit, before or after the number.
    """
    known = values.drop_nulls()
    if not known.len() or any(mean(texts.str.contains(UNIT)) < AMOUNTS for texts in (known.head(200), known)):
        return None
    units = known.str.replace(AMOUNT, "", literal=False).str.strip_chars().unique().to_list()
    if len(units) != 1 or not units[0] or len(units[0].split()) != 1 or re.search(r"\d", units[0]):
        return None
    amounts = known.str.extract(f"({AMOUNT})")
    spaces = [(s, "") for s in AMOUNT_SPACES if amounts.str.contains(s, literal=True).any()]
    if (replacements := _replacements(amounts.str.replace_all(f"[{AMOUNT_SPACES}]", ""))) is None:
        return None
    sql = "{}"
    for old, new in ((units[0], ""), *spaces, *replacements):
        quoted = old.replace("'", "''").replace("{", "{{").replace("}", "}}")
        sql = f"REPLACE({sql}, '{quoted}', '{new}')"
    sql = f"TRY_CAST(TRIM({sql}) AS DOUBLE)"
    numbers = values.to_frame("x").select(pl.sql_expr(sql.format("x"))).to_series()
    return (numbers, sql) if numbers.drop_nulls().len() >= AMOUNTS * known.len() else None


def _replacements(amounts: pl.Series) -> list[tuple[str, str]] | None:
    """Return the replacements that make numbers of amounts, None if points may divide thousands.

    Marks between thousands are removed, and a decimal comma becomes a point.
    """
    comma, point = (amounts.str.contains(mark, literal=True).any() for mark in (",", "."))
    if not comma:
        return None if point and amounts.str.contains(r"\.\d{3}$|\.\d{3}\.").all() else []
    if not point:
        return [(",", "")] if amounts.str.contains(r"^[+-]?\d{1,3}(,\d{3})*$").all() else [(",", ".")]
    last_is_comma = mean(amounts.str.contains(r"\.\d{3}.*,|^[^.]*,\d+$|^[^,]*$")) > AMOUNTS
    return [(".", ""), (",", ".")] if last_is_comma else [(",", "")]


def same_numbers(head: pl.Series) -> tuple[str, int] | None:
    """Return the separator and the number of fractions that each text holds, None if they hold something else."""
    for separator in (" ", ";", "|"):
        counts = head.str.count_matches(separator, literal=True)
        width = round(largest(counts)) + 1
        if not 2 <= width <= 64 or counts.n_unique() > 1:
            continue
        numbers = head.str.split(separator).explode().cast(pl.Float64, strict=False)
        if not numbers.null_count() and mean(head.str.contains(r"\d\.\d")) > 0.9:
            return separator, width
    return None


def separator_of_values(head: pl.Series) -> str | None:
    """Return the separator of several values in a text, None if a text is one value."""
    often = (s for s in VALUE_SEPARATORS if mean(head.str.contains(s, literal=True)) >= 0.05)
    return next((s for s in often if _separates(head, s)), None)


def _separates(head: pl.Series, separator: str) -> bool:
    """Return True if the separator divides texts into parts that occur again and again in other texts."""
    is_range = separator == "," and mean(head.str.contains(RANGE)) > 0.5
    if is_range or (separator == "/" and head.str.contains(r"^(https?:)?/").any()):
        return False
    lengths = head.str.split(separator).list.len()
    parts = _parts(head, separator)
    whole, distinct = head.n_unique(), parts.n_unique()
    repeats = parts.len() / max(distinct, 1)
    if separator == " ":
        is_prose = mean(parts.head(20_000).str.to_lowercase().is_in(STOP_WORDS)) > 0.02
        return not is_prose and repeats >= 5 and whole >= max(20, 2 * distinct) and lengths.n_unique() >= 3
    if separator == "," and mean(parts.str.contains(" ")) > 0.5:  # as in: Smith, John
        return repeats >= 2 and distinct <= 0.5 * whole
    shared = mean(counts_of(_parts(head.unique(), separator))["count"] > 1)  # parts of several different texts
    if repeats < 2 or (distinct >= whole and shared < 0.5):
        return False
    return lengths.n_unique() > 1 or distinct <= 0.5 * whole or (shared > 0.8 and mean(lengths) > 3)


def _parts(texts: pl.Series, separator: str) -> pl.Series:
    parts = texts.str.split(separator).explode().str.strip_chars()
    return parts.filter(parts != "")
