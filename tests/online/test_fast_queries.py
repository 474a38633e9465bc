"""Queries that NumPy makes of histories are those that polars makes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_rows import of_yaml

from recsys.data.prepare.prepared import prepare
from recsys.online.fast_queries import FastQueries
from recsys.online.queries import Queries
from recsys.online.raw_rows import RawRows, RowFrames
from recsys.online.row_transforms import UNUSUAL

SEQUENCES = """
label: {column: null}
group: {by: user, order: t}
sequences: {max_length: 3}
split: {by: leave_one_out}
items: {feature: item}
sparse:
  item: {}
  kind: {encode: hash, buckets: 50}
  user: {per: group}
"""
LAST = """
label: {column: null}
group: {by: user, order: t}
split: {by: leave_one_out}
items: {feature: item}
sparse:
  item: {}
  user: {}
  viewed: {column: item, table: item, last: 2, pooling: mean}
  kinds: {column: kind, last: 3, pooling: mean}
"""


@pytest.fixture(scope="module")
def frames_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RowFrames]:
    """Return a function that prepares a log."""

    def frames(yaml: str, kind: str = "csv") -> RowFrames:
        rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("log")
        columns = {
            "user": [f"u{i % 7}" for i in range(100)],
            "item": [f"i{i}" for i in rng.integers(0, 9, 100)],
            "kind": rng.choice(["a", "b", ""], 100).tolist(),
            "t": list(range(100)),
        }
        pl.DataFrame(columns).write_csv(folder / "log.csv")
        pl.DataFrame(columns).write_parquet(folder / "log.parquet")
        data = of_yaml(f"source: {{format: {kind}, files: [log.{kind}]}}{yaml}")
        data = replace(data, root=str(folder), prepared=str(folder / "prepared"))
        return RowFrames(RawRows.load(prepare(data).folder))

    return frames


row = st.fixed_dictionaries(
    {"item": st.sampled_from(["i1", "i2", "i3", "new", 7]), "t": st.sampled_from([0, 1, 2, "2", "1e1", "-0"])},
    optional={"kind": st.sampled_from(["a", "b", "c", "", None, 5])},
)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("yaml", [SEQUENCES, LAST])
def test_queries_are_those_of_polars(yaml: str, kind: str, frames_of: Callable[..., RowFrames]) -> None:
    frames = frames_of(yaml, kind)
    fast = FastQueries.from_frames(frames)
    assert fast is not None

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.lists(row, min_size=1, max_size=6), min_size=1, max_size=4))
    def check(histories: list[list[dict[str, object]]]) -> None:
        given_rows = [{**r, "user": f"u{i}"} for i, history in enumerate(histories) for r in history]
        owners = [i for i, history in enumerate(histories) for _ in history]
        found = fast(given_rows, owners, ())
        expected = Queries.from_rows(frames.fitted, frames.parsed(given_rows))
        assert [f"u{g}" for g in found.groups] == expected.groups.to_list()
        for a, b in zip(_arrays(found), _arrays(expected), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)

    check()


def _arrays(queries: Queries) -> list[np.ndarray]:
    x = queries.arrays
    return [x.dense, x.ids, *x.values.values(), *x.lengths.values(), queries.history, queries.lengths]


@pytest.mark.parametrize(
    "wrong",
    [
        {"user": ""},
        {"user": None},
        {"item": ""},
        {"item": None},
        {"item": ["i1"]},
        {"t": ""},
        {"t": "soon"},
        {"t": None},
    ],
)
def test_rows_that_polars_refuses_are_left_to_it(wrong: dict[str, object], frames_of: Callable[..., RowFrames]) -> None:
    fast = FastQueries.from_frames(frames_of(SEQUENCES))
    assert fast is not None
    good = {"user": "u1", "item": "i1", "t": 1}
    with pytest.raises(UNUSUAL):
        fast([good, {**good, **wrong}], [0, 0], ())


@pytest.mark.parametrize(
    "yaml",
    [
        SEQUENCES.replace("max_length: 3", "max_length: 3, pad: left"),
        LAST.replace("order: t", "order: t, gap: 5"),
        SEQUENCES + "where: kind = 'a'\n",
        LAST + "  before: {column: kind, lag: 1}\n",
    ],
)
def test_other_pipelines_go_through_polars(yaml: str, frames_of: Callable[..., RowFrames]) -> None:
    assert FastQueries.from_frames(frames_of(yaml)) is None
