"""Rows of equal vectors."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recsys.index.protocol import equal_rows


@given(
    st.lists(st.lists(st.sampled_from([-0.0, 0.0, 1.5, -2.0]), min_size=3, max_size=3), max_size=12), st.integers(1, 4)
)
def test_the_first_of_equal_vectors(rows: list[list[float]], block: int) -> None:
    later, first = equal_rows(np.array(rows, np.float32).reshape(-1, 3), block)
    expected = {j: rows.index(row) for j, row in enumerate(rows) if rows.index(row) < j}
    assert dict(zip(later.tolist(), first.tolist(), strict=True)) == expected
