"""Find how the columns of text write numbers, missing values and several values.

Such as decimal commas, 2.233,58 € and 45,5 %, NA and -, and Action|Comedy.
"""

import re
from dataclasses import dataclass, field

import polars as pl

from recsys.data.features.value_types import as_time
from recsys.new.column_kinds import TimeKind
from recsys.new.known_names import NAMES, has_word, rank_of
from recsys.new.statistics import counts_of, largest, least, mean, quantile

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


ENOUGH = 0.995  # share of values that have to be times
SECONDS = (6e8, 4.1e9)  # 1989 to 2099, in seconds since 1970
NUMBERED = r"(nr|no|num|id|sk)$"  # ends of names of numbers: Bestellnr
EARLIEST = 1000  # year
EXCEL_TO_UNIX = 25_569  # days
EXCEL_SQL = "CAST((TRY_CAST(REPLACE(CAST({} AS VARCHAR), ',', '.') AS DOUBLE) - 25569) * 86400 AS BIGINT)"
UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
YEAR = 366 * 86_400
DIGITS = {  # length of whole numbers -> how SQL reads them, and the strptime format of the text that it makes
    8: [("'20' || {} || '00'", "%Y%m%d%H%M", "yymmddhh")],
    10: [("{} || '00'", "%Y%m%d%H%M", "yyyymmddhh"), ("'20' || {}", "%Y%m%d%H%M", "yymmddhhmm")],
    12: [("{}", "%Y%m%d%H%M", "yyyymmddhhmm"), ("'20' || {}", "%Y%m%d%H%M%S", "yymmddhhmmss")],
    14: [("{}", "%Y%m%d%H%M%S", "yyyymmddhhmmss")],
}
FORMATS = [
    f"{day}{clock}"
    for day in (
        *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d", "%d.%m.%y", "%d %b %Y"),
        *("%d-%b-%Y", "%b %d, %Y"),
        *("%d %B %Y", "%B %d, %Y", "%m %d, %Y", "%m/%d/%y", "%d/%m/%y", "%d/%b/%Y", "%d-%b-%y", "%Y-%b-%d"),
        *("%Y年%m月%d日", "%Y년 %m월 %d일"),
    )
    for clock in (" %H:%M:%S", " %H:%M", "", ":%H:%M:%S", " %I:%M:%S %p", " %I:%M %p", ", %H:%M:%S", ", %H:%M")
] + [
    *("%d-%b-%y %H.%M.%S%.f", "%d-%b-%y %I.%M.%S%.f %p", "%d-%b-%Y %H.%M.%S", "%Y-%m-%d-%H.%M.%S%.f"),  # Oracle, Db2
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y", "%d/%b/%Y:%H:%M:%S %z", "%Y-%m-%d_%H:%M:%S"),
]


def time_of(values: pl.Series, numbers: pl.Series | None) -> TimeKind | None:
    """Return the kind of time that a column holds; None if it holds no times.

    numbers: the values of the column, if all are numbers
    """
    dtype = values.dtype
    if dtype in (pl.Date, pl.Datetime):
        return TimeKind(str(dtype).split("(")[0].lower(), _parsed(values))
    if dtype in (pl.Time, pl.Duration, pl.Boolean) or dtype.is_nested():
        return None
    if numbers is not None:
        return _of_numbers(values.name, numbers)
    texts = values.drop_nulls()
    if not texts.len() or dtype != pl.String:
        return None
    head = texts.head(100)  # with digits, and no letters but the names of months and zones
    shape = head.str.contains(r"^\s*[A-Za-z, ]{0,16}\d[\d A-Za-z:./,+_年月日년월일-]{4,34}$")
    if mean(shape & head.str.contains(r"[0-9A-Za-z][/.:, 年月년월-]+[0-9A-Za-z]")) < 0.9:
        return None
    parsed = _parsed(values)
    if parsed.drop_nulls().len() >= ENOUGH * texts.len():
        return TimeKind("ISO 8601", parsed)
    few = texts.unique(maintain_order=True).head(2000)
    fits = []
    for form in FORMATS:
        if not few.head(20).str.to_datetime(form, strict=False).null_count():
            times = few.str.to_datetime(form, strict=False)
            if times.null_count() <= (1 - ENOUGH) * times.len() and least(times.dt.year()) > EARLIEST:
                fits.append(form)
    if not fits:
        return None
    ordered = [f for f in fits if texts.str.to_datetime(f, strict=False).is_sorted()]
    best = (ordered or fits)[0]
    moments = values.str.to_datetime(best, strict=False, time_unit="us").dt.replace_time_zone(None)
    return TimeKind(best, moments, f"STRPTIME({{}}, '{best}')", guess=len(fits) > 1 and not ordered)


def not_times(values: pl.Series) -> pl.Series | None:
    """Return the texts of a column that are no times, if most are times of one format; None for other columns."""
    texts = values.drop_nulls()
    few = texts.head(1000)
    if texts.dtype != pl.String or not texts.len() or mean(few.str.contains(r"\d.*[/.:, -].*\d")) < 0.5:
        return None

    def times(texts: pl.Series, form: str | None) -> pl.Series:
        return _parsed(texts) if form is None else texts.str.to_datetime(form, strict=False)

    best = times(texts, min([None, *FORMATS], key=lambda f: times(few, f).null_count()))
    if best.null_count() > 0.5 * texts.len() or least(best.dt.year()) <= EARLIEST:
        return None
    return texts.filter(best.is_null())


def _parsed(values: pl.Series) -> pl.Series:
    """Return the times that the reader makes of values."""
    return values.to_frame("x").select(as_time("x", values.dtype)).to_series()


def _of_numbers(name: str, numbers: pl.Series) -> TimeKind | None:
    """Recognise unix times, yyyymmdd, and digits such as yymmddhh; a name may say that other numbers are times."""
    x = numbers.drop_nulls()
    if not x.len() or (distinct := x.n_unique()) < 3:
        return None
    low, high, named = least(x), largest(x), has_word(name, NAMES.times)
    whole = bool((x == x.floor()).all())
    if not whole and not named:
        return None
    if whole and low >= 19_000_101 and high <= 21_001_231:
        texts = numbers.cast(pl.Int64).cast(pl.String)
        dates = texts.str.to_datetime("%Y%m%d", strict=False, time_unit="us")
        if dates.null_count() == numbers.null_count():
            return TimeKind("yyyymmdd", dates)
    if whole and (named or low >= 10**13) and len(digits := str(int(low))) == len(str(int(high))):
        texts = numbers.cast(pl.Int64).cast(pl.String)
        for sql, form, what in DIGITS.get(len(digits), []):
            made = texts.to_frame("x").select(pl.sql_expr(sql.format("x"))).to_series()
            moments = made.str.to_datetime(form, strict=False, time_unit="us")
            years = moments.dt.year()
            if moments.null_count() == numbers.null_count() and 1990 <= least(years) <= largest(years) <= 2060:
                return TimeKind(what, moments, f"STRPTIME({sql}, '{form}')")
    if named and low >= 32_874 and high <= 55_153 and not whole:  # days since 1899-12-30: 1990 to 2050
        seconds = ((numbers - EXCEL_TO_UNIX) * 86_400).round().cast(pl.Int64)
        return TimeKind("Excel's day numbers", _parsed(seconds), EXCEL_SQL)
    is_code = has_word(name, (*NAMES.codes, *NAMES.id_words)) or re.search(NUMBERED, name.lower())
    for label, unit in UNITS.items():
        if low < SECONDS[0] * unit or high > SECONDS[1] * unit:
            continue
        spread = (quantile(x, 0.95) - quantile(x, 0.05)) / unit  # hashes are spread over the whole range
        if named or (not is_code and (high - low) / unit < 30 * YEAR and distinct > 20 and spread < 20 * YEAR):
            return TimeKind(f"unix {label}", _parsed(numbers))
    if rank_of(name, ("timestamp", "time", "ts")) is not None and distinct > max(100, x.len() // 1000) and low >= 0:
        return TimeKind("numbers that grow with time")
    return None
