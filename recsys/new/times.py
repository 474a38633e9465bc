"""Recognise columns of times: ISO 8601, unix times, digits such as yymmddhh, and a few formats of text."""

import polars as pl

from recsys.data.features.value_types import as_time
from recsys.new.column_kinds import TimeKind, largest, least, mean
from recsys.new.known_names import NAMES, has_word, rank_of

MIN_TIMES = 0.995  # share of the values that have to be times
UNIX_SECONDS = (6e8, 4.1e9)  # 1989 to 2099
UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
YEARS = (1900, 2200)
DIGITS = {  # length of whole numbers -> how SQL reads them, and the strptime format of the text that it makes
    8: ("'20' || {} || '00'", "%Y%m%d%H%M", "yymmddhh"),
    10: ("{} || '00'", "%Y%m%d%H%M", "yyyymmddhh"),
    12: ("{}", "%Y%m%d%H%M", "yyyymmddhhmm"),
    14: ("{}", "%Y%m%d%H%M%S", "yyyymmddhhmmss"),
}
DAYS = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y")
CLOCKS = ("", " %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p")
FORMATS = (
    *(f"{day}{clock}" for day in DAYS for clock in CLOCKS),
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y", "%d/%b/%Y:%H:%M:%S %z"),
)


def time_of(values: pl.Series, numbers: pl.Series | None) -> TimeKind | None:
    """Return the kind of time that a column holds; None if it holds no times.

    numbers: the values of the column, if all are numbers
    """
    dtype = values.dtype
    if dtype in (pl.Date, pl.Datetime):
        return TimeKind(str(dtype).split("(")[0].lower(), _parsed(values))
    if numbers is not None:
        return _of_numbers(values.name, numbers)
    if dtype != pl.String or not looks_like_times(values):
        return None
    texts = values.drop_nulls()
    parsed = _parsed(values)
    if parsed.drop_nulls().len() >= MIN_TIMES * texts.len():
        return TimeKind("ISO 8601", parsed)
    few = texts.unique(maintain_order=True).head(2000)
    fits = [form for form in FORMATS if _read_by(few, form) >= MIN_TIMES]
    if not fits:
        return None
    ordered = [f for f in fits if texts.str.to_datetime(f, strict=False).is_sorted()]
    best = (ordered or fits)[0]
    moments = values.str.to_datetime(best, strict=False, time_unit="us").dt.replace_time_zone(None)
    doubt = f"is {texts[0]} written as {' or '.join(fits)}?" if len(fits) > 1 and len(ordered) != 1 else ""
    return TimeKind(best, moments, f"STRPTIME({{}}, '{best}')", doubt=doubt)


def looks_like_times(values: pl.Series) -> bool:
    """Return whether most texts have digits between marks, and no letters but names of days, months and zones."""
    head = values.drop_nulls().head(100)
    letters = head.str.contains(r"^\s*([A-Z][a-z]{2},? )?[A-Za-z\d][\d A-Za-z:./,+-]{4,34}$")
    return mean(letters & head.str.contains(r"\d[/.:-]\d+[/.:-]\d|\b[A-Z][a-z]{2}\b.*\d")) > 0.5


def _read_by(texts: pl.Series, form: str) -> float:
    """Return the share of the texts that are times of this format, of years that are not too far."""
    times = texts.str.to_datetime(form, strict=False)
    return mean(times.is_not_null() & times.dt.year().is_between(*YEARS).fill_null(value=False))


def _parsed(values: pl.Series) -> pl.Series:
    """Return the times that the reader makes of values."""
    return values.to_frame("x").select(as_time("x", values.dtype)).to_series()


def _of_numbers(name: str, numbers: pl.Series) -> TimeKind | None:
    """Recognise unix times, yyyymmdd, and digits such as yymmddhh under the name of a time."""
    x = numbers.drop_nulls()
    named = has_word(name, NAMES.times)
    if x.n_unique() < 3 or not (named or bool((x == x.floor()).all())):
        return None
    low, high = least(x), largest(x)
    whole = numbers.cast(pl.Int64, strict=False).cast(pl.String)
    if 19_000_101 <= low <= high <= 21_001_231:
        dates = whole.str.to_datetime("%Y%m%d", strict=False, time_unit="us")
        if dates.null_count() == numbers.null_count():
            return TimeKind("yyyymmdd", dates)
    length = len(str(int(low)))
    if (named or length == max(DIGITS)) and length == len(str(int(high))) and length in DIGITS:
        sql, form, what = DIGITS[length]
        made = whole.to_frame("x").select(pl.sql_expr(sql.format("x"))).to_series()
        moments = made.str.to_datetime(form, strict=False, time_unit="us")
        years = moments.dt.year()
        if moments.null_count() == numbers.null_count() and 1990 <= least(years) <= largest(years) <= 2060:
            return TimeKind(what, moments, f"STRPTIME({sql}, '{form}')")
    for label, unit in UNITS.items() if not has_word(name, (*NAMES.codes, *NAMES.id_words)) or named else ():
        if UNIX_SECONDS[0] * unit <= low <= high <= UNIX_SECONDS[1] * unit:
            sure = named or name.startswith("column_")  # which has no name in the file
            doubt = "" if sure else f"are its numbers, such as {low:.0f}, unix {label}? No name says so"
            return TimeKind(f"unix {label}", _parsed(numbers), doubt=doubt)
    if rank_of(name, ("timestamp", "time", "ts")) is not None and low >= 0 and x.n_unique() > max(100, x.len() // 1000):
        return TimeKind("numbers that grow with time")
    return None
