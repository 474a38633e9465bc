"""Vectors of items: files, PCA and whitening by closed forms, items without vectors and vectors without items."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import of_yaml

from recsys.base.errors import UserError
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.features.vectors import Vectors, parse_way
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.interface.features import FeatureSpec
from recsys.models.common.items import Items

YAML = """
    source: {files: [f.csv]}
    label: {column: null}
    group: {by: user, order: t}
    sequences: {max_length: 3}
    split: {by: leave_one_out}
    sparse: {item: {}}
    items: {%s}
"""
MATRIX = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
NAMES = ["i2", "i0", "cold", "i1", "new", "newer"]  # i3 has no vector, three vectors have no training row


def prepared(tmp_path: Path, items: str, frame: pl.DataFrame | None = None) -> Prepared:
    raw = tmp_path / "raw"
    raw.mkdir(exist_ok=True)
    rows = [f"u{u},i{(u + k) % 4},{k}" for u in range(12) for k in range(5)]
    (raw / "f.csv").write_text("\n".join(["user,item,t", *rows]) + "\n")
    given = pl.DataFrame({"id": NAMES, "vector": MATRIX.tolist()})
    (given if frame is None else frame).write_parquet(raw / "v.parquet")
    np.savez(raw / "v.npz", id=np.array(NAMES), vector=MATRIX)
    data = of_yaml(YAML % items)
    data = replace(data, root=str(raw), prepared=str(tmp_path / "prepared"))
    check_data(data)
    return prepare(data)


def vectors_of(done: Prepared) -> dict[str, np.ndarray]:
    dense = candidates_of(done.fitted).dense
    assert dense is not None
    return dict(zip(done.fitted.candidates, dense[1:].numpy(), strict=True))


@pytest.mark.parametrize("file", ["v.parquet", "v.npz"])
def test_a_file_of_vectors_is_enough(tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Items without a vector have zeros; vectors of other items make candidates."""
    done = prepared(tmp_path, f"vectors: {{text: {{file: {file}, key: id, normalise: []}}}}")
    found = vectors_of(done)
    assert set(found) == {"i0", "i1", "i2", "i3", "cold", "new", "newer"}
    for name, vector in zip(NAMES, MATRIX, strict=True):
        np.testing.assert_array_equal(found[name], vector)
    assert not found["i3"].any()
    assert (
        "data.items.vectors.text: 1 of 4 values of the training rows have no vector; 3 of 6 vectors belong to no"
        in (capsys.readouterr().err.replace("\n", " "))
    )
    popularity = candidates_of(done.fitted).popularity
    assert (popularity[1:5] > 0).all() and (popularity[5:] == 0).all()


def test_ways_are_fitted_on_the_training_items(tmp_path: Path) -> None:
    """pca and whiten read the three training items that have a vector; the others are mapped alike."""
    done = prepared(tmp_path, "vectors: {text: {file: v.parquet, key: id, normalise: [{pca: 2}, l2]}}")
    trained = MATRIX[[0, 1, 3]].astype(np.float64)
    mean = trained.mean(axis=0)
    axes = np.linalg.svd(trained - mean, full_matrices=False)[2][:2]
    expected = (MATRIX - mean) @ axes.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = np.stack([vectors_of(done)[n] for n in NAMES])
    signs = np.sign((found * expected).sum(axis=0))  # the sign of an axis is arbitrary
    np.testing.assert_allclose(found, expected * signs, atol=1e-5)
    assert done.fitted.features.items is not None and done.fitted.features.items.dense_width == 2


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 2**31))
def test_whitening_by_closed_form(rows: int, width: int, seed: int) -> None:
    """Whitened vectors have mean 0 and, in each direction in which they vary, variance 1; pca keeps distances."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, width)) @ rng.standard_normal((width, width)) + 3).astype(np.float32)
    names = pl.Series([str(i) for i in range(rows)])
    white = Vectors.from_matrix(names, x, [parse_way("whiten")]).matrix[1:]
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-2)
    covariance = white.T @ white / rows
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0, atol=3e-2)
    variances = np.diag(covariance)
    assert all(abs(v - 1) < 3e-2 or v < 1e-6 for v in variances)
    if width <= rows:
        turned = Vectors.from_matrix(names, x, [parse_way({"pca": width})]).matrix[1:]
        distances = [np.linalg.norm(m[:, None] - m[None], axis=2) for m in (x, turned)]
        np.testing.assert_allclose(*distances, atol=1e-3, rtol=1e-3)


def test_new_vectors_are_normalised_as_the_others(tmp_path: Path) -> None:
    ways = [parse_way({"whiten": 3}), parse_way("l2"), parse_way({"pca": 2})]
    vectors = Vectors.from_matrix(pl.Series(NAMES), MATRIX, ways)
    vectors.save(tmp_path, "text")
    for v in (vectors, Vectors.load(tmp_path, "text")):
        np.testing.assert_allclose(v.normalise(MATRIX), vectors.matrix[1:], atol=1e-6)


def test_alone_or_added_to_the_vector_of_the_id(tmp_path: Path) -> None:
    """ids=false leaves one row for all items, and two items differ by their vectors alone."""
    for ids in ("true", "false"):
        done = prepared(tmp_path, f"ids: {ids}, vectors: {{text: {{file: v.parquet, key: id, normalise: []}}}}")
        features = FeatureSpec.load(done.folder / "features.json")
        assert features == done.fitted.features and features.item_ids == (ids == "true")
        items = Items(features, 8)
        items.candidates = candidates_of(done.fitted)
        [table] = [p for n, p in items.named_parameters() if n.startswith("ids")]
        assert len(table) == (5 if ids == "true" else 1)
        with torch.no_grad():
            found = items(torch.tensor([1, 5, 2]))
        assert items.dense is not None
        mapped = items.dense(items.candidates.dense[[1, 5, 2]])  # type: ignore[index]
        row = table[[1, 0, 2] if ids == "true" else [0, 0, 0]]  # a cold item has row 0
        torch.testing.assert_close(found, mapped + row)


def frame(names: list[str], vectors: list[Any]) -> pl.DataFrame:
    return pl.DataFrame({"id": names, "vector": vectors})


FILE = "vectors: {text: {file: v.parquet, key: id}}"
WAY = "vectors: {text: {file: v.parquet, key: id, normalise: [%s]}}"
NAN = [[1.0], [float("nan")]]
MISTAKES = {
    "duplicate": (FILE, frame(["i0", "i1", "i0"], [[1.0], [2.0], [3.0]]), "more than one vector for 'i0', in rows 1"),
    "nan": (FILE, frame(["i0", "i1"], NAN), "row 2: the vector of 'i1' has an infinite or missing number"),
    "width": (FILE, frame(["i0", "i1"], [[1.0, 2.0], [1.0]]), "row 2, of 'i1', has 1 numbers, the first one 2"),
    "components": (WAY % "{pca: 9}", None, "normalise: {pca: 9}: the vectors have 4 numbers; take 4 or fewer"),
    "few": (WAY % "{pca: 4}", None, "4 components are too many: only 3 of them are of training rows; take 3"),
    "count": (WAY % "pca", None, "normalise: pca needs the number of components"),
    "way": (WAY % "whitn", None, "normalise: whitn is unknown; did you mean whiten?"),
    "strangers": (FILE, frame(["x0", "x1"], [[1.0], [2.0]]), "no file has a row for any of the items"),
    "array": ("vectors: {text: {file: v.npz, key: ids}}", None, "has no array ids; did you mean id?"),
    "ids": ("ids: false", None, "data.items.ids=false: items have no features; name a file of vectors"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(tmp_path: Path, mistake: str) -> None:
    items, given_frame, expected = MISTAKES[mistake]
    with pytest.raises(UserError) as e:
        prepared(tmp_path, items, given_frame)
    assert expected in str(e.value) and "\n" not in str(e.value)
