"""Shares of rows for a hit rate."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recsys.data.loader.training_rows import load_factors


def folder_of(counts: list[int], path: Path) -> Path:
    (path / "vocabularies").mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"count": counts}, schema={"count": pl.UInt32}).write_parquet(path / "vocabularies" / "a.parquet")
    return path


@example(counts=[90, 5, 5], hit_rate=0.9)
@given(counts=st.lists(st.integers(1, 1000), max_size=200), hit_rate=st.floats(0.01, 0.99))
def test_the_rows_cached_get_the_rate_and_one_fewer_does_not(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], hit_rate: float
) -> None:
    found = load_factors(folder_of(counts, tmp_path_factory.mktemp("v")), hit_rate)["a"]
    cached = round(found * (len(counts) + 1)) - 1  # row 0 is another
    if not counts:
        assert cached == 0
        return
    hits, wanted = np.cumsum(np.sort(counts)[::-1]), hit_rate * sum(counts)
    assert hits[cached - 1] >= wanted and (cached == 1 or hits[cached - 2] < wanted)
