"""Features of entities: latest values online, values at a time for training sets, by one definition."""

import json
import multiprocessing
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from forks import ok, run_forked
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.base.durations import seconds_of_age
from recsys.base.errors import UserError
from recsys.online.row_error import RowError
from recsys.online.servable import Query
from recsys.store.aggregates import Aggregate
from recsys.store.definition import load_views
from recsys.store.materialise import materialise
from recsys.store.request_features import OnlineFeatures, WithFeatures
from recsys.store.stores import FeatureStore, SQLiteStore, open_store
from recsys.store.views import View

DAY = datetime(2026, 1, 1)
JOIN = ["definition=d.yaml", "input=rows.parquet", "time=ts"]


def day(n: float) -> datetime:
    return DAY + timedelta(days=n)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Changes of two users, not sorted; u1 has two rows of one time, of which the later in the file counts."""
    rows = [("u1", day(3), 30, "se"), ("u2", day(1), 21, "de"), ("u1", day(1), 10, "no"), ("u1", day(3), 31, None)]
    frame = pl.DataFrame(rows, schema=["user", "at", "age", "country"], orient="row")
    frame.write_parquet(tmp_path / "users.parquet")
    return tmp_path / "users.parquet"


@pytest.fixture
def view(log: Path) -> View:
    return View("users", (str(log),), "user", "at", ("age", "country"))


def check_store(store: FeatureStore, view: View) -> None:
    """Latest values, unknown keys, many keys at once, and no step back to an older value."""
    assert materialise({"users": view}, store) == {"users": 2}
    u1, nobody, u2 = store.get("users", ["u1", "nobody", "u2"])
    assert u1 is not None and u2 is not None and nobody is None
    assert u1[1] == {"age": 31, "country": None} and u2[1] == {"age": 21, "country": "de"}
    assert u1[0] == day(3).timestamp() - datetime(1970, 1, 1).timestamp()
    assert store.get("users", []) == [] and store.get("others", ["u1"]) == [None]
    store.put("users", iter([("u1", u1[0] - 1, {"age": 1}), ("u2", u2[0] + 1, {"age": 22})]))
    assert [e and e[1] for e in store.get("users", ["u1", "u2"])] == [u1[1], {"age": 22}]
    many = [(f"k{i}", float(i), {"age": i}) for i in range(1700)]
    assert store.put("users", iter(many)) == 1700
    found = store.get("users", [k for k, _, _ in many])
    assert [e and e[1]["age"] for e in found] == list(range(1700))


def test_sqlite(view: View, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'f.db'}"
    check_store(open_store(url, write=True), view)
    [u2] = open_store(url).get("users", ["u2"])
    assert u2 is not None and u2[1] == {"age": 22}


def test_redis(view: View, redis_url: str) -> None:
    check_store(open_store(redis_url, write=True), view)


def _write(path: Path, rounds: int) -> None:
    store = SQLiteStore(path, write=True)
    for i in range(rounds):
        store.put("users", iter([(f"k{j}", float(i), {"age": i}) for j in range(50)]))


def test_readers_see_whole_writes_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "f.db"
    _write(path, 1)
    writer = multiprocessing.get_context("fork").Process(target=_write, args=(path, 60))
    writer.start()
    store, seen = SQLiteStore(path), set()
    while writer.is_alive():
        ages = {e[1]["age"] for e in store.get("users", [f"k{j}" for j in range(50)]) if e}
        assert len(ages) == 1  # all rows of one write
        seen |= ages
    assert writer.exitcode == 0 and len(seen) > 1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 99)), min_size=1, max_size=30),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-1, 11)), max_size=15),
    st.one_of(st.none(), st.integers(0, 5)),
)
@settings(max_examples=60, deadline=None)
def test_joins_and_latest_values_are_those_of_a_loop(
    changes: list[tuple[str, int, int]], rows: list[tuple[str, int]], age: int | None
) -> None:
    frame = pl.DataFrame(changes, schema={"k": pl.String, "t": pl.Int64, "v": pl.Int64}, orient="row")

    class Made(View):
        def scan(self, paths: Any = None) -> pl.LazyFrame:
            return frame.lazy()

    view = Made("x", (), "k", "t", ("v",), None if age is None else str(age))

    def at(key: str, now: int) -> int | None:
        past = [(t, i, v) for i, (k, t, v) in enumerate(changes) if k == key and t <= now]
        if not past or (age is not None and now - max(past)[0] > age):
            return None
        return max(past)[2]

    asked = pl.DataFrame(rows, schema={"k": pl.String, "ts": pl.Int64}, orient="row")
    assert view.join(asked, "ts")["v"].to_list() == [at(k, n) for k, n in rows]
    for until in (3, 9):
        latest = {k: v for k, _, v in view.latest(until).iter_rows()}
        past = sorted((t, i, k, v) for i, (k, t, v) in enumerate(changes) if t <= until)
        assert latest == {k: v for _, _, k, v in past}


class Recorder:
    """A Servable that returns the rows that it gets."""

    name = "recorder"

    def features(self, rows: Any, shared: Any = None) -> Any:
        return [{**(shared or {}), **row} for row in rows]

    def recommend(self, queries: Any) -> Any:
        return [q.rows for q in queries]


def test_rows_of_requests_get_stored_features(view: View, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)
    materialise({"users": view}, store)
    model = WithFeatures(Recorder(), OnlineFeatures({"users": view}, store))  # type: ignore[arg-type]
    u1 = {"user": "u1", "age": 31, "country": None}
    found = model.features([{"user": "u1"}, {"user": "u1", "age": 5}, {"user": "?"}, {"item": 3}])
    assert found == [u1, {**u1, "age": 5}, {"user": "?"}, {"item": 3}]
    assert model.features([{"item": 1}, {"item": 2}], {"user": "u1"}) == [{**u1, "item": 1}, {**u1, "item": 2}]
    assert model.features_of_columns({"user": ["u1", "u2"]}, 2)[1]["age"] == 21
    assert model.recommend([Query([{"user": "u2"}])]) == [[{"user": "u2", "age": 21, "country": "de"}]]
    assert model.name == "recorder"
    old = View(**{**vars(view), "max_age": "1d"})  # the values are older than a day
    assert OnlineFeatures({"users": old}, store).join([{"user": "u1"}]) == [{"user": "u1"}]
    assert (seconds_of_age("2d"), seconds_of_age("90"), seconds_of_age(None)) == (172_800, 90, None)


@pytest.mark.parametrize(
    ("key", "why"), [(["u1"], r"\['u1'\] is a list, not one value"), ({"id": "u1"}, "is not one value")]
)
def test_keys_that_are_not_one_value(view: View, tmp_path: Path, key: Any, why: str) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)
    model = WithFeatures(Recorder(), OnlineFeatures({"users": view}, store))  # type: ignore[arg-type]
    for ask, where in (
        (lambda: model.features([{"user": "u1"}, {"user": key}]), r"rows\[1\]: column user: "),
        (lambda: model.features([{"item": 1}], {"user": key}), "column user: "),
        (lambda: model.features_of_columns({"user": [key]}, 1), r"rows\[0\]: column user: "),
        (lambda: model.recommend([Query([{"user": key}])]), r"rows\[0\]: column user: "),
    ):
        with pytest.raises(RowError, match=f"^{where}.*{why}") as e:
            ask()
        assert e.value.column == "user"


def test_keys_are_the_text_that_polars_writes(tmp_path: Path) -> None:
    """Keys of every type find the value that was stored for them; missing ones find none, and are no error."""
    alike = {7: (7, 7.0, "7", Decimal("7.00")), 7.5: (7.5,), True: (True, "true"), "ü": ("ü",)}
    for i, (key, same) in enumerate(alike.items()):
        pl.DataFrame({"id": [key], "at": [day(0)], "age": [i]}).write_parquet(tmp_path / f"{i}.parquet")
        view = View(f"v{i}", (str(tmp_path / f"{i}.parquet"),), "id", "at", ("age",))
        store = open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)
        materialise({view.name: view}, store)
        features = OnlineFeatures({view.name: view}, store)
        for asked in same:
            assert features.join([{"id": asked}]) == [{"age": i, "id": asked}]
        for missing in ({}, {"id": None}, {"id": ""}, {"id": float("nan")}, {"id": "True"}):
            [row] = features.join([missing])
            assert "age" not in row


def test_the_commands(log: Path, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(f"users: {{files: {log}, key: user, time: at, columns: [age, country]}}\n")
    done = ok(run_forked("recsys.feature_store", "materialise", "definition=f.yaml", "until=2026-01-02", cwd=tmp_path))
    assert "users: the latest values of 2 entities are in sqlite:///features.db" in done.stderr
    done = ok(run_forked("recsys.feature_store", "get", "definition=f.yaml", "keys=[u1,u9]", cwd=tmp_path))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["values"] == {"age": 10, "country": "no"} and lines[1]["values"] is None
    done = ok(run_forked("recsys.feature_store", "get", "definition=f.yaml", "keys=[12e5,true,ä]", cwd=tmp_path))
    assert [json.loads(line)["key"] for line in done.stdout.splitlines()] == ["12e5", "true", "ä"]  # as typed
    pl.DataFrame({"user": ["u1"], "ts": [day(2)]}).write_parquet(tmp_path / "rows.parquet")
    join = ["join", "definition=f.yaml", "input=rows.parquet", "time=ts", "output=out.parquet"]
    done = ok(run_forked("recsys.feature_store", *join, cwd=tmp_path))
    assert pl.read_parquet(tmp_path / "out.parquet")["age"].to_list() == [10]


NO_AGES = [
    *((a, a, "is not a duration") for a in ("30 moons", "-3d", "1.5d", "30 d", "1mo", "d")),
    ("[3d]", "['3d']", "must be text"),
    *((a, a, "must be above 0") for a in ("-5", "0d")),
    ("101w99999d", "101w99999d", "is longer than 100 years"),
]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("users: {files: x, key: user, time: at, column: [a]}", "users.column: no such key; did you mean columns?"),
        ("users: {files: x, key: user, columns: [a]}", "users.time: must be set"),
        ("users: {files: x, key: user, time: at, columns: []}", "users.columns: is empty"),
        ("users: 3", "users=3: has keys of its own"),
        ("[]", "must map names to views"),
        ("users:\n  columns: [a\n  time: at\n", "f.yaml, line 3, column 7: is not YAML: expected ',' or ']'"),
        *(
            (f"users: {{files: x, key: user, time: at, columns: [a], max_age: {age}}}", f"users.max_age={shown}: {why}")
            for age, shown, why in NO_AGES
        ),
    ],
)
def test_mistakes_in_a_definition(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(UserError) as e:
        load_views(tmp_path / "f.yaml")
    assert message in str(e.value)


@pytest.mark.parametrize("age", ["1d12h", "90", "1.5", "7ns", "36600d", None])
def test_ages_that_a_definition_may_have_work_everywhere(age: str | None, log: Path, tmp_path: Path) -> None:
    """A time has a unit and a number has none, in joins and in materialise; polars takes every unit."""
    is_number = age is not None and age.replace(".", "").isdigit()
    text = json.dumps(float(str(age)) if is_number else age)
    (tmp_path / "f.yaml").write_text(f"users: {{files: {log}, key: user, time: at, columns: [age], max_age: {text}}}")
    view = load_views(tmp_path / "f.yaml")["users"]
    numbers = replace(view, files=(str(tmp_path / "n.parquet"),))
    pl.DataFrame({"user": ["u1"], "at": [1.5], "age": [9]}).write_parquet(tmp_path / "n.parquet")
    for made, now, has_unit in ((view, day(3), True), (numbers, 2.0, False)):
        rows = pl.DataFrame({"user": ["u1"], "ts": [now]})
        if age is None or has_unit != is_number:
            assert made.join(rows, "ts")["age"].to_list() == [31 if has_unit else 9]
            assert made.latest().height
        else:
            for use in (made.latest, lambda made=made, rows=rows: made.join(rows, "ts")):
                with pytest.raises(UserError, match=r"^users.max_age=.*: (has no unit, and|must be a number, as)"):
                    use()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda v: replace(v, files=("none/*",)).latest(), r"^users.files=none/\*: no file matches$"),
        (lambda v: replace(v, columns=("agee",)).latest(), r"^users: .* has no column agee; did you mean age\?$"),
        (lambda v: v.latest("soon"), r"^until=soon: is not a Datetime"),
        (lambda v: v.join(pl.DataFrame({"users": ["a"], "ts": [DAY]}), "ts"), "^input: has no column user"),
        (
            lambda v: v.join(pl.DataFrame({"user": ["a"], "ts": [DAY], "age": [1]}), "ts"),
            "^input: already has a column",
        ),
        (lambda _: open_store("mysql://x"), "^store=mysql://x: must be sqlite:///PATH or redis://"),
        (lambda _: open_store("sqlite:///none.db"), "^store=sqlite:///none.db: no such file"),
        (lambda _: open_store("redis://127.0.0.1:1/0"), "^store=redis://127.0.0.1:1/0: cannot be reached: "),
        (lambda _: open_store("redis://127.0.0.1:1/abc"), "where DB is a number"),
    ],
)
def test_mistakes_in_files_and_stores(use: Any, message: str, view: View) -> None:
    with pytest.raises(UserError, match=message):
        use(view)


@pytest.mark.parametrize(
    ("at", "updated"),
    [
        ([date(2026, 1, 1), date(2026, 1, 2)], [datetime(2026, 1, 1, 12), datetime(2026, 1, 2, 13)]),
        ([5, 6], [5.5, 6.5]),
        (pl.Series([0, 1]).cast(pl.Datetime("ms")), pl.Series([3, 1001]).cast(pl.Datetime("us"))),
        (pl.Series([0, 1]).cast(pl.Datetime("us")), pl.Series([3, 1001]).cast(pl.Datetime("ns"))),
        (pl.Series([1767225600.0], dtype=pl.Float32), [1767225650.0]),
    ],
    ids=["days", "whole numbers", "ms", "us", "Float32"],
)
def test_rows_with_coarser_times_see_nothing_from_later(at: Any, updated: Any, tmp_path: Path) -> None:
    n = len(at)
    pl.DataFrame({"user": ["u"] * n, "updated": updated, "age": range(n)}).write_parquet(tmp_path / "u.parquet")
    counted = (Aggregate("n", "count", "*"),)
    view = View("users", (f"{tmp_path}/u.parquet",), "user", "updated", ("age",), aggregates=counted)
    joined = view.join(pl.DataFrame({"user": ["u"] * n, "ts": at, "__key__": range(n)}), "ts")
    assert joined.columns == ["user", "ts", "__key__", "age", "n"]
    assert joined["age"].to_list() == [None, 0][:n] and joined["n"].to_list() == [0, 1][:n]
    assert joined["__key__"].to_list() == list(range(n))


@pytest.mark.parametrize(
    ("rows", "columns", "files", "message"),
    [
        ({}, "[age, updated]", [{}], "columns: updated is the view's key or time"),
        ({}, "[age, age]", [{}], "columns: age occurs twice"),
        ({}, "[__time__]", [{}], "__time__: names that begin with __ are reserved"),
        ({}, "[age]", [{}, {"age": [0.5]}], "column age is Float64 in f1.parquet and Int64 in f0.parquet"),
    ],
)
def test_mistakes_of_a_join(
    rows: Any, columns: str, files: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for i, own in enumerate(files):
        pl.DataFrame({"user": [7], "updated": [0], "age": [1], **own}).write_parquet(f"f{i}.parquet")
    Path("d.yaml").write_text(f"users: {{files: f*.parquet, key: user, time: updated, columns: {columns}}}")
    with pytest.raises(UserError, match=message):
        load_views("d.yaml")["users"].join(pl.DataFrame({"user": [7], "ts": [1], **rows}), "ts")


@pytest.mark.slow
def test_what_a_join_writes_destroys_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder is made; a file of other things is no place for rejected events."""
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"user": [7], "updated": [0.0], "age": [1]}).write_parquet("f.parquet")
    pl.DataFrame({"user": [7], "ts": [1.0]}).write_parquet("rows.parquet")
    Path("d.yaml").write_text("users: {files: f.parquet, key: user, time: updated, columns: [age]}")
    before = Path("f.parquet").read_bytes()
    for inputs in ("f.parquet", "d.yaml"):
        done = run_forked("recsys.feature_store", "join", *JOIN, "output=o.parquet", f"rejected={inputs}", cwd=tmp_path)
        assert f"rejected={inputs}: holds something else than rejected events" in done.stderr
    assert Path("f.parquet").read_bytes() == before
    assert run_forked("recsys.feature_store", "join", *JOIN, "output=a/b/o.parquet", cwd=tmp_path).returncode == 0
    assert pl.read_parquet("a/b/o.parquet")["age"].to_list() == [1]
