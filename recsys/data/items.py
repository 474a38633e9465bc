"""The table of items: what is known of each candidate, whether or not it was seen in training."""

from pathlib import Path

import polars as pl

from recsys.data.blocks import LINE, Block
from recsys.data.coding import Coder
from recsys.data.sources import side_table
from recsys.data.transforms import InMemory, fit, item_feature, items_config, sparse_columns, text_columns, typed
from recsys.data.transforms.fitted import Fitted, Items
from recsys.data.transforms.names import ITEM
from recsys.data.vector_files import read_vectors
from recsys.errors import UserError
from recsys.schema import DataConfig, JoinConfig


def items_join(data: DataConfig) -> JoinConfig | None:
    """data.items as the side table that it is."""
    c = data.items
    return None if c.file is None else JoinConfig(c.file, c.key, dict(c.columns), c.separator, c.quote)


def read_items(data: DataConfig, fitted: Fitted) -> Items | None:
    """Fitted on the items that training has seen. Raises UserError for a table that cannot be read."""
    about, join, name = items_config(data), items_join(data), item_feature(data)
    if about is None or join is None or name is None:
        return None
    side = side_table(data, join)
    key = side[join.key].cast(pl.String)
    rows, bad = typed(about, Block(Path(join.file), side.with_row_index(LINE, 1).cast({LINE: pl.Int64})))
    if bad:
        raise UserError(f"data.items: {join.file} row {bad[0].line}: {bad[0].reason}")
    known = fitted.vocabularies[sparse_columns(data)[name].table or name]["value"].alias(ITEM)
    rows = rows.with_columns(key.alias(ITEM)).drop(LINE)
    seen = known.to_frame().join(rows, on=ITEM, how="left", maintain_order="left")
    unseen = rows.join(known.to_frame(), on=ITEM, how="anti", maintain_order="left").select(seen.columns)
    own = fit(about, _training(about, seen), read_vectors(about))
    every = pl.concat([seen.clear(1), seen, unseen])  # a row of nothing first
    return Items(own, own.apply(every).with_columns(every[ITEM]))


def _training(about: DataConfig, seen: pl.DataFrame) -> InMemory:
    coder = Coder(text_columns(about))
    coded = coder.encode(seen.drop(ITEM))
    return InMemory(coded, coder.values())
