"""Parse raw columns into label, numbers, times and text; separate the rows that cannot be parsed."""

from dataclasses import replace

import polars as pl

from recsys.data.raw.blocks import BLANK, ELEMENT, LINE, BadRow, Block
from recsys.data.transforms.column_names import (
    GROUP,
    KEY,
    ORDER,
    TIME,
)
from recsys.data.transforms.ids import Check, id_checks, id_columns, whole_numbers
from recsys.data.transforms.index import SHORT
from recsys.data.transforms.labels import label_checks, label_exprs
from recsys.data.transforms.resolved_data import (
    ResolvedData,
    is_split,
)
from recsys.data.transforms.steps import FLOAT32_MAX
from recsys.data.transforms.times import as_time
from recsys.data.transforms.values import as_number, as_value, as_vector, parts_of
from recsys.errors import UserError
from recsys.schema.data_schema import SourceConfig, SparseConfig

PLACES = (LINE, ELEMENT)
JOINT = "\x1f"  # joins the values of a cross: ASCII's unit separator


def parse_rows(data: ResolvedData, block: Block, *, labelled: bool = True) -> tuple[pl.DataFrame, list[BadRow]]:
    """Parse the rows of a block.

    Args:
        data: the data config.
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
        data: the data config.
        like: a frame with the columns and types of all blocks.
        labelled: parse the columns of the label and the split.
    """

    def __init__(self, data: ResolvedData, like: pl.DataFrame, *, labelled: bool) -> None:
        self._data, self._labelled, self._kinds = data, labelled, _kinds(data)
        self._ids = id_columns(data)
        schema = like.schema  # once, because making it takes time in proportion to the columns
        _check_types(data, schema, self._kinds, labelled=labelled)
        columns = [*(pl.col(n) for n in PLACES if n in schema), *_group(data, schema)]
        columns += [*label_exprs(data, schema), *_split(data, schema)] if labelled else []
        for name, (column, kind) in self._kinds.items():
            columns.append(_read(data, schema, column, kind, name).alias(name))
        for name, c in data.sparse_columns.items():
            if name in self._ids:
                columns.append(whole_numbers(schema, name, c).alias(name))
            elif name not in self._kinds:
                columns.append(_values(schema, name, c).alias(name))
        self._columns = columns

    def __call__(self, block: Block) -> tuple[pl.DataFrame, list[BadRow]]:
        raw = block.frame
        frame = raw.select_seq(self._columns) if raw.height <= SHORT else raw.select(self._columns)
        checks = self._checks(raw, frame)
        first = _first_failed(checks, frame.height)
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
        checks = label_checks(self._data, raw, frame) if self._labelled else []
        checks += _order_checks(self._data, frame) + _item_checks(self._data, frame)
        return checks + id_checks(self._ids, raw, frame) + _value_checks(raw, frame, self._kinds)


def _as_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a field of a bad row as text; the elements of a list are separated by spaces."""
    x = pl.col(name)
    if isinstance(dtype, pl.Array):
        x, dtype = x.arr.to_list(), pl.List(dtype.inner)
    if isinstance(dtype, pl.List) and not dtype.inner.is_nested():
        return x.cast(pl.List(pl.String)).list.join(" ")
    return pl.lit(f"({dtype})").alias(name) if dtype.is_nested() else x.cast(pl.String)


def _kinds(data: ResolvedData) -> dict[str, tuple[str, str]]:
    """Return the raw column of each parsed column and its kind: number, time, moment or value.

    Sparse columns are left out, except columns of quantiles.
    """
    kinds: dict[str, tuple[str, str]] = {c.parsed: (c.column, c.reads) for c in data.dense_columns.values()}
    kinds |= {n: (c.column or n, "number") for n, c in data.sparse_columns.items() if c.encode == "quantiles"}
    return {n: (column, "moment" if n in data.moments else kind) for n, (column, kind) in kinds.items()}


def _split(data: ResolvedData, schema: pl.Schema) -> list[pl.Expr]:
    column = data.split.column or ""
    if data.split.by == "time":
        return [_moment(data.source, schema, column).alias(TIME)]
    return [as_value(schema, column).fill_null("").alias(KEY)] if column and data.split.by in ("hash", "kfold") else []


def _group(data: ResolvedData, schema: pl.Schema) -> list[pl.Expr]:
    if data.group is None:
        return []
    order = pl.lit(0.0) if data.group.order is None else _moment(data.source, schema, data.group.order)
    return [as_value(schema, data.group.by).alias(GROUP), order.alias(ORDER)]


def _moment(source: SourceConfig, schema: pl.Schema, column: str) -> pl.Expr:
    """Return Float64: numbers as they are, times as seconds since 1970."""
    dtype = schema[column]
    if dtype.is_numeric():
        return as_number(source, schema, column)
    seconds = as_time(column, dtype).dt.epoch("us") / 1e6
    return pl.coalesce(as_number(source, schema, column), seconds) if dtype == pl.String else seconds


def _read(data: ResolvedData, schema: pl.Schema, column: str, kind: str, name: str) -> pl.Expr:
    if kind == "time":
        return as_time(column, schema[column])
    if kind == "moment":
        return _moment(data.source, schema, column)
    if kind == "vector":
        vector = data.dense_columns[name].row_vector
        assert vector is not None
        return as_vector(schema, column, vector.width, vector.split)
    return as_number(data.source, schema, column) if kind == "number" else as_value(schema, column)


def _values(schema: pl.Schema, name: str, c: SparseConfig) -> pl.Expr:
    """Return text, or lists of text without empty and missing elements."""
    column = c.column or name
    if c.cross is not None:
        return pl.concat_str([as_value(schema, x).fill_null("") for x in c.cross], separator=JOINT)
    if not is_split(c):
        return as_value(schema, column)
    dtype, values = schema[column], pl.col(column)
    if c.pattern is not None:
        values = values.cast(pl.String).str.extract_all(c.pattern)
    elif isinstance(dtype, pl.Array):
        values = values.arr.to_list()
    elif dtype != pl.List:
        values = parts_of(values, c.split or "")
    values = values.cast(pl.List(pl.String)).list.eval(pl.element().filter(pl.element() != ""))  # nor null
    return values.list.head(c.max_length) if c.max_length else values


def _check_types(data: ResolvedData, schema: pl.Schema, kinds: dict[str, tuple[str, str]], *, labelled: bool) -> None:
    """Check that each column's type can be parsed (only Parquet has types). Raises UserError if not."""
    lists = {f"{data.key}.sparse.{n}": c.column or n for n, c in data.sparse_columns.items() if c.split is not None}
    lists |= {f"{data.key}.dense.{n}": c.column for n, c in data.dense_columns.items() if c.row_vector is not None}
    label = [(data.label_key(n), c.column or "") for n, c in data.label_configs.items()] if labelled else []
    for where, column in [*((w, x) for w, x in data.raw_columns if w not in lists), *label]:
        dtype = schema[column]
        if dtype.is_nested():
            hint = "; set split (to any text) to use every element" if "sparse" in where else ""
            if data.sequences is not None and hint:
                hint = "; sequences are made of rows with one item each, so write one row for each element of the list"
            raise UserError(f"{where}: column {column} holds {dtype}, not one value a row{hint}")
    for where, column in lists.items():
        dtype = schema[column]
        if dtype.is_nested() and (dtype == pl.Struct or dtype.inner.is_nested()):  # type: ignore[attr-defined]
            raise UserError(f"{where}: column {column} holds {dtype}, not a list of values")
    for name, (column, kind) in kinds.items():
        dtype = schema[column]
        if kind in ("time", "moment") and dtype in (pl.Time, pl.Duration, pl.Boolean):
            key = "sparse" if name in data.sparse_columns else "dense"
            raise UserError(f"{data.key}.{key}.{name}: column {column} holds {dtype}, not a date or time")


def _value_checks(raw: pl.DataFrame, frame: pl.DataFrame, kinds: dict[str, tuple[str, str]]) -> list[Check]:
    """Find rows whose numbers and times cannot be parsed."""
    checks = []
    for name, (column, kind) in kinds.items():
        if kind == "value" or _all_parsed(raw[column], frame[name], kind):
            continue
        lost = frame[name].is_null() & raw[column].is_not_null()
        if kind == "vector":
            width = frame.schema[name].size  # type: ignore[attr-defined]
            given = raw[column] != "" if raw[column].dtype == pl.String else lost
            checks.append(Check(lost & given.fill_null(False), column, f"is not a vector of {width} numbers"))
            continue
        if lost.any() and raw[column].dtype.is_float():
            lost = lost & raw[column].is_not_nan()
        elif lost.any() and raw[column].dtype == pl.String:
            lost = lost & ~raw[column].str.strip_chars(BLANK).str.to_lowercase().is_in(["nan", ""])
        if kind == "time":
            checks.append(Check(lost, column, "is not a time"))
            continue
        lost = lost | frame[name].is_infinite().fill_null(False)
        checks.append(Check(lost, column, "is not a number" if kind == "number" else "is neither a number nor a time"))
        beyond = (frame[name].abs() > FLOAT32_MAX).fill_null(False)
        checks.append(Check(beyond, column, "is out of the range of float32"))
    return checks


def _first_failed(checks: list[Check], rows: int) -> pl.Series | None:
    """Return the number of the first check that each row fails, null for good rows; None if all rows are good."""
    first = None
    for i, check in enumerate(checks):
        if check.bad.any():
            if first is None:
                first = pl.Series("check", [None] * rows, dtype=pl.Int32)
            same = pl.Series([i], dtype=pl.Int32).new_from_index(0, rows)
            first = first.zip_with(~check.bad | first.is_not_null(), same)
    return first


def _all_parsed(raw: pl.Series, parsed: pl.Series, kind: str) -> bool:
    """Return True if all values were parsed: the usual case, which is quick to check."""
    if parsed.null_count() != raw.null_count():
        return False
    if kind in ("time", "vector") or parsed.null_count() == parsed.len():
        return True
    low, high = parsed.min(), parsed.max()
    assert isinstance(low, float) and isinstance(high, float)
    return low >= -FLOAT32_MAX and high <= FLOAT32_MAX


def _order_checks(data: ResolvedData, frame: pl.DataFrame) -> list[Check]:
    checks = []
    for name, column in ((TIME, data.split.column), (ORDER, data.group and data.group.order)):
        if column and name in frame.columns:
            bad = ~frame[name].is_finite().fill_null(False)
            checks.append(Check(bad, column, "is neither a number nor a time", "time"))
    if data.group is not None:
        checks.append(Check(frame[GROUP].fill_null("") == "", data.group.by, "is missing", "group"))
    return checks


def _item_checks(data: ResolvedData, frame: pl.DataFrame) -> list[Check]:
    """Find rows without an item. For other features a missing value is a value, but it cannot be recommended."""
    name = data.item_feature
    if name is None:
        return []
    column = data.sparse_columns[name].column or name
    return [Check(frame[name].fill_null("") == "", column, "is missing", "item")]
