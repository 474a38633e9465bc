"""Find out what each column of a sample holds: numbers, categories, lists, times, ids, text or vectors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import polars as pl

from recsys.base.console import bar
from recsys.new.known_names import (
    CODES,
    ID_WORDS,
    ITEMS,
    QUANTITIES,
    RANGES,
    TIMES,
    USERS,
    has_word,
    names_an_id_of,
    words,
)
from recsys.new.statistics import counts_of, largest, least, mean
from recsys.new.time_formats import TimeGuess, not_times, time_of
from recsys.new.value_marks import Marks, as_numbers, marks_of, number_sql, same_numbers, separator_of_values

MOSTLY = 0.9  # share of rows whose numbers count up
MOST_NUMBERS = 0.7  # share of numbers from which a few other texts stand for missing values, and many are a question
MOST_MARKS = 3  # different texts that may stand for missing values
FEW = 50  # as many different whole numbers are codes, unless the name says that they are quantities
SENTINELS = (-9, -99, -999, -9999, -99999, 99, 999, 9999, 99999, 999999)
FEWEST_ELEMENTS = 0.02  # elements of lists for each row
OFTEN = 0.05  # share of rows from which 99 may stand for a missing value
MEASURES = ("age", "price")  # quantities, also if all are small
EXACT = 2.0**53  # whole numbers below are exact as floats
LONG_NUMBER = 14  # digits
MANY = 1000  # columns from which a progress bar is shown
COMMON_SHARE = 0.5  # share of values that occur once, from which rare values share a row

_INDEX = re.compile(r"__index_level_\d+__|Unnamed: ?\d+(\.\d+)*")
_UNNAMED = re.compile(r"column_\d+")

T = TypeVar("T")


@dataclass
class Column:
    """A column of the sample, and what it holds.

    name, values: its name, and its values in the sample
    kind: number | numbers | category | list | time | id | text | vector | constant | row id | empty | nested
    reason: why it has this kind
    role: label | user | item | time | weight | group; empty for other columns
    numbers: the values as numbers, if all are numbers
    distinct, missing: the number of different values, and the share of rows without a value
    time: the times that it holds
    nulls: text that stands for missing values in this column alone
    code: the number that stands for a missing value
    sql: makes numbers of the column, which {} stands for
    mostly: what most values are, if it is a question what the column holds
    split, pattern: the separator of several values, or the regular expression of each
    width: the number of numbers that each value holds
    is_partition: whether the names of folders hold its values
    """

    name: str
    values: pl.Series
    kind: str = "category"
    reason: str = ""
    role: str = ""
    numbers: pl.Series | None = None
    distinct: int = 0
    missing: float = 0.0
    split: str | None = None
    width: int = 1
    pattern: str | None = None
    time: TimeGuess | None = None
    nulls: list[str] = field(default_factory=list)
    code: float | None = None
    sql: str | None = None
    mostly: str = ""
    is_partition: bool = False
    _whole: tuple[pl.Series | None, bool] | None = None  # the numbers, and whether all are whole

    @property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        if self._whole is None or self._whole[0] is not self.numbers:
            x = None if self.numbers is None else self.numbers.drop_nulls()
            self._whole = self.numbers, x is not None and bool((x == x.floor()).all())
        return self._whole[1]

    @property
    def rows(self) -> int:
        """The rows with a value."""
        return self.values.len() - self.values.null_count()

    @property
    def occur_once(self) -> float:
        """The share of the values that occur once."""
        return mean(counts_of(self.values)["count"] == 1)

    def examples(self, most: int = 3) -> list[str]:
        """Return the most frequent values, or the first ones if all are rare."""
        if self.values.dtype.is_nested():
            return [str(v)[:24] for v in self.values.drop_nulls().head(1).to_list()]
        return [str(v)[:24] for v in self.values.drop_nulls().unique(maintain_order=True).head(most).to_list()]


def columns_of(frame: pl.DataFrame) -> tuple[list[Column], Marks]:
    """Return the columns of a sample with their kinds."""
    marks = marks_of(frame)
    columns = [column_of(values, marks) for values in watched("looking at", frame.get_columns())]
    for c in columns:
        if _is_index(c, unnamed=c is columns[0] and not any(_UNNAMED.fullmatch(o.name) for o in columns[1:])):
            c.kind, c.reason = "row id", "the numbers of rows, as an index of pandas has them"
    return columns, marks


def _is_index(c: Column, *, unnamed: bool) -> bool:
    """Return True for the numbers of rows that pandas and R write beside the columns, in any order.

    unnamed: column_1 has no name in the file
    """
    if c.numbers is None or not c.is_whole:
        return False
    if _INDEX.fullmatch(c.name):
        return True
    mostly_counted = c.distinct == c.rows > FEW or mean(c.numbers.diff().drop_nulls() == 1) > MOSTLY
    return mostly_counted and (c.name == "index" or (unnamed and _UNNAMED.fullmatch(c.name) is not None))


def watched(what: str, columns: Sequence[T]) -> Iterator[T]:
    """Yield columns and, if they are many, show a progress bar."""
    with bar(what, len(columns), "columns") if len(columns) >= MANY else nullcontext() as shown:
        for column in columns:
            yield column
            if shown is not None:
                shown.advance(1)


def count_partitions(columns: Sequence[Column], values: Mapping[str, Sequence[str | None]]) -> None:
    """Describe the columns of partition folders by the values of all files. values: column -> that of each file"""
    for c in columns:
        if c.name in values:
            every = column_of(
                pl.Series(c.name, [*values[c.name]] * 2, dtype=pl.String), Marks()
            )  # twice: no value is unique
            c.kind, c.reason, c.distinct, c.is_partition = every.kind, every.reason, every.distinct, True


def column_of(raw: pl.Series, marks: Marks) -> Column:
    """Return a column with its kind, the reason, and its numbers or times."""
    if raw.dtype in (pl.Categorical, pl.Enum, pl.Binary):
        try:
            raw = raw.cast(pl.String)
        except pl.exceptions.PolarsError:
            return Column(raw.name, raw, "nested", "it holds bytes that are not text")
    if raw.dtype == pl.Duration:
        return Column(raw.name, raw, "nested", "it holds durations; derive a number from it to use it")
    values = raw
    if raw.dtype == pl.String:
        values = raw.set(raw.str.strip_chars().is_in([*marks.null_values, ""]), None)
    elif raw.dtype.is_float():
        values = raw.fill_nan(None)
    c = Column(raw.name, values)
    c.missing = values.null_count() / max(values.len(), 1)
    if values.dtype.is_nested():
        return _nested(c)
    c.distinct = values.drop_nulls().n_unique()
    if c.distinct == 0:
        c.kind, c.reason = "empty", "it has no value in the sample"
        return c
    if c.distinct == 1 and not c.missing:
        c.kind, c.reason = "constant", f"it is always {c.examples()[0]}"
        return c
    c.numbers = _numbers_of(c, marks)
    c.time = time_of(c.values, c.numbers)
    if (
        not c.mostly
        and c.numbers is None
        and c.time is None
        and (others := not_times(c.values)) is not None
        and others.len()
    ):
        if _are_marks(c, others):
            c.time = time_of(c.values, None)
        else:
            c.mostly = _mostly(c, others, "times")
    if c.time is not None:
        c.kind, c.reason = "time", c.time.what
    elif c.numbers is not None and not _has_leading_zeros(c) and not _is_text_id(c):
        _number_kind(c)
    elif c.values.dtype == pl.String:
        c.numbers = None
        if c.distinct > 2 and (numbers_and_sql := number_sql(c.values)) is not None:
            c.numbers, c.sql = numbers_and_sql
            c.kind, c.reason = "number", "numbers with a unit; other text is missing"
        else:
            _text_kind(c)
    if c.kind in ("category", "id") and c.numbers is not None and _writes_twice(c):
        c.sql, c.distinct = "CAST(TRY_CAST({} AS DOUBLE) AS BIGINT)", c.numbers.drop_nulls().n_unique()
    return c


def _writes_twice(c: Column) -> bool:
    """Return True if the same whole number is written in two ways: 1 and 1.0."""
    if c.values.dtype != pl.String or not c.is_whole or c.numbers is None or largest(c.numbers.abs()) > EXACT:
        return False
    pointed = c.values.str.contains(r"\.0*$")
    return bool(pointed.any()) and c.numbers.n_unique() < c.values.n_unique()


def _numbers_of(c: Column, marks: Marks) -> pl.Series | None:
    """Return the values as numbers; None if some are not numbers. A few kinds of other text are missing values."""
    if c.values.dtype == pl.Boolean or c.values.dtype.is_temporal():
        return None
    numbers = as_numbers(c.values, marks)
    not_numbers = c.values.filter(numbers.is_null() & c.values.is_not_null())
    if not not_numbers.len() or c.values.dtype.is_numeric():
        return _without_sentinels(c, numbers)
    found = numbers.drop_nulls()
    if not_numbers.len() > (1 - MOST_NUMBERS) * c.rows or found.n_unique() <= 10:
        return None
    if _are_marks(c, not_numbers):
        return numbers
    if mean(found != found.floor()) > 0.5:  # whole numbers may be codes, beside codes with letters
        c.mostly = _mostly(c, not_numbers, "numbers")
    return None


def _are_marks(c: Column, texts: pl.Series) -> bool:
    """Return whether a few different texts stand for missing values, and count them as missing."""
    kinds = texts.unique()
    if kinds.len() > MOST_MARKS:
        return False
    c.nulls = sorted(str(k).strip() for k in kinds)
    c.values = c.values.set(c.values.is_in(kinds.implode()), None)
    c.missing = c.values.null_count() / c.values.len()
    return True


def _mostly(c: Column, others: pl.Series, what: str) -> str:
    return f"{1 - others.len() / c.rows:.0%} of its values are {what}; others, such as {others[0]}, are not"


def _without_sentinels(c: Column, numbers: pl.Series) -> pl.Series:
    """Count a number such as -999, far from all others and frequent, as a missing value of a column of text."""
    x = numbers.drop_nulls()
    if c.values.dtype != pl.String or c.distinct < 10 or bool((x != x.floor()).all()):
        return numbers
    for end in (least(x), largest(x)):
        rest = x.filter(x != end)
        if end not in SENTINELS or not rest.len() or mean(x == end) < (OFTEN if end == 99 else 0.005):
            continue
        if (end < 0 <= least(rest)) or (end > 0 and largest(rest) * 5 < end):
            text = c.values.filter(numbers == end)
            c.nulls = sorted({str(t).strip() for t in text.unique()})
            c.values = c.values.set(numbers == end, None)
            c.missing, c.distinct = c.values.null_count() / c.values.len(), c.distinct - 1
            return numbers.set(numbers == end, None)
    return numbers


def _has_leading_zeros(c: Column) -> bool:
    """Return True for codes such as 007, which are not numbers."""
    return c.values.dtype == pl.String and bool(c.values.drop_nulls().str.contains(r"^0\d").any())


def _is_text_id(c: Column) -> bool:
    """Return True for long texts such as 6226540.1690000660 under the name of a user or an item: no fractions."""
    return (
        c.values.dtype == pl.String
        and not c.is_whole
        and names_an_id_of(c.name, (*USERS, *ITEMS))
        and mean(c.values.drop_nulls().str.len_chars()) > LONG_NUMBER
    )


def _number_kind(c: Column) -> None:
    assert c.numbers is not None
    x = c.numbers.drop_nulls()
    low, high = least(x), largest(x)
    quantity = has_word(c.name, QUANTITIES) and not names_an_id_of(c.name, (*USERS, *ITEMS))
    last = (words(c.name) or [""])[-1]
    quantity = quantity and last not in RANGES
    named_id = names_an_id_of(c.name, (*USERS, *ITEMS)) or last in ID_WORDS - {"number", "num", "numero", "ma", "ref"}
    named_id = named_id or (re.fullmatch("[a-z]id", last) is not None and last != "bid")  # sid, cid
    numbered = words(c.name)[-1:] == ["number"] and len(words(c.name)) > 1  # such as invoice_number
    even = (not quantity or numbered) and _are_ids(x, low, high, c.distinct, by_range=numbered or _says_nothing(c.name))
    if not c.is_whole:
        c.kind, c.reason = "number", f"{low:.4g} to {high:.4g}"
    elif c.distinct == x.len() > 50 and not quantity and (named_id or _counts_rows(x) or low > 1e9):
        c.kind, c.reason = "row id", "every row has its own value"
    elif named_id or (has_word(c.name, (*CODES, *RANGES)) and not quantity):
        c.kind = "id" if c.distinct > FEW else "category"
        c.reason = "its name says that it is a code"
    elif c.distinct <= (FEW if not quantity else 2) or (0 <= low <= high <= 12 and not has_word(c.name, MEASURES)):
        c.kind, c.reason = "category", f"{c.distinct} different whole numbers"
    elif even:
        c.kind, c.reason = "id", "whole numbers that are large, increase or fill their range evenly, as ids do"
    elif not quantity and low >= 10_000 and high < 1.5 * low and not has_word(c.name, TIMES):
        c.kind, c.reason = "id", "large whole numbers close to each other, as ids are"
    elif not quantity and low >= 100 and c.distinct * 10 <= min(high - low, x.len()):
        c.kind, c.reason = "category", "few whole numbers far apart, each of which occurs often: codes"
    else:
        c.kind, c.reason = "number", f"{low:.4g} to {high:.4g}"


def _counts_rows(x: pl.Series) -> bool:
    """Return True for 0, 1, 2, ...: mostly steps of one, or numbers of a range without gaps, in any order."""
    return (x.is_sorted() and mean(x.diff().drop_nulls() == 1) > 0.9) or largest(x) - least(x) + 1 == x.len()


def _says_nothing(name: str) -> bool:
    """Return True for the names of unnamed columns, such as column_3, feature_12 and C14."""
    return bool(re.fullmatch(r"([a-z]|col|column|field|feature|feat|var)[ _-]?\d+", name.strip().lower()))


def _are_ids(x: pl.Series, low: float, high: float, distinct: int, *, by_range: bool) -> bool:
    """Return True if many whole numbers are too large for quantities, or (almost) all differ and increase.

    by_range: also if they fill their range evenly, as ids do, but measures such as areas may as well.
    """
    if distinct < 200:
        return False
    middle = (mean(x.unique()) - low) / max(high - low, 1)
    if distinct > 1000 and (high > 1e9 or (high > 1e7 and 0.3 < middle < 0.7)):
        return True
    if distinct > 0.95 * x.len() and x.is_sorted():
        return True
    return by_range and 0 <= low <= 1000 and distinct / (high - low + 1) > 0.4 and 0.3 < middle < 0.7 and high > 500


def _nested(c: Column) -> Column:
    dtype = c.values.dtype
    if not isinstance(dtype, pl.List | pl.Array) or dtype.inner.is_nested():
        c.kind, c.reason = "nested", f"it holds {dtype}"
        return c
    values = c.values.arr.to_list() if isinstance(dtype, pl.Array) else c.values
    parts = values.explode().drop_nulls()
    c.distinct = parts.n_unique()
    lengths = values.list.len().drop_nulls()
    if parts.len() < FEWEST_ELEMENTS * c.rows:
        c.kind, c.reason = "empty", "all lists are empty" if not parts.len() else "nearly all lists are empty"
    elif dtype.inner.is_float() and lengths.n_unique() == 1:
        c.kind, c.reason = "vector", f"lists of {lengths[0]} numbers"
    elif dtype.inner.is_float():
        c.kind, c.reason = "nested", "lists of numbers of different lengths"
    else:
        c.kind, c.split, c.reason = "list", ",", f"lists of {mean(lengths):.1f} values"
    return c


def _text_kind(c: Column) -> None:
    values = c.values.drop_nulls()
    if c.distinct <= 2:
        c.reason = f"{c.distinct} values"
        return
    head = values.head(20_000)
    if mean(head.str.contains(r"^\s*\[.*\]\s*$")) > 0.95:
        _bracketed(c, head)
        return
    if (parts := same_numbers(head)) is not None:
        c.split, c.width = parts
        c.kind, c.reason = "numbers", f"{c.width} numbers in each value"
        return
    lengths = head.str.count_matches(r"\S+")
    mean_words, unique = mean(lengths), c.distinct / values.len()
    if (separator := separator_of_values(head)) is not None:
        c.kind, c.split = "list", separator
        c.reason = f"{mean(head.str.split(separator).list.len()):.1f} values each, separated by {_shown(separator)}"
    elif mean_words >= 3 and unique > 0.3 and c.distinct > 100:
        c.kind, c.reason = "text", f"free text, {mean_words:.0f} words each"
    elif unique > 0.95 and values.len() > 50:
        c.kind, c.reason = "row id", "(almost) every row has its own value"
    elif c.distinct > 1000 or (names_an_id_of(c.name, (*USERS, *ITEMS)) and c.distinct > FEW):
        c.kind, c.reason = "id", f"{c.distinct:,} values"
    else:
        c.kind, c.reason = "category", f"{c.distinct:,} values"


def _bracketed(c: Column, head: pl.Series) -> None:
    """Lists written as text: numbers are vectors, which cannot be read from text; others are split by a pattern."""
    inner = head.head(200).str.strip_chars("[] ").str.split(",").explode().str.strip_chars().drop_nulls()
    if inner.len() and mean(inner.str.contains(r"^-?\d*\.\d+(e-?\d+)?$")) > 0.9:
        c.kind, c.reason = "text", "a vector written as text; store lists of numbers in Parquet to use it"
    else:
        c.kind, c.pattern, c.reason = "list", r"""[^\[\],\s'"][^\[\],'"]*""", "lists written as text"


def _shown(separator: str) -> str:
    return "spaces" if separator == " " else separator
