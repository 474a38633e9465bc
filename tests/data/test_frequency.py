"""Shares of rows for a hit rate: closed forms, and a property."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.loader.training_rows import load_factors


def folder_of(counts: list[int], path: Path) -> Path:
    (path / "vocabularies").mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"count": counts}, schema={"count": pl.UInt32}).write_parquet(path / "vocabularies" / "a.parquet")
    return path


@pytest.mark.parametrize(
    ("counts", "hit_rate", "rows"),
    [
        ([90, 5, 5], 0.9, 2),  # row 0 and the one that has 90 of 100
        ([90, 5, 5], 0.91, 3),
        ([1] * 99, 0.5, 51),
        ([7], 0.99, 2),
        ([], 0.9, 1),
    ],
)
def test_by_hand(tmp_path: Path, counts: list[int], hit_rate: float, rows: int) -> None:
    assert load_factors(folder_of(counts, tmp_path), hit_rate) == {"a": rows / (len(counts) + 1)}


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_the_rows_cached_get_the_rate_and_one_fewer_does_not(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], hit_rate: float
) -> None:
    found = load_factors(folder_of(counts, tmp_path_factory.mktemp("v")), hit_rate)["a"]
    cached = round(found * (len(counts) + 1)) - 1
    hits = np.cumsum(np.sort(counts)[::-1]) / sum(counts)
    assert hits[cached - 1] >= hit_rate - 1e-9
    assert cached == 1 or hits[cached - 2] < hit_rate + 1e-9
