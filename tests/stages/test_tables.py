"""Tables of pipelines."""

from pathlib import Path

import polars as pl
import pytest

from recsys.schema.pipeline_schema import TableConfig
from recsys.stages.read_tables import read_table


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_brackets_in_names_are_no_globs(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "a[b]").mkdir()
    for name, value in (("items[1]", 7), ("items1", 8)):
        frame, file = pl.DataFrame({"item": [value]}), tmp_path / "a[b]" / f"{name}.{suffix}"
        {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[suffix](file)
    for pattern, values in ((f"items[1].{suffix}", [7]), (f"items*.{suffix}", [8, 7])):
        found = read_table(TableConfig(file=pattern), tmp_path / "a[b]", "items")
        assert sorted(found["item"].to_list()) == sorted(values)
