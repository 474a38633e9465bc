"""Pretrained vectors: normalised by closed forms, joined to the dense part of batches, in training as in serving."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from raw_rows import of_yaml

from recsys.base.errors import UserError
from recsys.data.features.batch_tensors import batch_of
from recsys.data.features.vectors import Vectors
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.online.row_transforms import RowTransforms

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((6, 5)).astype(np.float32)
YAML = """
    label: {column: y}
    dense: {x: {transform: []}, text: {column: item, vectors: %s}, z: {column: x, transform: [minmax]}}
    sparse: {item: {}}
"""


def prepared(tmp_path: Path, vectors: str) -> Prepared:
    raw = tmp_path / "raw"
    raw.mkdir(exist_ok=True)
    lines = [f"{i % 2},{i},{i % 8}" for i in range(200)]  # items 6 and 7 have no vector
    (raw / "f.csv").write_text("\n".join(["y,x,item", *lines]) + "\n")
    pl.DataFrame({"id": range(6), "vector": MATRIX.tolist()}).write_parquet(raw / "v.parquet")
    np.save(raw / "v.npy", MATRIX)
    (raw / "keys.txt").write_text("\n".join("012345") + "\n")
    data = of_yaml(YAML % vectors)
    source = replace(data.source, files=["*.csv"])
    data = replace(data, root=str(raw), prepared=str(tmp_path / "prepared"), source=source)
    check_data(data)
    return prepare(data)


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float32, (3, 4), elements=st.floats(-1e3, 1e3, width=32)))
def test_normalisation_is_torch_s(x: np.ndarray) -> None:
    found = Vectors.from_matrix(pl.Series(["a", "b", "c"]), x, ["l2", "layer"]).matrix
    lengths = torch.from_numpy(x).norm(dim=1, keepdim=True)
    expected = torch.nn.functional.layer_norm(torch.from_numpy(x) / torch.where(lengths > 0, lengths, 1), (4,))
    assert not found[0].any()
    np.testing.assert_allclose(found[1:], expected, atol=1e-4)


@pytest.mark.parametrize("vectors", ["file: v.parquet, key: id", "file: v.npy", "file: v.npy, keys: keys.txt"])
def test_they_join_the_dense_part(tmp_path: Path, vectors: str) -> None:
    done = prepared(tmp_path, f"{{{vectors}, normalise: []}}")
    fitted = done.fitted
    assert [(f.name, f.width) for f in fitted.features.dense] == [("x", 1), ("text", 5), ("z", 1)]
    assert fitted.features.dense_width == 7
    for shuffle in (False, True):
        loader = ParquetLoader(
            done.files("train"), fitted.features, batch_size=16, training=True, shuffle=shuffle, vectors=fitted.matrices
        )
        for batch in loader:
            item = batch.dense[:, 0].int().numpy() % 8
            expected = np.where((item < 6)[:, None], MATRIX[np.minimum(item, 5)], 0)
            np.testing.assert_array_equal(batch.dense[:, 1:6], expected)
            np.testing.assert_allclose(batch.dense[:, 6], batch.dense[:, 0] / 159, rtol=1e-6)
    pipeline = RowTransforms.load(done.folder)
    pipeline.save(tmp_path / "serving")
    again = RowTransforms.load(tmp_path / "serving")
    for p in (pipeline, again):
        np.testing.assert_array_equal(p({"x": 3, "item": "3"}).dense[0, 1:6], MATRIX[3])
        assert not p({"x": 3, "item": "new"}).dense[0, 1:6].any()
    frame = pl.read_parquet(done.files("test"))
    assert batch_of(frame, fitted.features, fitted.matrices).dense.shape == (20, 7)


def test_another_file_is_another_preparation(tmp_path: Path) -> None:
    vectors = "{file: v.npy}"
    first = prepared(tmp_path, vectors).folder
    assert prepared(tmp_path, vectors).folder == first
    MATRIX[0, 0] += 1
    assert prepared(tmp_path, vectors).folder != first


def given_rows(ids: list[int], *vectors: list[float]) -> pl.DataFrame:
    return pl.DataFrame({"id": ids, "vector": list(vectors)})


BAD = {
    "{file: none.npy}": ("no such file", None),
    "{file: v.csv}": ("must be a .parquet, a .npz or a .npy file", None),
    "{file: v.npy, key: id}": ("vectors.key: applies only to a .parquet file", None),
    "{file: v.parquet}": ("has no column item", None),
    "{file: v.parquet, key: idd}": ("has no column idd; did you mean id?", None),
    "{file: v.parquet, key: id, column: id}": ("holds Int64, not lists of numbers", None),
    "{file: v.npy, normalise: [l3]}": ("l3 is unknown; did you mean l2?", None),
    "{file: twice.parquet, key: id}": ("more than one vector for '1'", given_rows([1, 1], [1.0], [2.0])),
    "{file: ragged.parquet, key: id}": ("vectors differ in length (1, 2)", given_rows([1, 2], [1.0], [2.0, 3.0])),
    "{file: nan.parquet, key: id}": ("'2' has an infinite or missing", given_rows([1, 2], [1.0], [float("nan")])),
    "{file: v.npy, keys: f.csv}": ("6 vectors, but f.csv has 201 lines", None),
}


@pytest.mark.parametrize("vectors", BAD)
def test_mistakes(tmp_path: Path, vectors: str) -> None:
    expected, frame = BAD[vectors]
    if frame is not None:
        (tmp_path / "raw").mkdir()
        frame.write_parquet(tmp_path / "raw" / f"{vectors[7:].split('.')[0]}.parquet")
    with pytest.raises(UserError) as e:
        prepared(tmp_path, vectors)
    assert expected in str(e.value) and "\n" not in str(e.value)
