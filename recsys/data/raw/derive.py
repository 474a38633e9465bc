"""Raw rows with their side tables' columns and derived ones; which of all these a config's features need."""

from dataclasses import dataclass
from functools import lru_cache

import polars as pl

from recsys.config.schema_data import DataConfig, JoinConfig
from recsys.data.raw.blocks import one_line
from recsys.data.transforms import raw_columns
from recsys.errors import UserError


def joined(frame: pl.DataFrame, join: JoinConfig, side: pl.DataFrame) -> pl.DataFrame:
    """With the side table's columns, null where it lacks the key."""
    key = pl.col(join.key)
    if frame.schema[join.key] == side.schema[join.key]:
        return frame.join(side, on=join.key, how="left", maintain_order="left")
    left = key.cast(pl.String).alias("__key__")  # such as 7 here and "7" there
    side = side.select(left, pl.exclude(join.key))
    return frame.with_columns(left).join(side, on="__key__", how="left", maintain_order="left").drop("__key__")


def derived(column: str, sql: str, frame: pl.DataFrame, where: str | None = None) -> pl.DataFrame:
    """With the column that `sql` makes of each row."""
    where = where or f"data.derive.{column}"
    try:
        expr, reads = of_sql(sql)
        if reads and not _by_row(sql, tuple((n, frame[n].dtype) for n in reads if n in frame.columns)):
            raise UserError(f"{where}: {sql!r}: must read one row at a time, no aggregate")
        return frame.with_columns(expr.alias(column))
    except pl.exceptions.PolarsError as e:
        hint = "; TRY_CAST gives null where a value does not fit" if "conversion" in str(e) else ""
        if "cannot compare string with numeric" in str(e):
            hint = "; the file's columns are text: write CAST(COLUMN AS DOUBLE)"
        raise UserError(f"{where}: {sql!r}: {one_line(e)}{hint}") from e


def chosen(sql: str, frame: pl.DataFrame) -> pl.DataFrame:
    """The rows for which `sql` is true."""
    truth = "__where__"
    made = derived(truth, sql, frame, "data.where")
    if made.schema[truth] != pl.Boolean:
        raise UserError(f"data.where: {sql!r}: is {made.schema[truth]}, not true or false; such as rating >= 4")
    return made.filter(pl.col(truth)).drop(truth)


@lru_cache
def of_sql(sql: str) -> tuple[pl.Expr, list[str]]:
    """The expression, and the columns that it reads."""
    expr = pl.sql_expr(sql)
    return expr, expr.meta.root_names()


@lru_cache
def _by_row(sql: str, schema: tuple[tuple[str, pl.DataType], ...]) -> bool:
    """Whether it makes no row of none, as an aggregate does."""
    return pl.DataFrame(schema=dict(schema)).select(of_sql(sql)[0]).is_empty()


@dataclass(frozen=True)
class Needs:
    """What the features read, down to the raw files; not the label, nor what only it is made of."""

    raw: set[str]  # columns of the files, as the YAML names them
    sides: dict[int, list[str]]  # by the join's place, the side table's columns
    derive: dict[str, str]

    @classmethod
    def of(cls, data: DataConfig) -> "Needs":
        wanted = {column for _, column in raw_columns(data)}
        if data.group is not None:
            wanted |= {data.group.by, *filter(None, [data.group.order])}
        derive: dict[str, str] = {}
        for column, sql in reversed(data.derive.items()):
            if column in wanted:
                derive = {column: sql} | derive
                wanted = wanted - {column} | set(of_sql(sql)[1])
        sides = {}
        for i, join in reversed([*enumerate(data.source.joins)]):
            if names := [c for c in join.columns if c in wanted and c != join.key]:
                sides[i] = names
                wanted = wanted - set(names) | {join.key}
        return cls(wanted, sides, derive)
