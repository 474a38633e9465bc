"""Continuous training on ratings in the order of time, whose users and items change."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import yaml

from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings


def followed(folder: Path, **settings: object) -> ContinuousTraining:
    file = folder / "follow.yaml"
    file.write_text(yaml.safe_dump({"root": str(folder / "root"), **settings}))
    follower = ContinuousTraining(load_settings(file))
    with follower.alone():
        follower.run()
    return follower


@pytest.mark.slow
def test_movielens_100k_by_time(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Three tenths of the ratings, then a tenth at a time: each model is better than the one before on what follows."""
    source, log = real_data("ml-100k"), tmp_path / "log"
    log.mkdir()
    for side in ("ml-100k.item", "ml-100k.user"):
        (log / side).write_bytes((source / side).read_bytes())
    ratings = pl.read_csv(source / "ml-100k.inter", separator="\t").sort("timestamp:float", maintain_order=True)
    for i, part in enumerate(list(ratings.iter_slices(10_000))[:7]):
        (log / f"part_{i}").mkdir()
        part.write_csv(log / f"part_{i}" / "ratings.inter", separator="\t")
    follower = followed(
        tmp_path,
        train=["model=dlrm", "data=movielens_100k", "trainer.batch_size=256", "trainer.threads=1"],
        partitions={"folder": str(log), "pattern": "part_*"},
        first=3,
        full={"overrides": ["trainer.max_epochs=5"]},
        gate={"change": {"auc": -0.01}},
    )
    assert [c.outcome for c in follower.state.cycles] == ["promoted"] * 4
    for c in follower.state.cycles[1:]:
        assert c.metrics["challenger"]["auc"] > max(c.metrics["champion"]["auc"], 0.67)


@pytest.mark.slow
def test_avazu_by_hour(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Hours of a week, CSV files named by their time; the first one has most rows."""
    log = tmp_path / "log"
    log.mkdir()
    rows = pl.read_csv(real_data("avazu") / "train.csv", infer_schema=False)
    for (hour,), part in rows.group_by("hour", maintain_order=True):
        part.write_csv(log / f"20{hour[:2]}-{hour[2:4]}-{hour[4:6]}T{hour[6:]}.train.csv")
    follower = followed(
        tmp_path,
        train=["model=dlrm", "data=avazu", "trainer.batch_size=256", "trainer.threads=1"],
        partitions={"folder": str(log), "pattern": "*.csv", "every": "1h"},
        check={"less": {"warn": 10, "fail": 100}},  # the file is a sample, most of it of the first hour
        gate={"change": {"auc": -0.05}, "min_rows": 200},
    )
    assert [c.window for c in follower.state.cycles] == [[p] for p in list(follower.partitions)[1:]]
    starts = [c.interval and c.interval[0] for c in follower.state.cycles]
    assert starts[:2] == ["2014-10-21T00:00:00+00:00", "2014-10-22T21:00:00+00:00"]
    assert [c.outcome for c in follower.state.cycles] == ["promoted"] * 3
    assert min(c.metrics["challenger"]["auc"] for c in follower.state.cycles) > 0.6
