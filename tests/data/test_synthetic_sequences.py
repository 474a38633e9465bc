"""The built-in sample for retrieval: reproducible, and of the structure that its docstring promises."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.data.samples.sequences import FOLLOW_PROBABILITY, ITEM_KINDS, ITEMS, LIKED, MEAN_LENGTH, World, write_sample

ROWS = 20_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    folder = tmp_path_factory.mktemp("sample")
    write_sample(folder, rows=ROWS, seed=0)
    return pl.read_csv(folder / "log.csv").with_columns(number=pl.col("item").str.slice(1).cast(pl.Int64))


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    progress: list[int] = []
    for name, seed in {"one": 1, "same": 1, "other": 2}.items():
        (tmp_path / name).mkdir()
        write_sample(tmp_path / name, rows=500, seed=seed, progress=progress.append)
    assert progress == [500, 500, 500]
    for file in ("log.csv", "items.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "same" / file).read_bytes()
        assert (tmp_path / "one" / file).read_bytes() != (tmp_path / "other" / file).read_bytes()


def test_users_go_on_as_the_world_says(log: pl.DataFrame) -> None:
    assert log.height == ROWS
    lengths = log["user"].value_counts()["count"].to_numpy()[:-1]
    assert lengths.mean() == pytest.approx(MEAN_LENGTH, rel=0.1)
    world = World(0)
    pairs = log.with_columns(before=pl.col("number").shift().over("user")).drop_nulls()
    before, now = pairs["before"].to_numpy(), pairs["number"].to_numpy()
    assert not log.select("user", "item").is_duplicated().any()
    follows = (world.followers[before] == now[:, None]).any(1).mean()
    assert FOLLOW_PROBABILITY < follows < FOLLOW_PROBABILITY + 0.1
    counts = np.bincount(log["number"].to_numpy(), minlength=ITEMS)
    assert np.corrcoef(counts, world.popularity)[0, 1] > 0.3
    assert len(set(world.kinds)) == ITEM_KINDS
    kinds = log.with_columns(kind=pl.Series(world.kinds)[log["number"].to_numpy()])
    most = kinds.group_by("user", "kind").len().sort("len").group_by("user").tail(LIKED)["len"].sum() / ROWS
    assert most > 0.6  # of what a user chooses
