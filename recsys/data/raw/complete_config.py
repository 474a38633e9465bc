"""Complete a data config with what its files say: the columns of joined tables, and the widths of vectors."""

from dataclasses import replace
from pathlib import Path

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.resolved_data import ResolvedData, with_zones
from recsys.data.raw import read_sources
from recsys.data.raw.derive import complete_rows
from recsys.data.raw.formats import empty_frame
from recsys.schema.data_schema import DenseConfig, SparseConfig


def completed(data: ResolvedData, file: Path) -> ResolvedData:
    """Return the config with all that it leaves to the files. file: the first raw file"""
    joins = []
    for join in data.source.joins:
        if not join.columns:  # it brings all columns of its file
            side = empty_frame(read_sources.join_source(join), read_sources.side_file(data, join))
            join = replace(join, columns=read_sources.side_columns(join, side.columns))
        joins.append(join)
    data = data if joins == data.source.joins else replace(data, source=replace(data.source, joins=joins))
    # the width of each dense feature whose column holds vectors: lists, or text that the feature says how to split
    if not any(c is None or (c.width is None and c.vectors is None) for c in data.dense.values()):
        return data
    sides = [(join, read_sources.check_side_columns(data, join, "data.source.joins")) for join in data.source.joins]
    raw = read_sources.rename_columns(data.source, file, read_sources.raw_frame(data, file))
    types = complete_rows(raw, sides, data.derive).schema
    data = with_zones(data, types)
    wanted = {
        name: (c and c.column) or name
        for name, c in data.dense.items()
        if not (c and (c.width or c.vectors or c.cyclic))
        and (isinstance(types.get((c and c.column) or name), pl.List | pl.Array) or (c and c.split))
    }
    if not wanted:
        return data
    widths = _widths(data, file, wanted)
    dense = {n: replace(c or DenseConfig(), width=widths[n]) if n in widths else c for n, c in data.dense.items()}
    return replace(data, dense=dense)


def _widths(data: ResolvedData, file: Path, columns: dict[str, str]) -> dict[str, int]:
    """Return the width of the first vector of each feature. columns: their columns"""
    widths: dict[str, int] = {}
    every = replace(data, dense={}, sparse={n: SparseConfig(column=c) for n, c in columns.items()})
    for block in read_sources.read_blocks(every, file):
        for name, column in columns.items():
            values = block.frame[column].drop_nulls()
            if name in widths or values.is_empty():
                continue
            if values.dtype == pl.String:
                separator = (data.dense[name] or DenseConfig()).split or ","
                widths[name] = sum(part.strip() != "" for part in values[0].strip("[]() \t").split(separator))
            else:
                widths[name] = len(values[0])
        if len(widths) == len(columns):
            return widths
    missing = next(c for n, c in columns.items() if n not in widths)
    raise UserError(f"data.dense: {file.name} has no vector in column {missing}; set width")
