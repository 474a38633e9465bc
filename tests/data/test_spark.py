"""Spark gives what polars gives: the same files, byte for byte, from the same YAML."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from every_transform import CSV, FEATURES, JOINS, PARQUET, write_csv, write_parquet
from omegaconf import OmegaConf

from recsys.config import compose
from recsys.data import engine as engines
from recsys.data import formats, shuffle
from recsys.data import prepare as preparing
from recsys.data.engine import OneMachine, check_engine, engine_of
from recsys.data.prepare import Prepared, prepare
from recsys.errors import UserError
from recsys.preprocess import preprocess
from recsys.schema import DataConfig, EngineConfig, LabelConfig, SparseConfig

pytest.importorskip("pyspark", reason="pyspark is not installed: uv sync --extra spark")

from recsys.data.spark import Spark, flat, start

ROOT = Path(__file__).resolve().parents[2]
LOCAL = EngineConfig("spark", "local[2]", {"spark.sql.shuffle.partitions": 3})
GROUPED = """
source: {files: ["*.csv"]}
group: {by: user, order: at}
split: {by: leave_one_out}
dense:
  lagged: {column: x, lag: 1, fill: mean}
  more: {column: x, difference: 2, fill: 0}
sparse: {user: {}, item: {}, items: {column: item, last: 3, pooling: mean}}
"""
SEQUENCES = """
source: {files: ["*.csv"]}
group: {by: user, order: at}
split: {by: leave_one_out}
sequences: {max_length: 6, stride: 3, pad: left}
sparse: {item: {min_count: 2}, user: {per: group}}
"""


@pytest.fixture(scope="module", autouse=True)
def _session() -> Iterator[None]:
    """One for all: an engine stops only what it has started itself."""
    try:
        session = start(LOCAL)
    except UserError as e:
        pytest.skip(str(e))
    yield
    session.stop()


def of_yaml(text: str, tmp_path: Path, **more: Any) -> DataConfig:
    data = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(DataConfig), OmegaConf.create(text)))
    assert isinstance(data, DataConfig)
    known: dict[str, Any] = {"name": "t", "root": str(tmp_path / "raw"), "prepared": str(tmp_path / "prepared")}
    return replace(data, **(known | more))


def both(data: DataConfig, tmp_path: Path) -> tuple[Prepared, Prepared]:
    """Prepared by polars and by Spark, as which they are checked to be equal."""
    homes = [replace(data, prepared=str(tmp_path / name / "prepared")) for name in ("polars", "spark")]
    one = prepare(homes[0], OneMachine())
    with engine_of(LOCAL, homes[1]) as spark:
        other = prepare(homes[1], spark)
    a, b = files(one.folder.parent), files(other.folder.parent)
    assert list(a) == list(b) and len(a) > 8
    for name in a:
        own, others = a[name], b[name]
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
    monkeypatch.setattr(formats, "PIECE_BYTES", 40_000)
    monkeypatch.setattr(formats, "PIECE_ROWS", 500)
    monkeypatch.setattr(preparing, "FILE_ROWS", 900)
    monkeypatch.setattr(shuffle, "PILE_ROWS", 150)


@pytest.mark.parametrize(("yaml", "write"), [(CSV, write_csv), (PARQUET, write_parquet)], ids=["csv", "parquet"])
def test_every_transform(
    yaml: str, write: Callable[[Path], None], tmp_path: Path, small_chunks: None
) -> None:
    write(tmp_path / "raw")
    for other in ("a", "b"):  # several files, of several chunks
        for file in (tmp_path / "raw").glob("f.*"):
            (tmp_path / "raw" / f"{other}{file.suffix}").write_bytes(file.read_bytes())
    yaml = yaml.replace('"f.csv"', '"*.csv"').replace('["f.parquet"]', '["[abf].parquet"]')
    data = of_yaml(yaml, tmp_path, label=LabelConfig("y"))
    prepared, _ = both(data, tmp_path)
    assert sum(prepared.info["rows"].values()) == 9000 and len(prepared.files("train")) > 3


@pytest.mark.parametrize("yaml", [GROUPED, SEQUENCES], ids=["grouped", "sequences"])
def test_rows_by_group(yaml: str, tmp_path: Path, small_chunks: None) -> None:
    (tmp_path / "raw").mkdir()
    for n in range(3):
        lines = [f"{i % 2},u{i * 7 % 31},{i * 13 % 17},{i * 5 % 97},{i * 3 % 41}.5" for i in range(n, 1200, 3)]
        (tmp_path / "raw" / f"{n}.csv").write_text("\n".join(["y,user,item,at,x", *lines]) + "\n")
    prepared, _ = both(of_yaml(yaml, tmp_path, label=LabelConfig("y")), tmp_path)
    assert prepared.info["rows"]["test"] == 31


def test_bad_rows_and_rows_that_are_the_same(tmp_path: Path, small_chunks: None) -> None:
    (tmp_path / "raw").mkdir()
    lines = [f"{i % 2},{'oops' if i % 900 == 5 else i}, v{i % 7}" for i in range(9000)]
    for n in range(2):
        (tmp_path / "raw" / f"{n}.csv").write_text("\n".join(["y,x,s", *lines]) + "\n")
    data = of_yaml("dense: {x: {fill: median}}\nsparse: {s: {}}", tmp_path, label=LabelConfig("y"))
    _, prepared = both(data, tmp_path)
    aside = pl.read_csv(f"{prepared.folder}.bad_rows.csv")
    assert prepared.info["bad_rows"] == aside.height == 20 and aside["line"].to_list()[:2] == [7, 907]
    with engine_of(LOCAL, data) as spark, pytest.raises(UserError) as e:
        prepare(replace(data, max_bad_rows=1e-6, name="strict"), spark)
    assert "20 of 18000 rows cannot be read" in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize(("name", "folder"), [("criteo", "criteo_kaggle"), ("movielens_100k", "ml-100k")])
def test_real_data(
    name: str,
    folder: str,
    real_data: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formats, "PIECE_BYTES", 700_000)
    yaml = (ROOT / "conf" / "data" / f"{name}.yaml").read_text()
    both(of_yaml(yaml, tmp_path, root=str(real_data(folder))), tmp_path)
