"""Stores of the latest values of features, by view and key: SQLite on one machine, Redis for several."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from recsys.errors import UserError
from recsys.secrets import masked

BATCH = 500  # keys of one query; SQLite takes 32,766 at most

Values = dict[str, Any]  # the features of one entity, by column
Entry = tuple[str, float, Values]  # key, time as a number, and values
# (key, stored values or None) -> the time and values to store, None to leave what is there
Change = Callable[[str, Values | None], tuple[float, Values] | None]


def events_of(view: str) -> str:
    """Return the name under which the events of a view's entities are stored."""
    return f"{view}#events"


def files_of(view: str) -> str:
    """Return the name under which it is stored which files of a view were read."""
    return f"{view}#files"


class FeatureStore(Protocol):
    """Stores features by view and key. Threads may share a store."""

    def get(self, view: str, keys: Sequence[str]) -> list[tuple[float, Values] | None]:
        """Return time and values of each key, None for a key that is not stored."""
        ...

    def put(self, view: str, entries: Iterator[Entry]) -> int:
        """Store entries and return their number. An entry that is older than the stored one does not replace it."""
        ...

    def update(self, view: str, keys: Sequence[str], change: Change) -> int:
        """Change entries, each in one step that no other writer can come between, and return how many changed.

        `change` may be called several times for a key.
        """
        ...


class SQLiteStore:
    """A SQLite file in WAL mode: many processes read while one writes. url: sqlite:///PATH"""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self._path, self._write, self._local = path, write, threading.local()
        if not write and not path.is_file():
            raise UserError(f"store=sqlite:///{path}: no such file; write it with python -m recsys.feature_store")

    @property
    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            mode = "rwc" if self._write else "ro"
            connection = sqlite3.connect(f"file:{self._path}?mode={mode}", uri=True, timeout=30)
            if self._write:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS features (view TEXT, key TEXT, time REAL, value TEXT, "
                    "PRIMARY KEY (view, key)) WITHOUT ROWID"
                )
            self._local.connection = connection
        connection = self._local.connection
        assert isinstance(connection, sqlite3.Connection)
        return connection

    def get(self, view: str, keys: Sequence[str]) -> list[tuple[float, Values] | None]:
        found: dict[str, tuple[float, Values]] = {}
        for first in range(0, len(keys), BATCH):
            part = keys[first : first + BATCH]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, time, value FROM features WHERE view = ? AND key IN ({marks})"  # nosec B608
            for key, time, value in self._connection.execute(query, [view, *part]):
                found[key] = time, json.loads(value)
        return [found.get(key) for key in keys]

    def put(self, view: str, entries: Iterator[Entry]) -> int:
        query = (
            "INSERT INTO features VALUES (?, ?, ?, ?) ON CONFLICT (view, key) DO UPDATE SET "
            "time = excluded.time, value = excluded.value WHERE excluded.time >= features.time"
        )
        connection, count = self._connection, 0
        with connection:
            for key, time, values in entries:
                connection.execute(query, (view, key, time, json.dumps(values, default=str)))
                count += 1
        return count

    def update(self, view: str, keys: Sequence[str], change: Change) -> int:
        connection, count = self._connection, 0
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for key, entry in zip(keys, self.get(view, keys), strict=True):
                if (changed := change(key, entry and entry[1])) is not None:
                    row = (view, key, changed[0], json.dumps(changed[1], default=str))
                    connection.execute("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", row)
                    count += 1
        return count


# Sets a key unless the stored entry is newer, in one step.
PUT = """
local old = redis.call('GET', KEYS[1])
if old and cjson.decode(old)[1] > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class RedisStore:
    """A Redis server. url: redis://HOST:PORT/DB; keys are recsys:VIEW:KEY"""

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ImportError as e:
            raise UserError(f"store={masked(url)}: needs redis; run: pip install 'recsys[redis]'") from e
        self._client = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        try:
            self._client.ping()
        except redis.RedisError as e:
            raise UserError(f"store={masked(url)}: cannot be reached: {e}") from e
        self._put = self._client.register_script(PUT)

    def get(self, view: str, keys: Sequence[str]) -> list[tuple[float, Values] | None]:
        if not keys:
            return []
        values: Any = self._client.mget([f"recsys:{view}:{key}" for key in keys])
        entries = [None if v is None else json.loads(v) for v in values]
        return [None if entry is None else (entry[0], entry[1]) for entry in entries]

    def put(self, view: str, entries: Iterator[Entry]) -> int:
        count, pipeline = 0, self._client.pipeline(transaction=False)
        for key, time, values in entries:
            value = json.dumps([time, values], default=str)
            self._put(keys=[f"recsys:{view}:{key}"], args=[time, value], client=pipeline)
            count += 1
            if count % BATCH == 0:
                pipeline.execute()
        pipeline.execute()
        return count

    def update(self, view: str, keys: Sequence[str], change: Change) -> int:
        count = 0
        for first in range(0, len(keys), BATCH):
            count += self._update(view, keys[first : first + BATCH], change)
        return count

    def _update(self, view: str, keys: Sequence[str], change: Change) -> int:
        import redis

        while True:
            with self._client.pipeline() as pipeline:
                pipeline.watch(*(f"recsys:{view}:{key}" for key in keys))
                changes = {
                    key: made
                    for key, entry in zip(keys, self.get(view, keys), strict=True)
                    if (made := change(key, entry and entry[1])) is not None
                }
                pipeline.multi()
                for key, entry in changes.items():
                    pipeline.set(f"recsys:{view}:{key}", json.dumps(entry, default=str))
                try:
                    pipeline.execute()
                except redis.WatchError:  # another writer came between
                    continue
                return len(changes)


def open_store(url: str, *, write: bool = False) -> FeatureStore:
    """Open a store. Raises UserError if it cannot be opened.

    Args:
        url: sqlite:///PATH or redis://HOST:PORT/DB.
        write: whether to write to it; a SQLite file is then created.
    """
    kind = urlsplit(url).scheme
    if kind == "sqlite" and url.startswith("sqlite:///"):
        return SQLiteStore(Path(url.removeprefix("sqlite:///")), write=write)
    if kind in ("redis", "rediss"):
        return RedisStore(url)
    raise UserError(f"store={masked(url)}: must be sqlite:///PATH or redis://HOST:PORT/DB")
