"""Turn columns into dense and sparse features, with a reason for each."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from recsys.new.column_kinds import COMMON_SHARE, Column
from recsys.new.copies import elements_of
from recsys.new.known_names import BIRTHS, has_word
from recsys.new.statistics import SKEWED, least, skewness
from recsys.new.yaml_text import flow

RESERVED = ("label",)
MOST_BUCKETED = 5  # numbers that become sparse features by their ranges, if no column is a sparse feature
FEWEST_SHARED = 5  # values of a column that a list may share
SHARED = 0.8  # of the fewer values of a list and a column, from which they have one table
MANY_NUMBERS = 200  # columns from which medians take too much memory


@dataclass
class Feature:
    """A dense or a sparse feature: its name and its settings in the YAML, and why it has them."""

    name: str
    kind: str  # dense | sparse
    settings: dict[str, Any]
    why: str = ""


@dataclass
class Features:
    """The features of a data set, and what is left out of it.

    derive: columns that SQL makes of others
    left_out: columns and why they are no features
    """

    dense: list[Feature] = field(default_factory=list)
    sparse: list[Feature] = field(default_factory=list)
    derive: dict[str, str] = field(default_factory=dict)
    dense_defaults: dict[str, Any] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    @property
    def inputs(self) -> list[Feature]:
        """The features that models read."""
        return [f for f in (*self.dense, *self.sparse) if f.settings.get("model") is not False]

    def rows_of(self, kind: str) -> list[tuple[str, Any, str]]:
        """Return (name, settings, why) of the dense or the sparse features."""
        return [(f.name, f.settings, f.why) for f in (self.dense if kind == "dense" else self.sparse)]


def features_of(columns: Sequence[Column], leaks: Mapping[str, str], *, typed: bool) -> Features:
    """Return the features that the columns make.

    Args:
        columns: the columns of the rows, and of side tables.
        leaks: the columns that give the label away, and why.
        typed: columns have types, which SQL has to turn into text.
    """
    features, names = Features(), set[str]()
    for c in columns:
        if c.role in ("label", "weight", "group"):
            continue
        if c.name in leaks:
            features.left_out.append((c.name, leaks[c.name]))
            continue
        name = feature_name(c.name, names)
        if c.kind == "time":
            _add_time(features, c, name, typed=typed)
        elif c.kind in ("number", "vector"):
            features.dense.append(_dense(c, name))
            _read_by_sql(features, c, features.dense[-1])
        elif c.kind == "numbers":
            for i in range(1, c.width + 1):
                part = f"{name}_{i}"
                features.derive[part] = f"CAST(SPLIT_PART({sql_name(c.name)}, '{c.split}', {i}) AS DOUBLE)"
                features.dense.append(Feature(part, "dense", {"transform": ["standardise"]}, c.reason))
        elif c.kind in ("category", "id", "list"):
            features.sparse.append(_sparse_feature(c, name))
            _read_by_sql(features, c, features.sparse[-1])
        else:
            features.left_out.append((c.name, _why_left_out(c)))
    _share_tables(features, columns)
    _share_settings(features)
    if features.dense and not features.sparse:
        features.sparse = [_buckets(f) for f in features.dense[:MOST_BUCKETED] if "cyclic" not in f.settings]
    return features


def _share_tables(features: Features, columns: Sequence[Column]) -> None:
    """Let a list and the column whose values it holds read one table: a history and the item of the row."""
    by_name = {c.name: c for c in columns}
    read = {
        f.name: by_name[f.settings.get("column", f.name)]
        for f in features.sparse
        if f.settings.get("column", f.name) in by_name
    }
    lists = [f for f in features.sparse if f.name in read and read[f.name].kind == "list" and "split" in f.settings]
    singles = [(f, c) for f in features.sparse if (c := read.get(f.name)) is not None and c.kind in ("id", "category")]
    for f in lists:
        elements = elements_of(read[f.name])
        shares = []
        for single, c in singles:
            values = c.values.drop_nulls().cast(pl.String).unique()
            common = int(values.is_in(elements.implode()).sum())
            if (
                c.role != "user"
                and values.len() > FEWEST_SHARED
                and common >= SHARED * min(values.len(), elements.len())
            ):
                shares.append((common / (values.len() + elements.len() - common), single.name))
        if shares:
            f.settings["table"] = max(shares)[1]
            f.why += f"; its values are those of {max(shares)[1]}"


def _read_by_sql(features: Features, c: Column, feature: Feature) -> None:
    """Let a feature read the numbers that SQL makes of the column."""
    if c.sql is not None:
        column = f"{feature.name}_number"
        features.derive[column] = c.sql.format(sql_name(c.name))
        feature.settings = {"column": column} | {k: v for k, v in feature.settings.items() if k != "column"}


def _buckets(number: Feature) -> Feature:
    """Return ranges of a number as a sparse feature; most models need one."""
    settings = {"column": number.settings.get("column", number.name), "quantiles": 10}
    return Feature(f"{number.name}_bucket", "sparse", settings, "models need a sparse feature: ranges of the number")


def feature_name(column: str, taken: set[str]) -> str:
    """Return a name that a feature may have, like the column's, and add it to those that are taken."""
    name = re.sub(r"[^\w -]+", "_", column.strip()).strip(" _")[:100] or "column"
    name = name if not name[0].isdigit() else f"c_{name}"
    base, n = (f"{name}_" if name in RESERVED or name.startswith("__") else name), 2
    name = base
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    taken.add(name)
    return name


def _own(c: Column, name: str) -> dict[str, Any]:
    return {} if name == c.name else {"column": c.name}


def _missing(c: Column) -> str:
    return f"; {c.missing:.1%} missing".replace("%", " %") if c.missing else ""


def _dense(c: Column, name: str) -> Feature:
    settings = _own(c, name)
    if c.kind == "vector":
        return Feature(name, "dense", settings | {"transform": []}, c.reason)
    x = c.numbers
    assert x is not None
    low, skew = least(x), skewness(x)
    is_skewed = low >= -10 and skew > SKEWED
    settings["transform"] = ["log", "standardise"] if is_skewed else ["standardise"]
    return Feature(name, "dense", settings, f"{c.reason}{', skewed' if is_skewed else ''}{_missing(c)}")


def _sparse_feature(c: Column, name: str) -> Feature:
    """Return the sparse feature of a category, an id, or a list of values."""
    settings = _own(c, name)
    if c.kind == "list":
        settings |= {"pattern": c.pattern} if c.pattern else {"split": c.split}
        settings["pooling"] = "mean"
    values = "value" if c.distinct == 1 else "values"
    why = c.reason if c.kind == "list" else f"{c.distinct:,} {values}"
    if c.kind != "list" and c.distinct > 100 and (once := c.occur_once) > COMMON_SHARE:
        settings["min_count"] = 2
        why += f", {once:.0%} of which occur once in the sample".replace("%", " %")
    return Feature(name, "sparse", settings, f"{c.role + ': ' if c.role else ''}{why}{_missing(c)}")


def _add_time(features: Features, c: Column, name: str, *, typed: bool) -> None:
    assert c.time is not None
    settings = _own(c, name)
    if has_word(c.name, BIRTHS) and (c.values.dtype == pl.String or c.values.dtype.is_temporal()):
        date = sql_name(c.name)
        if c.values.dtype == pl.String:
            date = time_sql(c, typed=typed) if c.time.sql is not None else f"DATE({date})"
        features.derive[f"{name}_year"] = f"YEAR({date})"
        year = {"column": f"{name}_year", "transform": ["standardise"]}
        features.dense.append(Feature(name, "dense", year, f"year of birth, which stands for an age{_missing(c)}"))
        return
    if c.time.sql is not None:
        new = f"{name}_time"
        features.derive[new] = time_sql(c, typed=typed)
        settings = {"column": new}
    guess = ", day before month? (a guess)" if c.time.guess else ""
    if c.time.parts:
        why = f"{c.time.what}{guess}{_missing(c)}"
        features.dense.append(Feature(name, "dense", settings | {"cyclic": c.time.parts}, why))
    elif c.role != "time":
        features.left_out.append((c.name, "a time without hours, in too few days for a day of the week"))


def time_sql(c: Column, *, typed: bool) -> str:
    """Return the SQL that makes a time of the column's text or digits."""
    assert c.time is not None and c.time.sql is not None
    text = f"CAST({sql_name(c.name)} AS VARCHAR)" if typed else sql_name(c.name)
    return c.time.sql.format(f"NULLIF({text}, '')" if typed and c.missing else text)  # an empty text in JSON


def sql_name(column: str) -> str:
    """Return a column's name as SQL writes it."""
    return column if re.fullmatch(r"[A-Za-z_]\w*", column) else '"' + column.replace('"', '""') + '"'


def _why_left_out(c: Column) -> str:
    if c.kind == "text" and "vector" not in c.reason:
        hint = flow({c.name: {"pattern": r"\w+", "pooling": "mean"}})
        return f"{c.reason}; to use its words, add under sparse: {hint[1:-1]}"
    return c.reason


def _share_settings(features: Features) -> None:
    """Move the transform that most numbers share into dense_defaults."""
    numbers = [f for f in features.dense if f.settings.get("transform")]
    if not numbers:
        return
    usual = Counter(flow(f.settings["transform"]) for f in numbers).most_common(1)[0][0]
    fill = "median" if len(numbers) <= MANY_NUMBERS else "mean"
    transform = next(f.settings["transform"] for f in numbers if flow(f.settings["transform"]) == usual)
    features.dense_defaults = {"fill": fill, "transform": transform}
    for f in numbers:
        if flow(f.settings["transform"]) == usual:
            del f.settings["transform"]
