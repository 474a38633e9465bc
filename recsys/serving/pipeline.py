"""Raw rows as they come, one or a few at a time, to tensors: what preparing does, without a file.

    pipeline = Pipeline.load("outputs/my_run")
    pipeline.save("serving")                      # one folder, which needs neither the run nor the raw data
    tensors = Pipeline.load("serving")({"int_1": 3, "cat_1": "68fd1e64", ...})

Neither Lightning, Hydra nor torchrec is imported; the code is that of `prepare` and `predict`: sources' joins and
derived columns, `parse_rows`, `Fitted.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from recsys.config.schema_data import DataConfig, JoinConfig
from recsys.data.group_features import add_group_features
from recsys.data.raw.blocks import LINE, BadRow, Block, one_line
from recsys.data.raw.derive import FeatureInputs, add_derived_column, join_side_table
from recsys.data.raw_schema import RawSchema
from recsys.data.transforms import Fitted, sparse_columns
from recsys.data.transforms.fitted import RAW_SCHEMA
from recsys.data.transforms.index import Index
from recsys.data.transforms.parse import RowParser
from recsys.errors import UserError
from recsys.serving.python_values import Reader, RowError, reader

if TYPE_CHECKING:
    from recsys.data.tensors import Tensors

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A raw column: its type, and where a row gives it."""

    name: str
    keys: tuple[str, ...]
    dtype: pl.DataType
    read: Reader

    def of(self, row: Row, place: int | None) -> Any:
        """The row's value, None where it is missing. Raises RowError."""
        for key in self.keys:
            if key in row:
                try:
                    return self.read(row[key])
                except ValueError as e:
                    raise RowError(key, row[key], str(e), place) from e
        return None


@dataclass(frozen=True)
class Side:
    """A side table that features need, and where the row of each key lies."""

    join: JoinConfig
    table: pl.DataFrame
    rows: Index

    @classmethod
    def of(cls, join: JoinConfig, table: pl.DataFrame) -> Side:
        keys, places = table[join.key].cast(pl.String), pl.int_range(table.height, eager=True)
        return cls(join, table, Index(keys, places, -1))

    def joined(self, frame: pl.DataFrame) -> pl.DataFrame:
        """As in batch, but with the few rows alone that are asked for: a join hashes its whole right side."""
        few = self.table
        if not few[self.join.key].dtype.is_float():  # whose text does not tell which are equal
            found = self.rows.look_up(frame[self.join.key].cast(pl.String)).to_list()
            few = few[sorted({place for place in found if place >= 0})]
        return join_side_table(frame, self.join, few)


class Pipeline:
    """What was fitted, for rows that come one by one. It holds no state between calls: threads may share it."""

    def __init__(self, fitted: Fitted, raw: RawSchema) -> None:
        self.fitted, self.features, data = fitted, fitted.features, fitted.data
        needs = FeatureInputs.from_config(data)
        self._raw, self._derive = raw, needs.derive
        types = raw.columns.select(sorted(needs.raw)).schema
        self._columns = [_column(data, name, dtype) for name, dtype in types.items()]
        self._schema: dict[str, Any] = {LINE: pl.Int64, **types}
        self._sides: list[tuple[Side, list[Column]]] = []
        for i, names in sorted(needs.sides.items()):
            join, table = data.source.joins[i], raw.sides[i]
            own = [_column(data, name, table.schema[name]) for name in names]
            self._sides.append((Side.of(join, table.select(join.key, *names)), own))
        self._typing = RowParser(data, self._frame([]), labelled=False)

    @classmethod
    def load(cls, folder: str | Path) -> Pipeline:
        """Load from a folder that `save` wrote, one of prepared data, or a run's. Raises UserError for any other."""
        from recsys.data import tensors  # noqa: F401  (torch, now and not when the first row comes)

        folder = Path(folder)
        if not (folder / RAW_SCHEMA).is_file():
            raise UserError(f"{folder}: no {RAW_SCHEMA} there; name a folder of prepared data, a run's, or a saved one")
        fitted = Fitted.load(folder)
        return cls(fitted, RawSchema.load(folder, fitted.data))

    def save(self, folder: str | Path) -> None:
        """Write all that `load` needs into one folder, which may be copied anywhere."""
        self.fitted.save(Path(folder))
        self._raw.save(Path(folder))

    def __call__(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> Tensors:
        """Tensors of one row or of several. A row is raw columns by name, as the files or as the YAML name them.

        history: earlier rows, of which nothing is asked but what features of `data.group` owe to them (lags, the last
        values); rows of one call see each other, too.

        What a row lacks is missing, what no feature reads is ignored; side tables' columns come from the row where it
        gives them, else by the key. Raises RowError for the first row that cannot be read.
        """
        from recsys.data.tensors import Tensors

        return Tensors.from_frame(self.frame(rows, history), self.features, self.fitted.matrices)

    def frame(self, rows: Row | Sequence[Row], history: Sequence[Row] = ()) -> pl.DataFrame:
        """As a call, but what `Fitted.apply` gives: a column a feature, Float32, Int32 or List(Int32)."""
        alone = isinstance(rows, Mapping)
        given: Sequence[Row] = [rows] if alone else rows  # type: ignore[list-item, assignment]
        raw = self._frame([*history, *given], alone and not history)
        typed, bad = self._typing(Block(Path("rows"), raw))
        if bad:
            raise _row_error(bad[0], raw, alone and not history)
        return self.fitted.apply(add_group_features(self.fitted.data, typed).tail(len(given)))

    def _frame(self, rows: Sequence[Row], alone: bool = False) -> pl.DataFrame:
        """The rows' raw columns, joined and derived, as `sources.read_blocks` gives them."""
        places = [None] if alone else range(len(rows))
        for place, row in zip(places, rows, strict=True):
            if not isinstance(row, Mapping):
                told = "" if place is None else f"rows[{place}]: "
                raise UserError(f"{told}a row is a dict of columns and values, not {type(row).__name__}")
        values = [
            (i, *(c.of(row, p) for c in self._columns)) for i, (p, row) in enumerate(zip(places, rows, strict=True))
        ]
        try:
            frame = pl.DataFrame(values, schema=self._schema, orient="row")
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as e:
            raise UserError(f"the rows' values are not what their columns hold: {one_line(e)}") from e
        for side, own in self._sides:
            frame = side.joined(frame)
            for c in own:
                if any(key in row for row in rows for key in c.keys):
                    there = pl.Series([any(key in row for key in c.keys) for row in rows], dtype=pl.Boolean)
                    told = pl.Series([c.of(row, p) for p, row in zip(places, rows, strict=True)], dtype=c.dtype)
                    frame = frame.with_columns(pl.when(there).then(told).otherwise(pl.col(c.name)).alias(c.name))
        for column, sql in self._derive.items():
            frame = add_derived_column(column, sql, frame)
        return frame


def _column(data: DataConfig, name: str, dtype: pl.DataType) -> Column:
    renamed = data.source.rename
    keys = [renamed.get(name, name)]
    if name not in [*keys, *renamed.values()]:
        keys.append(name)
    separators = {c.split for n, c in sparse_columns(data).items() if c.split is not None and (c.column or n) == name}
    separator = separators.pop() if len(separators) == 1 else None
    text = data.source.format != "parquet"  # where nothing stands between two separators, there is no value
    return Column(name, tuple(keys), dtype, reader(dtype, separator=separator, empty_is_missing=text))


def _row_error(bad: BadRow, raw: pl.DataFrame, alone: bool) -> RowError:
    """The reason begins with its column, or with what the column is to the row: its group, its time."""
    told = [c for c in raw.columns if bad.reason.startswith((f"{c} is ", f"group {c} is ", f"time {c} is "))]
    column = max(told, key=len)
    value = raw[column][bad.line]
    return RowError(column, value, bad.reason.partition(f"{column} ")[2], None if alone else bad.line)
