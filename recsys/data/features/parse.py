"""Parse raw columns into label, numbers, times and text; separate the rows that cannot be parsed."""

from dataclasses import replace

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import ELEMENT, GROUP, IN_SPLIT, KEY, LINE, ORDER, TIME, BadRow, Block
from recsys.data.features.label_columns import label_checks, label_exprs
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_index import MAX_DICT_ROWS
from recsys.data.features.value_types import Check, Moment, Text, as_number, as_value

PLACES = (LINE, ELEMENT)


def parse_rows(data: ResolvedData, block: Block, *, labelled: bool = True) -> tuple[pl.DataFrame, list[BadRow]]:
    """Parse the rows of a block.

    Args:
        block: raw rows with joined and derived columns.
        labelled: parse the columns of the label and the split.

    Returns:
        The good rows: label (Float32), numbers (Float64, null if missing), times (Datetime), values (String), ids
        (Int64), and the columns that splits and groups use; and the bad rows: those with a label, number, time or id
        that cannot be parsed, with the reason.

    Raises:
        UserError: a column has a type that cannot be parsed.
    """
    return RowParser(data, block.frame, labelled=labelled)(block)


class RowParser:
    """Parses blocks like `parse_rows`, with the work that depends only on columns and types done once.

    Args:
        like: a frame with the columns and types of all blocks.
        labelled: parse the columns of the label and the split.
    """

    def __init__(self, data: ResolvedData, like: pl.DataFrame, *, labelled: bool) -> None:
        self._data, self._labelled = data, labelled
        schema = like.schema  # once, because making it takes time in proportion to the columns
        _check_types(data, schema, labelled=labelled)
        columns = [pl.col(n) for n in PLACES if n in schema]
        if (group := data.group) is not None:
            order = pl.lit(0.0) if group.order is None else Moment().expr(data.source, schema, group.order)
            columns += [as_value(schema, group.by).alias(GROUP), order.alias(ORDER)]
        if labelled:
            columns += label_exprs(data, schema)
            column = data.split.column or ""
            if data.split.by == "time":
                columns.append(Moment().expr(data.source, schema, column).alias(TIME))
            elif column and data.split.by in ("hash", "kfold"):
                columns.append(as_value(schema, column).fill_null("").alias(KEY))
            if (rows := data.split.rows) is not None:
                columns.append(as_number(data.source, schema, rows).alias(IN_SPLIT))
        for name, (source, value_type, _) in data.parsed_columns.items():
            columns.append(source.expr(value_type, data.source, schema).alias(name))
        columns += [pl.col(n).fill_null(False) for n in data.conditions]
        self._columns = columns
        every = data.parsed_columns.items()
        self._checked = [(n, source, t) for n, (source, t, _) in every if not isinstance(t, Text)]  # any text is good

    def __call__(self, block: Block) -> tuple[pl.DataFrame, list[BadRow]]:
        raw = block.frame
        frame = raw.select_seq(self._columns) if raw.height <= MAX_DICT_ROWS else raw.select(self._columns)
        checks = self._checks(raw, frame)
        first = None  # the number of the first check that each row fails, null for good rows
        for i, check in enumerate(checks):
            if check.bad.any():
                if first is None:
                    first = pl.Series("check", [None] * frame.height, dtype=pl.Int32)
                same = pl.Series([i], dtype=pl.Int32).new_from_index(0, frame.height)
                first = first.zip_with(~check.bad | first.is_not_null(), same)
        if first is None:
            return frame, block.bad
        if block.as_text is not None:  # show bad rows with the file's own text
            return parse_rows(self._data, block.as_text(), labelled=self._labelled)
        wrong = first.is_not_null()
        fields = [_as_text(n, dtype) for n, dtype in raw.schema.items() if n not in PLACES]
        texts = raw.select(pl.concat_str(fields, separator="\t", ignore_nulls=True))
        rows = zip(frame[LINE].filter(wrong), first.filter(wrong), texts.to_series().filter(wrong), strict=True)
        values = {
            c: raw.select(_as_text(c, raw.schema[c])).to_series().filter(wrong) for c in {x.column for x in checks}
        }
        bad = [
            BadRow(str(block.file), line, c.reason, text, c.column, c.problem, values[c.column][n])
            for n, (line, c, text) in enumerate((line, checks[i], text) for line, i, text in rows)
        ]
        if ELEMENT in frame.columns:
            elements = frame[ELEMENT].filter(wrong).to_list()
            bad = [replace(b, element=element) for b, element in zip(bad, elements, strict=True)]
        return frame.filter(~wrong), block.bad + bad

    def _checks(self, raw: pl.DataFrame, frame: pl.DataFrame) -> list[Check]:
        """Return all checks of parsed rows; a row that fails several has the first one as its reason."""
        data = self._data
        checks = label_checks(data, raw, frame) if self._labelled else []
        if IN_SPLIT in frame.columns:  # the others need no label
            needed = (frame[IN_SPLIT] != 0).fill_null(True)
            checks = [Check(c.bad & needed, c.column, c.problem, c.role) for c in checks]
        for name, column in data.moments.items():
            if name in frame.columns:
                bad = ~frame[name].is_finite().fill_null(False)
                checks.append(Check(bad, column, "is neither a number nor a time", "time"))
        if data.split.rows is not None and IN_SPLIT in frame.columns:
            bad = ~frame[IN_SPLIT].is_in([0.0, 1.0]).fill_null(False)
            checks.append(Check(bad, data.split.rows, "is neither 0 nor 1", "split"))
        if data.group is not None:
            checks.append(Check(frame[GROUP].fill_null("") == "", data.group.by, "is missing", "group"))
        if (item := data.item_feature) is not None:  # of other features a missing value is a value
            column = data.sparse_columns[item].column
            checks.append(Check(frame[item].fill_null("") == "", column, "is missing", "item"))
        for name, source, value_type in self._checked:
            checks += source.checks(value_type, raw, frame[name])
        return checks


def _as_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a field of a bad row as text; the elements of a list are separated by spaces."""
    x = pl.col(name)
    if isinstance(dtype, pl.Array):
        x, dtype = x.arr.to_list(), pl.List(dtype.inner)
    if isinstance(dtype, pl.List) and not dtype.inner.is_nested():
        return x.cast(pl.List(pl.String)).list.join(" ")
    return pl.lit(f"({dtype})").alias(name) if dtype.is_nested() else x.cast(pl.String)


def _check_types(data: ResolvedData, schema: pl.Schema, *, labelled: bool) -> None:
    """Check that each column's type can be parsed (only Parquet has types). Raises UserError if not."""
    for source, value_type, key in data.parsed_columns.values():
        hint = "; set split (to any text) to use every element" if ".sparse." in key else ""
        if data.sequences is not None and hint:
            hint = "; sequences are made of rows with one item each, so write one row for each element of the list"
        types, wanted = value_type.not_of
        for column in source.columns:
            dtype = schema[column]
            if dtype in types:
                raise UserError(f"{key}: column {column} holds {dtype}, not {wanted}")
            if not dtype.is_nested():
                continue
            if not (source.takes_lists or value_type.takes_lists):
                raise UserError(f"{key}: column {column} holds {dtype}, not one value a row{hint}")
            if dtype == pl.Struct or dtype.inner.is_nested():  # type: ignore[attr-defined]
                raise UserError(f"{key}: column {column} holds {dtype}, not a list of values")
    for name, c in data.label_configs.items() if labelled else ():
        if (dtype := schema[c.column or ""]).is_nested():
            raise UserError(f"{data.label_key(name)}: column {c.column} holds {dtype}, not one value a row")
