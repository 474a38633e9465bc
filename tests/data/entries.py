"""Compare what the entries of a data config make of the same rows: prepared files, data frames, files, single rows."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import torch

from recsys.data.features import parse_rows
from recsys.data.features.batch_tensors import RowTensors
from recsys.data.features.blocks import LINE, Block
from recsys.data.prepare.prepared import Prepared
from recsys.data.raw import formats, read_sources
from recsys.online.predictor import file_blocks
from recsys.online.row_transforms import RowTransforms
from recsys.schema.data_schema import DataConfig


def moved(prepared: Prepared, tmp_path: Path) -> RowTransforms:
    """Save a pipeline, move its folder, and load it where the raw data is not."""
    RowTransforms.load(prepared.folder).save(tmp_path / "saved")
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    state = json.loads((tmp_path / "elsewhere" / "transforms.json").read_text())
    state["data"]["root"] = "/nowhere"
    (tmp_path / "elsewhere" / "transforms.json").write_text(json.dumps(state))
    return RowTransforms.load(tmp_path / "elsewhere")


def together(tensors: list[RowTensors]) -> RowTensors:
    names = tensors[0].values
    return RowTensors(
        torch.cat([t.dense for t in tensors]),
        {n: torch.cat([t.values[n] for t in tensors]) for n in names},
        {n: torch.cat([t.lengths[n] for t in tensors]) for n in names},
    )


def assert_same(a: RowTensors, b: RowTensors) -> None:
    assert a.dense.dtype == b.dense.dtype == torch.float32
    assert torch.equal(a.dense.view(torch.int32), b.dense.view(torch.int32))
    assert list(a.values) == list(b.values) == list(a.lengths) == list(b.lengths)
    for x, y in ((a.values, b.values), (a.lengths, b.lengths)):
        for name in x:
            assert x[name].dtype == y[name].dtype == torch.int32
            assert torch.equal(x[name], y[name]), name


def as_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert text that is a whole number to that number."""
    return {k: int(v) if isinstance(v, str) and v.isdecimal() and str(int(v)) == v else v for k, v in row.items()}


def raw_frame(data: DataConfig, file: Path) -> pl.DataFrame:
    """Read a file as it is: neither renamed, nor joined, nor derived."""
    names = formats.column_names(data.source, file)
    return pl.concat([b.frame for b in formats.read(data.source, file, names)])


def check_entries(prepared: Prepared, data: DataConfig, pipeline: RowTransforms, rows: int) -> None:
    """Check all rows in batch, and the last ones, those of validation and test among them, one by one."""
    files = read_sources.find_files(data, [*data.split.validation_files, *data.split.test_files] or None)
    if data.split.by == "files":
        files = files[::-1]  # validation first
    raw = pl.concat([raw_frame(data, f) for f in files]).drop(LINE)
    blocks = [b.frame for f in files for b in read_sources.read_blocks(data, f)]
    frame, bad = parse_rows(data, Block(files[0], pl.concat(blocks)), labelled=False)
    assert not bad and frame.height == raw.height
    raw_rows = pipeline._rows
    batch = prepared.fitted.apply(raw_rows.in_context(frame))
    done = pl.concat([pl.read_parquet(f) for s in ("validation", "test") for f in prepared.files(s)])
    held = RowTensors.from_frame(done, pipeline.features)
    assert_same(RowTensors.from_frame(batch.tail(done.height), pipeline.features), held)
    # the entries of recsys.predict: a data frame as the files have it, and the files
    parsed, bad = raw_rows.parse_frame(raw)
    assert not bad
    assert_same(
        RowTensors.from_frame(prepared.fitted.apply(raw_rows.in_context(parsed)), pipeline.features),
        RowTensors.from_frame(batch, pipeline.features),
    )
    if data.source.format == "split_binary" or data.group is not None:  # rows to predict come in one file
        files = [prepared.folder / "rows.parquet"]
        raw.write_parquet(files[0])
    scored = pl.concat([prepared.fitted.apply(rows) for f in files for rows, _ in file_blocks(raw_rows, f)])
    assert_same(RowTensors.from_frame(scored, pipeline.features), RowTensors.from_frame(batch, pipeline.features))
    if data.group is not None:  # a row alone has no earlier rows
        return
    given = raw.tail(rows).to_dicts()
    text = data.source.format != "parquet"
    mixed = [as_numbers(row) if text and i % 2 else row for i, row in enumerate(given)]
    # a few hundred at once: Python's collector walks over all tensors that are alive
    single = together([together([pipeline(row) for row in mixed[i : i + 250]]) for i in range(0, len(mixed), 250)])
    assert_same(single, RowTensors.from_frame(batch.tail(rows), pipeline.features))
    assert_same(pipeline(given), single)
    columns = {name: [row[name] for row in given] for name in given[0]}
    for arrays in (pipeline.arrays(given), pipeline.arrays_of_columns(columns, rows)):
        assert_same(RowTensors.from_arrays(arrays, pipeline.features), single)
    last = min(done.height, rows)
    assert torch.equal(single.dense[-last:], held.dense[-last:])
    for f in pipeline.features.sparse:
        if not f.multi_valued:
            assert torch.equal(single.values[f.name][-last:], held.values[f.name][-last:])


def check_histories(prepared: Prepared, data: DataConfig, pipeline: RowTransforms) -> None:
    """Check that the rows that lists are recommended for are those that prepared data is made of, without its files.

    They come as data frames, as the files have them, and from files.
    """
    raw_rows, config = pipeline._rows, read_sources.history_config(data)
    away = replace(config, root="/nowhere")
    for file in read_sources.find_files(data):
        expected = pl.concat([parse_rows(config, b, labelled=False)[0] for b in read_sources.read_blocks(config, file)])
        assert expected.height
        frame, bad = raw_rows.parse_frame(raw_frame(data, file).drop(LINE), past=True)
        assert not bad
        assert frame.drop(LINE).equals(expected.drop(LINE).select(frame.drop(LINE).columns))
        complete = lambda frame: raw_rows.keep_history(raw_rows.complete(frame))  # noqa: E731
        blocks = read_sources.read_blocks(away, file, complete=complete)
        assert pl.concat([parse_rows(config, b, labelled=False)[0] for b in blocks]).equals(expected)
