"""Times in every usual format, and their parts on the circle."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from data_configs import data_from
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import learn, of_yaml, rows, some_rows

from recsys.base.errors import UserError
from recsys.data.features.value_types import as_time
from recsys.data.prepare.prepared import prepare

NOON = datetime(2024, 1, 31, 12, 34, 56)
SECONDS = int(NOON.replace(tzinfo=UTC).timestamp())


def read(values: Any) -> list[datetime | None]:
    frame = pl.Series("t", values).to_frame()
    found = frame.select(as_time("t", frame.schema["t"]))["t"]
    assert found.dtype == pl.Datetime("us")
    return found.to_list()


@pytest.mark.parametrize(
    "value",
    [
        SECONDS * 1_000_000_000,
        float(SECONDS),
        f" {SECONDS}000 ",
        f"{SECONDS}.0",
        "2024-01-31T12:34:56",
        "2024-01-31T12:34:56Z",
        "2024-01-31 12:34:56 UTC",
        "2024-01-31T12:34:56.000",
        "2024-01-31 07:04:56-0530",
        "2024-01-31T13:34:56+01",
        "2024/1/31 12:34:56",
        "20240131T123456Z",
        NOON,
    ],
)
def test_a_moment_in_any_format(value: Any) -> None:
    assert read([value]) == [NOON]


@pytest.mark.parametrize("value", ["2024-01-31", "2024/01/31", "20240131", 20240131, date(2024, 1, 31), " 2024-1-31 "])
def test_a_date_in_any_format(value: Any) -> None:
    assert read([value]) == [datetime(2024, 1, 31)]


NO_TIMES = "x noon 31.01.2024 2024-02-30 2024-13-01 12:34 1e999 nan 2024 inf 2024-01-31T12:34:56+2 2024-01/31".split()


@pytest.mark.parametrize("value", [*NO_TIMES, "", "2024-01-31 25:00:00", "9" * 40, math.nan, math.inf, 1e300])
def test_what_is_no_time(value: Any) -> None:
    assert read([value]) == [None] if value != "2024" else [datetime(1970, 1, 1, 0, 33, 44)]


def test_columns_of_a_parquet_file() -> None:
    for unit in ("ms", "us", "ns"):
        assert read(pl.Series([NOON, None]).cast(pl.Datetime(unit))) == [NOON, None]
    local = pl.Series([NOON]).dt.replace_time_zone("Asia/Tokyo")
    assert read(local) == [NOON - timedelta(hours=9)]  # an instant
    data = of_yaml("dense: {t: {cyclic: [hour]}}")
    with pytest.raises(UserError, match=r"data.dense.t: column t holds Duration.*, not a date or time"):
        rows(data, t=[timedelta(hours=1)])


def test_parts_on_the_circle() -> None:
    data = of_yaml("dense: {at: {column: ts, cyclic: [hour, day_of_week, month]}, x: {}}")
    times = ["2024-01-01T00:59:59", "2024-04-07 06:00", "2024-07-04T18:00:00", None, "", "1720116000000"]
    learnt = learn(data, rows(data, ts=times, x=[0] * 6))
    assert [f.name for f in learnt.features.dense] == [
        f"at_{part}_{wave}" for part in ("hour", "day_of_week", "month") for wave in ("sin", "cos")
    ] + ["x"]
    done = learnt.apply(rows(data, ts=times, x=[0] * 6))
    turns = {"hour": [0, 6 / 24, 18 / 24], "day_of_week": [0, 6 / 7, 3 / 7], "month": [0, 3 / 12, 6 / 12]}
    for part, expected in turns.items():
        angle = 2 * np.pi * np.array([*expected, expected[-1]])
        for wave, numbers in (("sin", np.sin(angle)), ("cos", np.cos(angle))):
            got = done[f"at_{part}_{wave}"].to_numpy()
            np.testing.assert_allclose(got[[0, 1, 2, 5]], numbers, atol=1e-6)
            assert got[[3, 4]].tolist() == [0, 0]  # missing: the middle of the circle


def test_bad_times_are_set_aside() -> None:
    data = of_yaml("dense: {t: {cyclic: [hour]}}")
    frame, bad = some_rows(data, t=["2024-01-31", "31.1.2024", None, "NaN", "soon"])
    assert frame.height == 3 and [(b.line, b.reason) for b in bad] == [(2, "t is not a time"), (5, "t is not a time")]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.datetimes(datetime(1974, 1, 1), datetime(2199, 12, 31)).map(lambda t: t.replace(microsecond=0)),
    st.integers(-14 * 60, 14 * 60),
)
def test_any_moment_in_all_formats(moment: datetime, minutes: int) -> None:
    seconds = int(moment.replace(tzinfo=UTC).timestamp())
    abroad = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(minutes=minutes)))
    assert read([abroad.isoformat(), moment.isoformat(" "), str(seconds), str(seconds * 1000)]) == [moment] * 4
    assert read([seconds, seconds * 10**3, seconds * 10**6]) == [moment] * 3


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=20), st.floats().map(str), st.integers().map(str)), min_size=1))
def test_any_text_is_a_time_or_a_bad_row(texts: list[str | None]) -> None:
    data = of_yaml("dense: {t: {cyclic: [hour, month]}}")
    frame, bad = some_rows(data, t=pl.Series(texts, dtype=pl.String))
    assert frame.height + len(bad) == len(texts)
    if frame.height:
        done = learn(data, frame).apply(frame).drop("__label__")
        for name in done.columns:
            assert done[name].is_between(-1, 1).all() and not done[name].null_count()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, -1, 10**11, 10**14, 10**17])), min_size=1)
)
def test_any_integers(numbers: list[int]) -> None:
    data = of_yaml("dense: {t: {cyclic: [hour]}}")
    frame, bad = some_rows(data, t=pl.Series(numbers, dtype=pl.Int64))
    assert frame.height + len(bad) == len(numbers)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.datetimes(datetime(1974, 1, 1), datetime(2199, 12, 31)), st.sampled_from(["UTC", "Asia/Tokyo", "Europe/Berlin"])
)
def test_fractions_of_seconds_and_zones_are_kept(moment: datetime, zone: str) -> None:
    there = pl.Series([moment]).dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    assert read(there) == read([f"{moment.isoformat()}Z"]) == [moment]


def test_rows_are_ordered_and_split_by_instants(tmp_path: Path) -> None:
    """Not by the clocks of two zones, nor by a clock that is put back."""
    hours = [
        datetime(2024, 10, 26, 22) + timedelta(hours=i) for i in range(20)
    ]  # in Berlin, 2 to 3 o'clock comes twice
    rows = pl.DataFrame({"t": hours, "user": "u", "x": range(20), "y": [i % 2 for i in range(20)]})
    rows = rows.with_columns(pl.col("t").dt.replace_time_zone("UTC"))
    for name, zone, part in (("a", "Europe/Berlin", rows[::2]), ("b", "America/New_York", rows[1::2])):
        part.with_columns(pl.col("t").dt.convert_time_zone(zone)).write_parquet(tmp_path / f"{name}.parquet")
    text = (
        "source: {format: parquet, files: ['*.parquet']}\nlabel: {column: y}\ngroup: {by: user, order: t}\n"
        "split: {by: time, column: t, validation: 0.1, test: 0.2}\n"
        "dense: {before: {column: x, lag: 1, fill: -1, transform: []}, t: {cyclic: [hour]}}"
    )
    prepared = prepare(data_from({"root": str(tmp_path), "prepared": str(tmp_path / "p")}, text))
    parts = {s: pl.concat([pl.read_parquet(f) for f in prepared.files(s)]) for s in ("train", "validation", "test")}
    assert {s: sorted(p["before"].to_list()) for s, p in parts.items()} == {
        "train": [i - 1.0 for i in range(14)],
        "validation": [13.0, 14.0],
        "test": [15.0, 16.0, 17.0, 18.0],
    }
    assert prepared.fitted.data.dense["t"].time_zone == "Europe/Berlin"  # of the first file
    angles = rows["t"].dt.convert_time_zone("Europe/Berlin").dt.hour() * (2 * np.pi / 24)
    every = pl.concat(parts.values()).sort("before")
    np.testing.assert_allclose(every["t_hour_sin"].to_numpy(), np.sin(angles.to_numpy()), atol=1e-6)


def test_the_zone_of_the_clock() -> None:
    data = of_yaml("dense: {t: {cyclic: [hour], time_zone: Asia/Tokyo}}")
    utc = pl.Series([NOON]).dt.replace_time_zone("UTC")
    angle = 2 * np.pi * (NOON.hour + 9) / 24
    for times in (utc, utc.dt.convert_time_zone("Europe/Berlin"), ["2024-01-31T12:34:56Z"], [NOON], [SECONDS]):
        frame = rows(data, t=times)
        assert learn(data, frame).apply(frame)["t_hour_sin"].to_list() == [pytest.approx(np.sin(angle), abs=1e-6)]
    with pytest.raises(UserError, match=r"^data\.dense\.t\.time_zone=Asia/Tokio: unknown; did you mean Asia/Tokyo\?$"):
        rows(of_yaml("dense: {t: {cyclic: [hour], time_zone: Asia/Tokio}}"), t=[NOON])
    with pytest.raises(UserError, match=r"^data\.dense\.t\.time_zone=UTC: applies to parts of a time; set cyclic"):
        rows(of_yaml("dense: {t: {time_zone: UTC}}"), t=[1])


DAYS = [NOON + timedelta(days=i) for i in range(30)]
OTHER_DAYS = {
    "seconds": [SECONDS + 86_400 * i for i in range(30)],
    "milliseconds": [1_000 * (SECONDS + 86_400 * i) for i in range(30)],
    "times": DAYS,
    "texts": [day.isoformat() for day in DAYS],
    "missing": [None] * 30,
}


@pytest.mark.parametrize("by", ["split: {by: time, column: t}", "group: {by: user, order: t}"])
@pytest.mark.parametrize("pair", ["milliseconds times", "seconds milliseconds", "times seconds", "texts missing"])
def test_files_in_two_units_are_refused(pair: str, by: str, tmp_path: Path) -> None:
    """A split or a group in time would take the rows of one file to be later than all rows of the other."""
    for name, held in zip("ab", pair.split(), strict=True):
        columns = {"user": [i % 5 for i in range(30)], "t": OTHER_DAYS[held], "y": [i % 2 for i in range(30)]}
        pl.DataFrame(columns).write_parquet(tmp_path / f"{name}.parquet")
    source = (
        "source: {format: parquet, files: ['*.parquet']}\nlabel: {column: y}\nsparse: {user: {}}\nmax_bad_rows: 0.6"
    )
    data = data_from({"root": str(tmp_path), "prepared": str(tmp_path / "prepared")}, source, by)
    if "milliseconds" not in pair:
        assert sum(prepare(data).info["rows"].values()) == (30 if "missing" in pair else 60)
        return
    whats = [("milliseconds" if x == "milliseconds" else "times or seconds") + " since 1970" for x in pair.split()]
    told = ".*".join(rf"{name}\.parquet holds {what}" for name, what in zip("ab", whats, strict=True))
    with pytest.raises(UserError, match=f"column t: .*{told}.* write all of them in one unit"):
        prepare(data)
