"""An epoch that another number of processes goes on with: every row once, in steps of the same rows."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.data.features import LABEL
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel

ROWS, STEP = 1000, 48
SPEC = FeatureSpec(
    dense=(DenseFeature("number"),),
    sparse=(SparseFeature("one", 2000, "one", "sum"), SparseFeature("bag", 9, "bag", "sum", multi_valued=True)),
    labels=(BinaryLabel("label"),),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of several row groups; `one` and the dense column are the row's number, bags repeat its last digit."""
    folder = tmp_path_factory.mktemp("lanes")
    number = np.arange(ROWS)
    bags = pl.Series([[i % 9] * (i % 4) for i in range(ROWS)], dtype=pl.List(pl.Int32))
    columns = {LABEL: (number % 2).astype(np.float32), "number": number.astype(np.float32)}
    frame = pl.DataFrame(columns | {"one": number.astype(np.int32), "bag": bags})
    paths = [folder / "part-0.parquet", folder / "part-1.parquet"]
    for path, rows in zip(paths, (frame[:600], frame[600:]), strict=True):
        rows.write_parquet(path, row_group_size=64)
    return paths


def loaders(files: list[Path], world_size: int) -> list[ParquetLoader]:
    return [
        ParquetLoader(
            files,
            SPEC,
            batch_size=STEP // world_size,
            training=True,
            shuffle=True,
            seed=3,
            buffer_rows=100,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]


def steps(files: list[Path], world_size: int, state: dict[str, int] | None, count: int) -> tuple[list[set[int]], dict]:
    """The rows of each of the next `count` steps, over all ranks, and the loaders' position after them."""
    every = loaders(files, world_size)
    for loader in every if state is not None else ():
        loader.load_state_dict(state)
    iterators = [iter(loader) for loader in every]
    found = []
    for _ in range(count):
        rows: list[int] = []
        for it in iterators:
            batch = next(it)
            assert batch.rows == STEP // world_size
            numbers = batch.dense[:, 0].long().tolist()
            assert batch.sparse["one"].values().tolist() == numbers
            assert batch.labels[:, 0].tolist() == [n % 2 for n in numbers]
            bags = batch.sparse["bag"]
            assert bags.lengths().tolist() == [n % 4 for n in numbers]
            assert bags.values().tolist() == [n % 9 for n in numbers for _ in range(n % 4)]
            rows += numbers
        found.append(set(rows))
        assert len(rows) == len(found[-1]) == STEP
    return found, every[0].state_dict()


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1), (2, 4), (4, 2), (4, 3), (3, 2), (1, 4)])
def test_every_row_once_an_epoch(files: list[Path], first: int, then: int) -> None:
    """Eight steps by `first` processes, the rest of the epoch by `then`: the steps are those of an uninterrupted one."""
    whole, _ = steps(files, first, None, ROWS // STEP)
    begun, state = steps(files, first, None, 8)
    rest, ended = steps(files, then, state, ROWS // STEP - 8)
    assert begun + rest == whole
    rows = [row for step in whole for row in step]
    assert len(set(rows)) == len(rows) == ROWS // STEP * STEP
    after, _ = steps(files, then, ended, 3)  # the next epoch has a lane a process again
    again, _ = steps(files, then, {"epoch": 1, "step": 0}, 3)
    assert after == again


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1), (2, 3), (4, 2), (2, 4)])
def test_a_short_last_step_is_shared_by_all(files: list[Path], first: int, then: int) -> None:
    step = 108  # of 600 rows: five steps, and 60 rows

    def of(world_size: int, position: int) -> tuple[list[set[int]], list[int]]:
        every = [
            ParquetLoader(
                files[:1],
                SPEC,
                batch_size=step // world_size,
                training=True,
                shuffle=True,
                rank=r,
                world_size=world_size,
            )
            for r in range(world_size)
        ]
        for loader in every:
            loader.load_state_dict({"epoch": 0, "step": position, "lanes": first})
        batches = [list(loader) for loader in every]
        rows = [{n for b in of_step for n in b.dense[:, 0].long().tolist()} for of_step in zip(*batches, strict=True)]
        return rows, [of_rank[-1].rows for of_rank in batches]

    whole, last = of(first, 0)
    rest, last_then = of(then, 2)
    assert rest == whole[2:] and len(whole[-1]) == sum(last) == sum(last_then) == 60
    assert max(last_then) - min(last_then) <= 1


def test_interrupted_twice(files: list[Path]) -> None:
    whole, _ = steps(files, 2, None, ROWS // STEP)
    a, state = steps(files, 2, None, 5)
    b, state = steps(files, 4, state, 4)
    c, _ = steps(files, 3, state, ROWS // STEP - 9)
    assert a + b + c == whole


def test_positions_of_before_lanes_were_kept(files: list[Path]) -> None:
    """A position without lanes is that of as many processes as there are now."""
    whole, _ = steps(files, 2, None, 9)
    rest, _ = steps(files, 2, {"epoch": 0, "step": 6}, 3)
    assert rest == whole[6:]
