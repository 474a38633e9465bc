"""The raw columns that features read: their types and the side tables, saved beside the fitted transforms.

Serving parses a row as preparing did without the raw files: `raw.parquet` holds no rows, only columns and types;
`sides/` holds one table for each join that features need.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from recsys.config.schema_data import DataConfig
from recsys.data.raw.derive import Needs
from recsys.data.transforms.fitted import RAW_SCHEMA, SIDES
from recsys.errors import UserError


@dataclass(frozen=True)
class RawSchema:
    """The raw columns and side tables of a data config.

    columns: no rows; the raw columns that features read, as the YAML names them
    sides: by its place among the joins, each side table that features read
    """

    columns: pl.DataFrame
    sides: dict[int, pl.DataFrame]

    @classmethod
    def from_data(cls, data: DataConfig) -> RawSchema:
        """Read the side tables and the types of Parquet columns under data.root."""
        from recsys.data.raw import sources

        needs = Needs.of(data)
        sides = {
            i: sources.side_table(data, data.source.joins[i]).select(data.source.joins[i].key, *names)
            for i, names in sorted(needs.sides.items())
        }
        return cls(sources.raw_types(data, needs.raw).select(sorted(needs.raw)), sides)

    @classmethod
    def load(cls, folder: Path, data: DataConfig) -> RawSchema:
        """Read what `save` wrote. Raises UserError where the folder has none."""
        if not (folder / RAW_SCHEMA).is_file():
            raise UserError(f"{folder}: no {RAW_SCHEMA} there; name a folder of prepared data, a run's, or a saved one")
        sides = {i: pl.read_parquet(folder / SIDES / f"{i}.parquet") for i in Needs.of(data).sides}
        return cls(pl.read_parquet(folder / RAW_SCHEMA), sides)

    def save(self, folder: Path) -> None:
        """Write sides/ and, last, raw.parquet: a folder that has it is whole."""
        for i, table in self.sides.items():
            (folder / SIDES).mkdir(exist_ok=True)
            table.write_parquet(folder / SIDES / f"{i}.parquet")
        self.columns.write_parquet(folder / RAW_SCHEMA)
