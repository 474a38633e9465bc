"""SQL queries, Delta Lake and Iceberg tables: read once, and read again when they have changed."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from test_typed_formats import ROWS, content, flat, log, mine

from recsys.base.errors import UserError
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import databases
from recsys.schema.data_schema import SparseConfig
from recsys.schema.source_schema import SourceConfig

QUERY = "SELECT l.*, p.plan FROM log l JOIN plans p ON p.code = l.code WHERE l.price >= 0 ORDER BY l.n"


def frames() -> tuple[pl.DataFrame, pl.DataFrame]:
    rows = flat(log()).with_row_index("n").with_columns(pl.col("tags").list.join(" "))
    plans = pl.DataFrame({"code": range(5), "plan": list("abcde")})
    return rows.rename({"user.id": "user"}), plans


def data(folder: Path, root: str, **source: Any) -> Any:
    sparse = {"user": SparseConfig(), "plan": SparseConfig(), "tags": SparseConfig(split=" ")}
    return mine(folder, root=root, source=SourceConfig(**source), sparse=sparse)


def sqlite_file(folder: Path) -> Path:
    file = folder / "log.db"
    with sqlite3.connect(file) as connection:
        for name, frame in zip(("log", "plans"), frames(), strict=True):
            connection.execute(f"CREATE TABLE {name} ({', '.join(frame.columns)})")
            holes = ", ".join("?" * frame.width)
            connection.executemany(f"INSERT INTO {name} VALUES ({holes})", frame.rows())
    connection.close()
    return file


def duckdb_file(folder: Path) -> Path:
    file = folder / "log.duckdb"
    with duckdb.connect(str(file)) as connection:
        for name, frame in zip(("log", "plans"), frames(), strict=True):
            connection.register("frame", frame.to_arrow())
            connection.execute(f"CREATE TABLE {name} AS FROM frame")
    return file


def test_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite by ADBC and by SQLAlchemy, and DuckDB, give the rows of the same table in Parquet."""
    monkeypatch.setattr(databases, "BATCH_ROWS", 100)
    log, plans = frames()
    (tmp_path / "raw").mkdir()
    log.join(plans, on="code", maintain_order="left").write_parquet(tmp_path / "raw" / "f.parquet")
    expected = content(prepare(data(tmp_path, str(tmp_path / "raw"), format="parquet")))
    sqlite, duck = sqlite_file(tmp_path), duckdb_file(tmp_path)
    for root in (f"sqlite:///{sqlite}", f"sqlite+pysqlite:///{sqlite}", f"duckdb:///{duck}"):
        config = data(tmp_path, root, format="sql", query=QUERY)
        check_data(config)
        prepared = prepare(config)
        assert content(prepared) == expected, root
        assert sum(prepared.info["rows"].values()) == ROWS
        stored = prepared.fitted.data
        assert stored.source.format == "parquet" and len(list(Path(stored.root).glob("*.parquet"))) >= 1


def test_a_database_is_read_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = sqlite_file(tmp_path)
    reads: list[str] = []
    read = databases.Sql.read
    monkeypatch.setattr(databases.Sql, "read", lambda self, s, r: reads.append(r) or read(self, s, r))
    config = data(tmp_path, f"sqlite:///{file}", format="sql", query=QUERY)
    first = prepare(config)
    assert prepare(config).folder == first.folder and len(reads) == 1
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM log WHERE n >= 200")
    connection.close()
    assert sum(prepare(config).info["rows"].values()) == 200 and len(reads) == 2
    # a server does not say whether its rows have changed
    monkeypatch.setattr(databases.Sql, "file", lambda *_: None)
    again = prepare(config)
    assert prepare(config).folder == again.folder and len(reads) == 4
    assert not list((tmp_path / "prepared" / "tables").glob(".reading-*"))


@pytest.mark.parametrize(
    ("root", "query", "expected"),
    [
        ("sqlite:///{}", "SELECT absent FROM log", "no such column: absent"),
        ("sqlite:///{}", "SELECT y, price, tags, plan FROM log JOIN plans USING (code)", "has no column user"),
        ("sqlite:///{}", "SELECT * FROM log JOIN plans USING (code) WHERE y > 7", "the query returns no rows"),
        ("sqlite:////nowhere/x.db", QUERY, "no such file: /nowhere/x.db"),
        ("nosuch://user:secret12@host/db", QUERY, "nosuch://***@host/db: "),  # pragma: allowlist secret
    ],
)
def test_mistakes(tmp_path: Path, root: str, query: str, expected: str) -> None:
    config = data(tmp_path, root.format(sqlite_file(tmp_path)), format="sql", query=query)
    with pytest.raises(UserError) as e:
        prepare(config)
    assert expected in str(e.value) and "\n" not in str(e.value) and "secret12" not in str(e.value)
    assert not [f for f in (tmp_path / "prepared" / "tables").glob("*") if f.is_dir()]


WRITES = "WITH old AS (SELECT 1) DELETE FROM log RETURNING *"
ENDLESS = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT {} FROM x"


GIVEN_UP = """
import sys, time
from recsys.schema.source_schema import SourceConfig
from recsys.data.raw import databases
from recsys.base.errors import UserError
databases.BATCH_ROWS = 1000
try:
    for frame in databases.Sql().read(SourceConfig(format="sql", query=sys.argv[2], query_timeout_s=1), sys.argv[1]):
        time.sleep(0.05)  # so that rows always wait
except UserError as e:
    print(e)
"""


@pytest.mark.parametrize(("driver", "folder"), [("sqlite", "a#b ?x%20é"), ("sqlite+pysqlite", "a#b x")])
def test_a_query_cannot_write(tmp_path: Path, driver: str, folder: str) -> None:
    odd = tmp_path / folder
    odd.mkdir()
    file = sqlite_file(odd)
    before = file.read_bytes()
    with pytest.raises(UserError, match="attempt to write a readonly database"):
        prepare(data(tmp_path, f"{driver}:///{file}", format="sql", query=WRITES))
    assert file.read_bytes() == before and [f.name for f in odd.iterdir()] == [file.name]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("driver", "columns"), [("sqlite", "count(*)"), ("sqlite", "n"), ("sqlite+pysqlite", "n"), ("duckdb", "count(*)")]
)
def test_a_query_without_an_end(tmp_path: Path, driver: str, columns: str) -> None:
    """It is given up, whether it yields rows or not. In another process: the thread of a driver cannot be ended."""
    file = duckdb_file(tmp_path) if driver == "duckdb" else sqlite_file(tmp_path)
    command = [sys.executable, "-c", GIVEN_UP, f"{driver}:///{file}", ENDLESS.format(columns)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == "" and done.returncode == 0
    assert "the query ran for more than data.source.query_timeout_s=1 seconds; make it shorter" in done.stdout


def test_a_query_reaches_no_files(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("y,user,price,tags,plan\n1,a,1,b,c\n")
    root = f"duckdb:///{duckdb_file(tmp_path)}"
    with pytest.raises(UserError, match="disabled"):
        prepare(data(tmp_path, root, format="sql", query=f"SELECT * FROM '{tmp_path}/secret.csv'"))


def test_duckdb_gives_rows_before_it_has_all(tmp_path: Path) -> None:
    """So that a result larger than the memory can be read."""
    query = "SELECT range AS n FROM range(1000000000000)"
    frames = databases.Sql().read(
        SourceConfig(format="sql", query=query, query_timeout_s=5), f"duckdb:///{duckdb_file(tmp_path)}"
    )
    assert next(frames)["n"].head(2).to_list() == [0, 1]
    frames.close()  # type: ignore[attr-defined]


def test_delta(tmp_path: Path) -> None:
    log, plans = frames()
    frame = log.join(plans, on="code", maintain_order="left")
    table = str(tmp_path / "table")
    frame.head(200).write_delta(table)
    config = data(tmp_path, table, format="delta")
    assert sum(prepare(config).info["rows"].values()) == 200
    frame.tail(100).write_delta(table, mode="append")
    prepared = prepare(config)
    assert sum(prepared.info["rows"].values()) == 300
    assert set(prepared.fitted.vocabularies["user"]["value"]) <= set(frame["user"])
    with pytest.raises(UserError, match="not a Delta table"):
        prepare(data(tmp_path, str(tmp_path / "raw"), format="delta"))


def test_iceberg(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    log, plans = frames()
    frame = log.with_columns(pl.col("n").cast(pl.Int64)).join(plans, on="code", maintain_order="left")
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("logs")
    arrow = frame.to_arrow()
    table = catalog.create_table("logs.clicks", schema=arrow.schema)
    table.append(arrow.slice(0, 200))
    config = data(tmp_path, table.location().removeprefix("file://"), format="iceberg")
    assert sum(prepare(config).info["rows"].values()) == 200
    table.append(arrow.slice(200))
    assert sum(prepare(config).info["rows"].values()) == 300
    catalog.engine.dispose()
    with pytest.raises(UserError, match="not an Iceberg table"):
        prepare(data(tmp_path, str(tmp_path), format="iceberg"))
