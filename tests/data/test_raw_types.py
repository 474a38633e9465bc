"""The meaning of raw columns: columns of any type and single values become what the training files would have held."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import polars as pl
import pytest
from data_configs import data_from
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.features.find_types import held_type, merged
from recsys.data.features.raw_types import (
    RawBoolean,
    RawJoined,
    RawList,
    RawNumber,
    RawText,
    RawTime,
    RawType,
    RawWhole,
)
from recsys.data.features.value_types import as_time
from recsys.data.prepare.prepared import prepare
from recsys.data.raw.derive import join_side_table
from recsys.online.raw_rows import SideTable
from recsys.schema.source_schema import JoinConfig

STRING = pl.String()
NOON = datetime(2024, 1, 31, 12, 30)
BERLIN = ZoneInfo("Europe/Berlin")


def found(*texts: str, numbers: bool = False) -> RawType | None:
    return held_type(pl.Series(texts, dtype=pl.String).unique(), numbers=numbers)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["True", "False", ""], RawBoolean(STRING, "title")),
        (["true", "TRUE"], RawBoolean(STRING, "lower")),
        (["7", "0", "-12"], RawWhole(STRING)),
        (["7.0", "12.0"], RawWhole(STRING, point=True)),
        (["7", "12.0"], RawWhole(STRING)),
        (["0007", "12"], RawText(STRING)),
        (["1.10", "1.2"], RawText(STRING)),  # versions, perhaps
        (["yes", "no"], RawText(STRING)),
        (["2024-01-31", "2024-02-01"], RawTime(STRING, False, "%Y-%m-%d")),
        (["2024-01-31T12:00:00Z"], RawTime(STRING, True, "%Y-%m-%dT%H:%M:%SZ")),
        (["2024-01-31 12:00:00.125"], RawTime(STRING, False, "%Y-%m-%d %H:%M:%S%.3f")),
        (["true", "7"], RawText(STRING)),
        ([""], None),
    ],
)
def test_types_that_texts_have(texts: list[str], expected: RawType | None) -> None:
    assert found(*texts) == expected
    assert expected is None or RawType.from_json(expected.to_json()) == expected


def test_numbers_where_features_read_numbers_alone() -> None:
    assert found("1.5", "7", numbers=True) == RawNumber(STRING)
    assert found("1.5", "x", numbers=True) == RawText(STRING)
    german = held_type(pl.Series(["1.234,5", "7"]), ",", ".", numbers=True)
    assert german == RawNumber(STRING, ",") and german.read(1234.5) == "1234,5" and german.read("1.234,5") == "1.234,5"


def test_parts_of_data_with_several_types() -> None:
    assert merged(found("7"), found("7.0")) == RawWhole(STRING)
    assert merged(found("True"), found("false")) == RawBoolean(STRING, "lower")
    assert merged(found("True"), found("7")) == RawText(STRING)
    assert merged(found("7"), found("1.5", numbers=True)) == RawNumber(STRING)
    assert merged(None, found("7")) == found("7")
    zoned = merged(found("2024-01-31T12:00:00Z"), found("2024-01-31T12:00:00"))
    assert isinstance(zoned, RawTime) and zoned.aware


SEVEN = [7, 7.0, "7", "7.0", " 7 ", Decimal("7.00")]
TRUE = [True, "True", "true", "TRUE", 1, 1.0, "1"]
INSTANT = [
    "2024-01-31T12:30:00Z",
    "2024-01-31T13:30:00+01:00",
    datetime(2024, 1, 31, 13, 30, tzinfo=BERLIN),
    NOON.replace(tzinfo=UTC),
    NOON,  # without a zone: UTC
]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (RawWhole(STRING), [*SEVEN], "7"),
        (RawWhole(STRING, point=True), [*SEVEN], "7.0"),
        (RawWhole(pl.Int64()), [*SEVEN], 7),
        (RawText(STRING), [7, 7.0, "7", Decimal("7.00")], "7"),  # unknown, where training has "0007"
        (RawBoolean(STRING, "title"), TRUE, "True"),
        (RawBoolean(pl.Boolean()), TRUE, True),
        (RawNumber(pl.Float64()), [*SEVEN], 7.0),
        (RawTime(pl.Datetime("us", "UTC"), True), INSTANT, NOON.replace(tzinfo=UTC)),
        (RawTime(pl.Datetime("us", "Europe/Berlin"), True), INSTANT, NOON.replace(tzinfo=UTC)),
        (RawTime(pl.Datetime("us")), INSTANT, NOON),
        (RawTime(pl.Date()), ["2024-01-31", date(2024, 1, 31), NOON], date(2024, 1, 31)),
        (RawList(pl.List(pl.Int64), RawWhole(pl.Int64())), [[7, 8], [7.0, 8.0], ["7", 8]], [7, 8]),
        (RawList(pl.List(pl.String), RawWhole(STRING)), [[7, 8], [7.0, 8.0], ["7.0", "8"]], ["7", "8"]),
        (RawJoined(STRING, " ", RawWhole(STRING)), [[7, 8], [7.0, 8.0], "7 8", "7.0 8"], "7 8"),
    ],
    ids=str,
)
def test_one_value_however_it_comes(kind: RawType, values: list[Any], expected: Any) -> None:
    for value in values:
        assert kind.read(value) == expected, value
        if not isinstance(value, list):
            assert kind.convert(pl.Series([value])).to_list() == [expected], value


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (RawWhole(pl.Int64()), 7.5, "is not a whole number"),
        (RawWhole(pl.Int64()), 2**63, "is not between -9223372036854775808 and 9223372036854775807"),
        (RawWhole(pl.Int8()), "128", "is not between -128 and 127"),
        (RawBoolean(pl.Boolean()), "maybe", "is neither true nor false"),
        (RawBoolean(pl.Boolean()), 2, "is neither true nor false"),
        (RawTime(pl.Datetime("us")), 3, "is not a time"),  # 1970 is no likely time
        (RawNumber(STRING), NOON, "has type datetime, which a column of type number cannot hold"),
    ],
)
def test_values_that_mean_nothing_are_refused(kind: RawType, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}$"):
        kind.read(value)


def test_other_text_is_unknown_where_files_are_text() -> None:
    assert RawWhole(STRING).read("x") == "x" and RawWhole(STRING).read(7.5) == "7.5"
    assert RawBoolean(STRING, "title").read("maybe") == "maybe" and RawBoolean(STRING).read(2) == "2"


def test_columns_that_hold_no_values_of_the_kind() -> None:
    for kind, values in (
        (RawWhole(pl.Int64()), [NOON]),
        (RawNumber(STRING), [NOON]),
        (RawText(STRING), [timedelta(1)]),
        (RawList(pl.List(pl.Int64), RawWhole(pl.Int64())), [1]),
        (RawTime(pl.Date()), [True]),
    ):
        with pytest.raises(TypeError, match=r"^holds "):
            kind.convert(pl.Series(values))


def test_times_keep_what_their_form_in_files_cannot_hold() -> None:
    days = found("2024-01-31")
    assert days is not None
    assert days.convert(pl.Series([datetime(2024, 2, 1)])).to_list() == ["2024-02-01"]
    assert days.read(NOON) == "2024-01-31 12:30:00.000000"


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**6), max_value=10**6),
    st.text(max_size=4),
    st.sampled_from(
        ["7", "7.0", "007", "-0", "1e3", "true", "FALSE", "nan", "", "2024-01-31", "2024-01-31T01:02:03.5Z"]
    ),
    st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)),
    st.dates(date(1970, 1, 1), date(2200, 1, 1)),
)
KINDS = [
    RawText(STRING),
    RawWhole(STRING),
    RawWhole(STRING, True),
    RawWhole(pl.Int64()),
    RawNumber(STRING),
    RawNumber(pl.Float64()),
    RawBoolean(STRING, "title"),
    RawBoolean(pl.Boolean()),
    RawTime(STRING, True, "%Y-%m-%dT%H:%M:%SZ"),
    RawTime(pl.Datetime("us", "Europe/Berlin"), True),
    RawTime(pl.Datetime("us")),
]


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(KINDS), odd)
def test_a_column_and_a_value_are_read_alike(kind: RawType, value: Any) -> None:
    """Or both are refused."""
    try:
        one = kind.read(value)
    except ValueError:
        one = "refused"
    try:
        column = pl.Series([value])
    except OverflowError:  # a whole number that no column holds
        return
    try:
        converted = kind.convert(column)
        many = "refused" if kind.refused(column, converted).any() else converted.to_list()[0]
    except TypeError:
        many = "refused"
    same_number = isinstance(kind, RawNumber) and one not in (None, "refused") and many not in (None, "refused")
    assert one == many or (same_number and float(one) == float(many)) or (one != one and many is None), (one, many)
    if kind.dtype == STRING and isinstance(one, str):
        assert kind.read(one) == one  # text of the files stays


def test_files_that_write_one_value_in_two_forms(tmp_path: Path) -> None:
    """pandas writes whole numbers of a column with missing values as 7.0: they are the same items and users."""
    rows = [(i % 5, i % 4, i, i % 2 == 0) for i in range(60)]
    lines = {
        "a.csv": [f"{u},{v},{t},{b}" for u, v, t, b in rows[:30]],
        "b.csv": [f"{u}.0,{v}.0,{t},{str(b).lower()}" for u, v, t, b in rows[30:]],
    }
    for name, own in lines.items():
        (tmp_path / name).write_text("\n".join(["user,item,t,bought", *own]) + "\n")
    text = (
        "source: {format: csv, files: ['*.csv']}\nlabel: {column: null}\ngroup: {by: user, order: t}\n"
        "sequences: {max_length: 20}\nsplit: {by: leave_one_out}\nsparse: {item: {}, bought: {}, both: {cross: [item, bought]}}"
    )
    prepared = prepare(data_from({"root": str(tmp_path), "prepared": str(tmp_path / "p")}, text))
    known = {table: sorted(v["value"].to_list()) for table, v in prepared.fitted.vocabularies.items()}
    assert known["item"] == ["0", "1", "2", "3"] and known["bought"] == ["false", "true"]
    assert len(known["both"]) == 4 and prepared.rows("test") == 5
    columns = json.loads((prepared.folder / "features.json").read_text())["columns"]
    assert columns["item"] == {"type": "whole number", "point": False} and columns["user"]["type"] == "whole number"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["7", "8.0", "x"], [8, 7, 9]),
        ([7, 8, 9], ["8.0", "7", "10"]),
        ([7.0, 8.0, None], ["8", "7", "9"]),
        (["True", "true", "no"], [True, False, None]),
    ],
)
def test_keys_of_a_join_are_values_not_their_text(ours: list[Any], theirs: list[Any]) -> None:
    join = JoinConfig(file="f", key="k", columns={"k": "k", "n": "n"})
    side = pl.DataFrame({"k": theirs, "n": [1, 2, 3]}, strict=False).drop_nulls()
    frame = pl.DataFrame({"k": ours}, strict=False)
    expected = [1, 1, None] if ours[0] == "True" else [2, 1, None]
    assert join_side_table(frame, join, side)["n"].to_list() == expected
    table = SideTable.from_table(join, side, frame.schema["k"])
    assert table.joined(frame)["n"].to_list() == expected


@pytest.mark.parametrize("dtype", [pl.String(), pl.Int64()], ids=str)
def test_numbers_since_1970_that_only_clocks_read(dtype: pl.DataType) -> None:
    """Any form of the instant is read; what is a number in the training rows stays as it is."""
    seconds = int(NOON.replace(tzinfo=UTC).timestamp())
    for value in (seconds, float(seconds), str(seconds), *INSTANT):
        kept = pl.Series("t", [RawTime(dtype).read(value)], dtype)
        assert kept.to_frame().select(as_time("t", dtype)).item() == NOON, value


def test_text_of_times_that_sql_reads() -> None:
    """A time that is no text is written as the training files do, or refused where they write several offsets."""
    utc = found("2024-01-31T12:30:00Z", "2024-02-01T00:00:00Z")
    offsets = found("2024-01-31 13:30:00+01:00")
    assert isinstance(utc, RawTime) and isinstance(offsets, RawTime) and not offsets.written
    given = pl.Series([datetime(2024, 1, 31, 13, 30, tzinfo=BERLIN)])
    seconds = int(NOON.replace(tzinfo=UTC).timestamp())
    sql = replace(utc, read_by_sql=True)
    assert sql.convert(given).to_list() == [sql.read(seconds)] == ["2024-01-31T12:30:00Z"]
    assert offsets.convert(given).to_list() == ["2024-01-31 12:30:00.000000Z"]  # only the instant is read
    with pytest.raises(TypeError, match=r"^holds .*, and SQL reads its text; give the text as in the training files$"):
        replace(offsets, read_by_sql=True).convert(given)
    assert replace(offsets, read_by_sql=True).read("2024-01-31 13:30:00+01:00") == "2024-01-31 13:30:00+01:00"


def test_missing_values_of_pandas_and_unusual_columns() -> None:
    for kind in KINDS:
        assert kind.read(pd.NA) is None and kind.read(pd.NaT) is None
        with pytest.raises(TypeError, match=r"^holds "):
            kind.convert(pl.Series([[1, 2]]))
