"""Find numbers that stand for a missing value: -1 under a scale that begins at 0 or 1, 0 and 99 for "not rated"."""

from collections.abc import Sequence

from recsys.new.column_kinds import Column, column_of
from recsys.new.known_names import LABELS, RATINGS, rank_of
from recsys.new.statistics import largest, least, mean, quantile
from recsys.new.value_marks import Marks

NEGATIVE = (-1.0, -9.0, -99.0, -999.0, -9999.0)
UNRATED_NINES = (99.0, 999.0, 9999.0)  # of a rating, such as 99 of ratings from -10 to 10
FAR = 5  # times nearly all other ratings
RARELY = 0.01  # share of rows from which 99 may mean that there is no rating
UNRATED = 0.1  # share of rows with the rating 0, from which 0 may mean that there is no rating
OFTEN = 3  # times as many rows have it as the lowest rating


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
        without_code = column_of(c.values.set(rows, None), Marks())
        if without_code.numbers is None:
            continue
        for name in ("values", "numbers", "distinct", "missing", "kind", "time"):
            setattr(c, name, getattr(without_code, name))
        c.code, c.reason = code, f"{without_code.reason}; {code:g} stands for a missing value (a guess)"
        c.nulls = [*c.nulls, *text] if as_text else []


def _may_be_label(c: Column) -> bool:
    return rank_of(c.name, (*LABELS, *RATINGS)) is not None


def _code(c: Column) -> float | None:
    """Return the number that stands for a missing value of a column; None if no number does."""
    if c.numbers is None or c.kind not in ("number", "category", "id") or c.distinct < 3 or c.role:
        return None
    distinct = c.numbers.drop_nulls().unique().sort()
    if distinct.len() < 2:  # too large to differ as floats
        return None
    low, second, high = distinct[0], distinct[1], distinct[-1]
    if high in UNRATED_NINES and _may_be_label(c) and mean(c.numbers == high) > RARELY:
        rest = c.numbers.filter(c.numbers < high)
        return float(high) if high > FAR * quantile(rest, 0.95) else None
    enough = _may_be_label(c) or (distinct.len() > 3 and high >= 2)  # -1, 0 and 1 are less, equal and more
    if low in NEGATIVE and second >= 0 and enough:
        return float(low)
    if rank_of(c.name, RATINGS) is None or low != 0 or second < 1 or high < 5:
        return None
    zeros, lowest = mean(c.numbers == 0), mean(c.numbers == second)
    return 0.0 if zeros >= UNRATED and zeros > OFTEN * lowest else None


def set_numbers(columns: Sequence[Column]) -> None:
    """Take whole numbers of more than two values for numbers: in svmlight, categories are columns of 0 and 1."""
    for c in columns:
        if not c.role and c.kind == "category" and c.numbers is not None and c.distinct > 2 and c.name[1:].isdigit():
            c.kind, c.reason = "number", f"{least(c.numbers):g} to {largest(c.numbers):g}"
