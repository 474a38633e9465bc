"""Aggregates of events: the same offline and online, from the past alone, and kept up to date file by file."""

import random
import statistics
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from shop_events import START, YAML, events, everything, same

from recsys.base.errors import UserError
from recsys.store import materialise as materialising
from recsys.store.aggregates import Aggregate
from recsys.store.definition import load_views
from recsys.store.materialise import materialise
from recsys.store.request_features import OnlineFeatures, values_at
from recsys.store.stores import FeatureStore, open_store
from recsys.store.views import View


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> View:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(YAML)
    return load_views("f.yaml")["clicks"]


@pytest.mark.parametrize("moments", [39, pytest.param(385, marks=pytest.mark.slow)])
def test_offline_and_online_are_equal_at_10_000_points(view: View, store: FeatureStore, moments: int) -> None:
    """A store as it was at each of many times answers what the join gives for that time."""
    events(4000).write_parquet("events-0.parquet")
    rng = random.Random(0)
    times = sorted(START + timedelta(hours=rng.randrange(41 * 24)) for _ in range(moments))
    users = [f"u{i}" for i in range(26)]  # one of which has no events
    rows = pl.DataFrame({"user": users * len(times), "ts": [t for t in times for _ in users]})
    joined = view.join(rows, "ts")
    assert rows.height == 26 * moments
    unlike = []
    for i, time in enumerate(times):
        materialise({"clicks": view}, store, until=str(time))
        found = values_at(view, store, users, time.timestamp() - datetime(1970, 1, 1).timestamp())
        for j, user in enumerate(users):
            row = joined.row(i * len(users) + j, named=True)
            for name in view.names:
                if not same(found.get(user, {}).get(name), row[name]):
                    unlike.append((user, time, name, found[user].get(name), row[name]))
    assert not unlike, unlike[:5]
    assert joined["clicks_1h"].sum() and joined["history"].list.len().max() == 5


MOMENTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.one_of(st.none(), st.integers(-3, 3))))


@settings(max_examples=examples(60), deadline=None)
@given(MOMENTS, st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 40)), max_size=10), st.integers(1, 12))
def test_as_a_loop_over_the_past(
    rows: list[tuple[str, int, int | None]], asked: list[tuple[str, int]], window: int
) -> None:
    """Times are whole numbers; an event of the same time is not past."""
    frame = pl.DataFrame(rows, schema={"k": pl.String, "t": pl.Int64, "v": pl.Int64}, orient="row")
    functions = ("count", "sum", "mean", "min", "max", "distinct", "last")
    made = [Aggregate(f"{f}_{w}", f, "v", w) for f in functions for w in (None, float(window))]  # type: ignore[arg-type]
    made += [Aggregate("all", "count", "*", float(window)), Aggregate("list", "last", "v", None, 3)]

    class Made(View):
        def scan(self, paths: Any = None) -> pl.LazyFrame:
            return frame.lazy()

    view = Made("x", (), "k", "t", aggregates=tuple(made))
    joined = view.join(pl.DataFrame(asked, schema={"k": pl.String, "ts": pl.Int64}, orient="row"), "ts")
    for (key, now), found in zip(asked, joined.iter_rows(named=True), strict=True):
        order = sorted(enumerate(rows), key=lambda r: (r[1][1], r[0]))
        for w in (None, float(window)):
            past = [r for _, r in order if r[0] == key and r[1] < now and (w is None or r[1] >= now - w)]
            v = [r[2] for r in past if r[2] is not None]
            expected: dict[str, Any] = {"count": len(v), "sum": sum(v), "distinct": len(set(v))}
            expected |= {"min": min(v, default=None), "max": max(v, default=None), "last": v[-1] if v else None}
            expected |= {"mean": statistics.mean(v) if v else None}
            assert {f: found[f"{f}_{w}"] for f in expected} == pytest.approx(expected)
            if w is not None:
                assert found["all"] == len(past)
            else:
                assert found["list"] == v[-3:]


def test_new_files_add_what_all_files_give(view: View, store: FeatureStore, tmp_path: Path) -> None:
    """Files come one by one, and late; a run that is repeated, or was killed, changes nothing."""
    log, now = events(3000), START + timedelta(days=41)
    parts = [log[0:1000], log[2000:2500], log[1000:1990], log[1990:2000]]  # the third is late
    counts = []
    for i, part in enumerate(parts):
        part.write_parquet(f"events-{i}.parquet")
        counts.append(materialise({"clicks": view}, store)["clicks"])
        assert materialise({"clicks": view}, store) == {"clicks": 0}
    assert counts[0] == 25 and counts[3] < 10
    whole = open_store(f"sqlite:///{tmp_path / 'whole.db'}", write=True)
    materialise({"clicks": view}, whole)
    assert everything(view, store, now) == everything(view, whole, now)

    log[2000:3000].write_parquet("events-1.parquet")  # a file grows
    materialise({"clicks": view}, store)
    again = open_store(f"sqlite:///{tmp_path / 'again.db'}", write=True)
    materialise({"clicks": view}, again)
    assert everything(view, store, now) == everything(view, again, now) != everything(view, whole, now)


def test_a_file_that_grows_while_it_is_read_is_read_again(
    view: View, store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, put = events(1000), materialising._put_events
    log[:900].write_parquet("events-0.parquet")

    def put_and_grow(*arguments: Any, **more: Any) -> int:
        written = put(*arguments, **more)
        log.write_parquet("events-0.parquet")
        return written

    with monkeypatch.context() as patch:
        patch.setattr(materialising, "_put_events", put_and_grow)
        materialise({"clicks": view}, store)
    assert materialise({"clicks": view}, store) == {"clicks": 25}
    assert materialise({"clicks": view}, store) == {"clicks": 0}


def test_a_changed_definition_reads_all_files(view: View, store: FeatureStore) -> None:
    events(300).write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    Path("f.yaml").write_text(YAML + "    dearest_ever: {max: price}\n")
    other = load_views("f.yaml")["clicks"]
    assert materialise({"clicks": other}, store)["clicks"] == 25
    found = everything(other, store, START + timedelta(days=41))
    wanted = dict(events(300).group_by("user").agg(pl.col("price").max()).iter_rows())
    assert {u: found[u]["dearest_ever"] for u in wanted} == wanted


def test_events_that_no_window_reads_are_not_kept(view: View, store: FeatureStore) -> None:
    log = events(4000)
    log.write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    rows = log.filter(pl.col("at") >= log["at"].max() - timedelta(days=30)).height  # type: ignore[operator]
    kept = sum(len(e[1]["__tick__"]) for e in store.get("clicks#events", [f"u{i}" for i in range(25)]) if e)
    assert rows <= kept <= rows + 25 * 6


def test_rows_of_requests_get_aggregates(view: View, store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = events(500)
    log.write_parquet("events-0.parquet")
    materialise({"clicks": view}, store)
    now = START + timedelta(days=39)
    monkeypatch.setattr("time.time", lambda: now.timestamp() - datetime(1970, 1, 1).timestamp())
    u1, nobody, neither = OnlineFeatures({"clicks": view}, store).join(
        [{"user": "u1", "spent_7d": -1}, {"user": "?"}, {"item": 3}]
    )
    week = log.filter((pl.col("user") == "u1") & (pl.col("at") >= now - timedelta(days=7)) & (pl.col("at") < now))
    assert u1["spent_7d"] == -1 and u1["shops_7d"] == week["shop"].drop_nulls().n_unique()
    assert nobody["clicks_1h"] == nobody["spent_7d"] == 0 and nobody["history"] == [] and nobody["price_30d"] is None
    assert neither == {"item": 3}


def test_times_that_are_numbers(tmp_path: Path, store: FeatureStore) -> None:
    """Seconds since 1970, as whole numbers or not; windows are numbers, too."""
    for name, times in (("whole", [100, 110, 120]), ("parts", [100.5, 110.25, 120.0])):
        pl.DataFrame({"user": ["a"] * 3, "at": times, "x": [1, 2, 4]}).write_parquet(tmp_path / f"{name}.parquet")
        yaml = f"{name}: {{files: {tmp_path}/{name}.parquet, key: user, time: at, aggregates: {{s: {{sum: x, window: 15}}}}}}"
        (tmp_path / "f.yaml").write_text(yaml)
        view = load_views(tmp_path / "f.yaml")[name]
        asked = [120, 121, 300]
        joined = view.join(pl.DataFrame({"user": ["a"] * 3, "ts": pl.Series(asked).cast(type(times[0]))}), "ts")
        assert joined["s"].to_list() == [2, 6, 0]
        materialise({name: view}, store)
        assert [values_at(view, store, ["a"], t)["a"]["s"] for t in asked] == joined["s"].to_list()


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ("{a: {suum: x}}", "v.aggregates.a.suum: no such key; did you mean sum?"),
        ("{a: {window: 1d}}", "v.aggregates.a: must have one of count, sum, "),
        ("{a: {sum: x, max: x}}", "v.aggregates.a: must have one of count, sum, "),
        ("{a: {sum: '*'}}", "v.aggregates.a.sum=*: "),
        ("{a: {sum: x, window: 1 day}}", "v.aggregates.a.window=1 day: is not a duration"),
        ("{a: {sum: x, window: 0d}}", "v.aggregates.a.window=0d: must be above 0"),
        ("{a: {sum: x, number: 3}}", "v.aggregates.a.number=3: applies to last only"),
        ("{d: {distinct: k}}", "v.aggregates.d: reads k, the key of the view"),
        ("{c: {sum: x}}", "v.aggregates.c: is also one of the columns"),
    ],
)
def test_mistakes_in_a_definition(aggregates: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(f"v: {{files: x, key: k, time: t, columns: [c], aggregates: {aggregates}}}")
    with pytest.raises(UserError) as e:
        load_views(tmp_path / "f.yaml")
    assert message in str(e.value)
