"""Stores of the latest values of features, by view and key: SQLite on one machine, Redis for several."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.base.secrets import masked
from recsys.files.user_files import on_file_system, problem_of

BATCH = 500  # keys of one query; SQLite takes 32,766 at most
FORMAT = 1  # of the table or keys; a store of a later one is not touched
COLUMNS = ["view", "key", "time", "value"]
AGAIN = "write another one with python -m recsys.feature_store materialise"
FAULTS = {
    sqlite3.SQLITE_NOTADB: f"is not an SQLite database; {AGAIN}",
    sqlite3.SQLITE_CORRUPT: f"is damaged; {AGAIN}",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; see that its folder exists and can be written, as readers share a log",
    sqlite3.SQLITE_READONLY: "cannot be written; see who owns the file and its folder",
    sqlite3.SQLITE_PERM: "cannot be written; see who owns the file and its folder",
    sqlite3.SQLITE_FULL: "the disk is full; make room, and run the command again",
    sqlite3.SQLITE_IOERR: "the disk fails, or is full; see to it, and run the command again",
    sqlite3.SQLITE_BUSY: "is locked by another process; end it, or run the command again later",
}

FOREIGN = f"holds something else than features of recsys; delete it, or {AGAIN}"
Values = dict[str, Any]  # the features of one entity, by column
Entry = tuple[str, float, Values]  # key, time as a number, and values
# (key, stored values or None) -> the time and values to store, None to leave what is there
Change = Callable[[str, Values | None], tuple[float, Values] | None]
# Sets a key unless the stored entry is newer, and not later than the latest time, in one step.
PUT = """
local old = redis.call('GET', KEYS[1])
local time = old and cjson.decode(old)[1]
if time and time > tonumber(ARGV[1]) and time <= tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


def events_of(view: str) -> str:
    """Return the name under which the events of a view's entities are stored."""
    return f"{view}#events"


def files_of(view: str) -> str:
    """Return the name under which it is stored which files of a view were read."""
    return f"{view}#files"


def streams_of(view: str) -> str:
    """Return the name under which it is stored how far the streams of a view were read."""
    return f"{view}#streams"


def _encoded(values: object) -> str:
    """Return values as JSON. Raises ValueError for NaN and infinities, which JSON lacks: no event brings them here."""
    return json.dumps(values, default=str, allow_nan=False)


class BadEntry(Exception):
    """An entry that recsys did not write."""


class FeatureStore(Protocol):
    """Stores features by view and key. Threads may share a store."""

    def get(self, view: str, keys: Sequence[str]) -> list[tuple[float, Values] | None]:
        """Return time and values of each key, None for a key that is not stored."""

    def put(self, view: str, entries: Iterator[Entry], latest: float = sys.float_info.max) -> int:
        """Store entries and return their number. An entry that is older than the stored one does not replace it.

        latest: any entry replaces a stored one that is later than this
        """

    def update(self, view: str, keys: Sequence[str], change: Change) -> int:
        """Change entries, each in one step that no other writer can come between, and return how many changed.

        `change` may be called several times for a key.
        """


def replace(store: FeatureStore, view: str, key: str, values: Values, expected: Values | None = None) -> bool:
    """Store values whatever the clock said when the stored ones were written, and return whether it was done.

    expected: values that must be stored until then; None for anything
    """

    def replaced(_: str, stored: Values | None) -> tuple[float, Values] | None:
        return (time.time(), values) if expected is None or (stored or {}) == expected else None

    return bool(store.update(view, [key], replaced))


def _decoded(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise BadEntry(f"{where} {FOREIGN}") from e


def _values(value: object, where: str) -> Values:
    """Return the values of an entry, as JSON or decoded. Raises BadEntry if it holds something else."""
    found = _decoded(value, where) if isinstance(value, str | bytes) else value
    if not isinstance(found, dict):
        raise BadEntry(f"{where} {FOREIGN}")
    return found


class SQLiteStore:
    """A SQLite file in WAL mode: many processes read while one writes. url: sqlite:///PATH"""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self._path, self._write, self._local = path.absolute(), write, threading.local()
        self._shown = f"store=sqlite:///{path}"
        problem = problem_of(path, opens=False)
        if problem is not None and not (write and problem == "no such file"):
            hint = "; write it with python -m recsys.feature_store" if problem == "no such file" else ""
            raise UserError(f"{self._shown}: {problem}{hint}")
        with faults_of(f"sqlite:///{path}"):
            assert self._connection

    @property
    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            return connection
        uri = f"{self._path.as_uri()}?mode={'rwc' if self._write else 'ro'}"  # as_uri escapes ?, # and %
        connection = sqlite3.connect(uri, uri=True, timeout=30)
        [[version]] = connection.execute("PRAGMA user_version")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(features)")]
        [[tables]] = connection.execute("SELECT count(*) FROM sqlite_master")
        if columns == COLUMNS and version > FORMAT:
            why = f"has format {version}, of a later recsys than this one, which reads up to {FORMAT}"
            raise UserError(f"{self._shown}: {why}; install that one, or {AGAIN}")
        if columns != COLUMNS and tables:
            raise UserError(f"{self._shown}: is a database of something else; name another file")
        if not tables and not self._write:
            raise UserError(f"{self._shown}: is empty; {AGAIN}")
        if self._write:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS features (view TEXT, key TEXT, time REAL, value TEXT, "
                "PRIMARY KEY (view, key)) WITHOUT ROWID"
            )
            if version < FORMAT:
                connection.execute(f"PRAGMA user_version={FORMAT}")
        self._local.connection = connection
        return connection

    def get(self, view: str, keys: Sequence[str]) -> list[tuple[float, Values] | None]:
        found: dict[str, tuple[float, Values]] = {}
        for first in range(0, len(keys), BATCH):
            part = keys[first : first + BATCH]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, time, value FROM features WHERE view = ? AND key IN ({marks})"  # nosec B608
            for key, when, value in self._connection.execute(query, [view, *part]):
                found[key] = when, _values(value, f"{self._shown}: {view} {key}")
        return [found.get(key) for key in keys]

    def put(self, view: str, entries: Iterator[Entry], latest: float = sys.float_info.max) -> int:
        query = (
            "INSERT INTO features VALUES (?, ?, ?, ?) ON CONFLICT (view, key) DO UPDATE SET "
            "time = excluded.time, value = excluded.value WHERE excluded.time >= features.time OR features.time > ?"
        )
        connection, count = self._connection, 0
        with connection:
            for key, when, values in entries:
                connection.execute(query, (view, key, when, _encoded(values), latest))
                count += 1
        return count

    def update(self, view: str, keys: Sequence[str], change: Change) -> int:
        connection, count = self._connection, 0
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for key, entry in zip(keys, self.get(view, keys), strict=True):
                if (changed := change(key, entry and entry[1])) is not None:
                    row = (view, key, changed[0], _encoded(changed[1]))
                    connection.execute("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", row)
                    count += 1
        return count


class RedisStore:
    """A Redis server. url: redis://HOST:PORT/DB; keys are recsys:VIEW:KEY"""

    def __init__(self, url: str) -> None:
        check_extra("redis", f"store={masked(url)}")
        import redis

        self._shown = f"store={masked(url)}"
        if not re.fullmatch(r"/?|/[0-9]+", urlsplit(url).path):
            raise UserError(f"{self._shown}: must be redis://HOST:PORT/DB, where DB is a number")
        try:
            self._client = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        except ValueError as e:
            raise UserError(f"store={masked(url)}: must be redis://HOST:PORT/DB ({e})") from e
        with faults_of(url):
            self._client.ping()
        self._put = self._client.register_script(PUT)

    def get(self, view: str, keys: Sequence[str]) -> list[tuple[float, Values] | None]:
        if not keys:
            return []
        values: Any = self._client.mget([f"recsys:{view}:{key}" for key in keys])
        found: list[tuple[float, Values] | None] = []
        for key, text in zip(keys, values, strict=True):
            if text is None:
                found.append(None)
                continue
            where = f"{self._shown}: recsys:{view}:{key}"
            entry = _decoded(text, where)
            if not isinstance(entry, list) or len(entry) != 2 or type(entry[0]) not in (int, float):
                raise BadEntry(f"{where} {FOREIGN}")
            found.append((entry[0], _values(entry[1], where)))
        return found

    def put(self, view: str, entries: Iterator[Entry], latest: float = sys.float_info.max) -> int:
        count, pipeline = 0, self._client.pipeline(transaction=False)
        for key, when, values in entries:
            value = _encoded([when, values])
            self._put(keys=[f"recsys:{view}:{key}"], args=[when, value, latest], client=pipeline)
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
                    pipeline.set(f"recsys:{view}:{key}", _encoded(entry))
                try:
                    pipeline.execute()
                except redis.WatchError:  # another writer came between
                    continue
                return len(changes)


@contextmanager
def faults_of(url: str) -> Iterator[None]:
    """Turn the errors of a store into a UserError of one line."""
    where = f"store={masked(url)}"
    try:
        yield
    except sqlite3.Error as e:
        code = getattr(e, "sqlite_errorcode", 0) & 0xFF  # the primary one
        raise UserError(f"{where}: {FAULTS.get(code, f'fails: {e}')}") from e
    except BadEntry as e:
        raise UserError(str(e)) from e
    except UnicodeEncodeError as e:
        raise UserError(f"{where}: the key {e.object!r} is not UTF-8 text; correct it") from e
    except Exception as e:
        if not type(e).__module__.startswith("redis."):  # which need not be installed
            raise
        if "HELLO must be called" in str(e) or type(e).__name__ == "AuthenticationError":
            raise UserError(f"{where}: needs a password, or another one; write redis://:PASSWORD@HOST:PORT/DB") from e
        if "WRONGTYPE" in str(e):
            raise UserError(f"{where}: a key of recsys {FOREIGN}") from e
        what = "cannot be reached" if type(e).__name__ in ("ConnectionError", "TimeoutError") else "fails"
        raise UserError(f"{where}: {what}: {' '.join(str(e).split())[:200]}") from e


def open_store(url: str, *, write: bool = False) -> FeatureStore:
    """Open a store to read or to write. Raises UserError if it cannot be opened, or is something else."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite" and url.startswith("sqlite:///"):
        try:
            path = on_file_system(url.removeprefix("sqlite:///"))
        except ValueError as e:
            raise UserError(f"store={url}: {e}") from None
        return SQLiteStore(Path(path), write=write)
    if scheme in ("redis", "rediss"):
        return RedisStore(url)
    raise UserError(f"store={masked(url)}: must be sqlite:///PATH or redis://HOST:PORT/DB")
