"""Read a raw column as numbers or as text."""

import polars as pl

from recsys.data.raw.blocks import BLANK
from recsys.schema.data_schema import SourceConfig


def as_number(source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
    """Return the column as Float64, null for text that is not a number; spaces around numbers are ignored."""
    x = pl.col(column)
    if schema[column] == pl.String:
        x = x.str.strip_chars(BLANK)
        if source.thousands is not None:
            x = x.str.replace_all(source.thousands, "", literal=True)
        if source.decimal != ".":
            x = x.str.replace(source.decimal, ".", literal=True)
    return x.cast(pl.Float64, strict=False).fill_nan(None)


def as_value(schema: pl.Schema, column: str) -> pl.Expr:
    """Return the column as text: the form in which values are looked up."""
    dtype, values = schema[column], pl.col(column)
    if dtype == pl.String:
        return values
    if not dtype.is_float():
        return values.cast(pl.String)
    # 7.0 is 7: a column of whole numbers with missing values is stored as floats
    values = values.fill_nan(None)
    whole = values.cast(pl.Int64, strict=False)
    return pl.when(whole.cast(dtype) == values).then(whole.cast(pl.String)).otherwise(values.cast(pl.String))


def parts_of(x: pl.Expr, separator: str) -> pl.Expr:
    """Return the parts of a text without the spaces around them."""
    parts = x.cast(pl.String).str.split(separator)
    return parts if separator == " " else parts.list.eval(pl.element().str.strip_chars(BLANK))


def as_vector(schema: pl.Schema, column: str, width: int, split: str | None) -> pl.Expr:
    """Return the column, lists of numbers or text, as Array(Float32, width); null for anything else."""
    dtype, x = schema[column], pl.col(column)
    if isinstance(dtype, pl.Array):
        x = x.arr.to_list()
    elif not isinstance(dtype, pl.List):
        x = x.cast(pl.String).str.strip_chars(BLANK + "[]()")
        x = parts_of(x, split or ",").list.eval(pl.element().filter(pl.element() != ""))
    x = x.list.eval(pl.element().cast(pl.Float32, strict=False))
    whole = (x.list.len() == width) & x.list.eval(pl.element().is_finite().fill_null(False)).list.all()
    return pl.when(whole).then(x).list.to_array(width)
