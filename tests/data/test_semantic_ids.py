"""Semantic ids: codebooks against NumPy, unique codes, features of items and of rows, codes of a file and of new items."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import of_yaml

from recsys.base.errors import UserError
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.prepare import check_data as checks
from recsys.data.prepare.prepared import Prepared, prepare
from recsys.data.semantic_ids import residual_codes
from recsys.data.semantic_ids.fit_semantic_ids import CodeTable, SemanticIds, read_codes, use_of_codes
from recsys.data.semantic_ids.residual_codes import ResidualCodes, fit_residual_kmeans, fit_rqvae, kmeans, nearest
from recsys.online.row_transforms import RowTransforms

MATRIX = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
NAMES = [f"i{n}" for n in range(50)]
RETRIEVAL = """
    group: {by: user, order: t}
    sequences: {max_length: 3}
    split: {by: leave_one_out}
    sparse: {item: {}}
"""
ROWS = """
    sparse: {item: {}}
"""


def prepared(tmp_path: Path, text: str, ids: str, codes: Any = None) -> Prepared:
    raw = tmp_path / "raw"
    raw.mkdir(exist_ok=True)
    rows = [f"u{u},i{(u + k) % 40},{k},{k % 2}" for u in range(40) for k in range(5)]
    (raw / "f.csv").write_text("\n".join(["user,item,t,y", *rows]) + "\n")
    pl.DataFrame({"id": NAMES, "vector": MATRIX.tolist()}).write_parquet(raw / "v.parquet")
    (raw / "codes.json").write_text(json.dumps(codes))
    label = "null" if text is RETRIEVAL else "y"
    data = of_yaml(f"{text}\n    label: {{column: {label}}}\n    semantic_ids: {ids}")
    source = replace(data.source, files=["f.csv"])
    data = replace(data, root=str(raw), prepared=str(tmp_path / "prepared"), source=source)
    checks.check_data(data)
    checks.check_raw_files(data)
    return prepare(data)


matrices = st.tuples(st.integers(1, 60), st.integers(1, 5), st.integers(0, 2**31))


@settings(max_examples=30, deadline=None)
@given(matrices, st.integers(2, 9), st.integers(1, 3))
def test_codes_are_the_nearest_centroids_of_residuals(shape: tuple[int, int, int], size: int, levels: int) -> None:
    rows, width, seed = shape
    x = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    books = fit_residual_kmeans(x, levels, size, seed=0)
    codes = books.codes(x)
    residual = x.astype(np.float64)
    for level, table in enumerate(books.tables):
        assert len(table) <= min(size, rows)
        distances = np.linalg.norm(residual[:, None] - table[None], axis=2)
        chosen = distances[np.arange(rows), codes[:, level]]
        np.testing.assert_allclose(chosen, distances.min(axis=1), atol=1e-6)
        residual = residual - table[codes[:, level]]
    np.testing.assert_allclose(x - books.reconstruct(codes), residual, atol=1e-4)
    errors = [((x - books.reconstruct(codes[:, : n + 1])) ** 2).sum() for n in range(levels)]
    assert all(later <= earlier + 1e-4 for earlier, later in pairwise(errors))


@settings(max_examples=20, deadline=None)
@given(matrices, st.integers(1, 70))
def test_chunks_and_seeds(shape: tuple[int, int, int], chunk: int) -> None:
    """The same seed gives the same codes, whatever the size of the chunks."""
    rows, width, seed = shape
    x = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    expected = fit_residual_kmeans(x, 2, 4, seed=1).codes(x)
    before = residual_codes.CHUNK
    try:
        residual_codes.CHUNK = chunk
        np.testing.assert_array_equal(fit_residual_kmeans(x, 2, 4, seed=1).codes(x), expected)
    finally:
        residual_codes.CHUNK = before


def test_clusters_far_apart_are_found() -> None:
    centres = np.array([[0, 0], [100, 0], [0, 100], [100, 100]], np.float32)
    x = np.repeat(centres, 25, axis=0) + MATRIX[:, :2].repeat(2, axis=0)
    table = kmeans(x, 4, np.random.default_rng(0))
    means = np.stack([x[i * 25 : (i + 1) * 25].mean(axis=0) for i in range(4)])
    np.testing.assert_allclose(table[nearest(means, table)], means, atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40), st.integers(0, 40))
def test_numbers_make_codes_unique(codes: list[tuple[int, int]], known: int) -> None:
    """Also if some items come later; these do not change the codes of earlier ones."""
    array = np.array(codes)
    table = CodeTable(pl.Series([str(i) for i in range(len(array))]), array).with_numbers()
    assert len(np.unique(table.codes, axis=0)) == len(array)
    np.testing.assert_array_equal(table.codes[:, :2], array)
    first = CodeTable(table.items[:known], array[:known]).with_numbers()
    later = CodeTable(table.items[known:], array[known:]).with_numbers(first)
    np.testing.assert_array_equal(np.concatenate([first.codes, later.codes]), table.codes)


def test_use_of_codes() -> None:
    [level] = use_of_codes(np.array([[0], [0], [1], [1]]), 4)
    assert level["used"] == 2 and level["perplexity"] == pytest.approx(2)


@pytest.mark.parametrize("method", ["kmeans", "rqvae"])
def test_features_of_items(tmp_path: Path, method: str) -> None:
    """The codes of the table, from 1, also of items without training rows; items without a vector have 0."""
    ids = f"{{vectors: {{file: v.parquet, key: id, normalise: []}}, levels: 2, size: 8, method: {method}, epochs: 4}}"
    done = prepared(tmp_path, RETRIEVAL, ids)
    folder = done.folder / "vocabularies" / "semantic_ids"
    assert done.fitted.data.semantic_ids is not None
    stored = SemanticIds.load(folder, done.fitted.data.semantic_ids)
    assert stored.books is not None and stored.vectors is not None
    np.testing.assert_array_equal(stored.table.codes[:, :2], stored.books.codes(MATRIX))
    candidates, features = candidates_of(done.fitted), done.fitted.features.items
    assert features is not None and [(f.name, f.cardinality) for f in features.sparse] == [
        (f"semantic_{i}", 9) for i in (1, 2, 3)
    ]
    codes = np.stack([candidates.values[f"semantic_{i}"].numpy() for i in (1, 2, 3)], axis=1)
    of_item = dict(zip(stored.table.items, stored.table.codes + 1, strict=True))
    assert len(done.fitted.candidates) == 50 and not codes[0].any()
    for row, name in enumerate(done.fitted.candidates, 1):
        np.testing.assert_array_equal(codes[row], of_item[name])
    report = json.loads((folder / "report.json").read_text())
    assert report["items"] == 50 and report["collisions"]["unique"] and len(report["levels"]) == 3
    assert prepared(tmp_path, RETRIEVAL, ids).folder == done.folder
    if method == "kmeans":  # of RQ-VAE with few epochs, errors are larger than the vectors themselves
        errors = [level["reconstruction_error"] for level in report["levels"][:2]]
        x = MATRIX - stored.books.reconstruct(stored.table.codes[:, :2])
        assert errors[1] == pytest.approx((x**2).sum() / ((MATRIX - MATRIX.mean(axis=0)) ** 2).sum(), rel=1e-4)
        assert 0 < errors[1] < errors[0] < 1


def test_new_items_have_codes(tmp_path: Path) -> None:
    """A new item with the vector of a known one shares its codes but for the number against collisions."""
    ids = "{vectors: {file: v.parquet, key: id, normalise: [{pca: 4}, l2]}, levels: 2, size: 16}"
    done = prepared(tmp_path, RETRIEVAL, ids)
    assert done.fitted.data.semantic_ids is not None
    stored = SemanticIds.load(done.folder / "vocabularies" / "semantic_ids", done.fitted.data.semantic_ids)
    new = stored.code_new(pl.Series(["a", "b"]), MATRIX[[3, 3]])
    np.testing.assert_array_equal(new.codes[:, :2], stored.table.codes[[3, 3], :2])
    every = np.concatenate([stored.table.codes, new.codes])
    assert len(np.unique(every, axis=0)) == 52


def test_features_of_rows(tmp_path: Path) -> None:
    """Of ranking data, codes are joined to the rows, also to those that a server reads; prefixes are features, too."""
    ids = "{column: item, vectors: {file: v.parquet, key: id, normalise: []}, levels: 2, size: 8, prefixes: true}"
    done = prepared(tmp_path, ROWS, ids)
    names = [f.name for f in done.fitted.features.sparse]
    assert names == ["item", "semantic_1", "semantic_2", "semantic_3", "semantic_1_2", "semantic_1_2_3"]
    stored = pl.read_parquet(done.folder / "vocabularies" / "semantic_ids" / "codes.parquet")
    rows = RowTransforms.load(done.folder)
    row = stored.row(by_predicate=pl.col("item") == "i7", named=True)
    ids = rows({"item": "i7"}).values
    for name in names[1:]:
        table = done.fitted.vocabularies[name]
        assert table["value"][int(ids[name][0]) - 1] == str(row[name])
    unknown = rows({"item": "never"}).values
    assert all(int(unknown[n][0]) == 0 for n in names)


def test_codes_of_a_file(tmp_path: Path) -> None:
    codes = {f"i{n}": [n % 3, n // 3] for n in range(45)}
    done = prepared(tmp_path, RETRIEVAL, "{codes: codes.json, levels: 2, size: 20, unique: false}", codes)
    candidates = candidates_of(done.fitted)
    assert len(done.fitted.candidates) == 45
    for row, name in enumerate(done.fitted.candidates, 1):
        found = [int(candidates.values[f"semantic_{i}"][row]) - 1 for i in (1, 2)]
        assert found == codes[name]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"a": [1, 2, 3]}, "item 'a' has 3 codes, not 2; set data.semantic_ids.levels=3"),
        ({"a": [1, 9]}, "item 'a': codes [1, 9] are not from 0 to 7; set data.semantic_ids.size=10 or more"),
        ({"a": [1, -1]}, "item 'a': codes [1, -1] are not from 0 to 7; codes begin with 0"),
        ({"a": [1, "2"]}, "item 'a': [1, '2'] is not a list of whole numbers"),
        ([1, 2], "must be an object {item: [code, ...], ...}"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, codes: Any, expected: str) -> None:
    (tmp_path / "codes.json").write_text(json.dumps(codes))
    with pytest.raises(UserError) as e:
        read_codes(tmp_path / "codes.json", "data.semantic_ids.codes", 2, 8)
    assert expected in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("text", "ids", "expected"),
    [
        (RETRIEVAL, "{codes: codes.json, vectors: {file: v.parquet}}", "data.semantic_ids: names vectors and codes"),
        (RETRIEVAL, "{codes: no.json}", "data.semantic_ids.codes: no such file: "),
        (RETRIEVAL, "{codes: codes.json, column: item}", "data.semantic_ids.column=item: applies to rows"),
        (ROWS, "{codes: codes.json}", "data.semantic_ids.column: missing"),
        (RETRIEVAL, "{codes: codes.json, method: rqva}", "semantic_ids.method=rqva: must be kmeans or rqvae"),
        (RETRIEVAL, "{vectors: {file: v.parquet, key: id}, levels: 1, size: 2}", "raise data.semantic_ids.levels"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, ids: str, expected: str) -> None:
    with pytest.raises(UserError) as e:
        prepared(tmp_path, text, ids, {})
    assert expected in str(e.value) and "\n" not in str(e.value)


@pytest.mark.slow
def test_an_rqvae_reconstructs_better_than_the_mean() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((400, 3)) @ rng.standard_normal((3, 12))).astype(np.float32)
    books = fit_rqvae(x, levels=3, size=16, epochs=60, seed=0)
    error = ((x - books.reconstruct(books.codes(x))) ** 2).sum() / ((x - x.mean(axis=0)) ** 2).sum()
    assert error < 0.5
    again = fit_rqvae(x, levels=3, size=16, epochs=60, seed=0)
    np.testing.assert_array_equal(books.codes(x), again.codes(x))


def test_codebooks_are_saved(tmp_path: Path) -> None:
    layers = ((MATRIX[:6, :4], MATRIX[0, :4]), (MATRIX[:4, :3], MATRIX[1, :3]))
    books = ResidualCodes((MATRIX[:5, :3], MATRIX[5:9, :3]), layers, ((MATRIX[:3], MATRIX[2]),))
    books.save(tmp_path / "b.npz")
    again = ResidualCodes.load(tmp_path / "b.npz")
    np.testing.assert_array_equal(again.codes(MATRIX), books.codes(MATRIX))
    np.testing.assert_array_equal(again.reconstruct(again.codes(MATRIX)), books.reconstruct(books.codes(MATRIX)))
