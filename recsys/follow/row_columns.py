"""Columns of the raw rows that a model has predicted, for slices and clusters: matched by the number of the row.

They are parsed with the config of the predictions, so that rows that cannot be read are set aside, and groups are
arranged, in the same way: row N of a split here is row N of the predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from recsys.base.console import hidden
from recsys.base.errors import UserError, did_you_mean
from recsys.data.features.blocks import LABEL
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.prepare.check_data import check_raw_files
from recsys.data.prepare.plan_build import plan_build
from recsys.data.prepare.shuffle import decode_column
from recsys.data.prepare.split import SPLITS
from recsys.data.raw import read_sources
from recsys.data.raw.derive import complete_rows
from recsys.data.raw.raw_schema import completed
from recsys.files.atomic import whole_file
from recsys.job.run_config import RunConfig
from recsys.schema.data_schema import SparseConfig

FILE = "columns.parquet"
FEATURE = "follow_column_"
MISSING = "(missing)"
OURS = ("label", "probability")  # columns of predictions
TEST = SPLITS.index("test")


def write_columns(cfg: RunConfig, names: Sequence[str], output: Path) -> None:
    """Write columns of the test rows of a config to `output`, as text, row by row; without names, nothing is written.

    Raises UserError if the files lack a column, or cannot be read.
    """
    names = list(dict.fromkeys(names))
    if not names:
        return
    data = cfg.data
    features = {
        f"{FEATURE}{i}": SparseConfig(column=n, model=False, per=None if data.sequences is None else "group")
        for i, n in enumerate(names)  # of a sequence, the value of its last row
    }
    build = plan_build(replace(data, sparse={**data.sparse, **features}))  # features that no model reads
    if build.data.group is None:  # rows of other splits do not change the order of these
        build = replace(build, chunks=[c for c in build.chunks if c.split == TEST])
    frames = []
    with hidden(), TemporaryDirectory(dir=build.data.prepared, prefix="rows-") as folder:
        chunks, splitter, _ = replace(build, folder=Path(folder)).parsed()
        for chunk in chunks:
            text = chunk.values([f"{FEATURE}{i}" for i in range(len(names))])
            for frame in chunk.frames([*text, LABEL, *splitter.columns]):
                columns = [decode_column(n, frame, t) for n, t in text.items()]
                known = frame.with_columns(columns).filter(pl.Series(splitter.assign(frame, chunk.split) == TEST))
                label = [pl.col(LABEL).alias(LABEL)] if LABEL in frame.columns else []
                frames.append(known.select(*(pl.col(f"{FEATURE}{i}").alias(n) for i, n in enumerate(names)), *label))
    with whole_file(output / FILE) as building:
        pl.concat(frames).write_parquet(building)


def read_columns(folder: Path, names: Sequence[str], rows: pl.Series, label: pl.Series | None) -> pl.DataFrame:
    """Return columns of the rows that were predicted: (R,) text, null where a row has no value.

    Raises UserError if the columns are those of other rows.

    folder: a folder that `write_columns` has written to
    rows: (R,) the number of each row in the split
    label: (R,) the labels of these rows, which must be those of the columns' rows; None if rows have none
    """
    frame = pl.read_parquet(folder / FILE)
    same = len(rows) == 0 or int(rows.max()) < frame.height  # type: ignore[arg-type]
    if same:
        frame = frame[rows.to_numpy()]
    if same and label is not None and LABEL in frame.columns:
        same = bool((frame[LABEL].cast(pl.Float64) == label.cast(pl.Float64)).all())
    if not same:
        raise UserError(f"{folder}: the files have changed since the model predicted them; remove {folder.parent}")
    return frame.select(names)


def clusters(column: pl.Series) -> np.ndarray:
    """Return the number of each row's cluster: (R,) int64. A row without a value is a cluster of its own."""
    own = pl.Series(-1 - np.arange(len(column)))
    return column.rank("dense").cast(pl.Int64).fill_null(own).to_numpy()


def check_settings_columns(data: ResolvedData, columns: Mapping[str, str]) -> None:
    """Raise UserError if the first file of a config lacks a column. columns: by the key that names each"""
    [(file, _), *_] = check_raw_files(data)
    whole = completed(data, file)
    sides = [(join, read_sources.check_side_columns(whole, join, "data.source.joins")) for join in whole.source.joins]
    frame = read_sources.rename_columns(whole.source, file, read_sources.raw_frame(whole, file))
    known = complete_rows(frame, sides, whole.derive).schema  # with the columns of joins and the derived ones
    for key, column in columns.items():
        if column not in known:
            raise UserError(f"{key}: {file} has no column {column}{did_you_mean(column, known)}")
        if column in (*data.label_columns, *OURS):
            raise UserError(f"{key}: {column} is the label or a prediction; name another column, or rename it")
        if known[column].is_nested():
            raise UserError(f"{key}: the column {column} holds {known[column]}; name one with one value in each row")
