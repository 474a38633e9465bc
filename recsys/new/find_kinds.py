"""Find out what each column of a sample holds: numbers, categories, lists, times, ids, text or vectors."""

import re

import polars as pl

from recsys.data.features.value_types import as_time
from recsys.new import column_kinds as kinds
from recsys.new.column_kinds import Column, ColumnKind, TimeKind, largest, least, mean
from recsys.new.known_names import NAMES, has_word, names_an_id_of, rank_of, words
from recsys.new.value_marks import AMOUNT, MIN_ALIKE, SIGN, Marks, as_numbers, marks_of, separator_of_values

MAX_CATEGORIES = 50  # as many different whole numbers are codes, unless the name says that they are quantities
MAX_GRADE = 12  # whole numbers from 0 to this one are codes
MIN_IDS = 200  # different whole numbers that may be ids
MAX_ID_GAP = 10_000_000  # whole numbers above are ids, unless they are skewed, as quantities are
MAX_OTHER_TEXTS = 3  # different texts in a column of numbers or times that stand for missing values
MISSING_CODES = (-1, -9, -99, -999, -9999, -99999)  # the only negative numbers of a column

_INDEX = re.compile(r"__index_level_\d+__|Unnamed: ?\d+(\.\d+)*")
_UNNAMED = re.compile(r"column_\d+")
_NUMBERED = re.compile(r"([a-z]|col|column|field|feature|feat|var)[ _-]?\d+")
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


def columns_of(frame: pl.DataFrame) -> tuple[list[Column], Marks]:
    """Return the columns of a sample with their kinds, and how they write numbers and missing values."""
    marks = marks_of(frame)
    columns = [column_of(values, marks) for values in frame.get_columns()]
    alone = columns and not any(_UNNAMED.fullmatch(c.name) for c in columns[1:])  # column_1 has no name in the file
    for c in columns:
        if c.numbers is not None and c.is_whole:
            unnamed = c.name == "index" or (alone and c is columns[0] and _UNNAMED.fullmatch(c.name))
            counts = mean(c.numbers.diff().drop_nulls() == 1) > 0.9 or c.distinct == c.rows > MAX_CATEGORIES
            if _INDEX.fullmatch(c.name) or (unnamed and counts):
                c.kind = kinds.RowIdKind("the numbers of rows, as an index of pandas has them")
    return columns, marks


def column_of(raw: pl.Series, marks: Marks) -> Column:
    """Return a column with its kind, and its numbers if all values are numbers."""
    if raw.dtype in (pl.Categorical, pl.Enum, pl.Binary):
        try:
            raw = raw.cast(pl.String)
        except pl.exceptions.PolarsError:
            return Column(raw.name, raw, kinds.UnusedKind("it holds bytes that are not text"))
    if raw.dtype == pl.Duration:
        return Column(raw.name, raw, kinds.UnusedKind("it holds durations; derive a number from it to use it"))
    values = raw.fill_nan(None) if raw.dtype.is_float() else raw
    if raw.dtype == pl.String:
        values = raw.set(raw.str.strip_chars().is_in([*marks.null_values, ""]), None)
    c = Column(raw.name, values, missing=values.null_count() / max(values.len(), 1))
    if values.dtype.is_nested():
        c.kind = _nested_kind(c)
        return c
    c.distinct = values.drop_nulls().n_unique()
    if c.distinct == 0:
        c.kind = kinds.UnusedKind("it has no value in the sample")
    elif c.distinct == 1 and not c.missing:
        c.kind = kinds.UnusedKind(f"it is always {c.examples()[0]}")
    else:
        c.kind = _kind(c, marks)
    return c


def _kind(c: Column, marks: Marks) -> ColumnKind:
    """Return the kind of a column of single values, and set its numbers."""
    c.numbers = _numbers_of(c, marks)
    time = time_of(c.values, c.numbers)
    if time is not None:
        return time
    if c.numbers is None and c.distinct > MAX_CATEGORIES and looks_like_times(c.values):
        c.doubt = "most of its texts look like times, and no known format reads all"
    is_text = c.values.dtype == pl.String
    has_zeros = is_text and c.values.drop_nulls().str.contains(r"^0\d").any()  # such as 007
    # long texts such as 6226540.1690000660 under the name of a user or an item are no fractions
    is_name = is_text and not c.is_whole and names_an_id_of(c.name, (*NAMES.users, *NAMES.items))
    is_name = is_name and mean(c.values.drop_nulls().str.len_chars()) > 14
    if c.numbers is not None and not has_zeros and not is_name:
        x = c.numbers.drop_nulls()
        may_be_label = rank_of(c.name, (*NAMES.labels, *NAMES.ratings)) is not None
        doubt = _missing_code(x, 2 if may_be_label else 3)
        kind = _number_kind(c, x.filter(x >= 0) if doubt else x)
        if kind.is_number or may_be_label:
            c.doubt = doubt
        return kind
    if not is_text:
        return c.kind
    c.numbers = None
    return _text_kind(c)


def _numbers_of(c: Column, marks: Marks) -> pl.Series | None:
    """Return the values as numbers; None if some are not numbers. A few kinds of other text are missing values."""
    if c.values.dtype == pl.Boolean or c.values.dtype.is_temporal():
        return None
    numbers = as_numbers(c.values, marks)
    others = c.values.filter(numbers.is_null() & c.values.is_not_null())
    if not others.len() or c.values.dtype.is_numeric():
        return numbers
    x = numbers.drop_nulls()
    if others.len() > 0.3 * c.rows or x.n_unique() <= 10:
        return None
    marks_of_missing = others.unique()
    if marks_of_missing.len() <= MAX_OTHER_TEXTS:
        c.nulls = sorted(str(k).strip() for k in marks_of_missing)
        c.values = c.values.set(c.values.is_in(marks_of_missing.implode()), None)
        c.missing = c.values.null_count() / c.values.len()
        return numbers
    if mean(x != x.floor()) > 0.5:  # whole numbers may be codes, beside codes with letters
        c.doubt = f"{1 - others.len() / c.rows:.0%} of its values are numbers; others, such as {others[0]}, are not"
    return None


def _number_kind(c: Column, x: pl.Series) -> ColumnKind:
    """Return the kind of a column of the numbers x, by its name, and by their range and how often they occur."""
    low, high, last = least(x), largest(x), (words(c.name) or [""])[-1]
    if not c.is_whole:
        return kinds.NumberKind(f"{low:.4g} to {high:.4g}")
    names_id = names_an_id_of(c.name, (*NAMES.users, *NAMES.items))
    is_quantity = has_word(c.name, NAMES.quantities) and not names_id and last not in NAMES.ranges
    names_id = names_id or (last in NAMES.id_words and not is_quantity)
    counted = mean(x.diff().drop_nulls() == 1) > 0.9 or high - low + 1 == x.len()
    if c.distinct == x.len() > MAX_CATEGORIES and not is_quantity and (names_id or counted or low > 1e9):
        return kinds.RowIdKind("every row has its own value")
    if names_id or (has_word(c.name, (*NAMES.codes, *NAMES.ranges)) and not is_quantity):
        is_many = c.distinct > MAX_CATEGORIES
        return (kinds.IdKind if is_many else kinds.CategoryKind)("its name says that it is a code")
    if c.distinct <= (2 if is_quantity else MAX_CATEGORIES) or 0 <= low <= high <= MAX_GRADE:
        return kinds.CategoryKind(f"{c.distinct} different whole numbers")
    if not is_quantity and c.distinct >= MIN_IDS and _are_ids(x, by_range=_NUMBERED.fullmatch(c.name) is not None):
        return kinds.IdKind("whole numbers that are large, increase or fill their range evenly, as ids do")
    if not is_quantity and low >= 10_000 and high < 1.5 * low and not has_word(c.name, NAMES.times):
        return kinds.IdKind("large whole numbers close to each other, as ids are")
    if not is_quantity and low >= 100 and c.distinct * 10 <= min(high - low, x.len()):
        return kinds.CategoryKind("few whole numbers far apart, each of which occurs often: codes")
    return kinds.NumberKind(f"{low:.4g} to {high:.4g}")


def _missing_code(x: pl.Series, few: int) -> str:
    """Return the question whether the only negative number of a column stands for a missing value."""
    distinct = x.unique().sort()
    is_code = distinct.len() > few and distinct[0] in MISSING_CODES and distinct[1] >= 0
    return f"does {distinct[0]:g}, its only negative value, stand for a missing one?" if is_code else ""


def _are_ids(x: pl.Series, *, by_range: bool) -> bool:
    """Return True if many whole numbers are too large for quantities, or (almost) all differ and increase.

    by_range: also if they fill their range evenly, as ids do, but measures such as areas may as well.
    """
    low, high, distinct = least(x), largest(x), x.n_unique()
    middle = (mean(x.unique()) - low) / max(high - low, 1)
    is_even = 0.3 < middle < 0.7
    if (high > MAX_ID_GAP and is_even) or (distinct > 0.95 * x.len() and x.is_sorted()):
        return True
    return by_range and low >= 0 and is_even and distinct / (high - low + 1) > 0.4


def _nested_kind(c: Column) -> ColumnKind:
    """Return the kind of a column of lists or of objects."""
    dtype = c.values.dtype
    if not isinstance(dtype, pl.List | pl.Array) or dtype.inner.is_nested():
        return kinds.UnusedKind(f"it holds {dtype}")
    values = c.values.arr.to_list() if isinstance(dtype, pl.Array) else c.values
    parts, lengths = values.explode().drop_nulls(), values.list.len().drop_nulls()
    c.distinct = parts.n_unique()
    if parts.len() < 0.02 * c.rows:
        return kinds.UnusedKind("all lists are empty" if not parts.len() else "nearly all lists are empty")
    if not dtype.inner.is_float():
        return kinds.ListKind(f"lists of {mean(lengths):.1f} values")
    if lengths.n_unique() == 1:
        return kinds.VectorKind(f"lists of {lengths[0]} numbers")
    return kinds.UnusedKind("lists of numbers of different lengths")


def _text_kind(c: Column) -> ColumnKind:
    """Return the kind of a column of text, by its values in the first rows."""
    values = c.values.drop_nulls()
    if c.distinct <= 2:
        return kinds.CategoryKind(f"{c.distinct} values")
    head = values.head(20_000)
    if mean(head.str.contains(r"^\s*\[.*\]\s*$")) > 0.95:
        if mean(head.str.contains(r"\d\.\d")) > 0.9:
            return kinds.UniqueKind("a vector written as text; store lists of numbers in Parquet to use it")
        return kinds.ListKind("lists written as text", pattern=r"""[^\[\],\s'"][^\[\],'"]*""")
    if mean(head.str.contains(AMOUNT)) >= MIN_ALIKE and mean(head.str.contains(rf"{SIGN}|\d\s\d")) > 0.1:
        why = "numbers with a sign or spaces, as text; write plain numbers, or derive them by SQL, to use them"
        return kinds.UniqueKind(f"{why}: {head[0]}")
    if (separator := separator_of_values(head)) is not None:
        length, shown = mean(head.str.split(separator).list.len()), "spaces" if separator == " " else separator
        return kinds.ListKind(f"{length:.1f} values each, separated by {shown}", separator)
    mean_words, unique = mean(head.str.count_matches(r"\S+")), c.distinct / values.len()
    if mean_words >= 3 and unique > 0.3 and c.distinct > 100:
        return kinds.TextKind(f"free text, {mean_words:.0f} words each")
    if unique > 0.95 and values.len() > MAX_CATEGORIES:
        return kinds.RowIdKind("(almost) every row has its own value")
    is_id = names_an_id_of(c.name, (*NAMES.users, *NAMES.items)) and c.distinct > MAX_CATEGORIES
    return (kinds.IdKind if is_id or c.distinct > 1000 else kinds.CategoryKind)(f"{c.distinct:,} values")


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
