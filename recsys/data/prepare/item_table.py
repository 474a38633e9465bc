"""Read the item table: the features of every candidate, whether it was seen in training or not."""

from pathlib import Path

import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features.blocks import ITEM, LINE, Block
from recsys.data.features.fit import InMemory, fit
from recsys.data.features.fitted import Fitted, ItemTable
from recsys.data.features.grow import grow
from recsys.data.features.parse import RowParser
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import as_value
from recsys.data.features.vectors import Vectors
from recsys.data.prepare.chunks import TextCoder
from recsys.data.raw.read_sources import check_side_columns, side_table
from recsys.data.raw.reasons import Reasons, judge
from recsys.data.raw.vector_files import check_vector_files, read_vectors, vector_files
from recsys.data.semantic_ids.fit_semantic_ids import KEY, TABLE, with_codes
from recsys.schema.source_schema import JoinConfig, text_options

FILE_KEY = "data.items.file"


def items_join(data: ResolvedData) -> JoinConfig | None:
    """Return data.items as a side table. Columns that data.items.columns does not rename keep their names."""
    c, items = data.items, data.item_table
    if c.file is None or items is None:
        return None
    own = (column for _, column in items.raw_columns if column not in data.semantic_features)
    columns = {column: column for column in own} | dict(c.columns)
    return JoinConfig(**text_options(c), file=c.file, key=c.key, columns=columns, names=c.names, format=c.format)


def items_vectors(data: ResolvedData) -> dict[str, Path]:
    """Return the files of the items' vectors."""
    items = data.item_table
    return {} if items is None else vector_files(items)


def check_items_table(data: ResolvedData) -> None:
    """Check that the items' files exist and have all columns. Raises UserError if not."""
    if data.item_table is not None:
        items_vectors(data)
        check_vector_files(data.item_table)
    if (join := items_join(data)) is not None:
        check_side_columns(data, join, FILE_KEY)


def read_items(
    data: ResolvedData, fitted: Fitted, codes: Path | None, old: ItemTable | None, core: Path | None = None
) -> ItemTable | None:
    """Read the item table and fit its transforms on the items of the training split.

    Without data.items.file, the items are the values of the files of vectors and of semantic ids.

    Args:
        fitted: the transforms of the rows.
        codes: the folder of the items' semantic ids, or None.
        old: the item table of the run that a training goes on from, whose transforms grow; None fits new ones.
        core: the items that data.k_core has left; all others are no candidates. None: every item is one.

    Returns:
        The table, or None.

    Raises:
        UserError: the training split has no items, or none of them is in the table.
    """
    items, name = data.item_table, data.item_feature
    if name is None:
        return None
    vocabulary = fitted.item_vocabulary["value"].alias(ITEM)
    if vocabulary.is_empty():
        raise UserError(
            f"data.sparse.{name}.min_count: no item is frequent enough in the training rows, so there is nothing to "
            "retrieve; lower it"
        )
    if items is None:
        return None
    trained = fitted.item_vocabulary.filter(pl.col("count") > 0)["value"]
    vectors = read_vectors(items, {data.item_key: trained})
    rows = parsed_items(data, fitted, vectors, codes)
    key = rows[ITEM]
    if core is not None:
        left = pl.read_parquet(core, glob=False).select(pl.col("value").cast(key.dtype).alias(ITEM))
        rows = rows.join(left, on=ITEM, how="semi")
    if not vocabulary.is_in(key.implode()).any():
        where, what = "data.items.vectors: no file has a row", "they hold"
        if data.items.file is not None:
            where = f"{FILE_KEY}: {data.items.file} has no row"
            what = f"data.items.key={data.item_key} holds"
        raise UserError(
            f"{where} for any of the items; {what} values such as {key[0]!r}, but the items are values such as "
            f"{vocabulary[0]!r}"
        )
    seen = vocabulary.to_frame().join(rows, on=ITEM, how="left", maintain_order="left")
    unseen = rows.join(vocabulary.to_frame(), on=ITEM, how="anti", maintain_order="left").select(seen.columns)
    coder = TextCoder(items.text_columns)
    coded = coder.encode(seen.drop(ITEM))
    training = InMemory(coded, coder.values())
    fitted_items = fit(items, training) if old is None else grow(old.fitted, items, training)
    fitted_items.vectors = vectors
    every = pl.concat([seen.clear(1), seen, unseen])  # the first row, of nulls, is for unknown items
    return ItemTable(fitted_items, item_features(fitted_items, every))


def item_features(fitted: Fitted, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the features of parsed rows of the item table, with ITEM. fitted: the transforms of the table"""
    ids = [n for n, c in fitted.data.sparse_columns.items() if not c.is_list]
    features = fitted.apply(rows).with_columns(rows[ITEM])
    return features.with_columns(pl.col(ids).fill_null(0))  # items without a row have no id


def parsed_items(data: ResolvedData, fitted: Fitted, vectors: dict[str, Vectors], codes: Path | None) -> pl.DataFrame:
    """Return the parsed rows of the item table, with ITEM. fitted: the transforms of the rows that have the items"""
    items, join = data.item_table, items_join(data)
    assert items is not None and data.item_feature is not None
    if join is None:
        files = [vectors[n].values for n in data.items.vectors]
        files += [] if codes is None else [pl.read_parquet(codes / TABLE, glob=False)[KEY]]
        values = pl.concat(values.alias(data.item_key) for values in files)
        side, label = values.unique(maintain_order=True).to_frame(), "data.items.vectors"
    else:
        side, label = side_table(data, join, FILE_KEY, report=say), f"{FILE_KEY}: {join.file}"
    if codes is not None:
        side = with_codes(side, data.item_key, codes)
    block = Block(Path(label), side.with_row_index(LINE, 1).cast({LINE: pl.Int64}))
    rows, bad = RowParser(items, block.frame, labelled=True)(block)
    reasons = Reasons(bad, lambda b: f"{data.item_key} {side[data.item_key][b.line - 1]!r}")
    if (line := judge(label, data, side.height, len(bad), reasons)) is not None:
        say(line)
    key = side.select(as_value(side.schema, data.item_key)).to_series().gather(rows[LINE] - 1)
    if (kind := (fitted.types or {}).get(data.sparse_columns[data.item_feature].column)) is not None:
        key = kind.canonical(key)  # 7.0 in the log is 7 here
    return rows.with_columns(key.alias(ITEM)).drop(LINE)
