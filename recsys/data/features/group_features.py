"""Arrange rows by group: lags, differences, last values and ages, sessions, sequences, and group-dependent splits.

Input and output are parsed rows with decoded text. A row depends only on rows before it, whatever their split: with
data.group.ties=moment on those whose order is strictly smaller.
"""

from dataclasses import replace

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.features import GROUP
from recsys.data.features.blocks import HISTORY, ORDER, PLACE, SPLIT, TARGETS, TIMES
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.row_sources import RowDifference, slices
from recsys.data.features.value_index import group_numbers
from recsys.schema.data_schema import SequenceConfig, SplitConfig

MAX_HISTORY = 1 << 26  # maximum total length of the histories of a pile's held-out items: 3 GB
# REPEATED: a training row that is repeated in reverse. Models train on it, but nothing is fitted to it.
# CONTEXT: a row in no split, which features of later rows look back to.
TRAIN, VALIDATION, TEST, REPEATED, CONTEXT = range(5)


def arrange(data: ResolvedData, rows: pl.DataFrame) -> pl.DataFrame:
    """Arrange whole groups of parsed rows.

    Args:
        rows: in any order, with GROUP, ORDER and PLACE, and with SPLIT unless the split is leave_one_out (sequences
            need it).

    Returns:
        The rows, or one row for each sequence, in the order of their places; with data.group.together in that of their
        group's first place, and with GROUP as numbers. Data for retrieval keep GROUP as text.
    """
    # validation rows that are drawn at random follow the training rows of their group, which has no order
    drawn = [SPLIT] if data.split.validation_rows == "random" and not data.has_moments else []
    rows = rows.sort(GROUP, *drawn, ORDER, PLACE)
    starts = _starts(rows, data.group.gap if data.group is not None else None)
    if data.split.by == "leave_one_out":
        # a group's (not session's) last row is a test row, the one before validates; groups of 1 or 2 rows train.
        # Without test rows, the last one validates.
        firsts = _starts(rows, None)
        sizes = np.bincount(firsts, minlength=len(firsts))[firsts] if len(firsts) else firsts
        from_end = firsts + sizes - 1 - np.arange(len(firsts))
        ends = [TEST] * bool(data.split.test) + [VALIDATION] * bool(data.split.validation)
        split = np.append(ends, TRAIN).astype(np.uint8)[np.minimum(from_end, len(ends))]
        rows = rows.with_columns(pl.Series(SPLIT, np.where(sizes < 3, TRAIN, split).astype(np.uint8)))
    stops = _starts(rows, 0.0) if data.has_moments else np.arange(rows.height)  # a gap of 0 begins each moment
    taken = [look_back.column(rows, n, starts, stops) for n, look_back in data.look_backs.items()]
    rows = rows.with_columns(taken).drop(data.conditions)
    if data.sequences is not None:
        rows = _sequences(data, data.sequences, rows, starts)
    elif (item := data.item_feature) is not None and SPLIT in rows.columns:
        rows = _queries(item, rows)
    rows = rows.drop({ORDER} - {*data.recency_columns})
    if data.together:
        rows = rows.sort(pl.col(PLACE).min().over(GROUP), maintain_order=True)
        return rows.with_columns(pl.Series(GROUP, group_numbers(rows[GROUP])))
    return rows.drop([GROUP] if data.item_feature is None else []).sort(PLACE, maintain_order=True)


def add_group_features(data: ResolvedData, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the features that depend on earlier rows of the group to parsed rows that are to be predicted.

    Raises:
        UserError: the data has sequences, which cannot be predicted row by row.
    """
    if data.group is None:
        return rows
    if data.sequences is not None:
        raise UserError("data.sequences: a sequence is a whole group, so its rows cannot be predicted one by one")
    arranged = arrange(data, rows.with_row_index(PLACE).cast({PLACE: pl.Int64}))
    return arranged.sort(PLACE).drop(PLACE, SPLIT, GROUP, strict=False)


def next_item_queries(data: ResolvedData, rows: pl.DataFrame) -> pl.DataFrame:
    """Make the query for each group's next item, in the same way as for held-out rows.

    The next row is assumed to equal the group's last one, but with an unknown item and unknown differences. So its ages
    are those at the time of the last row.

    Args:
        rows: parsed rows of the groups' past.

    Returns:
        One row for each group, with GROUP, in the order of the groups' first rows. If data.group has a gap, the query
        continues the last session.
    """
    item = data.item_feature
    assert item is not None and data.group is not None
    rows = rows.with_row_index(PLACE).cast({PLACE: pl.Int64}).with_columns(pl.lit(TRAIN, pl.UInt8).alias(SPLIT))
    groups = rows.select(GROUP).unique(maintain_order=True)
    differences = [n for n, look_back in data.look_backs.items() if isinstance(look_back, RowDifference)]
    last = rows.sort(GROUP, ORDER, PLACE).unique(GROUP, keep="last", maintain_order=True)
    follows = (
        groups.join(last, on=GROUP, how="left", maintain_order="left")
        .with_columns(pl.lit("").alias(item), pl.lit(TEST, pl.UInt8).alias(SPLIT))
        .with_columns(pl.lit(None).cast(rows.schema[n]).alias(n) for n in differences)
        .with_columns((pl.int_range(pl.len(), dtype=pl.Int64) + rows.height).alias(PLACE))
    )
    sequences = data.sequences and replace(data.sequences, reverse=False)
    config = replace(data, sequences=sequences, split=SplitConfig(by="order"))  # the rows have SPLIT already
    queries = arrange(config, pl.concat([rows, follows.select(rows.columns)])).filter(pl.col(SPLIT) == TEST)
    return queries.with_columns(groups.to_series())


def _starts(rows: pl.DataFrame, gap: float | None) -> np.ndarray:
    """Return the index of the first row of each row's group (or session): (rows,)."""
    new = pl.col(GROUP).ne_missing(pl.col(GROUP).shift())
    if gap is not None:
        new = new | (pl.col(ORDER).diff() > gap).fill_null(True)
    begins = rows.select(new).to_series().to_numpy().copy()
    begins[:1] = True
    return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))


def _queries(item: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Keep training rows; of each group's rows in a later split, keep the first one as a query.

    TARGETS holds the items of all those rows, HISTORY the items of the earlier splits.
    """
    rows = rows.sort(GROUP, SPLIT, maintain_order=True)
    starts, split = _starts(rows, None), rows[SPLIT].to_numpy()
    at = np.arange(len(starts))
    begins = (at == starts) | (split != np.roll(split, 1))
    first = at[begins & (split != TRAIN)]
    stop = np.append(at[begins], len(at))[np.searchsorted(at[begins], first) + 1]
    trains = at[split == TRAIN]  # empty slices: training rows have neither targets nor history
    kept = np.concatenate([trains, first])
    targets_and_history = _query_columns(
        rows[item], kept, np.concatenate([trains, stop]), np.concatenate([trains, starts[first]])
    )
    return rows[kept].with_columns(targets_and_history)


def _query_columns(items: pl.Series, first: np.ndarray, stop: np.ndarray, start: np.ndarray) -> list[pl.Series]:
    """Return TARGETS, items[first:stop], and HISTORY, items[start:first]."""
    return [slices(items, first, stop).alias(TARGETS), slices(items, start, first).alias(HISTORY)]


def _sequences(data: ResolvedData, c: SequenceConfig, rows: pl.DataFrame, starts: np.ndarray) -> pl.DataFrame:
    """Make sequences of each group's rows.

    The training items of a group become one row, or one row for each window; the last window has all of them as
    HISTORY. Every later item, or with held_out=all the items of a split together, becomes a row whose sequence ends
    with the first item to be predicted, and whose HISTORY is all items before it.
    """
    split = rows[SPLIT].to_numpy()
    at = np.arange(len(starts))
    held_out = np.concatenate([[0], np.cumsum(split != TRAIN)])
    trains = held_out[at + 1] == held_out[starts]  # before the group's first held-out row
    last = np.append(trains[1:] < trains[:-1], True) | np.append(starts[1:] != starts[:-1], True)
    ends = at[trains & last[: len(at)]]
    stops, firsts = _windows(ends, ends - starts[ends] + 1, c)
    later, ends_of_targets = (split != TRAIN) & (at > starts), at + 1
    if c.held_out == "all":
        begins = (at == starts) | (split != np.roll(split, 1))
        later = (split != TRAIN) & begins & (at > starts)
        ends_of_targets = np.append(at[begins], len(at))[np.cumsum(begins)]
    held_stops = at[later] + 1
    held_firsts = np.maximum(starts[later], held_stops - c.max_length - 1)
    item = rows[data.item_feature or ""]
    # the last window's HISTORY is all items the group trains on, each once, because windows may overlap or skip items
    trained = np.where(np.isin(stops - 1, ends), starts[stops - 1], stops)
    _check_length(rows[GROUP], starts[later], at[later])
    queries = _query_columns(
        item,
        np.concatenate([stops, at[later]]),
        np.concatenate([stops, ends_of_targets[later]]),
        np.concatenate([trained, starts[later]]),
    )
    if data.time_columns:  # of training rows; those of held-out rows have none
        times = np.concatenate([trained, at[later]]), np.concatenate([stops, at[later]])
        queries.append(slices(rows[ORDER], *times).alias(TIMES))
    first, stop = np.concatenate([firsts, held_firsts]), np.concatenate([stops, held_stops])
    which = np.concatenate([np.zeros(len(stops), np.uint8), split[later]])
    features = {n: s for n, s in data.sparse_columns.items() if s.sequence}
    sequences = (
        rows[stop - 1]
        .drop(list(features))
        .with_columns(pl.Series(SPLIT, which), *(slices(rows[n], first, stop) for n in features), *queries)
    )
    if c.reverse:
        reversed_ = sequences.filter(pl.col(SPLIT) == TRAIN).with_columns(pl.col(n).list.reverse() for n in features)
        reversed_ = reversed_.with_columns(
            pl.lit(REPEATED, pl.UInt8).alias(SPLIT), pl.col(HISTORY, *data.time_columns).list.head(0)
        )
        sequences = pl.concat([sequences, reversed_])
    return sequences


def _check_length(groups: pl.Series, starts: np.ndarray, stops: np.ndarray) -> None:
    """Check that histories fit into memory: for a group with many held-out items they grow with its length squared."""
    lengths = stops - starts
    if lengths.sum() <= MAX_HISTORY:
        return
    by_group = np.zeros(len(groups), np.int64)
    np.add.at(by_group, starts, lengths)
    worst = int(by_group.argmax())
    raise UserError(
        f"data.sequences.held_out=next: group {groups[worst]!r} has {(starts == worst).sum()} held-out items, whose "
        f"histories add up to {by_group[worst]:.1e} items; use held_out=all, a gap between sessions (data.group.gap), "
        "or leave such groups out (data.where)"
    )


def _windows(ends: np.ndarray, lengths: np.ndarray, c: SequenceConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return (stops, starts) of the windows.

    Each window covers at most max_length + 1 of the `lengths` items that end at `ends`.
    """
    size = c.max_length + 1
    kept = lengths >= c.min_length
    ends, lengths = ends[kept], lengths[kept]
    more = np.zeros(len(ends), np.int64)
    if c.stride is not None:  # add windows until the first item is covered
        more = np.maximum(0, -(-(lengths - size) // c.stride))
    index = np.repeat(np.arange(len(ends)), more + 1)
    back = (np.arange(len(index)) - np.repeat(np.cumsum(more + 1) - more - 1, more + 1)) * (c.stride or 0)
    stops = ends[index] + 1 - back
    firsts = np.maximum(ends[index] + 1 - lengths[index], stops - size)
    whole = stops - firsts >= c.min_length
    return stops[whole], firsts[whole]
