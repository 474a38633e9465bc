"""Stores that are something else, damaged, full or locked are said in one line, and odd paths are the files they name."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from forks import run_forked

from recsys.base.errors import UserError
from recsys.store.definition import load_views
from recsys.store.stores import faults_of, open_store

VIEW = "v: {files: e.parquet, key: user, time: at, columns: [x]}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(VIEW)
    pl.DataFrame({"user": ["a"], "at": [1.0], "x": [1.0]}).write_parquet("e.parquet")
    return tmp_path


def sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def no_database(path: Path) -> None:
    path.write_bytes(b"user,at\n" * 1000)


def damaged(path: Path) -> None:
    open_store(f"sqlite:///{path}", write=True).put("v", iter([(str(i), 1.0, {"x": i}) for i in range(5000)]))
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def something_else(path: Path) -> None:
    sql(path, "CREATE TABLE mine (id INTEGER)")


def newer(path: Path) -> None:
    open_store(f"sqlite:///{path}", write=True)
    sql(path, "PRAGMA user_version=7")
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")  # the next one to open the file must find nothing to write


BAD = [
    (no_database, "is not an SQLite database; write another one with"),
    (damaged, "is damaged; write another one with"),
    (something_else, "is a database of something else; name another file"),
    (newer, "has format 7, of a later recsys than this one, which reads up to 1; install that one"),
    (os.mkfifo, "is a named pipe; write what comes out of it to a file first"),
    (lambda p: os.symlink("gone", p), "is a link to gone, which does not exist"),
]


@pytest.mark.few(6)
@pytest.mark.parametrize(("make", "message"), BAD, ids=[m for _, m in BAD])
@pytest.mark.parametrize("action", ["materialise", "get"])
def test_stores_that_are_none(make: Any, message: str, action: str, folder: Path) -> None:
    path = folder / "s.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    more = ["keys=a"] if action == "get" else []
    store = f"store=sqlite:///{path}"
    done = run_forked("recsys.feature_store", action, "definition=f.yaml", store, *more, cwd=folder)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") <= 2, done.stderr
    assert f"error: store=sqlite:///{path}: " in done.stderr and "Traceback" not in done.stderr
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("name", ["h?mode=memory#x.db", "h%20x.db", "hü€.db", "file:h"])
def test_a_path_is_the_file_that_it_names(name: str, folder: Path) -> None:
    store = open_store(f"sqlite:///{name}", write=True)
    store.put("v", iter([("a", 1.0, {"x": 1})]))
    assert {p.name.removesuffix("-wal").removesuffix("-shm") for p in folder.iterdir()} == {name, "f.yaml", "e.parquet"}
    os.mkdir("elsewhere")
    os.chdir("elsewhere")  # a thread that connects later opens the same file
    assert open_store(f"sqlite:///{folder / name}").get("v", ["a"]) == [(1.0, {"x": 1})]
    assert store.get("v", ["a"]) == [(1.0, {"x": 1})]


@pytest.mark.slow
def test_a_full_disk_ends_with_one_line_and_the_next_run_goes_on(folder: Path) -> None:
    pl.DataFrame({"user": [f"u{i}" for i in range(20_000)]}).with_columns(at=1.0, x=1.0).write_parquet("e.parquet")
    command = [sys.executable, "-m", "recsys.feature_store", "materialise", "definition=f.yaml", "store=sqlite:///s.db"]

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # Python does not notice that it has written a part of a file
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, env=env)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and last.startswith("error: store=sqlite:///s.db: the disk f"), done.stderr
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert open_store("sqlite:///s.db").get("v", ["u0", "u19999"]) == [(1.0, {"x": 1.0})] * 2


def test_opening_a_store_again_keeps_the_locks_of_this_process(folder: Path) -> None:
    """Another process must not write while a transaction of this one is open: closing a file releases all its locks."""
    store = open_store("sqlite:///s.db", write=True)
    connection = store._connection  # type: ignore[attr-defined]
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO features VALUES ('v', 'a', 1, '{}')")
    open_store("sqlite:///s.db", write=True)
    code = (
        "import sqlite3\nc = sqlite3.connect('s.db', timeout=0.1)\n"
        "try:\n c.execute(\"INSERT INTO features VALUES ('v', 'b', 1, '{}')\"); c.commit(); print('written')\n"
        "except sqlite3.OperationalError as e:\n print(e)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "database is locked\n"


@pytest.mark.parametrize("name", ["v#events", "' '"])
def test_names_of_views(name: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(VIEW + VIEW.replace("v:", f"{name}:"))
    with pytest.raises(UserError, match=r"cannot be the name of a view; write one without # and :"):
        load_views(tmp_path / "f.yaml")


@pytest.mark.parametrize("junk", ["not JSON", "[]", "7"])
def test_entries_of_something_else(junk: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'f.db'}"
    open_store(url, write=True).put("users", iter([("u1", 1.0, {"age": 1})]))
    with sqlite3.connect(tmp_path / "f.db") as connection:
        connection.execute("UPDATE features SET value = ?", [junk])
    with pytest.raises(UserError, match="users u1 holds something else"), faults_of(url):
        open_store(url).get("users", ["u1"])
