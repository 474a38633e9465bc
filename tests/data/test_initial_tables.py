"""Tables that start from pretrained vectors: the rows of known values, on any plan."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from recsys.base.errors import UserError
from recsys.data.features import Fitted
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import prepare
from recsys.schema.data_schema import DataConfig, LabelConfig, SparseConfig, TableVectorsConfig
from recsys.sharding import sharded_model
from recsys.sharding.tables import TableInfo

DIM = 4


def config(folder: Path, **sparse: Any) -> DataConfig:
    (folder / "raw").mkdir(exist_ok=True)
    rows = ["1,a,3", "0,b,1", "1,c,3", "1,a,2"] * 50
    (folder / "raw" / "f.csv").write_text("\n".join(["y,s,i", *rows]) + "\n")
    table = pl.DataFrame({"s": ["c", "a", "zz"], "vector": [[1.0] * DIM, [2.0] * DIM, [3.0] * DIM]})
    table.write_parquet(folder / "raw" / "v.parquet")
    np.save(folder / "raw" / "v.npy", np.arange(5 * DIM, dtype=np.float32).reshape(5, DIM))
    (folder / "raw" / "one.parquet").write_bytes((folder / "raw" / "v.parquet").read_bytes())
    data = DataConfig(
        name="t",
        root=str(folder / "raw"),
        prepared=str(folder / "prepared"),
        label=LabelConfig("y"),
        sparse={"s": None, "i": SparseConfig(encode="id", rows=5), **sparse},
    )
    data.source.files = ["*.csv"]
    check_data(data)
    return data


def test_rows_of_known_values(tmp_path: Path) -> None:
    data = config(
        tmp_path,
        s=SparseConfig(vectors=TableVectorsConfig("v.parquet")),
        i=SparseConfig(encode="id", rows=5, vectors=TableVectorsConfig("v.npy")),
    )
    prepared = prepare(data)
    fitted = prepared.fitted
    values = fitted.vocabularies["s"]["value"].to_list()
    s = fitted.initial_tables["s"]
    assert s.shape == (4, DIM) and np.isnan(s[0]).all()  # row 0 is for unknown values
    assert s[1 + values.index("a")].tolist() == [2.0] * DIM and s[1 + values.index("c")].tolist() == [1.0] * DIM
    assert np.isnan(s[1 + values.index("b")]).all()
    assert fitted.initial_tables["i"][:, 0].tolist() == [0, 4, 8, 12, 16]
    Fitted.copy(prepared.folder, tmp_path / "run")  # a run starts once, so it keeps no copy
    assert Fitted.load(tmp_path / "run").initial_tables == {}


@pytest.mark.parametrize("block", [3, 100])
@pytest.mark.parametrize(("row", "column", "rows", "columns"), [(0, 0, 8, 4), (2, 0, 5, 4), (0, 2, 8, 2), (7, 1, 1, 3)])
def test_every_shard_gets_its_part(
    monkeypatch: pytest.MonkeyPatch, row: int, column: int, rows: int, columns: int, block: int
) -> None:
    monkeypatch.setattr(sharded_model, "BLOCK_ROWS", block)
    given = np.arange(8 * DIM, dtype=np.float32).reshape(8, DIM)
    given[[0, 5]] = np.nan
    info = TableInfo("t", "t", "t.weight", 8, DIM, DIM, True, lambda x: x.fill_(-1.0))
    shard = torch.zeros(rows, columns)
    sharded_model._fill(shard, row, column, info, 0, {"t": given})
    expected = np.where(np.isnan(given), -1, given)[row : row + rows, column : column + columns]
    assert np.array_equal(shard.numpy(), expected)


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.sparse\.s\.vectors: no such file"):
        prepare(config(tmp_path, s=SparseConfig(vectors=TableVectorsConfig("w.parquet"))))
    infos = {"t": TableInfo("t", "s", "t.weight", 8, 16, 16, True, lambda x: x)}
    with pytest.raises(UserError, match=r"have 4 numbers, but the model's table has 16; change model\.dim"):
        sharded_model.check_vector_tables(infos, {"s": np.zeros((8, 4), np.float32)})
