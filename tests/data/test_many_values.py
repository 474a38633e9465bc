"""Many distinct values: sums of counts by ranges of values, look-ups by hash, and the memory that they take."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.features.value_index import ValueIndex
from recsys.data.prepare import engine
from recsys.data.prepare.engine import OneMachine

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=30)
PREPARE = """
import resource, sys
from pathlib import Path
import polars as pl
from recsys.data.prepare.prepared import prepare
from recsys.schema.data_schema import DataConfig, LabelConfig, SparseConfig, SplitConfig
from recsys.schema.source_schema import SourceConfig

folder, rows = Path(sys.argv[1]), int(sys.argv[2])
place = pl.int_range(rows, dtype=pl.Int64)
scan = pl.select(place.alias("id")).lazy().select((pl.col("id") * 1_000_003 % (10 * rows)).alias("id"))
scan.with_columns((pl.col("id") % 2).alias("label")).sink_parquet(folder / "rows.parquet", row_group_size=1 << 19)
data = DataConfig(
    name="many", root=str(folder), prepared=str(folder / "prepared"), source=SourceConfig(format="parquet", files=["*"]),
    label=LabelConfig(column="label"), split=SplitConfig(by="order"), sparse={"id": SparseConfig(min_count=1)},
)
print(prepare(data).fitted.features.sparse[0].cardinality, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_sums_by_ranges_equal_one_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    files = []
    for n in range(5):
        values = pl.Series("value", random.integers(0, 3000, 2000)).cast(pl.String)
        table = pl.DataFrame([values, pl.Series("fold", random.integers(0, 3, 2000))]).unique()
        counts = pl.Series("count", random.integers(1, 9, table.height))
        files.append(tmp_path / f"{n}.parquet")
        table.with_columns(counts, sum=counts * 0.5).write_parquet(files[-1])
    for keys in (["value"], ["value", "fold"]):
        whole = OneMachine().total(files, keys, 9).drop([] if "fold" in keys else "fold")
        with monkeypatch.context() as patch:
            patch.setattr(engine, "PART_ROWS", 700)
            patch.setattr(engine, "SAMPLES_PER_PART", 10)
            parts = OneMachine().total(files, keys, 9).select(whole.columns)
            assert OneMachine().total(files, keys, 1 << 40).schema == OneMachine().total(files, keys, 9).schema
        assert parts.equals(whole) and whole[keys].equals(whole[keys].sort(keys)) and whole.height > 1000
        assert whole["count"].min() >= 9  # type: ignore[operator]
    assert sorted(tmp_path.iterdir()) == files


@given(texts, texts, st.booleans())
def test_long_columns_are_looked_up_as_a_dict_does(known: list[str], asked: list[str], collide: bool) -> None:
    values, column = pl.Series(sorted({*known}), dtype=pl.String), pl.Series([*asked, *known, None], dtype=pl.String)
    index = ValueIndex(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.data.features.value_index.MAX_DICT_ROWS", -1)
        if collide:
            patch.setattr(pl.Series, "hash", lambda text: text.str.len_bytes().cast(pl.UInt64))
        found = index.look_up(column)
    of_values = {v: 1 + i for i, v in enumerate(values)}
    assert found.to_list() == [of_values.get(v or "", 0) for v in column] and found.dtype == pl.Int32


@pytest.mark.slow
def test_memory_grows_by_the_vocabulary_alone(tmp_path: Path) -> None:
    """A value takes 24 bytes, twice while values are ordered, and 12 of its hash; one hash table of all took 250."""
    peaks = []
    for rows in (1_000_000, 20_000_000):
        folder = tmp_path / f"{rows}"
        folder.mkdir()
        command = [sys.executable, "-c", PREPARE, folder, str(rows)]
        result = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        values, peak = map(int, result.split())
        assert values > 0.75 * rows
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 16_000_000 * 100, peaks
