"""The table of items: what is known of each candidate, whether or not it was seen in training."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from recsys.config.schema_data import DataConfig, JoinConfig
from recsys.data.prepare.dictionary import TextCoder
from recsys.data.raw.blocks import LINE, Block
from recsys.data.raw.sources import check_side_columns, side_table
from recsys.data.raw.vector_files import read_vectors, vector_files
from recsys.data.transforms import (
    InMemory,
    fit,
    item_feature,
    items_config,
    raw_columns,
    sparse_columns,
    text_columns,
    typed,
)
from recsys.data.transforms.column_names import ITEM
from recsys.data.transforms.fitted import Fitted, Items
from recsys.data.transforms.parse import as_value
from recsys.errors import UserError

WHERE = "data.items.file"


@contextmanager
def of_items() -> Iterator[None]:
    """What goes wrong with a feature is told to be of an item."""
    try:
        yield
    except UserError as e:
        raise UserError(re.sub(r"^data\.(dense|sparse)\.", r"data.items.\1.", str(e))) from e


def items_join(data: DataConfig) -> JoinConfig | None:
    """data.items as the side table that it is; columns that are read and not renamed are called as they are there."""
    c, about = data.items, items_config(data)
    if c.file is None or about is None:
        return None
    columns = {column: column for _, column in raw_columns(about)} | dict(c.columns)
    return JoinConfig(c.file, c.key, columns, c.separator, c.quote)


def items_vectors(data: DataConfig) -> dict[str, Path]:
    """The files of items' vectors."""
    about = items_config(data)
    with of_items():
        return {} if about is None else vector_files(about)


def check_items_table(data: DataConfig) -> None:
    """Raises UserError for files of items that are missing or lack a column."""
    if (join := items_join(data)) is not None:
        items_vectors(data)
        check_side_columns(data, join, WHERE)


def read_items(data: DataConfig, fitted: Fitted) -> Items | None:
    """Fitted on the items that training has seen. Raises UserError where there are none, or none are in the table."""
    about, join, name = items_config(data), items_join(data), item_feature(data)
    if name is None:
        return None
    known = fitted.vocabularies[sparse_columns(data)[name].table or name]["value"].alias(ITEM)
    if known.is_empty():
        raise UserError(f"data.sparse.{name}.min_count: no item is in the training rows so often; nothing is retrieved")
    if about is None or join is None:
        return None
    side = side_table(data, join, WHERE)
    with of_items():
        rows, bad = typed(about, Block(Path(join.file), side.with_row_index(LINE, 1).cast({LINE: pl.Int64})))
    if bad:
        key = side[join.key][bad[0].line - 1]
        raise UserError(f"{WHERE}: {join.file}: {join.key} {key!r}: {bad[0].reason}; mend the table")
    key = side.select(as_value(side, join.key)).to_series()
    rows = rows.with_columns(key.alias(ITEM)).drop(LINE)
    if not known.is_in(key.implode()).any():
        raise UserError(
            f"{WHERE}: {join.file} has a row of none of the items; data.items.key={join.key} holds values such as "
            f"{key[0]!r}, the items are such as {known[0]!r}"
        )
    seen = known.to_frame().join(rows, on=ITEM, how="left", maintain_order="left")
    unseen = rows.join(known.to_frame(), on=ITEM, how="anti", maintain_order="left").select(seen.columns)
    with of_items():
        own = fit(about, _training(about, seen), read_vectors(about))
    every = pl.concat([seen.clear(1), seen, unseen])  # a row of nothing first
    return Items(own, own.apply(every).with_columns(every[ITEM]))


def _training(about: DataConfig, seen: pl.DataFrame) -> InMemory:
    coder = TextCoder(text_columns(about))
    coded = coder.encode(seen.drop(ITEM))
    return InMemory(coded, coder.values())
