"""Groups whose rows stay together, from raw files to batches."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from data_configs import small_config

from recsys.data.features import GROUP, ResolvedData
from recsys.data.features.group_features import add_group_features
from recsys.data.features.value_index import group_numbers
from recsys.data.loader.lanes import concat, rows_of
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare import shuffle
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.interface.batch import Batch
from recsys.schema.data_schema import DenseConfig, GroupConfig, SparseConfig

ROWS, GROUPS = 1500, 130


def config(folder: Path) -> ResolvedData:
    dense, group = {"row": DenseConfig(transform=[])}, GroupConfig(by="g", together=True)
    return small_config(folder, dense=dense, sparse={"s": SparseConfig()}, group=group)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Rows of groups that are scattered over three files, and several piles."""
    folder = tmp_path_factory.mktemp("together")
    (folder / "raw").mkdir()
    rng = np.random.default_rng(0)
    group = rng.integers(0, GROUPS, ROWS)
    frame = pl.DataFrame({"y": group % 2, "row": np.arange(ROWS), "s": group % 7, "g": [f"g{x}" for x in group]})
    for i in range(3):
        frame.slice(500 * i, 500).write_csv(folder / "raw" / f"{i}.csv")
    data = config(folder)
    data.split.by, data.split.column = "hash", "g"
    check_data(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "PILE_ROWS", 400)
        return prepare(data)


def group_of(prepared: Prepared) -> np.ndarray:
    """The group of each raw row."""
    root = Path(prepared.info["root"])
    return pl.concat([pl.read_csv(root / f"{i}.csv") for i in range(3)])["g"].to_numpy()


def runs(x: np.ndarray) -> int:
    return 1 + int((x[1:] != x[:-1]).sum())


def test_rows_of_a_group_are_neighbours(prepared: Prepared) -> None:
    assert prepared.fitted.features.grouped
    raw, seen = group_of(prepared), 0
    for split in ("train", "validation", "test"):
        rows = pl.concat([pl.read_parquet(f) for f in prepared.files(split)])
        groups = rows[GROUP].to_numpy()
        assert runs(groups) == len(np.unique(groups))
        own = raw[rows["row"].cast(pl.Int64).to_numpy()]
        assert len({*zip(groups.tolist(), own.tolist(), strict=True)}) == len(np.unique(groups)) == len(np.unique(own))
        assert rows.group_by(GROUP, maintain_order=True).agg(pl.col("row").is_sorted())["row"].all()  # as in the files
        seen += rows.height
    assert seen == ROWS


def batches(prepared: Prepared, *, at: int = 0, epoch: int = 0, **more: Any) -> list[Batch]:
    given = {"batch_size": 64, "training": True, "shuffle": True, "seed": 1} | more
    loader = ParquetLoader(prepared.files("train"), prepared.fitted.features, **given)
    loader.load_state_dict({"epoch": epoch, "step": at})
    return list(loader)


def test_batches_keep_groups_in_random_order(prepared: Prepared) -> None:
    found = batches(prepared, buffer_rows=10_000)
    raw = group_of(prepared)
    cut = 0
    for batch in found:
        assert batch.group is not None
        group, rows = batch.group.numpy(), batch.dense[:, 0].long().numpy()
        assert runs(group) == runs(raw[rows]) == len(np.unique(group))
        cut += runs(group)
    assert cut <= len(np.unique(raw)) + len(found)
    orders = [torch.cat([b.dense[:, 0] for b in part]).tolist() for part in (found, batches(prepared, epoch=1))]
    assert orders[0] != orders[1] and len(set(orders[0])) == len(orders[0])
    again = batches(prepared, at=5, buffer_rows=10_000)
    assert [b.dense.tolist() for b in again] == [b.dense.tolist() for b in found[5:]]


def test_parts_of_batches_keep_their_groups(prepared: Prepared) -> None:
    first, second = batches(prepared)[:2]
    assert first.group is not None and second.group is not None
    both = concat([rows_of(first, 10, 64), rows_of(second, 0, 5)])
    assert both.group is not None
    assert both.group.tolist() == [*first.group.tolist()[10:], *second.group.tolist()[:5]]


def test_rows_to_predict_keep_their_order(prepared: Prepared) -> None:
    data = prepared.fitted.data
    rows = pl.DataFrame({GROUP: ["b", "a", "b", "c", "a"], "__order__": [0.0] * 5, "row": [0.0, 1.0, 2.0, 3.0, 4.0]})
    found = add_group_features(data, rows)
    assert found["row"].to_list() == [0, 1, 2, 3, 4] and GROUP not in found.columns


def test_numbers_of_groups() -> None:
    names = [f"user {i}" for i in range(50_000)]
    numbers = group_numbers(pl.Series([*names, *names]))
    assert len(np.unique(numbers)) == len(names) and np.array_equal(numbers[:50_000], numbers[50_000:])
    digest = hashlib.blake2b(b"a", digest_size=8).digest()
    assert group_numbers(pl.Series(["a"])).tolist() == [int.from_bytes(digest, "little", signed=True)]
