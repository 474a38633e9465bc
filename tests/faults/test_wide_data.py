"""Wide data are prepared in a time proportional to their cells. Work is counted, because time is not repeatable."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl
import pytest

from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.check_data import check_data
from recsys.data.prepare.prepared import prepare
from recsys.schema.data_schema import DataConfig, LabelConfig
from recsys.schema.source_schema import SourceConfig

ROWS = 200


def wide(folder: Path, columns: int) -> DataConfig:
    """Write a.csv, whose columns are half dense and half sparse, and return its config."""
    folder.mkdir()
    dense, sparse = ([f"{kind}{i}" for i in range(columns // 2)] for kind in "ds")
    values = {"label": [i % 2 for i in range(ROWS)]}
    values |= {name: [i % 7 + 0.5 for i in range(ROWS)] for name in dense}
    pl.DataFrame(values | {name: [f"v{i % 5}" for i in range(ROWS)] for name in sparse}).write_csv(folder / "a.csv")
    source, label = SourceConfig(files=["*.csv"]), LabelConfig(column="label")
    return DataConfig(
        name="wide",
        root=str(folder),
        prepared=str(folder / "prepared"),
        source=source,
        label=label,
        dense=dict.fromkeys(dense),
        sparse=dict.fromkeys(sparse),
    )


class Work:
    """Python calls, and the names of columns that data frames have listed."""

    calls = names = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Count the work of the block, in all threads that it starts."""
    work = Work()

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        work.calls += event == "call"

    def listed(name: str) -> property:
        get = getattr(pl.DataFrame, name).fget

        def value(self: pl.DataFrame) -> Any:
            work.names += self.width
            return get(self)

        return property(value)

    with monkeypatch.context() as m:
        for name in ("schema", "columns", "dtypes"):
            m.setattr(pl.DataFrame, name, listed(name))
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            yield work
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]


def test_twice_the_columns_are_twice_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(wide(tmp_path / "first", 4))  # imports, caches
    done = {}
    for columns in (60, 120):
        data = wide(tmp_path / str(columns), columns)
        with counted(monkeypatch) as work:
            check_data(data)
            prepared = prepare(data)
            loader = ParquetLoader(prepared.files("train"), prepared.fitted.features, batch_size=50, training=True)
            assert sum(batch.rows for batch in loader) == 160  # the last rows are a batch of 10
        done[columns] = work
    assert done[120].calls < 2.1 * done[60].calls
    assert done[120].names < 2.1 * done[60].names
