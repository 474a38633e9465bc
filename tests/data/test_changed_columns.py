"""Files that lack a column, joins on derived keys, and what recsys says about files of another kind."""

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from data_configs import small_config

from recsys.base.errors import UserError
from recsys.data.features import ResolvedData
from recsys.data.prepare.check_data import check_data, check_raw_files
from recsys.data.prepare.prepared import prepare
from recsys.data.raw import read_sources
from recsys.data.raw.derive import steps
from recsys.online.row_transforms import RowTransforms
from recsys.schema.data_schema import SparseConfig, SplitConfig
from recsys.schema.source_schema import JoinConfig, SourceConfig

OLD, NEW = pl.DataFrame({"y": [0, 1], "user": ["a", "b"]}), pl.DataFrame({"y": [1], "user": ["a"], "n": [7]})


def config(root: Path, format_: str, **more: object) -> ResolvedData:
    source = SourceConfig(format=format_, files=["*.log"], **more)  # type: ignore[arg-type]
    sparse, split = {"user": SparseConfig(), "n": SparseConfig()}, SplitConfig(by="order", validation=0, test=0.3)
    return small_config(root, root=str(root), source=source, sparse=sparse, split=split)


def _json_lines(frame: pl.DataFrame, file: Path) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in frame.iter_rows(named=True)))


WRITERS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    "csv": lambda frame, file: frame.write_csv(file),
    "jsonl": _json_lines,
    "parquet": lambda frame, file: frame.write_parquet(file),
}


@pytest.mark.parametrize("format_", WRITERS)
def test_a_column_that_one_file_lacks(tmp_path: Path, format_: str) -> None:
    """Its values are missing there, in preparation and in serving; without the key, the error names it."""
    for n, frame in enumerate((OLD, NEW)):
        WRITERS[format_](frame, tmp_path / f"{n}.log")
    with pytest.raises(UserError, match=r"0.log has no column n; .* name it in data.source.optional_columns"):
        check_raw_files(config(tmp_path, format_))
    data = config(tmp_path, format_, optional_columns=["n"])
    check_data(data)
    files = [file for file, _ in check_raw_files(data)]
    frames = [block.frame for file in files for block in read_sources.read_blocks(data, file)]
    assert [str(v) if v is not None else None for f in frames for v in f["n"].to_list()] == [None, None, "7"]
    prepared = prepare(data)
    lacking = RowTransforms.load(prepared.folder)([{"user": "a"}])
    assert (
        lacking.values["n"].tolist()
        == RowTransforms.load(prepared.folder)([{"user": "a", "n": None}]).values["n"].tolist()
    )


def test_joins_on_derived_keys_follow_them() -> None:
    joins = [
        JoinConfig(file="news", key="item", columns={"topic": "topic"}),
        JoinConfig(file="users", key="user"),
        JoinConfig(file="topics", key="topic", columns={"size": "size"}),
    ]
    assert steps(joins, ["day", "item", "large"]) == [1, "day", "item", 0, 2, "large"]


def test_spaces_around_the_parts_of_a_text_are_ignored(tmp_path: Path) -> None:
    pl.DataFrame({"y": [0, 1, 1], "user": ["a, b", "b,a", " a ,c"], "n": [1, 2, 3]}).write_csv(tmp_path / "0.log")
    data = config(tmp_path, "csv", separator=",")
    data.sparse["user"] = SparseConfig(split=",")
    folder = prepare(data).folder
    rows = RowTransforms.load(folder)([{"user": "a, b", "n": 1}, {"user": "a,b", "n": 1}]).values["user"].tolist()
    assert rows[:2] == rows[2:] and len(set(rows)) == 2
