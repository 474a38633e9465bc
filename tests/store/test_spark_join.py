"""Joins by Spark give what joins by polars give: values, missing values and the order of rows."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys import feature_store
from recsys.base.durations import microseconds_of_age
from recsys.base.errors import UserError
from recsys.config.compose import parsed
from recsys.schema.data_schema import EngineConfig
from recsys.store.aggregates import FUNCTIONS, Aggregate
from recsys.store.views import View

pytest.importorskip("pyspark", reason="pyspark is not installed: uv sync --extra spark")

from pyspark.sql import SparkSession

from recsys.data.prepare.spark_engine import start_session
from recsys.store.spark_join import join

LOCAL = EngineConfig("spark", "local[2]", {"spark.sql.shuffle.partitions": 2, "spark.sql.codegen.wholeStage": False})
START = datetime(2026, 1, 1)
KINDS = ("datetime", "ms", "zone", "date", "integer", "float")


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    made = start_session(LOCAL)
    yield made
    made.stop()


def times(kind: str, rng: np.random.Generator, rows: int) -> pl.Series:
    """Times of which many are equal; some are before 1970, or missing."""
    steps = rng.integers(-300, 300, rows)
    steps[0] = -900_000 if kind != "date" else -30_000
    made = {
        "datetime": lambda: [START + timedelta(hours=int(s), microseconds=int(s) % 3) for s in steps],
        "ms": lambda: [START + timedelta(hours=int(s), milliseconds=int(s) % 3) for s in steps],
        "zone": lambda: [START + timedelta(hours=int(s)) for s in steps],
        "date": lambda: [date(2026, 1, 1) + timedelta(days=int(s)) for s in steps],
        "integer": lambda: steps.tolist(),
        "float": lambda: (steps / 4).tolist(),
    }[kind]()
    series = pl.Series(made)
    series = series.dt.cast_time_unit("ms") if kind == "ms" else series
    series = series.dt.replace_time_zone("Europe/Berlin", ambiguous="earliest") if kind == "zone" else series
    return series.scatter(rng.choice(rows, rows // 20, replace=False), None)


def log(kind: str, rows: int, seed: int, users: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)

    def some(values: Any) -> pl.Series:
        return pl.Series(values).scatter(rng.choice(rows, rows // 8, replace=False), None)

    return pl.DataFrame(
        {
            "user": some(rng.integers(0, users, rows)),
            "at": times(kind, rng, rows),
            "price": some(rng.integers(-500, 500, rows) / 4),
            "size": some(rng.integers(-9, 9, rows)).cast(pl.Int16),
            "shop": some([f"s{s}" for s in rng.integers(0, 12, rows)]),
            "sold": some(rng.integers(0, 2, rows) == 1),
            "item.id": some(rng.integers(0, 500, rows)),
        }
    )


def everything(kind: str) -> list[Aggregate]:
    """Every function on every kind of column that it takes, in windows short, long and without end."""
    numbers = kind in ("integer", "float")
    windows = [None, 7.0 if numbers else 7 * 3600.0, 90.0 if numbers else 4 * 86_400.0]
    columns = {"sum": ("price", "size", "sold"), "mean": ("price", "size", "sold")}
    made = [Aggregate(f"all_{w}", "count", "*", w, unitless=numbers) for w in windows]
    for function in FUNCTIONS:
        for column in columns.get(function, ("price", "size", "shop", "sold", "item.id")):
            made += [Aggregate(f"{function} {column} {w}", function, column, w, unitless=numbers) for w in windows]
    for number in (1, 3, 50):
        made += [Aggregate(f"list {number} {w}", "last", "item.id", w, number, numbers) for w in windows]
    return [a for a in made if a.name]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == pytest.approx(b, rel=1e-9, abs=1e-9, nan_ok=True)
    return type(a) is type(b) and a == b


def check(session: SparkSession, views: dict[str, View], source: Path, time: str, output: Path) -> pl.DataFrame:
    """Both joins, compared value by value, row by row; returns that of Spark."""
    inside = sorted(f for f in source.rglob("*.parquet") if "building" not in str(f))
    rows = pl.concat([pl.scan_parquet(f, glob=False).collect() for f in inside or [source]])
    assert join(session, views, source, time, output) == rows.height
    for view in views.values():
        rows = view.join(rows, time)
    found = pl.read_parquet(output)
    assert found.columns == rows.columns and found.height == rows.height
    unlike = [
        (name, i, mine, theirs)
        for name in rows.columns
        for i, (mine, theirs) in enumerate(zip(found[name].to_list(), rows[name].to_list(), strict=True))
        if not same(mine, theirs)
    ]
    assert not unlike, (len(unlike), unlike[:5])
    return found


def compare(session: SparkSession, tmp_path: Path, kind: str, rows: int, aggregates: list[Aggregate]) -> pl.DataFrame:
    for i in range(3):  # ties within files and between them
        log(kind, rows // 6, 10 + i, 40).write_parquet(tmp_path / f"log {i}.parquet")
    asked = log(kind, rows, 2, 44).select(pl.col("user"), ts="at", label="size")
    (tmp_path / "rows" / "b").mkdir(parents=True)
    (tmp_path / "rows" / ".out.building").mkdir()  # what a killed run left
    asked[:5].write_parquet(tmp_path / "rows" / ".out.building" / "part.parquet")
    for i, name in enumerate(("b/part-1", "a+b%20", "c[1]")):
        asked[i * rows // 3 : (i + 1) * rows // 3].write_parquet(tmp_path / "rows" / f"{name}.parquet")
    age = {"integer": "40", "float": "9.5", "date": "36h"}.get(kind, "1d12h")
    views = {
        "latest": View("latest", (f"{tmp_path}/log *.parquet",), "user", "at", ("price", "shop"), age),
        "ever": View("ever", (f"{tmp_path}/log *.parquet",), "user", "at", ("item.id",), None, tuple(aggregates)),
    }
    return check(session, views, tmp_path / "rows", "ts", tmp_path / "out")


@pytest.mark.slow
def test_no_value_from_the_future_and_odd_values(session: SparkSession, tmp_path: Path) -> None:
    """What happens at the time of a row, or later, is in no aggregate, and values only count from their time on."""
    nan = float("nan")
    events = {"Key": [7, 7, 7, 7, 8, 7], "key": [1] * 6, "a.b": [1.0, nan, -0.0, 0.0, nan, 9999.0]}
    events |= {"tags": [["x"], [], None, ["y", None], ["z"], ["future"]], "at": [1, 2, 3, 3, 4, 10]}
    pl.DataFrame(events).write_parquet(tmp_path / "events.parquet")
    names = ("count", "sum", "min", "max", "distinct", "last")
    made = [Aggregate(n, n, "a.b", None if n == "sum" else 7.0, unitless=True) for n in names]
    made += [Aggregate("lists", "last", "tags", None, 2, True), Aggregate("wide", "count", "*", 1e300, unitless=True)]
    view = View("v", (f"{tmp_path}/events.parquet",), "Key", "at", ("tags", "a.b"), None, tuple(made))
    rows = {"Key": ["7", "7", "7", "7", "8", "9", None, "7"], "ts": [0, 3, 4, 10, 5, 5, 5, None], "`row`": range(8)}
    pl.DataFrame(rows).cast({"ts": pl.Int32}).write_parquet(tmp_path / "rows.parquet")
    found = check(session, {"v": view}, tmp_path / "rows.parquet", "ts", tmp_path / "out")
    assert found["a.b"].to_list()[:4] == [None, 0.0, 0.0, 9999.0]  # from its own time on, the last in the file
    assert found["wide"].to_list() == [0, 2, 4, 4, 1, 0, None, None]  # events of the time itself do not count
    assert found["max"].to_list()[:4] == [None, 1.0, 1.0, 0.0]  # never 9999
    assert {f.suffix for f in (tmp_path / "out").iterdir()} == {".parquet"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_10_000_rows_and_every_function(session: SparkSession, tmp_path: Path, kind: str) -> None:
    compare(session, tmp_path, kind, 10_000, everything(kind))


def test_ages_are_whole_microseconds() -> None:
    ages = {"3us": 3, "7ns": 0, "1d12h": 129_600_000_000, "101w1us": 61_084_800_000_001}
    assert {age: microseconds_of_age(age) for age in ages} == ages


@pytest.mark.slow
def test_no_rows(session: SparkSession, tmp_path: Path) -> None:
    pl.DataFrame({"k": ["a"], "t": [1], "x": [1]}).write_parquet(tmp_path / "v.parquet")
    pl.DataFrame(schema={"k": pl.String, "ts": pl.Int64}).write_parquet(tmp_path / "rows.parquet")
    view = View("v", (f"{tmp_path}/v.parquet",), "k", "t", ("x",))
    check(session, {"v": view}, tmp_path / "rows.parquet", "ts", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("time", "more", "rows", "name", "message"),
    [
        ("ts", {}, {}, "rows", r"^input: has no column ts; did you mean t\?$"),
        ("t", {}, {"x": 1}, "rows", "^input: already has a column x"),
        ("n", {}, {}, "rows", r"^time=n: is Int64 there and Datetime\(.*\) in v"),
        ("t", {}, {"u": timedelta(days=1)}, "rows", "^input: column u of .* is Duration.*, which Spark lacks"),
        ("t", {"key": "f"}, {"f": "a"}, "rows", "^v.key=f: is string in input and double in v"),
        ("t", {}, {}, "_rows", "^input: Spark leaves out files such as .*_rows.parquet"),
        ("t", {"aggregates": (Aggregate("s", "sum", "x"),)}, {}, "rows", "^v.aggregates.s.sum=x: the column is String"),
    ],
)
def test_mistakes(
    session: SparkSession, tmp_path: Path, time: str, more: dict[str, Any], rows: Any, name: str, message: str
) -> None:
    pl.DataFrame({"k": ["a"], "t": [START], "f": [1.5], "x": ["one"]}).write_parquet(tmp_path / "v.parquet")
    view = replace(View("v", (f"{tmp_path}/v.parquet",), "k", "t", ("x",)), **more)
    made = pl.DataFrame({"k": ["a"], "t": [START], "f": [1.5], "n": [3]}).with_columns(
        **{k: pl.lit(v) for k, v in rows.items()}
    )
    made.write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(UserError, match=message):
        join(session, {"v": view}, tmp_path / f"{name}.parquet", time, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, whose session it leaves running."""
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"k": ["a"], "t": [1], "x": [5]}).write_parquet("v.parquet")
    pl.DataFrame({"k": ["a", "b"], "ts": [2, 2]}).write_parquet("rows.parquet")
    Path("f.yaml").write_text("v: {files: v.parquet, key: k, time: t, columns: [x]}")
    words = ["definition=f.yaml", "input=rows.parquet", "time=ts", "output=out", "engine=spark"]
    feature_store._command(parsed("feature_store", ["action=join", *words, "engine.master=local[2]"]))
    assert pl.read_parquet("out").to_dicts() == [{"k": "a", "ts": 2, "x": 5}, {"k": "b", "ts": 2, "x": None}]
    assert session.range(1).count() == 1
    for given, key in (
        (["action=join", *words[:-1], "input=out"], "input=out: is a folder"),
        (["action=join", *words[:-1], "engine.master=yarn"], "engine.master, engine.options: "),
        (["action=materialise", *words], "engine=spark: applies to join, not to materialise"),
    ):
        with pytest.raises(UserError, match=f"^{key}"):
            feature_store._command(parsed("feature_store", given))
