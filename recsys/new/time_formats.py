"""Recognise columns that hold times: those that the reader knows, and formats that SQL can translate."""

import re

import polars as pl

from recsys.data.features.times import as_time
from recsys.new.column_kinds import TimeKind
from recsys.new.known_names import NAMES, has_word, rank_of
from recsys.new.statistics import largest, least, mean, quantile

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
