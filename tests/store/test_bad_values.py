"""Values that do not fit are bad events, with their place; no sum of a store is infinite, and all output is JSON."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from forks import ok, run_forked
from shop_events import START, everything

from recsys.base.errors import UserError
from recsys.store.definition import load_views
from recsys.store.follow import follow
from recsys.store.materialise import materialise
from recsys.store.stores import FeatureStore, open_store
from recsys.store.views import View

NOW = START + timedelta(days=41)
INF, NAN = math.inf, math.nan
LIKE = {"user": "u1", "at": START + timedelta(days=40), "price": 1.0, "small": 1.0, "vector": [1.0]}
YAML = """
clicks:
  files: "events-*.parquet"
  stream: clicks.jsonl
  key: user
  time: at
  columns: [vector]
  aggregates:
    spent: {sum: price}
    price: {mean: price, window: 7d}
    small: {sum: small}
    dearest: {max: price}
"""


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> View:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(YAML)
    return load_views("f.yaml")["clicks"]


def frame(*changes: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([LIKE | c for c in changes], schema_overrides={"small": pl.Float32})


def no_constant(text: str) -> Any:
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"price": 1e400', "price=inf: is infinite, or too large"),
        ('"price": 1e300', "price=1e+300: is infinite, or too large"),
        ('"small": 1e39', "small=1e+39: is infinite, or too large"),
        ('"vector": [1, 1e400]', "vector=[1, inf]: is infinite, or too large"),
    ],
)
def test_events_of_a_stream(text: str, message: str, view: View, store: FeatureStore) -> None:
    frame({}).write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    good = '{"user": "u1", "at": "2026-02-10T12:00:00", "price": 2, "vector": [3]}\n'
    bad = '{"user": "u1", "at": "2026-02-10T12:00:00", ' + text + "}\n"
    Path("clicks.jsonl").write_text(good + bad + good)
    with pytest.raises(UserError, match=r"^clicks.jsonl, partition 0, offset \d+: ") as found:
        follow([view], store, until_end=True)
    assert message in str(found.value) and f"offset {len(good)}:" in str(found.value)
    follow([view], store, until_end=True, rejected=Path("bad.jsonl"))
    [line] = Path("bad.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=no_constant)["text"] == bad.strip()
    found_ = everything(view, store, NOW)["u1"]
    assert found_ == {"spent": 5.0, "price": 5 / 3, "small": 1.0, "dearest": 2.0, "vector": [3.0]}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"price": INF}, "price=inf: is infinite, or too large for a sum"),
        ({"vector": [1.0, -INF]}, "vector=[1.0, -inf]: is infinite, or too large for a sum"),
        ({"small": INF}, "small=inf: is infinite, or too large for a sum"),
    ],
)
def test_rows_of_files(change: dict[str, Any], message: str, view: View, store: FeatureStore) -> None:
    frame({}, change).write_parquet("events-0.parquet")
    place = "clicks: events-0.parquet, row 1: "
    with pytest.raises(UserError) as found:
        materialise({"clicks": view}, store)
    assert str(found.value).startswith(place + message)
    rows = frame({"at": NOW}).select("user", pl.col("at").alias("ts"))
    rows.write_parquet("rows.parquet")
    arguments = ["definition=f.yaml", "input=rows.parquet", "time=ts", "output=out.parquet"]
    done = run_forked("recsys.feature_store", "join", *arguments, cwd=Path.cwd())
    assert done.returncode == 2 and place + message in done.stderr
    ok(run_forked("recsys.feature_store", "join", *arguments, "rejected=bad.jsonl", cwd=Path.cwd()))
    [line] = [json.loads(x, parse_constant=no_constant) for x in Path("bad.jsonl").read_text().splitlines()]
    assert (line["event"] + ": ", line["why"]) == (place, message)
    materialise({"clicks": view}, store, rejected=Path("bad.jsonl"))
    wanted = {"spent": 1.0, "price": 1.0, "small": 1.0, "dearest": 1.0, "vector": [1.0]}
    assert everything(view, store, NOW)["u1"] == wanted
    assert pl.read_parquet("out.parquet").select(view.names).row(0, named=True) == wanted | {"vector": [1.0]}


def test_nan_is_a_missing_value(view: View, store: FeatureStore) -> None:
    """As pandas writes it, also within lists."""
    frame({}, {"price": NAN, "small": NAN, "vector": [NAN, 2.0]}).write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    found = everything(view, store, NOW)["u1"]
    assert found == {"spent": 1.0, "price": 1.0, "small": 1.0, "dearest": 1.0, "vector": [None, 2.0]}
    rows = pl.DataFrame({"user": ["u1"], "ts": [NOW]})
    assert view.join(rows, "ts").select(view.names).row(0, named=True) == found


def test_sums_of_the_largest_values_are_finite(view: View, store: FeatureStore) -> None:
    small = 3e38  # of Float32, whose sums are Float64
    frame(*[{"price": 9e288, "small": small}] * 1000).write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    found = everything(view, store, NOW)["u1"]
    joined = view.join(pl.DataFrame({"user": ["u1"], "ts": [NOW]}), "ts").row(0, named=True)
    for name in ("spent", "price", "small"):
        assert math.isfinite(found[name]) and found[name] == pytest.approx(joined[name])


@pytest.mark.parametrize("time", [INF, 1e13, -1e300])
def test_times_that_are_no_seconds(time: float, tmp_path: Path, store: FeatureStore) -> None:
    pl.DataFrame({"user": ["a", "a"], "at": [1.0, time], "x": [1.0, 2.0]}).write_parquet(tmp_path / "e.parquet")
    (tmp_path / "f.yaml").write_text(
        f"v: {{files: {tmp_path}/e.parquet, key: user, time: at, aggregates: {{s: {{sum: x}}}}}}"
    )
    views = load_views(tmp_path / "f.yaml")
    with pytest.raises(UserError, match=r"e.parquet, row 1: at=.*: is infinite, or too large for a time; correct it"):
        materialise(views, store)
    materialise(views, store, rejected=tmp_path / "bad.jsonl")
    assert everything(views["v"], store, NOW) and store.get("v#events", ["a"])[0][1]["x"] == [1.0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("values", "function", "message"),
    [
        (pl.Series(["1.5"] * 3).cast(pl.Decimal(38, 2)), "sum", r"a.parquet: x is Decimal\(.*, which a store does not"),
        ([[1]] * 3, "distinct", r"the column is List\(Int64\) in .*a.parquet; name one of single values"),
        ([2**63 - 1] * 3, "sum", "x=9223372036854775807: is infinite, or too large for a sum"),
        (["1"] * 3, "sum", "the column is String in .*a.parquet; name one of numbers"),
    ],
)
def test_types_and_integers_that_do_not_fit(tmp_path: Path, values: Any, function: str, message: str) -> None:
    pl.DataFrame({"user": ["u"] * 3, "at": [1, 2, 3], "x": values}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        materialised(tmp_path, {"f": {function: "x"}})


def test_times_of_two_kinds(tmp_path: Path) -> None:
    """Seconds and datetimes would be compared as if both were microseconds."""
    times = pl.Series("at", [datetime(2026, 1, 1)] * 3)
    for name, at in (("a", times), ("b", pl.Series("at", [1_700_000_000] * 3))):
        pl.DataFrame([pl.Series("user", ["u"] * 3), at]).write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(UserError, match=r"b.parquet: the time at is Int64, and Datetime.* in .*a.parquet"):
        materialised(tmp_path, {"f": {"count": "*"}})


def materialised(folder: Path, aggregates: dict[str, Any]) -> None:
    view = {"files": [str(folder / "*.parquet")], "key": "user", "time": "at", "aggregates": aggregates}
    (folder / "v.yaml").write_text(json.dumps({"v": view}))
    materialise(load_views(folder / "v.yaml"), open_store(f"sqlite:///{folder / 's.db'}", write=True))


def test_sums_of_integers_do_not_wrap(tmp_path: Path) -> None:
    """Single values may be small: 2,100 of them leave 64 bits."""
    frame = pl.DataFrame({"user": ["u"] * 2100, "at": range(2100), "x": [2**52] * 2100})
    frame.write_parquet(tmp_path / "a.parquet")
    materialised(tmp_path, {"f": {"sum": "x"}})
    view = load_views(tmp_path / "v.yaml")["v"]
    rows = pl.DataFrame({"user": ["u", "u"], "ts": [2000, 2100]})
    assert view.join(rows.head(1), "ts")["f"].to_list() == [2000 * 2**52]
    with pytest.raises(UserError, match=r"aggregates.f: a sum does not fit into 64 bits; divide the column"):
        view.join(rows, "ts")


def test_rows_without_a_key_or_time_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.DataFrame({"user": ["u", None, "u", "u"], "at": [1.0, 2.0, None, NAN], "x": [1, 2, 3, 4]})
    frame.write_parquet(tmp_path / "a.parquet")
    materialised(tmp_path, {"f": {"count": "*"}})
    said = "a.parquet: 3 of 4 rows have no user or no at; they are left out"
    assert said in " ".join(capsys.readouterr().err.split())
    view = load_views(tmp_path / "v.yaml")["v"]
    view.check_values()
    joined = view.join(pl.DataFrame({"user": ["u"], "ts": [9.0]}), "ts")
    assert joined["f"].to_list() == [1] and said in " ".join(capsys.readouterr().err.split())


FUTURE = """
users:
  files: "users-*.parquet"
  stream: users.jsonl
  key: user
  time: at
  columns: [age]
"""


def of_users(folder: Path, age: int, at: object) -> pl.DataFrame:
    frame = pl.DataFrame({"user": ["u1"], "at": [at], "age": [age]})
    frame.write_parquet(folder / f"users-{age}.parquet")
    return frame


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> View:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(FUTURE)
    return load_views("f.yaml")["users"]


def test_rows_that_are_still_to_come_are_bad_events(users: View, store: FeatureStore, tmp_path: Path) -> None:
    """One row of 2099 would be the entity's value for ever: no later row replaces it, and no max_age ends it."""
    now = datetime.now(UTC).replace(tzinfo=None)
    of_users(tmp_path, 9, now - timedelta(days=1))
    of_users(tmp_path, 99, datetime(2099, 1, 1))
    why = "users-99.parquet, row 0: at=2099-01-01 00:00:00: is later than now; correct it, or set rejected=FILE"
    for command in (lambda: materialise({"users": users}, store), users.check_values):
        with pytest.raises(UserError, match=why):
            command()
    materialise({"users": users}, store, rejected=Path("bad.jsonl"))
    [line] = Path("bad.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "users: users-99.parquet, row 0"
    assert everything(users, store, now) == {"u1": {"age": 9}}
    rows = pl.DataFrame({"user": ["u1"], "ts": [datetime(2100, 1, 1)]})
    assert users.join(rows, "ts")["age"].to_list() == [9]  # as the store has it
    good = json.dumps({"user": "u1", "at": (now + timedelta(minutes=5)).isoformat(), "age": 10})  # clocks differ
    Path("users.jsonl").write_text(good + '\n{"user": "u1", "at": "2099-01-01T00:00:00", "age": 98}\n')
    with pytest.raises(UserError, match=r"offset \d+: at=2099-01-01T00:00:00: is later than now; correct it"):
        follow([users], store, until_end=True)
    follow([users], store, until_end=True, rejected=Path("bad.jsonl"))
    assert everything(users, store, now) == {"u1": {"age": 10}}


@pytest.mark.parametrize("max_age", [None, "1h"])
def test_a_stored_value_that_is_still_to_come_is_missing_until_another_comes(
    max_age: str | None, users: View, store: FeatureStore, tmp_path: Path
) -> None:
    """As an earlier version, or a machine whose clock was ahead, has written it."""
    now = datetime.now(UTC).replace(tzinfo=None)
    of_users(tmp_path, 4, now)
    users = replace(users, max_age=max_age)
    store.put("users", iter([("u1", datetime(2099, 1, 1).timestamp(), {"age": 99})]))
    assert everything(users, store, now) == {}
    materialise({"users": users}, store)
    assert everything(users, store, now) == {"u1": {"age": 4}}


def test_numbers_and_dates_that_are_still_to_come(users: View, store: FeatureStore, tmp_path: Path) -> None:
    """Numbers have a unit of their own, and today's date begins earlier in other time zones."""
    now = datetime.now(UTC).replace(tzinfo=None)
    of_users(tmp_path, 1, 20_991_231_000_000)
    of_users(tmp_path, 2, 20_991_231_000_001)
    numbered = replace(users, name="numbered")
    materialise({"numbered": numbered}, store)
    assert everything(numbered, store, now) == {"u1": {"age": 2}}
    dated = replace(users, name="dated")
    for age in (1, 2):
        of_users(tmp_path, age, now.date() + timedelta(days=age - 1))
    materialise({"dated": dated}, store, rejected=Path("bad.jsonl"))
    assert everything(dated, store, now) == {"u1": {"age": 2}}
    of_users(tmp_path, 3, now.date() + timedelta(days=2))
    with pytest.raises(UserError, match=r"users-3.parquet, row 0: at=\d+-\d+-\d+: is later than now"):
        materialise({"dated": dated}, store)
