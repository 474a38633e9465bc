"""Read from the raw files what a config leaves open: columns of joined tables, widths of vectors, types of columns.

With the types, and the side tables, serving parses rows in the same way as data preparation, without the raw files:
`raw.parquet` has no rows, only columns and types; `sides/` holds one table for each join that features need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.fitted import RAW_SCHEMA, SIDES
from recsys.data.features.resolved_data import ResolvedData, with_zones
from recsys.data.raw.derive import FeatureInputs, complete_rows
from recsys.files.manifest import DamagedFile
from recsys.schema.data_schema import DenseConfig, SparseConfig


def completed(data: ResolvedData, file: Path) -> ResolvedData:
    """Return the config with all that it leaves to the files. file: the first raw file"""
    from recsys.data.raw import formats, read_sources  # servers need neither

    joins = []
    for join in data.source.joins:
        if not join.columns:  # it brings all columns of its file
            side = formats.empty_frame(read_sources.join_source(join), read_sources.side_file(data, join))
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
    from recsys.data.raw import read_sources

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


@dataclass(frozen=True)
class RawSchema:
    """The raw columns and side tables of a data config.

    columns: a frame without rows: the raw columns that features read, as the YAML names them
    sides: the side tables that features read, by the index of their join
    """

    columns: pl.DataFrame
    sides: dict[int, pl.DataFrame]

    @classmethod
    def from_data(cls, data: ResolvedData) -> RawSchema:
        """Read the side tables and the types of Parquet columns under data.root."""
        from recsys.data.raw import read_sources

        inputs = FeatureInputs.from_config(data)
        sides = {
            i: read_sources.side_table(data, data.source.joins[i], report=say).select(data.source.joins[i].key, *names)
            for i, names in sorted(inputs.sides.items())
        }
        return cls(read_sources.raw_types(data, inputs.raw).select(sorted(inputs.raw)), sides)

    @classmethod
    def load(cls, folder: Path, data: ResolvedData) -> RawSchema:
        """Read what `save` wrote. Older folders lack what only data.where reads: it comes from data.root."""
        inputs, columns = FeatureInputs.from_config(data), pl.read_parquet(folder / RAW_SCHEMA, glob=False)
        files = {i: folder / SIDES / f"{i}.parquet" for i in inputs.sides}
        if inputs.raw <= set(columns.columns) and all(file.is_file() for file in files.values()):
            return cls(columns, {i: pl.read_parquet(file, glob=False) for i, file in files.items()})
        if data.root is None:  # an artefact names no files
            raise DamagedFile(folder / RAW_SCHEMA, f"lacks a column or a table of {', '.join(sorted(inputs.raw))}")
        return cls.from_data(data)

    def save(self, folder: Path) -> None:
        """Write sides/ and, last, raw.parquet, which marks a complete folder."""
        for i, table in self.sides.items():
            (folder / SIDES).mkdir(exist_ok=True)
            table.write_parquet(folder / SIDES / f"{i}.parquet")
        self.columns.write_parquet(folder / RAW_SCHEMA)
