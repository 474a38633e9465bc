"""What every door makes of a raw value: a table of types of columns, and how each value can be written.

A door is a way by which raw rows come to a model: a file, a data frame, dicts, JSON, tensors, a store. `TYPES` says what
a column holds and in which ways a value of it can be written; `doors_of_models.py` says how each door asks a model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
from hypothesis import strategies as st

BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
ROWS = 280


Takes = Callable[["Writing"], bool]
Lacks = Callable[[Any], bool]


def anything(_: Any) -> bool:
    return True


def nothing(_: Any) -> bool:
    """What a door lacks that holds all values."""
    return False


@dataclass(frozen=True)
class Writing:
    """One way to write values.

    dtype: the type of such a column in a frame; None if only rows of Python hold it
    write: the Python value of a value that it holds
    holds: which values it holds; a missing value (None) is held by all
    typed: whether it needs a column of its type: as text, it is another value
    """

    dtype: pl.DataType | None
    write: Callable[[Any], Any]
    holds: Callable[[Any], bool]
    typed: bool = False

    def written(self, value: Any) -> Any:
        return None if value is None else self.write(value)

    @property
    def is_text(self) -> bool:
        return self.dtype == pl.String


@dataclass(frozen=True)
class Type:
    """A kind of raw column.

    values: what may come
    trained: the value of each training row
    default: a value that every writing holds
    text, typed: the writings of training files without types, and with them
    """

    values: st.SearchStrategy[Any]
    trained: Callable[[int], Any]
    default: Any
    text: str
    typed: str
    writings: Mapping[str, Writing]
    features: str

    def holds(self, writing: str, value: Any) -> bool:
        return value is None or self.writings[writing].holds(value)


def whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda v: type(v) is int and low <= v <= high


def nan(v: Any) -> bool:
    return type(v) is float and v != v


def text_of(v: Any) -> str:
    return v if type(v) is str else repr(v)


def whole_text(v: Any) -> str:
    """No text says that a whole number is missing but none."""
    return "" if nan(v) else text_of(v)


def is_text(v: Any) -> bool:
    return type(v) is str


def digits(v: Any) -> bool:
    """Text that a whole number has."""
    return type(v) is str and v.isdecimal() and v.isascii() and str(int(v)) == v and int(v) < 2**53


def sparse(name: str, hashed: bool = True) -> str:
    more = f"\n  {name}_hash: {{column: {name}, encode: hash, buckets: 1000}}" if hashed else ""
    return f"\n  {name}: {{}}{more}"


ODD = st.sampled_from(
    ["", "x", "None", "null", "nan", "NaN", "true", "7", "7.0", "0007", "-0", "1e3", "ä €", "猫", "t 1", "T1"]
)
TEXT = {
    "text": Writing(pl.String(), str, is_text),
    "categories": Writing(pl.Categorical(), str, is_text),
    "whole": Writing(pl.Int64(), int, digits),
    "float": Writing(pl.Float64(), float, digits, typed=True),
    "decimal": Writing(pl.Decimal(38, 2), lambda v: Decimal(v).quantize(Decimal("0.01")), digits, typed=True),
    "numpy": Writing(None, np.str_, is_text),
    "bytes": Writing(None, str.encode, is_text),
}
INTEGERS = st.one_of(
    st.integers(0, 9), st.integers(-(2**70), 2**70), st.sampled_from([-1, 255, 2**31, 2**53, 2**63 - 1])
)
WHOLE = {
    "whole": Writing(pl.Int64(), int, whole(-(2**63), 2**63 - 1)),
    "small": Writing(pl.Int16(), int, whole(-(2**15), 2**15 - 1)),
    "unsigned": Writing(pl.UInt64(), int, whole(0, 2**64 - 1)),
    "float": Writing(pl.Float64(), float, lambda v: whole(-(2**53), 2**53)(v) or type(v) is float),
    "single": Writing(pl.Float32(), float, lambda v: whole(-(2**24), 2**24)(v) or nan(v)),
    "text": Writing(pl.String(), whole_text, anything),
    "point": Writing(pl.String(), lambda v: f"{v}.0" if type(v) is int else whole_text(v), anything),
    "spaces": Writing(pl.String(), " {} ".format, whole(-(2**70), 2**70)),
    "decimal": Writing(pl.Decimal(38, 2), lambda v: Decimal(v).quantize(Decimal("0.01")), whole(-(2**70), 2**70)),
    "numpy": Writing(None, np.int64, whole(-(2**63), 2**63 - 1)),
    "numpy float": Writing(None, np.float32, whole(-(2**24), 2**24)),
}
NUMBER = {
    "float": Writing(pl.Float64(), float, lambda v: type(v) is float),
    "text": Writing(pl.String(), text_of, anything),
    "spaces": Writing(pl.String(), lambda v: f" {text_of(v)} ", anything),
    "whole": Writing(
        pl.Int64(), int, lambda v: type(v) is float and v.is_integer() and abs(v) < 2**53 and str(v) != "-0.0"
    ),
    "single": Writing(pl.Float32(), float, lambda v: type(v) is float and float(np.float32(v)) == v),
    "decimal": Writing(
        pl.Decimal(38, 3),
        lambda v: Decimal(repr(v)).quantize(Decimal("0.001")),
        lambda v: type(v) is float and abs(v) < 1e6 and round(v, 3) == v and str(v) != "-0.0",
    ),
    "numpy": Writing(None, np.float64, lambda v: type(v) is float),
    "Decimal": Writing(None, lambda v: Decimal(repr(v)), lambda v: type(v) is float and math.isfinite(v)),
}


def truth(v: Any) -> bool:
    return type(v) is bool


BOOLEAN = {
    "boolean": Writing(pl.Boolean(), bool, truth),
    "title": Writing(pl.String(), str, lambda v: truth(v) or is_text(v)),
    "lower": Writing(pl.String(), lambda v: str(v).lower(), truth),
    "upper": Writing(pl.String(), lambda v: str(v).upper(), truth),
    "digit": Writing(pl.String(), lambda v: str(int(v)), truth),
    "whole": Writing(pl.Int64(), int, truth),
    "float": Writing(pl.Float64(), float, truth),
    "numpy": Writing(None, np.bool_, truth),
}


def moment(v: Any) -> bool:
    return type(v) is datetime


def likely(v: Any) -> bool:
    return moment(v) and 1980 <= v.year < 2100 and v.microsecond == 0


def millis(v: Any) -> bool:
    return moment(v) and v.microsecond % 1000 == 0


def iso(zone: Any, t: str = "T", end: str | None = None) -> Callable[[Any], str]:
    """Write an instant, which is kept without a zone, in UTC, in another zone."""

    def write(v: Any) -> str:
        if type(v) is str:
            return v
        text = v.replace(tzinfo=UTC).astimezone(zone).isoformat(sep=t)
        return text if end is None else text.removesuffix("+00:00") + end

    return write


def instants(zone: str | None) -> dict[str, Writing]:
    """The writings of times, the same for instants (zone) and for local times."""
    end = "" if zone is None else "Z"
    aware = lambda v: v.replace(tzinfo=UTC)  # noqa: E731
    return {
        "text": Writing(pl.String(), iso(UTC, end=end), anything),
        "space": Writing(pl.String(), iso(UTC, t=" ", end=end), anything),
        "zone": Writing(pl.String(), iso(KOLKATA if zone else UTC), moment),
        "other": Writing(pl.String(), iso(UTC, end="" if zone else " UTC"), moment),
        "micros": Writing(pl.Datetime("us", zone), aware if zone else (lambda v: v), moment),
        "millis": Writing(
            pl.Datetime("ms", "Europe/Berlin" if zone else None), aware if zone else (lambda v: v), millis
        ),
        "naive": Writing(pl.Datetime("ns", None if zone else "UTC"), (lambda v: v) if zone else aware, moment),
        "seconds": Writing(pl.Int64(), lambda v: int(v.replace(tzinfo=UTC).timestamp()), likely),
        "python": Writing(None, lambda v: v.replace(tzinfo=UTC).astimezone(BERLIN) if zone else v, moment),
    }


MOMENTS = st.one_of(
    st.datetimes(datetime(1975, 1, 1), datetime(2150, 1, 1)),
    st.datetimes(datetime(1980, 1, 1), datetime(2099, 1, 1)).map(lambda t: t.replace(microsecond=0)),
    st.datetimes(datetime(1980, 1, 1), datetime(2099, 1, 1)).map(lambda t: t.replace(microsecond=125_000)),
    st.sampled_from(["", "x", "2024-13-01", "2024-01-31T25:00:00"]),
)
DAYS = {
    "text": Writing(pl.String(), lambda v: v if type(v) is str else v.isoformat(), anything),
    "day": Writing(pl.Date(), lambda v: v, lambda v: type(v) is date),
    "midnight": Writing(
        pl.Datetime("us"), lambda v: datetime.combine(v, time()), lambda v: type(v) is date, typed=True
    ),
    "python": Writing(None, lambda v: datetime.combine(v, time()), lambda v: type(v) is date, typed=True),
}


def lists(element: Any, dtype: pl.DataType, more: Mapping[str, Writing]) -> dict[str, Writing]:
    return {
        "list": Writing(pl.List(dtype), list, lambda v: type(v) is tuple and all(type(x) is element for x in v)),
        "joined": Writing(pl.String(), lambda v: v if type(v) is str else " ".join(map(str, v)), anything),
        "tuple": Writing(None, tuple, lambda v: type(v) is tuple and all(type(x) is element for x in v)),
        **more,
    }


def of(element: type) -> Callable[[Any], bool]:
    return lambda v: type(v) is tuple and all(type(x) is element for x in v)


START = datetime(2024, 1, 1)
NUMBERS = st.one_of(
    st.floats(-1e6, 1e6).map(lambda v: round(v, 3)),
    st.floats(),
    st.sampled_from([0.0, -0.0, 2.0, 1e-300, 1e300, math.inf, math.nan, "", "x", "nan", "1e3", "1_000", "0x1"]),
)
WORDS = st.sampled_from(["a0", "a1", "b1", "ä", "7", "0007"])
TYPES: dict[str, Type] = {
    "text": Type(
        st.one_of(ODD, st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=4)),
        lambda i: f"t{i % 5}",
        "7",
        "text",
        "text",
        TEXT,
        sparse("text"),
    ),
    "zeros": Type(
        st.one_of(ODD, st.integers(0, 12).map(lambda i: f"{i:04d}")),
        lambda i: f"{i % 12:04d}",
        "7",
        "text",
        "text",
        TEXT,
        sparse("zeros"),
    ),
    "whole": Type(
        st.one_of(INTEGERS, st.sampled_from(["", "x", 7.5, math.nan])),
        lambda i: i % 9,
        1,
        "text",
        "whole",
        WHOLE,
        sparse("whole"),
    ),
    "point": Type(
        st.one_of(INTEGERS, st.sampled_from(["", "x", 7.5, math.nan])),
        lambda i: i % 9,
        1,
        "point",
        "float",
        WHOLE,
        sparse("point"),
    ),
    "code": Type(
        st.one_of(st.integers(0, 25), INTEGERS), lambda i: i % 20, 1, "text", "whole", WHOLE, "\n  colour: {}"
    ),
    "row": Type(
        st.one_of(st.integers(-1, 11), st.sampled_from([3.5, "", "x", math.nan, 2**70])),
        lambda i: i % 10,
        1,
        "text",
        "whole",
        WHOLE,
        "\n  row: {encode: id, rows: 10}",
    ),
    "number": Type(NUMBERS, lambda i: i / 8, 2.0, "text", "float", NUMBER, ""),
    "boolean": Type(
        st.one_of(st.booleans(), st.sampled_from(["", "maybe", "yes"])),
        lambda i: i % 3 > 0,
        True,
        "title",
        "boolean",
        BOOLEAN,
        sparse("boolean"),
    ),
    "flag": Type(st.booleans(), lambda i: i % 2 > 0, True, "lower", "boolean", BOOLEAN, sparse("flag")),
    "instant": Type(MOMENTS, lambda i: START + timedelta(hours=31 * i), START, "text", "micros", instants("UTC"), ""),
    "local": Type(MOMENTS, lambda i: START + timedelta(hours=31 * i), START, "space", "micros", instants(None), ""),
    "day": Type(
        st.one_of(st.dates(date(2023, 12, 1), date(2024, 3, 1)), st.just("")),
        lambda i: date(2024, 1, 1 + i % 28),
        START.date(),
        "text",
        "day",
        DAYS,
        sparse("day"),
    ),
    "tags": Type(
        st.one_of(st.lists(WORDS, max_size=3).map(tuple), st.just("")),
        lambda i: (f"a{i % 3}", f"b{i % 4}"),
        ("a0",),
        "joined",
        "list",
        lists(str, pl.String(), {"numpy": Writing(None, lambda v: np.array(v, object), of(str))}),
        "\n  tags: {split: ' '}",
    ),
    "numbers": Type(
        st.one_of(st.lists(st.integers(0, 12), max_size=3).map(tuple), st.just("")),
        lambda i: (i % 5, i % 6),
        (1,),
        "joined",
        "list",
        lists(
            int,
            pl.Int64(),
            {
                "floats": Writing(pl.List(pl.Float64), lambda v: list(map(float, v)), of(int)),
                "texts": Writing(pl.List(pl.String), lambda v: list(map(str, v)), of(int)),
                "points": Writing(pl.String(), lambda v: " ".join(f"{x}.0" for x in v), of(int)),
                "numpy": Writing(None, lambda v: np.array(v, np.int64), of(int)),
            },
        ),
        "\n  numbers: {split: ' '}",
    ),
}
DENSE = """dense:
  number: {transform: [standardise]}
  weight: {}
  clock: {column: instant, cyclic: [hour, month], time_zone: Europe/Berlin}
  local: {cyclic: [hour, day_of_week]}
"""
# the same questions to text and to typed columns
DERIVED = {
    "text": ("boolean = 'True'", "whole = '7'"),
    "json": ("boolean = 'true'", "whole = '7'"),
    "typed": ("boolean", "whole = 7"),
}
FORMATS = {"csv": "text", "jsonl": "json", "parquet": "typed", "arrow": "typed"}  # that train


def yaml_of(format_: str) -> str:
    truth_, seven = DERIVED[FORMATS[format_]]
    side = "side.parquet" if format_ in ("parquet", "jsonl") else "side.csv"
    return f"""name: doors_{format_}
source:
  format: {format_}
  files: ['rows.*']
  joins: [{{file: {side}, key: code, columns: {{colour: colour, weight: weight}}}}]
label: {{column: y}}
derive:
  flagged: "CASE WHEN {truth_} THEN 'yes' WHEN {seven} THEN 'seven' ELSE 'no' END"
{DENSE}sparse:{"".join(t.features for t in TYPES.values())}
  both: {{cross: [text, whole]}}
  flagged: {{}}
"""


def write_training_rows(folder: Path, format_: str) -> None:
    """Write the training rows in the form that such files usually have, and the side table."""
    typed = FORMATS[format_] != "text"
    side = pl.DataFrame(
        {"code": range(20), "colour": [f"c{i % 3}" for i in range(20)], "weight": [i / 4 for i in range(20)]}
    )
    side.write_csv(folder / "side.csv")
    side.write_parquet(folder / "side.parquet")
    columns: list[pl.Series] = [pl.Series("y", [i % 2 for i in range(ROWS)])]
    for name, t in TYPES.items():
        usual = t.writings[t.typed if typed else t.text]
        columns.append(pl.Series(name, [usual.written(t.trained(i)) for i in range(ROWS)], dtype=usual.dtype))
    write_frame(pl.DataFrame(columns), folder / f"rows.{format_}")


def write_frame(frame: pl.DataFrame, file: Path) -> None:
    if file.suffix == ".csv":
        frame.write_csv(file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json_text(row) + "\n" for row in frame.iter_rows(named=True)))
    elif file.suffix == ".parquet":
        frame.write_parquet(file)
    else:
        frame.write_ipc(file, compression="uncompressed")


def json_text(value: Any) -> str:
    """Write JSON as clients do: times in ISO 8601, decimals as numbers, null for NaN, and text for infinity."""
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == int(value) and abs(value) > 2**53 else float(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float) and math.isinf(value):  # no number of JSON
        return str(value)
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True)
class Case:
    """A value of one column; all others have their default. pick: the writing of a row, or its place among them."""

    type: str
    value: Any
    pick: int | str = 0


@dataclass(frozen=True)
class Table:
    """Rows, one for each case. picks: the writing of each column, or its place among those that a door takes"""

    cases: Sequence[Case]
    picks: Mapping[str, int | str]

    def columns(self, takes: Takes, lacks: Lacks = nothing) -> tuple[pl.DataFrame, set[int], dict[str, str]]:
        """Return a frame with one writing for each column, the rows whose value it holds, and the writings.

        takes: which writings the door takes
        lacks: which values, as they are written, it cannot hold
        """
        chosen = {}
        for name, t in TYPES.items():
            able = [n for n, w in t.writings.items() if w.dtype is not None and takes(w)]
            chosen[name] = _chosen(able, self.picks.get(name, 0))
        return *self.written(chosen, lacks), chosen

    def written(self, chosen: Mapping[str, str], lacks: Lacks = nothing) -> tuple[pl.DataFrame, set[int]]:
        """Return a frame with these writings of columns, and the rows whose value they hold."""
        held = {i for i, c in enumerate(self.cases) if _is_held(c, chosen[c.type], lacks)}
        columns = []
        for name, t in TYPES.items():
            w = t.writings[chosen[name]]
            own = [c.value if c.type == name and i in held else t.default for i, c in enumerate(self.cases)]
            columns.append(pl.Series(name, list(map(w.written, own)), dtype=w.dtype))
        return pl.DataFrame(columns), held

    def rows(self, takes: Takes, lacks: Lacks = nothing) -> tuple[list[dict[str, Any]], set[int], list[str]]:
        """Return rows, each with its own writings, those whose value they hold, and the writing of each case."""
        rows, held, names = [], set[int](), []
        for i, c in enumerate(self.cases):
            row = {}
            for name, t in TYPES.items():
                able = [n for n, w in t.writings.items() if takes(w)]
                writing = _chosen(able, c.pick)
                value = t.default
                if name == c.type:
                    names.append(writing)
                    if _is_held(c, writing, lacks):
                        held.add(i)
                        value = c.value
                row[name] = t.writings[writing].written(value)
            rows.append(row)
        return rows, held, names


def _chosen(able: Sequence[str], pick: int | str) -> str:
    if isinstance(pick, str):
        return pick if pick in able else able[0]
    return able[pick % len(able)]


def _is_held(c: Case, writing: str, lacks: Lacks) -> bool:
    t = TYPES[c.type]
    return t.holds(writing, c.value) and not lacks(t.writings[writing].written(c.value))


@st.composite
def tables(draw: st.DrawFn, most: int = 4) -> Table:
    """Draw some values for each type."""
    cases = [
        Case(name, value, pick)
        for name, t in TYPES.items()
        for value, pick in draw(
            st.lists(st.tuples(st.none() | t.values, st.integers(0, 11)), min_size=1, max_size=most)
        )
    ]
    return Table(cases, {name: draw(st.integers(0, 11)) for name in TYPES})
