"""Rows that equal others are counted where data are looked at and prepared; days in another unit of time are refused."""

from pathlib import Path

import polars as pl
import pytest
from omegaconf import DictConfig

from recsys.config.compose import compose
from recsys.follow.follow_settings import SliceCheckConfig
from recsys.follow.partition_checks import PartitionRows, check_partition, save_references
from recsys.job.run_config import RunConfig
from recsys.new.propose import propose
from recsys.preprocess import copies, preprocess

ROWS = pl.DataFrame(
    {
        "user": [f"u{i % 9}" for i in range(60)],
        "price": [i / 7 for i in range(60)],
        "ts": range(1_700_000_000, 1_700_000_060),
        "click": [i % 3 // 2 for i in range(60)],
    }
)
YAML = """name: mine
source: {format: csv, separator: ',', files: ['*.csv']}
label: {column: click}
group: {by: user, order: ts}
split: {by: order}
dense: {price: {}, last: {column: price, lag: 1}}
sparse: {user: {}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("raw", "prepared", "conf/data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "conf" / "data" / "mine.yaml").write_text(YAML)


def config(command: str, *more: str) -> DictConfig:
    return compose(command, ["data=mine", "data.root=raw", "data.prepared=prepared", *more])


@pytest.mark.parametrize("again", [0, 6])
def test_copies_in_prepared_rows(again: int) -> None:
    pl.concat([ROWS, ROWS[:again]]).write_csv("raw/a.csv")  # the copies are the last rows, which test
    prepared = preprocess(config("preprocess", "~data.dense.last"))
    line = f"6 of 66 rows repeat an earlier row in all features and labels; 6 of the {prepared.rows('test')} test rows equal"
    found = copies(prepared)
    assert found is not None and found.startswith(line) if again else found is None


@pytest.mark.parametrize("again", [0, 4])
def test_copies_in_new_files(again: int) -> None:
    pl.concat([ROWS, ROWS[:again]]).write_csv("raw/a.csv")
    found = propose(["raw/a.csv"]).copies
    assert found.startswith("4 of the 64 rows") if again else found == ""


def test_a_day_in_another_unit_of_time_is_refused(tmp_path: Path) -> None:
    for name, factor in (("day1", 1), ("day2", 1), ("day3", 1000)):
        ROWS.with_columns(pl.col("ts") * factor).write_csv(f"raw/{name}.csv")
    cfg = RunConfig.of(config("train"))
    save_references(tmp_path / "ref", PartitionRows(cfg, ("day1.csv",)), tmp_path / "none")
    failed = {}
    for day in ("day2", "day3"):
        report = check_partition(tmp_path / "ref", PartitionRows(cfg, (f"{day}.csv",)), None, SliceCheckConfig(), [60])
        failed[day] = [line.text for line in report.lines if line.outcome == "fail"]
    assert failed["day2"] == []
    [line] = failed["day3"]
    assert line.startswith("column ts: holds milliseconds since 1970") and line.endswith("write it in seconds")
