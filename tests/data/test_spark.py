"""Spark gives what polars gives: the same files, byte for byte, from the same YAML."""

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from data_configs import data_from
from every_transform import CSV, PARQUET, write_csv, write_parquet
from failing import fails
from forks import warm_python

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.prepare import passes as build
from recsys.data.prepare import prepared as preparing
from recsys.data.prepare import shuffle
from recsys.data.prepare.engine import OneMachine
from recsys.data.prepare.prepared import Prepared, check_engine, open_engine, prepare
from recsys.data.raw.raw_format import RawFormat
from recsys.preprocess import preprocess
from recsys.schema.data_schema import DataConfig, EngineConfig, LabelConfig

pytest.importorskip("pyspark", reason="pyspark is not installed: uv sync --extra spark")

from recsys.data.prepare import spark_engine
from recsys.data.prepare.spark_engine import Spark, flatten_options, start_session

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"spark.sql.shuffle.partitions": 3, "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent)}
LOCAL = EngineConfig("spark", "local[2]", OPTIONS)
GROUPED = """
source: {files: ["*.csv"]}
group: {by: user, order: at}
split: {by: leave_one_out}
dense:
  lagged: {column: x, lag: 1, fill: mean}
  more: {column: x, difference: 2, fill: 0}
sparse:
  user: {}
  item: {}
  items: {column: item, last: 3, pooling: mean}
  chosen: {column: item, last: 3, where: "y = '1'"}
  ages: {column: at, last: 3, age: true, quantiles: 5}
"""
SEQUENCES = """
source: {files: ["*.csv"]}
group: {by: user, order: at}
split: {by: leave_one_out}
sequences: {max_length: 6, stride: 3, pad: left}
sparse: {item: {min_count: 2}, user: {per: group}}
"""

RETRIEVAL = """
source: {files: ["*.csv"]}
where: "item <> '3'"
group: {by: user, order: at}
split: {by: time, column: at, validation: 0.2, test: 0.2}
items: {feature: item, file: items.tsv, key: id, separator: "\\t", dense: {size: {}}, sparse: {kind: {}}}
sparse: {item: {min_count: 43}, user: {}}
"""
QUERIES = (
    RETRIEVAL.replace("user: {}", "user: {per: group}").replace("min_count: 43", "min_count: 12")
    + "sequences: {max_length: 6, held_out: all}"
)


@pytest.fixture(scope="module", autouse=True)
def _session() -> Iterator[None]:
    """One for all: an engine stops only what it has started itself."""
    session = start_session(LOCAL)
    yield
    session.stop()


def of_yaml(text: str, tmp_path: Path, **more: Any) -> DataConfig:
    named = {"name": "t", "root": str(tmp_path / "raw"), "prepared": str(tmp_path / "prepared")}
    return replace(data_from(named, text), **more)


def both(data: DataConfig, tmp_path: Path) -> tuple[Prepared, Prepared]:
    """Prepared by polars and by Spark, as which they are checked to be equal."""
    homes = [replace(data, prepared=str(tmp_path / name / "prepared")) for name in ("polars", "spark")]
    one = prepare(homes[0], OneMachine())
    with open_engine(LOCAL, homes[1]) as cluster:
        other = prepare(homes[1], cluster)
    a, b = files(one.folder.parent), files(other.folder.parent)
    assert list(a) == list(b) and len(a) >= 8
    for name in a:
        own, others = a[name], b[name]
        if own.name == "manifest.json":
            continue
        if own.suffix == ".json":  # some of them name their folders
            assert own.read_text().replace("/polars/", "/spark/") == others.read_text(), name
        else:
            assert own.read_bytes() == others.read_bytes(), name
    return one, other


def files(home: Path) -> dict[str, Path]:
    """What is prepared, without what was read on the way (whose codes' order is free)."""
    found = {str(f.relative_to(home)): f for f in sorted(home.rglob("*")) if f.is_file()}
    return {n: f for n, f in found.items() if not n.startswith(("read/", "contents.")) and f.suffix != ".lock"}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, piles and jobs are cut by the driver."""
    monkeypatch.setattr(RawFormat, "range_bytes", 70_000)
    monkeypatch.setattr(RawFormat, "range_rows", 500)
    monkeypatch.setattr(build, "FILE_ROWS", 900)
    monkeypatch.setattr(shuffle, "PILE_ROWS", 150)


@pytest.mark.parametrize(
    ("yaml", "write"),
    [
        pytest.param(CSV, write_csv, id="csv", marks=pytest.mark.slow),
        pytest.param(PARQUET, write_parquet, id="parquet", marks=pytest.mark.slow),
    ],
)
def test_every_transform(yaml: str, write: Callable[[Path], None], tmp_path: Path, small_chunks: None) -> None:
    write(tmp_path / "raw")
    for other in ("a", "b"):  # several files, of several chunks
        for file in (tmp_path / "raw").glob("f.*"):
            (tmp_path / "raw" / f"{other}{file.suffix}").write_bytes(file.read_bytes())
    yaml = yaml.replace('"f.csv"', '"*.csv"').replace('["f.parquet"]', '["[abf].parquet"]')
    yaml = yaml.replace('"f.csv"', '"*.csv"').replace('["f.parquet"]', '["[abf].parquet"]')
    data = of_yaml(yaml, tmp_path, label=LabelConfig("y"))
    prepared, _ = both(data, tmp_path)
    assert sum(prepared.info["rows"].values()) == 9000 and len(prepared.files("train")) >= 3


CORE = RETRIEVAL.replace("min_count: 43", "min_count: 1") + "k_core: {user: 35, item: 60}"
YAMLS = {"grouped": GROUPED, "core": CORE, "sequences": SEQUENCES, "retrieval": RETRIEVAL, "queries": QUERIES}


@pytest.mark.slow
@pytest.mark.parametrize("yaml", [pytest.param(y, id=n) for n, y in YAMLS.items()])
def test_rows_by_group(yaml: str, tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_engine, "SMALL_BYTES", 0)  # tables of counts are Spark's to sum, however small
    (tmp_path / "raw").mkdir()
    for n in range(3):
        lines = [f"{i % 2},u{i * 7 % 31},{i * 13 % 17},{i * 5 % 97},{i * 3 % 41}.5" for i in range(n, 1200, 3)]
        (tmp_path / "raw" / f"{n}.csv").write_text("\n".join(["y,user,item,at,x", *lines]) + "\n")
    rows = [f"{i}\t{i % 4}\t{i % 3}" for i in range(0, 25, 2)]  # some of no row, not of all
    (tmp_path / "raw" / "items.tsv").write_text("\n".join(["id\tsize\tkind", *rows]) + "\n")
    prepared, _ = both(of_yaml(yaml, tmp_path, label=LabelConfig("y")), tmp_path)
    assert prepared.info["rows"]["test"] == 31  # a user's last, or all of a user's


@pytest.mark.slow
def test_bad_rows_and_rows_that_are_the_same(tmp_path: Path, small_chunks: None) -> None:
    (tmp_path / "raw").mkdir()
    lines = [f"{i % 2},{'oops' if i % 900 == 5 else i}, v{i % 7}" for i in range(9000)]
    for n in range(2):
        (tmp_path / "raw" / f"{n}.csv").write_text("\n".join(["y,x,s", *lines]) + "\n")
    data = of_yaml("dense: {x: {fill: median}}\nsparse: {s: {}}", tmp_path, label=LabelConfig("y"))
    _, prepared = both(data, tmp_path)
    aside = pl.read_csv(f"{prepared.folder}.bad_rows.csv")
    assert prepared.info["bad_rows"] == aside.height == 20 and aside["line"].to_list()[:2] == [7, 907]
    with open_engine(LOCAL, data) as cluster, pytest.raises(UserError) as e:
        prepare(replace(data, max_bad_rows=1e-6, name="strict"), cluster)
    assert "20 of 18,000 rows cannot be read" in str(e.value) and "\n" not in str(e.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder"), [pytest.param("criteo", "criteo_kaggle", marks=pytest.mark.slow), ("movielens_100k", "ml-100k")]
)
def test_real_data(
    name: str, folder: str, real_data: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RawFormat, "range_bytes", 700_000)
    yaml = (ROOT / "conf" / "data" / f"{name}.yaml").read_text()
    both(of_yaml(yaml, tmp_path, root=str(real_data(folder))), tmp_path)


@pytest.mark.slow
def test_totals_are_those_of_polars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_engine, "SMALL_BYTES", 0)
    folder = tmp_path / "a=b" / "_x {1}[2]*"  # neither partitions nor globs
    folder.mkdir(parents=True)
    few = pl.Series([1, 2, 3, 4, 5], dtype=pl.UInt32)
    tables = []
    for n in range(1, 4):
        count = pl.Series([1, 2, n, 4, 1 << 40], dtype=pl.Int64)
        columns = {"value": ["", "a", None, "é", "A"], "fold": pl.Series([0, 1, 2, 3, n]), "count": count}
        tables.append(pl.DataFrame(columns | {"sum": pl.Series([0.5, 1.5, n, 0.0, 3.0]), "few": few}))
    named = [folder / f"{n}.parquet" for n in range(3)]
    for table, file in zip(tables, named, strict=True):
        table.write_parquet(file, compression="lz4")
    for keys in (["value"], ["value", "fold"]):
        numbers = [t if "fold" in keys else t.drop("fold") for t in tables]
        for table, file in zip(numbers, named, strict=True):
            table.write_parquet(file, compression="lz4")
        a = OneMachine().total(named, keys, 6).sort(keys)
        b = Spark(LOCAL, tmp_path).total(named, keys, 6).select(a.columns).sort(keys)
        assert a.equals(b) and a.schema == b.schema and a.height
        nothing = Spark(LOCAL, tmp_path).total(named, keys, 1 << 50)
        assert nothing.is_empty() and nothing.schema == OneMachine().total(named, keys, 1 << 50).schema


@pytest.mark.slow
def test_order_progress_and_failures(tmp_path: Path) -> None:
    cluster = Spark(LOCAL, tmp_path)
    rows: list[float] = []
    assert list(cluster.map(partial(fails, "no"), range(9), rows.append)) == [10 * i for i in range(9)]
    assert sum(rows) == 9
    assert list(cluster.map(partial(fails, "no"), [], rows.append)) == []
    with pytest.raises(UserError, match=r"^f\.csv: line 3: it is wrong$"):
        list(cluster.map(partial(fails, "user"), range(9), rows.append))
    with pytest.raises(OSError, match="No space left on device") as e:
        list(cluster.map(partial(fails, "disk"), range(9), rows.append))
    assert e.value.filename == "/shared/f" and "executor" in e.value.__notes__[0]
    with pytest.raises(RuntimeError, match="a Spark job failed"):
        list(cluster.map(partial(fails, "dies"), range(9), rows.append))
    some = cluster.map(partial(fails, "no"), range(9), rows.append)
    assert next(some) == 0
    some.close()  # which ends the job
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_killed_it_goes_on_where_it_was(tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "raw")
    data = of_yaml(CSV, tmp_path, label=LabelConfig("y"))
    data = replace(data, prepared=str(tmp_path / "spark" / "prepared"))

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m, open_engine(LOCAL, data) as cluster:
        m.setattr(preparing.Fitted, "save", die)
        with pytest.raises(KeyboardInterrupt):
            prepare(data, cluster)
    read = {f: f.stat().st_mtime_ns for f in (tmp_path / "spark").rglob("chunk.json")}
    assert len(read) > 2
    both(data, tmp_path)
    assert read == {f: f.stat().st_mtime_ns for f in (tmp_path / "spark").rglob("chunk.json")}


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user calls it: relative folders, options of Spark's; what polars has prepared is found."""
    monkeypatch.chdir(tmp_path)
    sample = ["data.sample.rows=2000", "data.prepared=prepared"]
    made = preprocess(compose("preprocess", ["engine=spark", "engine.master=local[2]", *sample]))
    assert sum(made.info["rows"].values()) == 2000
    before = (made.folder / "prepared.json").stat().st_mtime_ns
    assert preprocess(compose("preprocess", sample)).folder == made.folder
    assert (made.folder / "prepared.json").stat().st_mtime_ns == before


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"engine\.master, engine\.options: apply only to engine=spark"):
        check_engine(EngineConfig(options={"a": 1}))
    given = {"spark": {"executor": {"memory": "4g"}, "eventLog.enabled": True}, "spark.x": 3}
    expected = {"spark.executor.memory": "4g", "spark.eventLog.enabled": "true", "spark.x": "3"}
    assert dict(flatten_options(given)) == expected


@pytest.mark.slow
def test_spark_that_does_not_start_is_told_in_one_line(tmp_path: Path) -> None:
    """In a process of its own: a session is there in this one."""
    code = """
import sys
from recsys.cli import command_line
from recsys.preprocess import preprocess
from recsys.store.aggregates import Aggregate
from recsys.store.views import View
sys.argv[1:] = ["engine=spark", *sys.argv[1:]]
sys.exit(command_line.status("preprocess", lambda cfg: preprocess(cfg) and None))
"""
    sample = ["data.sample.rows=500", "data.prepared=p"]
    for arguments, java in ((["engine.master=lokal"], None), ([], "/nowhere")):
        python = warm_python()
        env = os.environ | {"PYTHONPATH": str(ROOT)} | ({"JAVA_HOME": java} if java else {})
        command = [python, "-c", code, *arguments, *sample]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert done.returncode == 2 and len(told) == 1, done.stderr
        assert told[0].startswith("error: engine=spark: Spark does not start"), told
