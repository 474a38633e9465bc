"""Continuous training on ratings in the order of time, whose users and items change."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import yaml

from recsys.follow.cycle import ContinuousTraining
from recsys.follow.follow_settings import load_settings


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
    file = tmp_path / "follow.yaml"
    file.write_text(
        yaml.safe_dump({
            "root": str(tmp_path / "root"),
            "train": ["model=dlrm", "data=movielens_100k", "trainer.batch_size=256", "trainer.threads=1"],
            "partitions": {"folder": str(log), "pattern": "part_*"},
            "first": 3,
            "full": {"overrides": ["trainer.max_epochs=5"]},
            "gate": {"change": {"auc": -0.01}},
        })
    )  # fmt: skip
    follower = ContinuousTraining(load_settings(file))
    with follower.alone():
        follower.run()
    assert [c.outcome for c in follower.state.cycles] == ["promoted"] * 4
    for c in follower.state.cycles[1:]:
        assert c.metrics["challenger"]["auc"] > max(c.metrics["champion"]["auc"], 0.67)
