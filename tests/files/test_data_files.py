"""Which files of a folder are data: one rule for all that read folders."""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.raw.read_sources import find_files
from recsys.files.data_files import files_in, matching
from recsys.follow.follow_settings import PartitionsConfig
from recsys.follow.partitions import find_partitions
from recsys.job.run_config import RunConfig
from recsys.new.find_files import find
from recsys.online.predictor import input_files
from recsys.schema.pipeline_schema import TableConfig
from recsys.server.feedback import join_feedback, read_feedback
from recsys.stages.read_tables import read_table
from recsys.store.spark_join import _row_files
from recsys.store.views import View

FRAME = pl.DataFrame({"user": ["a", "b"], "time": [1, 2], "click": [0, 1]})
HIDDEN = """_SUCCESS _metadata .part-0.parquet.crc ._part.parquet _tmp.parquet .part _temporary/0/p.parquet
    .ipynb_checkpoints/part-0.parquet""".split()


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as Spark writes it: rows.parquet/ with two parts, the marks of a whole write and what is left of others."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "rows.parquet"
    for name in HIDDEN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"" if name == "_SUCCESS" else b"no data")
    for i in range(2):
        FRAME.write_parquet(folder / f"part-0000{i}.snappy.parquet")
    return folder


def test_files_in(spark: Path) -> None:
    (spark / "day=2").mkdir()
    (spark / "day=2" / "part-2.parquet").touch()
    names = [f.relative_to(spark).as_posix() for f in files_in(spark)]
    assert sorted(names) == ["day=2/part-2.parquet", "part-00000.snappy.parquet", "part-00001.snappy.parquet"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("rows.parquet", ["part-00000", "part-00001"]),  # a folder that is named is read
        ("*.parquet", ["part-00000", "part-00001"]),  # and one whose name ends as the pattern does
        ("**/*.parquet", ["part-00000", "part-00001"]),
        ("**", ["part-00000", "part-00001"]),
        ("*", []),  # not any folder
        ("rows.parquet/*", ["part-00000", "part-00001"]),
        ("rows.parquet/_tmp.parquet", ["_tmp"]),  # a file that is named is read
        ("rows.parquet/_t*.parquet", ["_tmp"]),  # as are those of a pattern that names hidden ones
        ("rows.parquet/_temporary/**/*.parquet", ["p"]),
    ],
)
def test_matching(spark: Path, pattern: str, names: list[str]) -> None:
    assert sorted({p.name.partition(".")[0] for p in matching(spark.parent, pattern)}) == names


def test_every_reader_takes_the_same_files(spark: Path, tmp_path: Path) -> None:
    parts = sorted(spark.glob("part-*"))
    assert sorted(input_files([str(spark)])) == sorted(input_files([f"{spark}/*"])) == parts
    assert sorted(input_files([str(spark), f"file://{spark}/*"])) == parts  # each once
    assert sorted(find([str(spark)]).files) == parts
    cfg = RunConfig.of(compose("train", ["data=criteo", f"data.root={tmp_path}", "data.source.files=[rows.parquet]"]))
    assert sorted(find_files(cfg.data)) == parts
    assert sorted(map(Path, _row_files(spark))) == parts
    assert (
        sorted(map(Path, View(name="v", key="user", time="time", files=(str(spark),)).paths())) == parts[:1]
    )  # a copy
    assert read_table(TableConfig(file=["rows.parquet"]), tmp_path, "users", ()).height == 4
    [found] = find_partitions(PartitionsConfig(folder=tmp_path, pattern="rows.parquet"))
    assert sorted(tmp_path / f for f in found.files) == parts


def test_commands_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What recsys.new finds by a pattern, a training reads by it, as does a store; what a pattern names, follow takes."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "sub/b.csv", "sub/deep/c.csv", "day=1/d.csv", "_kept/e.csv"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        FRAME.write_csv(name)
    Path("gone.csv").symlink_to("nothing")
    for pattern, number in (("**", 4), ("sub/**", 2), ("sub", 2), ("day=*", 1), ("_kept/*.csv", 1), ("s?b", 0)):
        read = sorted({p for p in matching(tmp_path, pattern) if p.is_file()})
        assert len(read) == number, pattern
        if read:
            assert sorted(tmp_path / f for f in find([pattern]).files) == read
    with pytest.raises(UserError, match="no such file"):
        find(["s?b"])
    found = find_partitions(PartitionsConfig(folder=tmp_path, pattern="_kept/*.csv"))
    assert [p.files for p in found] == [("_kept/e.csv",)]
    assert [p.name for p in find_partitions(PartitionsConfig(folder=tmp_path, pattern="*.csv"))] == ["a.csv"]


def test_feedback_and_samples(tmp_path: Path) -> None:
    now = datetime.now(UTC).timestamp()
    rows = pl.DataFrame({"request_id": ["r"], "request_row": [0], "request_time": [now]})
    for name in ("a.parquet", "._a.parquet"):
        rows.write_parquet(tmp_path / name)
    for name in ("f.jsonl", ".f.jsonl", "_f.jsonl"):
        (tmp_path / name).write_text('{"id": "r", "row": 0, "click": 1}\n')
    assert len(list(read_feedback(tmp_path))) == 1
    joined = join_feedback(tmp_path, tmp_path)
    assert (joined.rows.height, joined.counted, joined.duplicates) == (1, 1, 0)


def test_a_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(UserError, match="no such file"):
        input_files([str(tmp_path)])
