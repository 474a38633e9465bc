"""What a column holds: a class for each kind, which knows the features that it makes and what else it may be.

To recognise another kind, add its class here, and let find_kinds.py find it.
"""

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

import polars as pl

from recsys.new.known_names import NAMES, has_word
from recsys.new.yaml_text import flow

MAX_GRADES = 21  # different values of a rating, such as 0 to 10 in half steps
BINS = 50  # groups of the rows by a number


@dataclass
class Feature:
    """A dense or a sparse feature: its name and its settings in the YAML, and why it has them."""

    name: str
    settings: dict[str, Any]
    why: str = ""


@dataclass
class Features:
    """The features of a data set, and what is left out of it."""

    dense: list[Feature] = field(default_factory=list)
    sparse: list[Feature] = field(default_factory=list)
    derive: dict[str, str] = field(default_factory=dict)  # columns that SQL makes of others
    dense_defaults: dict[str, Any] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)  # columns, and why they are no features

    @property
    def inputs(self) -> list[Feature]:
        """The features that models read."""
        return [*self.dense, *self.sparse]


@dataclass
class ColumnKind:
    """What a column holds, and why this is its kind."""

    name: ClassVar[str] = ""
    is_single: ClassVar[bool] = False  # whether a value may be a label, a user, an item or a group
    is_number: ClassVar[bool] = False
    is_code: ClassVar[bool] = False  # whether each value is a name of something, as embeddings learn it
    is_id: ClassVar[bool] = False  # whether values identify something of many
    is_row_id: ClassVar[bool] = False  # whether each row has its own value
    says_nothing: ClassVar[bool] = False
    compares: ClassVar[bool] = True  # whether the values can be compared with a label

    reason: str = ""

    def add_features(self, features: Features, c: "Column", name: str, *, typed: bool) -> None:
        """Add the features that a column of this kind makes, or the reason why it makes none.

        Args:
            typed: whether columns have types, which SQL has to turn into text.
        """
        features.left_out.append((c.name, self.reason))

    def groups(self, c: "Column") -> pl.Series:
        """Return a group of each row, to compare with a label. Missing values are a group of their own."""
        return c.values.cast(pl.String)


@dataclass(eq=False)
class Column:
    """A column of the sample, and what it holds."""

    name: str
    values: pl.Series
    kind: ColumnKind = field(default_factory=lambda: CategoryKind())
    role: str = ""  # label | user | item | time; empty for other columns
    numbers: pl.Series | None = None  # the values as numbers, if all are numbers
    distinct: int = 0  # the number of different values
    missing: float = 0.0  # the share of rows without a value
    nulls: list[str] = field(default_factory=list)  # texts that stand for missing values in this column alone
    doubt: str = ""  # why it is a question what the column holds
    is_partition: bool = False  # whether the names of folders hold its values

    @property
    def reason(self) -> str:
        """Why it has its kind."""
        return self.kind.reason

    @property
    def time(self) -> "TimeKind | None":
        """The times that it holds."""
        return self.kind if isinstance(self.kind, TimeKind) else None

    @property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        x = None if self.numbers is None else self.numbers.drop_nulls()
        return x is not None and bool((x == x.floor()).all())

    @property
    def rows(self) -> int:
        """The rows with a value."""
        return self.values.len() - self.values.null_count()

    @property
    def texts(self) -> pl.Series:
        """The different values as text."""
        return self.values.drop_nulls().cast(pl.String).unique()

    def examples(self, most: int = 3) -> list[str]:
        """Return the first different values."""
        known = self.values.drop_nulls()
        few = known.head(1) if known.dtype.is_nested() else known.unique(maintain_order=True).head(most)
        return [str(v)[:24] for v in few.to_list()]

    def settings(self, feature: str) -> dict[str, Any]:
        """Return the setting that names this column, if a feature has another name."""
        return {} if feature == self.name else {"column": self.name}


class NumberKind(ColumnKind):
    """Quantities."""

    name, is_single, is_number = "number", True, True

    def add_features(self, features: Features, c: Column, name: str, *, typed: bool) -> None:
        assert c.numbers is not None
        log = least(c.numbers) >= -10 and is_skewed(c.numbers)
        transform = {"transform": ["log", "standardise"] if log else ["standardise"]}
        why = f"{self.reason}{', skewed' if log else ''}{_missing(c)}"
        features.dense.append(Feature(name, c.settings(name) | transform, why))

    def groups(self, c: Column) -> pl.Series:
        assert c.numbers is not None
        return (c.numbers.rank("average") / c.numbers.len() * BINS).floor().cast(pl.Int32).cast(pl.String)


class VectorKind(ColumnKind):
    """Lists of fractions, all of one length."""

    name, compares = "vector", False

    def add_features(self, features: Features, c: Column, name: str, *, typed: bool) -> None:
        features.dense.append(Feature(name, c.settings(name) | {"transform": []}, self.reason))


class CategoryKind(ColumnKind):
    """A few values that are names of something."""

    name, is_single, is_code = "category", True, True

    def add_features(self, features: Features, c: Column, name: str, *, typed: bool) -> None:
        settings, why = c.settings(name), f"{c.distinct:,} {'value' if c.distinct == 1 else 'values'}"
        if c.distinct > 100 and (once := mean(counts_of(c.values)["count"] == 1)) > 0.5:  # rare values share a row
            settings["min_count"] = 2
            why += f", {once:.0%} of which occur once in the sample".replace("%", " %")
        features.sparse.append(Feature(name, settings, f"{c.role + ': ' if c.role else ''}{why}{_missing(c)}"))


class IdKind(CategoryKind):
    """Many values that identify something."""

    name, is_id = "id", True


@dataclass
class ListKind(ColumnKind):
    """Lists of values: of the file, or texts that a separator divides or a pattern finds."""

    name = "list"

    separator: str = ","
    pattern: str | None = None

    def add_features(self, features: Features, c: Column, name: str, *, typed: bool) -> None:
        how = {"pattern": self.pattern} if self.pattern else {"split": self.separator}
        why = f"{c.role + ': ' if c.role else ''}{self.reason}{_missing(c)}"
        features.sparse.append(Feature(name, c.settings(name) | how | {"pooling": "mean"}, why))

    def elements(self, c: Column) -> pl.Series:
        """Return the different values of the lists."""
        lists = c.values.drop_nulls()
        if not lists.dtype.is_nested():
            lists = lists.str.extract_all(self.pattern) if self.pattern else lists.str.split(self.separator)
        return lists.explode().cast(pl.String).str.strip_chars().unique().drop_nulls()


class UniqueKind(ColumnKind):
    """Values that nearly all differ, or have to be converted, so that only their presence says something."""

    name = "text"

    def groups(self, c: Column) -> pl.Series:
        return c.values.is_null().cast(pl.String)


@dataclass
class TimeKind(UniqueKind):
    """Times."""

    name = "time"

    moments: pl.Series | None = None  # None if the numbers count from an unknown moment
    sql: str | None = None  # makes a time of the column, which {} stands for; None if the reader knows the format
    doubt: str = ""  # why the format is not certain

    @property
    def parts(self) -> list[str]:
        """The parts of these times that vary: hour, day_of_week, month."""
        if self.moments is None or not (t := self.moments.drop_nulls()).len():
            return []
        span = (largest(t.dt.epoch("s")) - least(t.dt.epoch("s"))) / 86_400
        parts = ["hour"] if t.dt.hour().n_unique() > 1 else []
        parts += ["day_of_week"] if span >= 6 or (t.dt.weekday().n_unique() > 1 and span >= 2) else []
        return parts + (["month"] if span > 2 * 365 else [])

    def sql_of(self, c: Column, *, typed: bool) -> str:
        """Return the SQL that makes a time of the column's text or digits."""
        assert self.sql is not None
        text = f"CAST({sql_name(c.name)} AS VARCHAR)" if typed else sql_name(c.name)
        return self.sql.format(f"NULLIF({text}, '')" if typed and c.missing else text)  # an empty text in JSON

    def add_features(self, features: Features, c: Column, name: str, *, typed: bool) -> None:
        if has_word(c.name, NAMES.births):
            features.left_out.append((c.name, "a date of birth; to use it, derive its year: YEAR(...)"))
            return
        settings = c.settings(name)
        if self.sql is not None:
            features.derive[f"{name}_time"] = self.sql_of(c, typed=typed)
            settings = {"column": f"{name}_time"}
        if self.parts:
            features.dense.append(Feature(name, settings | {"cyclic": self.parts}, f"{self.reason}{_missing(c)}"))
        elif c.role != "time":
            features.left_out.append((c.name, "a time without hours, in too few days for a day of the week"))


class TextKind(UniqueKind):
    """Prose."""

    def add_features(self, features: Features, c: Column, name: str, *, typed: bool) -> None:
        hint = flow({c.name: {"pattern": r"\w+", "pooling": "mean"}})[1:-1]
        features.left_out.append((c.name, f"{self.reason}; to use its words, add under sparse: {hint}"))


class RowIdKind(UniqueKind):
    """Values of which each row has its own."""

    name, is_id, is_row_id = "row id", True, True


class UnusedKind(ColumnKind):
    """One value, no value, or values of a type that no feature reads."""

    name, says_nothing, compares = "unused", True, False


def _missing(c: Column) -> str:
    return f"; {c.missing:.1%} missing".replace("%", " %") if c.missing else ""


def sql_name(column: str) -> str:
    """Return a column's name as SQL writes it."""
    return column if re.fullmatch(r"[A-Za-z_]\w*", column) else '"' + column.replace('"', '""') + '"'


def _plain(value: Any) -> float:
    return 0.0 if value is None else float(value)


def mean(x: pl.Series) -> float:
    """Return the mean of numbers, or the share of True in a mask; 0 for an empty column."""
    return _plain(x.mean())


def least(x: pl.Series) -> float:
    """Return the smallest number; 0 for an empty column."""
    return _plain(x.min())


def largest(x: pl.Series) -> float:
    """Return the largest number; 0 for an empty column."""
    return _plain(x.max())


def quantile(x: pl.Series, share: float) -> float:
    """Return the number that this share of the values does not exceed; 0 for an empty column."""
    return _plain(x.quantile(share))


def is_skewed(x: pl.Series) -> bool:
    """Return whether a logarithm helps, by the third standardised moment."""
    return _plain(x.cast(pl.Float64).skew()) > 2


def counts_of(x: pl.Series) -> pl.DataFrame:
    """Return the different values in the column `value`, the most frequent first, and their numbers in `count`."""
    return x.drop_nulls().alias("value").value_counts(sort=True)
