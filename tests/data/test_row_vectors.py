"""A vector in the row itself is a dense feature of its width, from any format."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from data_configs import small_config
from test_typed_formats import write_arrow

from recsys.data.features import ResolvedData
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.interface.features import DenseFeature
from recsys.online.row_transforms import RowTransforms
from recsys.schema.data_schema import DataConfig, DenseConfig, SparseConfig
from recsys.schema.source_schema import JoinConfig, SourceConfig

ROWS, WIDTH = 200, 4


def vectors() -> np.ndarray:
    return np.round(np.random.default_rng(0).standard_normal((ROWS, WIDTH)), 2).astype(np.float32)


def config(folder: Path, dense: dict[str, DenseConfig | None], **more: Any) -> ResolvedData:
    dense = {"x": DenseConfig(transform=[]), **dense}
    data = small_config(folder, dense=dense, sparse={"s": SparseConfig()}, **more)
    check_data(data)
    return data


def write(folder: Path, format_: str) -> None:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(
        {
            "y": np.arange(ROWS) % 2,
            "x": np.arange(ROWS, dtype=np.float32),
            "s": ["a", "b"] * (ROWS // 2),
            "v": pl.Series(vectors().tolist(), dtype=pl.List(pl.Float64)),
        }
    )
    if format_ == "parquet":
        frame.write_parquet(folder / "raw" / "f.parquet")
    elif format_ == "arrow":
        write_arrow(frame.with_columns(pl.col("v").list.to_array(WIDTH)), folder / "raw" / "f.arrow")
    elif format_ == "jsonl":
        (folder / "raw" / "f.jsonl").write_text("\n".join(map(json.dumps, frame.to_dicts())) + "\n")
    else:
        text = pl.concat_str(pl.lit("["), pl.col("v").cast(pl.List(pl.String)).list.join(" "), pl.lit("]"))
        frame.with_columns(text.alias("v")).write_csv(folder / "raw" / "f.csv")


def dense_of(prepared: Prepared, split: str = "train", **more: Any) -> np.ndarray:
    loader = ParquetLoader(prepared.files(split), prepared.fitted.features, batch_size=32, **more)
    return np.concatenate([batch.dense.numpy() for batch in loader])


@pytest.mark.parametrize("format_", ["parquet", "arrow", "jsonl", "csv"])
def test_vectors_of_every_format(tmp_path: Path, format_: str) -> None:
    write(tmp_path, format_)
    vector = DenseConfig(split=" ") if format_ == "csv" else None
    data = config(tmp_path, {"v": vector}, source=SourceConfig(format=format_))
    check_raw_files(data)
    prepared = prepare(data)
    features = prepared.fitted.features
    assert features.dense == (DenseFeature("x"), DenseFeature("v", WIDTH)) and features.dense_width == 1 + WIDTH
    train = dense_of(prepared)
    np.testing.assert_array_equal(train[:, 0], np.arange(160))
    np.testing.assert_allclose(train[:, 1:], vectors()[:160], atol=1e-6)
    shuffled = dense_of(prepared, shuffle=True)  # a row keeps its own vector
    np.testing.assert_allclose(shuffled[:, 1:], vectors()[shuffled[:, 0].astype(int)], atol=1e-6)
    given = "[0.5 1 0 -2]" if format_ == "csv" else [0.5, 1, 0, -2]
    tensors = RowTransforms.load(prepared.folder)([{"x": 7, "v": given, "s": "a"}, {"x": 8, "v": None, "s": "b"}])
    assert tensors.dense.tolist() == [[7, 0.5, 1, 0, -2], [8, 0, 0, 0, 0]]


def test_each_vector_is_normalised_in_its_own_way(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    dense = {"a": DenseConfig(column="v", normalise=["l2"]), "b": DenseConfig(column="v", normalise=["layer"])}
    prepared = prepare(config(tmp_path, dense, source=SourceConfig(format="parquet")))
    train, x = dense_of(prepared), vectors()[:160]
    np.testing.assert_allclose(train[:, 1 : 1 + WIDTH], x / np.linalg.norm(x, axis=1, keepdims=True), atol=1e-5)
    centred = x - x.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(train[:, 1 + WIDTH :], expected, atol=1e-5)


def test_vectors_of_a_side_table(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    items = pl.DataFrame({"s": ["a"], "emb": [[1.0, 2.0]]}, schema_overrides={"emb": pl.Array(pl.Float32, 2)})
    items.write_parquet(tmp_path / "raw" / "items.parquet")
    source = SourceConfig(format="parquet", files=["f.parquet"], joins=[JoinConfig(file="items.parquet", key="s")])
    prepared = prepare(config(tmp_path, {"emb": None}, source=source))
    train = dense_of(prepared)[:, 1:]
    np.testing.assert_array_equal(train[:4], [[1, 2], [0, 0]] * 2)


def test_rows_without_a_vector_of_this_width(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    odd = ["[1, 2]", "[1]", "[1, x]", "", "[]", "[1, nan]", "2,3"]
    lines = [f'1,1,a,"{v}"' for v in ["1,2", *odd]] + ['0,1,a,"1,2"'] * 200
    (tmp_path / "raw" / "f.csv").write_text("\n".join(["y,x,s,v", *lines]) + "\n")
    data: DataConfig = config(tmp_path, {"v": DenseConfig(split=",")}, max_bad_rows=0.1)
    prepared = prepare(data)
    bad = pl.read_csv(f"{prepared.folder}.bad_rows.csv")
    assert bad["line"].to_list() == [4, 5, 7, 8]
    assert set(bad["reason"]) == {"v is not a vector of 2 numbers"}
