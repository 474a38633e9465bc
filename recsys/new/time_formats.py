"""Recognise columns that hold times: those that the reader knows, and formats that SQL can translate."""

import re
from dataclasses import dataclass, replace

import polars as pl

from recsys.data.features.times import as_time
from recsys.new.known_names import CODES, ID_WORDS, TIMES, has_word, rank_of
from recsys.new.statistics import largest, least, mean, quantile

ENOUGH = 0.995  # share of values that have to be times
MOST = 0.5  # share of texts that are times, from which the others are missing values or a question
SECONDS = (6e8, 4.1e9)  # 1989 to 2099, in seconds since 1970
NUMBERED = r"(nr|no|num|id|sk)$"  # ends of names of numbers: Bestellnr
EARLIEST = 1000  # year
EXCEL = (32_874, 55_153)  # days since the end of 1899: 1990 to 2050
EXCEL_TO_UNIX = 25_569
EXCEL_SQL = "CAST((TRY_CAST(REPLACE(CAST({} AS VARCHAR), ',', '.') AS DOUBLE) - 25569) * 86400 AS BIGINT)"
UNITS = (1, 1e3, 1e6, 1e9)
YEARS_30 = 30 * 366 * 86_400
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


@dataclass(frozen=True)
class TimeGuess:
    """A column that holds times.

    moments: the times, None if the numbers count from an unknown moment
    what: the format in a few words
    sql: how SQL makes a time of the column, which {} stands for; None if the reader knows the format
    guess: the format is not certain
    """

    moments: pl.Series | None
    what: str
    sql: str | None = None
    guess: bool = False

    @property
    def parts(self) -> list[str]:
        """The parts of these times that vary: hour, day_of_week, month."""
        if self.moments is None:
            return []
        t = self.moments.drop_nulls()
        if not t.len():
            return []
        span = (largest(t.dt.epoch("s")) - least(t.dt.epoch("s"))) / 86_400
        parts = ["hour"] if t.dt.hour().n_unique() > 1 else []
        parts += ["day_of_week"] if span >= 6 or (t.dt.weekday().n_unique() > 1 and span >= 2) else []
        return parts + (["month"] if span > 2 * 365 else [])


def time_of(values: pl.Series, numbers: pl.Series | None) -> TimeGuess | None:
    """Return the kind of time that a column holds; None if it holds no times.

    numbers: the values of the column, if all are numbers
    """
    name, dtype = values.name, values.dtype
    if dtype in (pl.Date, pl.Datetime):
        return TimeGuess(_parsed(values), str(dtype).split("(")[0].lower())
    if dtype in (pl.Time, pl.Duration, pl.Boolean) or dtype.is_nested():
        return None
    if numbers is not None:
        guess = _of_numbers(name, numbers.drop_nulls())
        if guess is not None and guess.moments is not None and numbers.null_count():  # each to its row again
            rows = numbers.is_not_null().arg_true()
            moments = pl.Series(name, [None], guess.moments.dtype).new_from_index(0, numbers.len())
            return replace(guess, moments=moments.scatter(rows, guess.moments))
        return guess
    sample = values.drop_nulls()
    if not sample.len() or sample.dtype != pl.String or not _like_times(sample):
        return None
    parsed = _parsed(values)
    if parsed.drop_nulls().len() >= ENOUGH * sample.len():
        return TimeGuess(parsed, "ISO 8601")
    return _of_text(values, sample)


def not_times(values: pl.Series) -> pl.Series | None:
    """Return the texts of a column that are no times, if most are times of one format; None for other columns."""
    texts = values.drop_nulls()
    few = texts.head(1000)
    if texts.dtype != pl.String or not texts.len() or mean(few.str.contains(r"\d.*[/.:, -].*\d")) < MOST:
        return None

    def times(texts: pl.Series, format_: str | None) -> pl.Series:
        return _parsed(texts) if format_ is None else texts.str.to_datetime(format_, strict=False)

    best = times(texts, min([None, *FORMATS], key=lambda f: times(few, f).null_count()))
    if best.null_count() > (1 - MOST) * texts.len() or least(best.dt.year()) <= EARLIEST:
        return None
    return texts.filter(best.is_null())


def _parsed(values: pl.Series) -> pl.Series:
    return values.to_frame("x").select(as_time("x", values.dtype)).to_series()


def _like_times(sample: pl.Series) -> bool:
    """Return True if most of the first values have digits, and no letters but the names of months and zones."""
    few = sample.head(100)
    shape = few.str.contains(r"^\s*[A-Za-z, ]{0,16}\d[\d A-Za-z:./,+_年月日년월일-]{4,34}$") & few.str.contains(
        r"[0-9A-Za-z][/.:, 年月년월-]+[0-9A-Za-z]"
    )
    return mean(shape) >= 0.9


def _of_text(values: pl.Series, sample: pl.Series) -> TimeGuess | None:
    few = sample.unique(maintain_order=True).head(2000)
    fits = [f for f in FORMATS if few.head(20).str.to_datetime(f, strict=False).null_count() == 0]
    fits = [f for f in fits if _are_moments(few.str.to_datetime(f, strict=False))]
    if not fits:
        return None
    ordered = [f for f in fits if sample.str.to_datetime(f, strict=False).is_sorted()]
    best = (ordered or fits)[0]
    moments = values.str.to_datetime(best, strict=False, time_unit="us").dt.replace_time_zone(None)
    return TimeGuess(moments, best, f"STRPTIME({{}}, '{best}')", guess=len(fits) > 1 and not ordered)


def _are_moments(t: pl.Series) -> bool:
    """Return True if nearly all texts are times, and no time is in the first centuries, as the year 23 is."""
    return t.null_count() <= (1 - ENOUGH) * t.len() and least(t.dt.year()) > EARLIEST


def _of_numbers(name: str, x: pl.Series) -> TimeGuess | None:
    """Recognise unix times, yyyymmdd, and digits such as yymmddhh; a name may say that other numbers are times."""
    if not x.len() or x.n_unique() < 3:
        return None
    low, high = least(x), largest(x)
    named = has_word(name, TIMES)
    whole = bool((x == x.floor()).all())
    if not whole and not named:
        return None
    if whole and low >= 19_000_101 and high <= 21_001_231 and (dates := _dates(x)) is not None:
        return TimeGuess(dates, "yyyymmdd")
    if whole and (named or low >= 10**13) and (digits := _digits(x, low, high)) is not None:
        return digits
    if named and low >= EXCEL[0] and high <= EXCEL[1] and not whole:  # days since 1899-12-30
        seconds = ((x - EXCEL_TO_UNIX) * 86_400).round().cast(pl.Int64)
        return TimeGuess(_parsed(seconds), "Excel's day numbers", EXCEL_SQL)
    for unit in UNITS:
        if SECONDS[0] * unit <= low and high <= SECONDS[1] * unit:
            narrow = (high - low) / unit < YEARS_30
            if named or (
                narrow
                and not has_word(name, (*CODES, *ID_WORDS))
                and not re.search(NUMBERED, name.lower())
                and x.n_unique() > 20
                and _not_everywhere(x, unit)
            ):
                label = {1: "seconds", 1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}[unit]
                return TimeGuess(_parsed(x), f"unix {label}")
    if rank_of(name, ("timestamp", "time", "ts")) is not None and x.n_unique() > max(100, x.len() // 1000) and low >= 0:
        return TimeGuess(None, "numbers that grow with time")
    return None


def _not_everywhere(x: pl.Series, unit: float) -> bool:
    """Return True unless the values are spread over the whole range, as hashes are."""
    spread = quantile(x, 0.95) - quantile(x, 0.05)
    return spread / unit < 20 * 366 * 86_400


def _dates(x: pl.Series) -> pl.Series | None:
    dates = x.cast(pl.Int64).cast(pl.String).str.to_datetime("%Y%m%d", strict=False, time_unit="us")
    return dates if not dates.null_count() else None


def _digits(x: pl.Series, low: float, high: float) -> TimeGuess | None:
    length = len(str(int(low)))
    if len(str(int(high))) != length:
        return None
    texts = x.cast(pl.Int64).cast(pl.String)
    for sql, time_format, what in DIGITS.get(length, []):
        parsed = texts.to_frame("x").select(pl.sql_expr(sql.format("x"))).to_series()
        moments = parsed.str.to_datetime(time_format, strict=False, time_unit="us")
        if not moments.null_count() and 1990 <= least(moments.dt.year()) <= largest(moments.dt.year()) <= 2060:
            return TimeGuess(moments, what, f"STRPTIME({sql}, '{time_format}')")
    return None
