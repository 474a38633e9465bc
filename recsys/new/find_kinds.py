"""Find out what each column of a sample holds: numbers, categories, lists, times, ids, text or vectors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

import polars as pl

from recsys.base.console import bar
from recsys.new import column_kinds as kinds
from recsys.new.column_kinds import Column, ColumnKind
from recsys.new.known_names import NAMES, has_word, names_an_id_of, rank_of, words
from recsys.new.statistics import largest, least, mean, quantile
from recsys.new.value_marks import (
    Marks,
    as_numbers,
    marks_of,
    not_times,
    number_sql,
    same_numbers,
    separator_of_values,
    time_of,
)

FEW = 50  # as many different whole numbers are codes, unless the name says that they are quantities
SENTINELS = (-9, -99, -999, -9999, -99999, 99, 999, 9999, 99999, 999999)
EXACT = 2.0**53  # whole numbers below are exact as floats
MANY = 1000  # columns from which a progress bar is shown

_INDEX = re.compile(r"__index_level_\d+__|Unnamed: ?\d+(\.\d+)*")
_UNNAMED = re.compile(r"column_\d+")

T = TypeVar("T")


def columns_of(frame: pl.DataFrame) -> tuple[list[Column], Marks]:
    """Return the columns of a sample with their kinds, and how they write numbers and missing values."""
    marks = marks_of(frame)
    columns = [column_of(values, marks) for values in watched("looking at", frame.get_columns())]
    alone = columns and not any(_UNNAMED.fullmatch(c.name) for c in columns[1:])  # column_1 has no name in the file
    for c in columns:
        if c.numbers is None or not c.is_whole:
            continue
        unnamed = c.name == "index" or (alone and c is columns[0] and _UNNAMED.fullmatch(c.name))
        is_index = _INDEX.fullmatch(c.name) or (unnamed and c.distinct == c.rows > FEW)
        if is_index or (unnamed and mean(c.numbers.diff().drop_nulls() == 1) > 0.9):
            c.kind = kinds.RowIdKind("the numbers of rows, as an index of pandas has them")
    return columns, marks


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
            every = column_of(pl.Series(c.name, [*values[c.name]] * 2, dtype=pl.String), Marks())  # no value is unique
            c.kind, c.distinct, c.is_partition = every.kind, every.distinct, True
            if every.time is not None and every.time.moments is not None:
                first = every.values.is_first_distinct() & every.values.is_not_null()
                old, new = every.values.filter(first), every.time.moments.filter(first)
                c.kind = replace(every.time, moments=c.values.cast(pl.String).replace_strict(old, new, default=None))


def column_of(raw: pl.Series, marks: Marks) -> Column:
    """Return a column with its kind, and its numbers if all values are numbers."""
    if raw.dtype in (pl.Categorical, pl.Enum, pl.Binary):
        try:
            raw = raw.cast(pl.String)
        except pl.exceptions.PolarsError:
            return Column(raw.name, raw, kinds.NestedKind("it holds bytes that are not text"))
    if raw.dtype == pl.Duration:
        return Column(raw.name, raw, kinds.NestedKind("it holds durations; derive a number from it to use it"))
    values = raw.fill_nan(None) if raw.dtype.is_float() else raw
    if raw.dtype == pl.String:
        values = raw.set(raw.str.strip_chars().is_in([*marks.null_values, ""]), None)
    c = Column(raw.name, values, missing=values.null_count() / max(values.len(), 1))
    if values.dtype.is_nested():
        c.kind = _nested_kind(c)
        return c
    c.distinct = values.drop_nulls().n_unique()
    if c.distinct == 0:
        c.kind = kinds.EmptyKind("it has no value in the sample")
        return c
    if c.distinct == 1 and not c.missing:
        c.kind = kinds.ConstantKind(f"it is always {c.examples()[0]}")
        return c
    c.numbers = _numbers_of(c, marks)
    time = time_of(c.values, c.numbers)
    others = not_times(c.values) if not c.mostly and c.numbers is None and time is None else None
    if others is not None and others.len():
        if _are_marks(c, others):
            time = time_of(c.values, None)
        else:
            c.mostly = _mostly(c, others, "times")
    text = c.values.dtype == pl.String
    is_code = text and c.values.drop_nulls().str.contains(r"^0\d").any()  # such as 007
    # long texts such as 6226540.1690000660 under the name of a user or an item are no fractions
    named_id = text and not c.is_whole and names_an_id_of(c.name, (*NAMES.users, *NAMES.items))
    is_code = is_code or (named_id and mean(c.values.drop_nulls().str.len_chars()) > 14)
    if time is not None:
        c.kind = time
    elif c.numbers is not None and not is_code:
        c.kind = _number_kind(c)
    elif text:
        c.numbers = None
        if c.distinct > 2 and (numbers_and_sql := number_sql(c.values)) is not None:
            c.numbers, c.sql = numbers_and_sql
            c.kind = kinds.NumberKind("numbers with a unit; other text is missing")
        else:
            c.kind = _text_kind(c)
    if c.kind.is_code and text and c.numbers is not None and c.is_whole and largest(c.numbers.abs()) <= EXACT:
        pointed = c.values.str.contains(r"\.0*$").any()  # the same number is written as 1 and as 1.0
        if pointed and c.numbers.n_unique() < c.values.n_unique():
            c.sql, c.distinct = "CAST(TRY_CAST({} AS DOUBLE) AS BIGINT)", c.numbers.drop_nulls().n_unique()
    return c


def _numbers_of(c: Column, marks: Marks) -> pl.Series | None:
    """Return the values as numbers; None if some are not numbers. A few kinds of other text are missing values."""
    if c.values.dtype == pl.Boolean or c.values.dtype.is_temporal():
        return None
    numbers = as_numbers(c.values, marks)
    others = c.values.filter(numbers.is_null() & c.values.is_not_null())
    x = numbers.drop_nulls()
    if others.len() and not c.values.dtype.is_numeric():
        if others.len() > 0.3 * c.rows or x.n_unique() <= 10:
            return None
        if _are_marks(c, others):
            return numbers
        if mean(x != x.floor()) > 0.5:  # whole numbers may be codes, beside codes with letters
            c.mostly = _mostly(c, others, "numbers")
        return None
    if c.values.dtype != pl.String or c.distinct < 10 or bool((x != x.floor()).all()):
        return numbers
    for end in (least(x), largest(x)):  # a number such as -999, far from all others and frequent, is a missing value
        rest = x.filter(x != end)
        if end not in SENTINELS or not rest.len() or mean(x == end) < (0.05 if end == 99 else 0.005):
            continue
        if (end < 0 <= least(rest)) or (end > 0 and largest(rest) * 5 < end):
            rows = numbers == end
            c.nulls = sorted({str(t).strip() for t in c.values.filter(rows).unique()})
            c.values = c.values.set(rows, None)
            c.missing, c.distinct = c.values.null_count() / c.values.len(), c.distinct - 1
            return numbers.set(rows, None)
    return numbers


def _are_marks(c: Column, texts: pl.Series) -> bool:
    """Return whether at most three different texts stand for missing values, and count them as missing."""
    marks = texts.unique()
    if marks.len() > 3:
        return False
    c.nulls = sorted(str(k).strip() for k in marks)
    c.values = c.values.set(c.values.is_in(marks.implode()), None)
    c.missing = c.values.null_count() / c.values.len()
    return True


def _mostly(c: Column, others: pl.Series, what: str) -> str:
    return f"{1 - others.len() / c.rows:.0%} of its values are {what}; others, such as {others[0]}, are not"


def _number_kind(c: Column) -> ColumnKind:
    """Return the kind of a column of numbers, by its name, and by their range and how often they occur."""
    assert c.numbers is not None
    x = c.numbers.drop_nulls()
    low, high, name_words = least(x), largest(x), words(c.name) or [""]
    last = name_words[-1]
    is_entity = names_an_id_of(c.name, (*NAMES.users, *NAMES.items))
    quantity = has_word(c.name, NAMES.quantities) and not is_entity and last not in NAMES.ranges
    named_id = is_entity or (last in NAMES.id_words and last not in ("number", "num", "numero", "ma", "ref"))
    named_id = named_id or (re.fullmatch("[a-z]id", last) is not None and last != "bid")  # sid, cid
    numbered = last == "number" and len(name_words) > 1  # such as invoice_number
    unnamed = re.fullmatch(r"([a-z]|col|column|field|feature|feat|var)[ _-]?\d+", c.name.strip().lower()) is not None
    even = (not quantity or numbered) and _are_ids(x, low, high, c.distinct, by_range=numbered or unnamed)
    counted = (x.is_sorted() and mean(x.diff().drop_nulls() == 1) > 0.9) or high - low + 1 == x.len()
    small = 0 <= low <= high <= 12 and not has_word(c.name, ("age", "price"))
    if not c.is_whole:
        return kinds.NumberKind(f"{low:.4g} to {high:.4g}")
    if c.distinct == x.len() > 50 and not quantity and (named_id or counted or low > 1e9):
        return kinds.RowIdKind("every row has its own value")
    if named_id or (has_word(c.name, (*NAMES.codes, *NAMES.ranges)) and not quantity):
        return (kinds.IdKind if c.distinct > FEW else kinds.CategoryKind)("its name says that it is a code")
    if c.distinct <= (FEW if not quantity else 2) or small:
        return kinds.CategoryKind(f"{c.distinct} different whole numbers")
    if even:
        return kinds.IdKind("whole numbers that are large, increase or fill their range evenly, as ids do")
    if not quantity and low >= 10_000 and high < 1.5 * low and not has_word(c.name, NAMES.times):
        return kinds.IdKind("large whole numbers close to each other, as ids are")
    if not quantity and low >= 100 and c.distinct * 10 <= min(high - low, x.len()):
        return kinds.CategoryKind("few whole numbers far apart, each of which occurs often: codes")
    return kinds.NumberKind(f"{low:.4g} to {high:.4g}")


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


def _nested_kind(c: Column) -> ColumnKind:
    """Return the kind of a column of lists or of objects."""
    dtype = c.values.dtype
    if not isinstance(dtype, pl.List | pl.Array) or dtype.inner.is_nested():
        return kinds.NestedKind(f"it holds {dtype}")
    values = c.values.arr.to_list() if isinstance(dtype, pl.Array) else c.values
    parts, lengths = values.explode().drop_nulls(), values.list.len().drop_nulls()
    c.distinct = parts.n_unique()
    if parts.len() < 0.02 * c.rows:
        return kinds.EmptyKind("all lists are empty" if not parts.len() else "nearly all lists are empty")
    if not dtype.inner.is_float():
        return kinds.ListKind(f"lists of {mean(lengths):.1f} values")
    if lengths.n_unique() == 1:
        return kinds.VectorKind(f"lists of {lengths[0]} numbers")
    return kinds.NestedKind("lists of numbers of different lengths")


def _text_kind(c: Column) -> ColumnKind:
    """Return the kind of a column of text, by its values in the first rows."""
    values = c.values.drop_nulls()
    if c.distinct <= 2:
        return kinds.CategoryKind(f"{c.distinct} values")
    head = values.head(20_000)
    if mean(head.str.contains(r"^\s*\[.*\]\s*$")) > 0.95:
        inner = head.head(200).str.strip_chars("[] ").str.split(",").explode().str.strip_chars().drop_nulls()
        if inner.len() and mean(inner.str.contains(r"^-?\d*\.\d+(e-?\d+)?$")) > 0.9:
            return kinds.VectorTextKind("a vector written as text; store lists of numbers in Parquet to use it")
        return kinds.ListKind("lists written as text", pattern=r"""[^\[\],\s'"][^\[\],'"]*""")
    if (parts := same_numbers(head)) is not None:
        return kinds.NumbersKind(f"{parts[1]} numbers in each value", *parts)
    if (separator := separator_of_values(head)) is not None:
        length = mean(head.str.split(separator).list.len())
        shown = "spaces" if separator == " " else separator
        return kinds.ListKind(f"{length:.1f} values each, separated by {shown}", separator)
    mean_words, unique = mean(head.str.count_matches(r"\S+")), c.distinct / values.len()
    if mean_words >= 3 and unique > 0.3 and c.distinct > 100:
        return kinds.TextKind(f"free text, {mean_words:.0f} words each")
    if unique > 0.95 and values.len() > 50:
        return kinds.RowIdKind("(almost) every row has its own value")
    is_id = c.distinct > 1000 or (names_an_id_of(c.name, (*NAMES.users, *NAMES.items)) and c.distinct > FEW)
    return (kinds.IdKind if is_id else kinds.CategoryKind)(f"{c.distinct:,} values")


def set_codes(columns: Sequence[Column], *, as_text: bool) -> None:
    """Take numbers that stand for missing values as missing.

    as_text: the files hold text, so the YAML can name such numbers of any column, not only of the label
    """
    for c in columns:
        code = _code(c) if as_text or _may_be_label(c) else None
        if code is None or c.numbers is None:
            continue
        rows = (c.numbers == code).fill_null(value=False)
        text = sorted({str(v).strip() for v in c.values.filter(rows).unique()})
        without = column_of(c.values.set(rows, None), Marks())
        if without.numbers is None:
            continue
        c.values, c.numbers, c.distinct, c.missing = without.values, without.numbers, without.distinct, without.missing
        c.code, c.nulls = code, [*c.nulls, *text] if as_text else []
        c.kind = replace(without.kind, reason=f"{without.reason}; {code:g} stands for a missing value (a guess)")


def _may_be_label(c: Column) -> bool:
    return rank_of(c.name, (*NAMES.labels, *NAMES.ratings)) is not None


def _code(c: Column) -> float | None:
    """Return the number that stands for a missing value: -1 under a scale from 0 or 1 on, 0 and 99 for no rating."""
    if c.numbers is None or not c.kind.is_single or c.distinct < 3 or c.role:
        return None
    distinct = c.numbers.drop_nulls().unique().sort()
    if distinct.len() < 2:  # too large to differ as floats
        return None
    low, second, high = distinct[0], distinct[1], distinct[-1]
    if high in (99, 999, 9999) and _may_be_label(c) and mean(c.numbers == high) > 0.01:
        return float(high) if high > 5 * quantile(c.numbers.filter(c.numbers < high), 0.95) else None
    enough = _may_be_label(c) or (distinct.len() > 3 and high >= 2)  # -1, 0 and 1 are less, equal and more
    if low in (-1, -9, -99, -999, -9999) and second >= 0 and enough:
        return float(low)
    if rank_of(c.name, NAMES.ratings) is None or low != 0 or second < 1 or high < 5:
        return None
    zeros = mean(c.numbers == 0)
    return 0.0 if zeros >= 0.1 and zeros > 3 * mean(c.numbers == second) else None
