"""Save and load the types of the raw columns that features read, and the side tables, next to the fitted transforms.

With them, serving parses rows in the same way as data preparation, without the raw files: `raw.parquet` has no rows,
only columns and types; `sides/` holds one table for each join that features need.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from recsys.base.console import say
from recsys.data.features.fitted import RAW_SCHEMA, SIDES
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.raw.derive import FeatureInputs
from recsys.files.manifest import DamagedFile


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
