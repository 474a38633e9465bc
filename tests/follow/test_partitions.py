"""Partitions: their order, the time in their names, and when their labels are ripe."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from recsys.base.errors import UserError
from recsys.follow.follow_settings import PartitionsConfig
from recsys.follow.partitions import Partition, find_partitions, ripe, rows_of, time_of


def config(folder: Path, **more: object) -> PartitionsConfig:
    return PartitionsConfig.model_validate({"folder": folder, **more})


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def names(partitions: list[Partition]) -> list[str]:
    return [p.name for p in partitions]


@pytest.mark.parametrize(
    ("name", "time"),
    [
        ("day=2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("day=2026-01-31/hour=7", datetime(2026, 1, 31, 7, tzinfo=UTC)),
        ("log-2026-01-31T12.parquet", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31_1230.jsonl", datetime(2026, 1, 31, 12, 30, tzinfo=UTC)),
        ("day=2026-13-31", None),
        ("part-7", None),
    ],
)
def test_time_of(name: str, time: datetime | None) -> None:
    assert time_of(name) == time


def test_folders_and_files_in_natural_order(tmp_path: Path) -> None:
    write(tmp_path, "part_10/a", "part_9/a", "part_9/.hidden", "part_9/_SUCCESS", "part_11/.crc", "other/a")
    found = find_partitions(config(tmp_path, pattern="part_*"))
    assert names(found) == ["part_9", "part_10"]  # part_11 has no file yet
    assert found[0].files == ("part_9/a",)
    write(tmp_path, "days/2026-01-02.csv", "days/2026-01-01.csv")
    assert names(find_partitions(config(tmp_path, pattern="days/*.csv"))) == [
        "days/2026-01-01.csv",
        "days/2026-01-02.csv",
    ]


def test_labels_are_ripe_after_the_delay_in_the_time_of_the_data(tmp_path: Path) -> None:
    write(tmp_path, *(f"day=2026-01-0{d}/a" for d in range(1, 6)))
    c = config(tmp_path, delay="2d")
    assert names(ripe(find_partitions(c), c)) == [f"day=2026-01-0{d}" for d in (1, 2, 3)]
    assert len(ripe(find_partitions(c), config(tmp_path))) == 5


def test_by_this_machines_clock(tmp_path: Path) -> None:
    write(tmp_path, "day=2026-01-01/a", "day=2026-01-02/a")
    c = config(tmp_path, clock="wall", delay="1d")
    found = find_partitions(c)
    for hours, count in ((0, 0), (47, 0), (48, 1), (72, 2)):
        assert len(ripe(found, c, datetime(2026, 1, 1, tzinfo=UTC).timestamp() + hours * 3600)) == count


def test_a_partition_that_is_being_written_waits(tmp_path: Path) -> None:
    write(tmp_path, "day=2026-01-01/a")
    c = config(tmp_path, settle_seconds=60)
    [partition] = find_partitions(c)
    assert ripe([partition], c, partition.changed + 59) == []
    assert ripe([partition], c, partition.changed + 61) == [partition]


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """A file from the future does not wait for ever."""
    write(tmp_path, "day=2026-01-01/a")
    os.utime(tmp_path / "day=2026-01-01/a", (4e9, 4e9))
    c = config(tmp_path, settle_seconds=60)
    assert len(ripe(find_partitions(c), c)) == 1


def test_names_without_a_time(tmp_path: Path) -> None:
    write(tmp_path, "part_1/a")
    c = config(tmp_path, pattern="part_*", delay="1d")
    with pytest.raises(UserError, match=r"partitions.delay=1d: the name of part_1 holds no time such as 2026-01-31"):
        ripe(find_partitions(c), c)


def test_rows_that_metadata_know(tmp_path: Path) -> None:
    """Parquet says its rows; other files would have to be read, and a damaged one is left to the checks."""
    for name, rows in {"day=2026-01-01": 3, "day=2026-01-02": 4}.items():
        (tmp_path / name).mkdir()
        for part in "ab":
            pl.DataFrame({"x": range(rows)}).write_parquet(tmp_path / name / f"{part}.parquet")
    (tmp_path / "day=2026-01-03").mkdir()
    (tmp_path / "day=2026-01-03" / "a.csv").write_text("x\n1\n")
    (tmp_path / "day=2026-01-04").mkdir()
    (tmp_path / "day=2026-01-04" / "a.parquet").write_bytes(b"PAR1")
    found = find_partitions(config(tmp_path))
    assert [rows_of(p, tmp_path) for p in found] == [6, 8, None, None]


def test_settings_are_checked_without_torch() -> None:
    """Its import takes longer than a mistake should."""
    code = "import sys, recsys.follow.__main__, recsys.follow.training_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
