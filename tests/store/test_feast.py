"""A repository for Feast: it names the views, and Feast gives from it what recsys gives."""

import json
import os
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.store.definition import load_views
from recsys.store.feast import write_repository
from recsys.store.materialise import materialise
from recsys.store.request_features import values_at
from recsys.store.stores import open_store
from recsys.store.views import View

ROOT = Path(__file__).resolve().parents[2]
START = datetime(2026, 1, 1)
YAML = """
users: {files: "log-*.parquet", key: user, time: at, columns: [age, country, score, member, tags], max_age: 9h}
items: {files: items.parquet, key: item, time: seconds, columns: [price, added]}
clicks:
  files: "log-*.parquet"
  key: user
  time: at
  columns: [country]
  aggregates:
    events_6h: {count: "*", window: 6h}
    spent_2d: {sum: score, window: 2d}
    mean_ever: {mean: score}
    ages: {distinct: age, window: 1d}
    oldest: {max: age, window: 12h}
    last_country: {last: country}
    history: {last: age, number: 3, window: 1d}
"""


@pytest.fixture
def views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, View]:
    """Rows of many equal times in two files, with missing values."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(2):
        made = pl.DataFrame(
            {
                "user": [f"u{u}" for u in rng.integers(0, 12, 200)],
                "at": [START + timedelta(hours=int(h)) for h in rng.integers(0, 240, 200)],
                "age": pl.Series(rng.integers(18, 30, 200), dtype=pl.Int16).scatter([3, 50], None),
                "country": pl.Series([f"c{c}" for c in rng.integers(0, 5, 200)]).scatter([7, 90], None),
                "score": pl.Series(rng.integers(0, 99, 200) / 4).scatter([9, 14], None),
                "member": rng.integers(0, 2, 200) == 1,
                "tags": [[f"t{t}" for t in range(1, 1 + n)] for n in rng.integers(1, 4, 200)],
            }
        )
        made.write_parquet(f"log-{i}.parquet")
    seconds = (START - datetime(1970, 1, 1)).total_seconds() + rng.integers(0, 9 * 86_400, 60)
    items = {"item": rng.integers(0, 9, 60), "seconds": seconds, "price": rng.random(60), "added": [START] * 60}
    pl.DataFrame(items).write_parquet("items.parquet")
    Path("f.yaml").write_text(YAML)
    return load_views("f.yaml")


def test_the_files_of_a_repository(views: dict[str, View], tmp_path: Path) -> None:
    lines = write_repository(views, tmp_path / "repo")
    code = (tmp_path / "repo" / "features.py").read_text()
    compile(code, "features.py", "exec")
    for part in (
        "entity_0 = Entity(name='user', join_keys=['user'], value_type=ValueType.STRING)",
        "entity_1 = Entity(name='item', join_keys=['item'], value_type=ValueType.INT64)",
        *(f"name='{name}'," for name in ("users", "items", "clicks", "clicks_aggregates")),
        "ttl=timedelta(days=0, seconds=32400, microseconds=0)",
        "Field(name='history', dtype=types.Array(types.Int32))",
    ):
        assert part in code
    for key in ("items.added: ", "items.time=seconds: ", "users.max_age=9h: ", "clicks.aggregates: "):
        assert any(line.startswith(key) for line in lines), lines
    values = pl.read_parquet(tmp_path / "repo" / "values" / "users.parquet")
    assert values.select("user", "feature_time").is_unique().all()
    (tmp_path / "repo" / "registry.db").write_text("Feast's")
    write_repository(views, tmp_path / "repo")  # again: what Feast keeps there stays
    assert (tmp_path / "repo" / "registry.db").read_text() == "Feast's"


def test_a_file_of_changes_holds_what_the_join_gives(views: dict[str, View], tmp_path: Path) -> None:
    """The last row of the file at or before a time has the aggregates of that time, also just around events."""
    write_repository(views, tmp_path / "repo")
    log = pl.concat(pl.read_parquet(f) for f in ("log-0.parquet", "log-1.parquet"))
    moves = [timedelta(0), *(timedelta(hours=h, microseconds=m) for h in (0, 6, 24, 48) for m in (-1, 0, 1))]
    rows = pl.concat(log.select("user", ts=pl.col("at") + move) for move in moves)
    own = views["clicks"].join(rows, "ts")
    file = pl.read_parquet(tmp_path / "repo" / "values" / "clicks_aggregates.parquet").sort("feature_time")
    asked = rows.with_row_index("place").with_columns(pl.col("ts").dt.replace_time_zone("UTC")).sort("ts")
    found = asked.join_asof(file, left_on="ts", right_on="feature_time", by="user", check_sortedness=False).sort(
        "place"
    )
    for a in views["clicks"].aggregates:
        assert [same(*pair) for pair in zip(found[a.name], own[a.name], strict=True)].count(False) == 0, a.name


def plain(value: Any) -> Any:
    """What pandas and JSON made of a value, as it was."""
    if isinstance(value, (list, np.ndarray, pl.Series)):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and value != value else value


def same(a: Any, b: Any) -> bool:
    a, b = plain(a), plain(b)
    return a == pytest.approx(b) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


@pytest.mark.skipif("RECSYS_FEAST_PYTHON" not in os.environ, reason="RECSYS_FEAST_PYTHON names no Python with Feast")
def test_feast_gives_what_recsys_gives(views: dict[str, View], tmp_path: Path) -> None:
    """Values of past times and online ones, after `feast apply`, for a few hundred random points."""
    python = os.environ["RECSYS_FEAST_PYTHON"]
    write_repository(views, tmp_path / "repo")
    rng = np.random.default_rng(1)
    points = pl.DataFrame(
        {
            "place": range(400),
            "user": [f"u{u}" for u in rng.integers(0, 13, 400)],
            "item": rng.integers(0, 10, 400),
            "ts": [
                START + timedelta(minutes=30 * int(m), microseconds=int(m) % 3 - 1) for m in rng.permutation(520)[:400]
            ],
        }
    )
    points.write_parquet("points.parquet")
    Path("found").mkdir()
    subprocess.run([Path(python).parent / "feast", "-c", "repo", "apply"], check=True)
    subprocess.run([python, ROOT / "tests/helpers/ask_feast.py", "repo", "points.parquet", "found"], check=True)
    online = json.loads(Path("found/online.json").read_text())
    store = open_store(f"sqlite:///{tmp_path / 'f.db'}", write=True)
    materialise(views, store)
    now = (points["ts"].max() - datetime(1970, 1, 1)).total_seconds()  # type: ignore[operator]
    for name, view in (("users", "users"), ("items", "items"), ("clicks", "clicks"), ("clicks_aggregates", "clicks")):
        own = views[view]
        rows = points if view != "items" else points.with_columns(pl.col("ts").dt.epoch("us") / 1e6)
        joined = {row["place"]: row for row in own.join(rows, "ts").iter_rows(named=True)}
        features = [n for n in (own.columns if name == view else (a.name for a in own.aggregates)) if n != "added"]
        found = pl.read_parquet(f"found/{name}.parquet")
        unlike: list[Any] = []
        seen = {row["place"]: row for row in found.iter_rows(named=True)}
        for place, row in joined.items():
            known = row[own.key] not in ("u12", 9)
            if place not in seen:  # Feast leaves out rows whose values are all later or too old
                assert name != "clicks_aggregates" and all(row[f] is None for f in features)
            elif known or name != "clicks_aggregates":
                unlike += [(place, f, seen[place][f], row[f]) for f in features if not same(seen[place][f], row[f])]
        assert len(seen) > 200
        keys = online[name][own.key]
        latest = values_at(View(**{**vars(own), "max_age": None}), store, [str(k) for k in keys], now)
        for i, key in enumerate(keys):
            if key in ("u12", 9):
                assert all(online[name][f][i] is None for f in features)
                continue
            mine = {f: (online[name][f][i], latest[str(key)][f]) for f in features}
            unlike += [(key, f, *pair) for f, pair in mine.items() if not same(*pair)]
        assert not unlike, (name, len(unlike), unlike[:5])
