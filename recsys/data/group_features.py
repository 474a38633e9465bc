"""What a row owes to the other rows of its group: lags, differences, the last values, sessions, sequences, splits.

Typed rows go in and come out, text as text. Every row looks only at rows before it, whatever their split.
"""

from dataclasses import replace

import numpy as np
import polars as pl

from recsys.config.schema_data import (
    DataConfig,
    DenseConfig,
    SequenceConfig,
    SparseConfig,
    SplitConfig,
)
from recsys.data.transforms import (
    GROUP,
    HISTORY,
    ORDER,
    PLACE,
    SPLIT,
    TARGETS,
    differences,
    is_sequence,
    item_feature,
    sparse_columns,
)
from recsys.errors import UserError

MOST_HISTORY = 1 << 26  # items before all held-out ones of a pile: 3 GB
TRAIN, VALIDATION, TEST, AGAIN = range(4)  # AGAIN: a training row once more, from which nothing is learnt


def is_arranged(data: DataConfig) -> bool:
    """Whether any row depends on others."""
    return data.group is not None


def arranged(data: DataConfig, rows: pl.DataFrame) -> pl.DataFrame:
    """Whole groups of typed rows, in any order -> the rows, or one row a sequence, in the order of their places.

    rows: with GROUP, ORDER, PLACE, and SPLIT where it is known already, which sequences need.
    """
    rows = rows.sort(GROUP, ORDER, PLACE)
    starts = _starts(rows, data.group.gap if data.group is not None else None)
    if data.split.by == "leave_one_out":
        rows = rows.with_columns(pl.Series(SPLIT, leave_one_out(_starts(rows, None))))  # of a user, not a session
    rows = rows.with_columns(_looking_back(data, rows, starts))
    if data.sequences is not None:
        rows = _sequences(data, data.sequences, rows, starts)
    elif (item := item_feature(data)) is not None and SPLIT in rows.columns:
        rows = _queries(item, rows)
    return rows.drop(GROUP, ORDER).sort(PLACE, maintain_order=True)


def in_context(data: DataConfig, rows: pl.DataFrame) -> pl.DataFrame:
    """Typed rows to be predicted, with what they owe to those of them that come before in their group.

    Raises UserError for sequences, which are no rows.
    """
    if data.group is None:
        return rows
    if data.sequences is not None:
        raise UserError("data.sequences: its rows are whole groups, not such as can be predicted one by one")
    return arranged(data, rows.with_row_index(PLACE).cast({PLACE: pl.Int64})).drop(PLACE, SPLIT, strict=False)


def next_item_queries(data: DataConfig, rows: pl.DataFrame) -> pl.DataFrame:
    """Typed rows of what groups did so far -> of each group, in the order of their first rows, the query for what
    follows (in its last session, where data.group has a gap), made as those of held-out rows are; with GROUP.

    What follows is a row like the group's last one, but of an unknown item and with no difference known.
    """
    item = item_feature(data)
    assert item is not None and data.group is not None
    rows = rows.with_row_index(PLACE).cast({PLACE: pl.Int64}).with_columns(pl.lit(TRAIN, pl.UInt8).alias(SPLIT))
    groups = rows.select(GROUP).unique(maintain_order=True)
    last = rows.sort(GROUP, ORDER, PLACE).unique(GROUP, keep="last", maintain_order=True)
    follows = (
        groups.join(last, on=GROUP, how="left", maintain_order="left")
        .with_columns(pl.lit("").alias(item), pl.lit(TEST, pl.UInt8).alias(SPLIT))
        .with_columns(pl.lit(None).cast(rows.schema[n]).alias(n) for n in differences(data))
        .with_columns((pl.int_range(pl.len(), dtype=pl.Int64) + rows.height).alias(PLACE))
    )
    sequences = data.sequences and replace(data.sequences, reverse=False)
    given = replace(data, sequences=sequences, split=SplitConfig(by="order"))  # SPLIT is known
    made = arranged(given, pl.concat([rows, follows.select(rows.columns)])).filter(pl.col(SPLIT) == TEST)
    return made.with_columns(groups.to_series())


def _starts(rows: pl.DataFrame, gap: float | None) -> np.ndarray:
    """(rows,) of each row, where its group (or session) begins."""
    new = pl.col(GROUP).ne_missing(pl.col(GROUP).shift())
    if gap is not None:
        new = new | (pl.col(ORDER).diff() > gap).fill_null(True)
    begins = rows.select(new).to_series().to_numpy().copy()
    begins[:1] = True
    return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))


def leave_one_out(starts: np.ndarray) -> np.ndarray:
    """(rows,) uint8: the last row of a group tests, the one before validates; groups of one or two rows train."""
    sizes = np.bincount(starts, minlength=len(starts))[starts] if len(starts) else starts
    from_end = starts + sizes - 1 - np.arange(len(starts))
    split = np.select([from_end == 0, from_end == 1], [TEST, VALIDATION], TRAIN)
    return np.where(sizes < 3, TRAIN, split).astype(np.uint8)


def _looking_back(data: DataConfig, rows: pl.DataFrame, starts: np.ndarray) -> list[pl.Series]:
    columns, at = [], np.arange(len(starts))
    sparse = sparse_columns(data)
    features: dict[str, DenseConfig | SparseConfig] = {n: d for n, d in data.dense.items() if d} | dict(sparse)  # type: ignore[assignment]
    for name, c in features.items():
        if c.lag is not None:
            columns.append(_lagged(rows[name], starts, c.lag))
        elif c.difference is not None:
            columns.append(rows[name] - _lagged(rows[name], starts, c.difference))
    for name, s in sparse.items():
        if s.last is not None and not is_sequence(data, s):
            columns.append(slices(rows[name], np.maximum(starts, at - s.last), at))
    return columns


def _lagged(x: pl.Series, starts: np.ndarray, lag: int) -> pl.Series:
    there = pl.Series(np.arange(len(starts)) - lag >= starts)
    return x.shift(lag).zip_with(there, pl.Series([None], dtype=x.dtype).new_from_index(0, x.len())).alias(x.name)


def slices(x: pl.Series, first: np.ndarray, stop: np.ndarray) -> pl.Series:
    """A list x[first:stop] for each pair; a missing text is the empty one."""
    import pyarrow as pa  # which serving needs for this alone

    offsets = np.concatenate([[0], np.cumsum(stop - first)])
    at = np.repeat(first - offsets[:-1], stop - first) + np.arange(offsets[-1])
    values = (x.fill_null("") if x.dtype == pl.String else x).gather(at).to_arrow()
    lists = pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values))
    assert isinstance(lists, pl.Series)
    return lists.alias(x.name)


def _queries(item: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Training rows as they are; of each group's rows of a later split the first one, with the items of them all and
    those of the splits before.
    """
    rows = rows.sort(GROUP, SPLIT, maintain_order=True)
    starts, split = _starts(rows, None), rows[SPLIT].to_numpy()
    at = np.arange(len(starts))
    begins = (at == starts) | (split != np.roll(split, 1))
    first = at[begins & (split != TRAIN)]
    stop = np.append(at[begins], len(at))[np.searchsorted(at[begins], first) + 1]
    none = at[split == TRAIN]
    kept = np.concatenate([none, first])
    with_targets = _query_columns(rows[item], np.concatenate([none, first]), np.concatenate([none, stop]),
                                  np.concatenate([none, starts[first]]))  # fmt: skip
    return rows[kept].with_columns(with_targets)


def _query_columns(items: pl.Series, first: np.ndarray, stop: np.ndarray, start: np.ndarray) -> list[pl.Series]:
    """TARGETS are items[first:stop], HISTORY items[start:first]."""
    return [slices(items, first, stop).alias(TARGETS), slices(items, start, first).alias(HISTORY)]


def _sequences(data: DataConfig, c: SequenceConfig, rows: pl.DataFrame, starts: np.ndarray) -> pl.DataFrame:
    """A training row of each group's training items, or one a window of them (the last one has all of them as HISTORY);
    then a row for every later item, or for all of a split, with all items before it, its last one the first to be
    predicted.
    """
    split = rows[SPLIT].to_numpy()
    at = np.arange(len(starts))
    held_out = np.concatenate([[0], np.cumsum(split != TRAIN)])
    trains = held_out[at + 1] == held_out[starts]  # before the group's first row that is held out
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
    item = rows[item_feature(data) or ""]
    # all that a group trains on, once: with its last window, whatever windows leave out or hold twice
    trained = np.where(np.isin(stops - 1, ends), starts[stops - 1], stops)
    _check_length(rows[GROUP], starts[later], at[later])
    queries = _query_columns(
        item,
        np.concatenate([stops, at[later]]),
        np.concatenate([stops, ends_of_targets[later]]),
        np.concatenate([trained, starts[later]]),
    )
    first, stop = np.concatenate([firsts, held_firsts]), np.concatenate([stops, held_stops])
    which = np.concatenate([np.zeros(len(stops), np.uint8), split[later]])
    features = {n: s for n, s in sparse_columns(data).items() if is_sequence(data, s)}
    made = rows[stop - 1].drop(list(features)).with_columns(
        pl.Series(SPLIT, which), *(slices(rows[n], first, stop) for n in features), *queries
    )  # fmt: skip
    if c.reverse:
        back = made.filter(pl.col(SPLIT) == TRAIN).with_columns(pl.col(n).list.reverse() for n in features)
        back = back.with_columns(pl.lit(AGAIN, pl.UInt8).alias(SPLIT), pl.col(HISTORY).list.head(0))
        made = pl.concat([made, back])
    return made


def _check_length(groups: pl.Series, starts: np.ndarray, stops: np.ndarray) -> None:
    """Every query has all that came before, which of a group of many held-out items is its length squared."""
    lengths = stops - starts
    if lengths.sum() <= MOST_HISTORY:
        return
    of_group = np.zeros(len(groups), np.int64)
    np.add.at(of_group, starts, lengths)
    worst = int(of_group.argmax())
    raise UserError(
        f"data.sequences.held_out=next: {(starts == worst).sum()} items of group {groups[worst]!r} are held out, and "
        f"all that came before each of them makes {of_group[worst]:.1e} items; use held_out=all, a gap between "
        "sessions (data.group.gap), or leave such groups out (data.where)"
    )


def _windows(ends: np.ndarray, lengths: np.ndarray, c: SequenceConfig) -> tuple[np.ndarray, np.ndarray]:
    """Stops and firsts of the windows over runs of `lengths` items that end with items `ends`."""
    size = c.max_length + 1
    kept = lengths >= c.min_length
    ends, lengths = ends[kept], lengths[kept]
    more = np.zeros(len(ends), np.int64)
    if c.stride is not None:  # as many as it takes to reach the first item
        more = np.maximum(0, -(-(lengths - size) // c.stride))
    index = np.repeat(np.arange(len(ends)), more + 1)
    back = (np.arange(len(index)) - np.repeat(np.cumsum(more + 1) - more - 1, more + 1)) * (c.stride or 0)
    stops = ends[index] + 1 - back
    firsts = np.maximum(ends[index] + 1 - lengths[index], stops - size)
    whole = stops - firsts >= c.min_length
    return stops[whole], firsts[whole]
