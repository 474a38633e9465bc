"""A two-tower model whose user tower reads a history of the items' own table."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import prepare
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.models.two_tower import TwoTower
from recsys.schema.data_schema import DataConfig, GroupConfig, ItemsConfig, LabelConfig, SparseConfig, SplitConfig
from recsys.schema.source_schema import SourceConfig

ITEM, HISTORY = SparseFeature("item", 9, "item"), SparseFeature("seen", 9, "item", multi_valued=True)
FEATURES = FeatureSpec(dense=(), sparse=(ITEM, HISTORY), labels=(), item="item")


def batch(items: list[int], histories: list[list[int]]) -> Batch:
    lengths = [1] * len(items) + [len(h) for h in histories]
    values = torch.tensor(items + [i for h in histories for i in h], dtype=torch.int32)
    sparse = KeyedJaggedTensor(["item", "seen"], values, lengths=torch.tensor(lengths, dtype=torch.int32))
    return Batch(torch.zeros(len(items), 0), sparse, torch.zeros(len(items), 0))


def test_queries_are_made_of_the_item_towers_own_vectors() -> None:
    torch.manual_seed(0)
    model = TwoTower(FEATURES, dim=4, out=3, user_mlp=(5,), item_mlp=()).eval()
    rows = batch([1, 2, 3], [[4, 5], [], [0, 6]])
    queries = model.make_queries(rows)
    assert queries.inputs.tolist() == [4, 5, 6] and queries.lengths.tolist() == [2, 0, 1]  # 0 is an unknown item
    found = model.encode(rows, queries, model.items(queries.inputs))
    vectors = model.items(torch.tensor([4, 5, 6]))
    means = torch.stack([vectors[:2].mean(0), torch.zeros(3), vectors[2]])
    assert torch.allclose(found, torch.nn.functional.normalize(model.deep(means), dim=1))


def test_in_training_a_row_s_own_item_is_not_in_its_history() -> None:
    model = TwoTower(FEATURES, dim=4, out=3)
    rows = batch([4, 2, 6], [[4, 5, 4], [], [6]])
    queries = model.make_queries(rows)
    assert queries.inputs.tolist() == [5] and queries.lengths.tolist() == [1, 0, 0]
    assert queries.targets.tolist() == [4, 2, 6]
    assert model.eval().make_queries(rows).inputs.tolist() == [4, 5, 4, 6]  # the answer must not change the question


def test_candidates_are_the_items_alone(tmp_path: Path) -> None:
    """Items count once for each row that chose them, however often they are in histories."""
    (tmp_path / "raw").mkdir()
    lines = [f"u{i % 10},i{i % 7},{i}" for i in range(200)]
    (tmp_path / "raw" / "log.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
    sparse: dict[str, Any] = {"item": None, "seen": SparseConfig(column="item", table="item", last=5)}
    data = DataConfig(
        name="t",
        root=str(tmp_path / "raw"),
        prepared=str(tmp_path / "prepared"),
        source=SourceConfig(),
        label=LabelConfig(column=None),
        group=GroupConfig("user", "time"),
        split=SplitConfig(by="leave_one_out"),
        items=ItemsConfig(feature="item"),
        sparse=sparse,
    )
    check_data(data)
    fitted = prepare(data).fitted
    assert int(fitted.item_vocabulary["count"].sum()) == 200 - 2 * 10
    assert fitted.features.feature("seen").table == "item" and fitted.features.feature("seen").cardinality == 8


def test_features_of_the_user_or_a_history_are_needed() -> None:
    alone = FeatureSpec(dense=(), sparse=(ITEM,), labels=(), item="item")
    with pytest.raises(ValueError, match="TwoTower needs features of the user"):
        TwoTower(alone)
