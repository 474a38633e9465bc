"""Filters: candidates that a list must not have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import polars as pl
from pydantic import Field

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.base.ranges import Count, Fraction
from recsys.data.features.raw_types import RawType
from recsys.data.raw.derive import is_true
from recsys.data.raw.row_sql import parse_sql
from recsys.files.user_files import problem_of
from recsys.online.row_error import RowError
from recsys.online.servable import Row
from recsys.stages.expressions import Condition
from recsys.stages.open_models import Resources
from recsys.stages.visitor import Visitor


class Filter(ABC):
    """Says which candidates stay."""

    @abstractmethod
    def bind(self, resources: Resources, key: str) -> None:
        """Get ready for the items of a catalogue. key: the config key of the filter, for messages"""

    @abstractmethod
    def keep(self, visitor: Visitor, items: np.ndarray) -> np.ndarray:
        """Return whether each candidate stays: (n,) numbers of items, best first -> (n,) bool."""


class Seen(Filter):
    """Leaves out what the user has seen: the items of the stored events, and of the history that a request brings.

    Stored events are kept as exact lists or, beyond a size, as one Bloom filter of all users, which takes about 10 bits
    an event and also leaves out `errors` of what was not seen.

    Args:
        where: SQL over the columns of events: the events that count as seen, such as "buy = 1"; null: all. A row of a
            request's history needs these columns, too.
        bloom: number of events from which a Bloom filter replaces the lists.
        errors: share of items that a Bloom filter takes for seen.
    """

    def __init__(
        self,
        where: str | None = None,
        bloom: Annotated[int, Field(ge=1, le=2**53)] = 50_000_000,
        errors: Fraction = 0.01,
    ) -> None:
        self._where, self._bloom, self._errors = where, bloom, errors

    def bind(self, resources: Resources, key: str) -> None:
        events, self._key = resources.events, f"{key}.where"
        self._catalogue, self._events, self._filter = resources.catalogue, events, None
        self._counts: np.ndarray | None = None
        if self._where is None and (events is None or events.frame.height < self._bloom):
            return
        if events is None:
            raise UserError(f"{self._key}: needs the pipeline's events; set events.file")
        counts = event_condition(self._where, self._key, events.frame)
        if events.frame.height < self._bloom:
            self._counts = counts
            return
        check_extra("stages", f"{key}.bloom={self._bloom}: a Bloom filter of {events.frame.height:,} events")
        from rbloom import Bloom

        self._filter = Bloom(max(1, int(counts.sum())), self._errors)
        self._filter.update(events.pairs(counts))

    def keep(self, visitor: Visitor, items: np.ndarray) -> np.ndarray:
        stays = ~np.isin(items, self._in_request(visitor))
        if self._filter is not None:
            names = self._catalogue.names.gather(items).to_list()
            return stays & np.array([(visitor.key, name) not in self._filter for name in names], bool)
        stored = visitor.stored
        if self._counts is not None and self._events is not None:
            stored = stored[self._counts[self._events.places(visitor.key)]]
        return stays & ~np.isin(items, stored)

    def _in_request(self, visitor: Visitor) -> np.ndarray:
        """Return the numbers of the items of the request's history that count as seen."""
        if not visitor.rows:
            return visitor.stored[:0]
        if self._where is None or self._events is None:
            return visitor.seen
        schema, reads = self._events.frame.schema, dict.fromkeys(parse_sql(self._where, self._key)[1])
        columns = [_column(visitor.rows, n, schema[n], self._key) for n in reads]
        frame = pl.DataFrame([pl.Series("__row__", range(len(visitor.rows))), *columns])
        return visitor.seen[event_condition(self._where, self._key, frame)]


def _column(rows: Sequence[Row], name: str, dtype: pl.DataType, key: str) -> pl.Series:
    """Return a column of a request's history, of the type that it has in events.

    Raises RowError for a row that lacks it or has a value of another type.
    """
    read, values = RawType.of_dtype(dtype).read, []
    for i, row in enumerate(rows):
        try:
            values.append(read(row[name]))
        except (KeyError, ValueError) as e:
            why = str(e) if name in row else f"is missing, and {key} reads it; send it, or null if it is unknown"
            raise RowError(name, row.get(name), why, i, "history") from e
    return pl.Series(name, values, dtype)


class Where(Filter):
    """Keeps items for which a condition is true, such as item.stock > 0 and item.region = user.region.

    Args:
        sql: the condition, over item., user. and context. columns; NULL counts as false.
    """

    def __init__(self, sql: str) -> None:
        self._sql = sql

    def bind(self, resources: Resources, key: str) -> None:
        self._condition = Condition(self._sql, f"{key}.sql", resources)

    def keep(self, visitor: Visitor, items: np.ndarray) -> np.ndarray:
        return self._condition(visitor, items)


class MostPer(Filter):
    """Keeps the first `most` candidates of each value of a column, such as a seller or a category.

    Args:
        column: a column of the table of items; items without a value all stay.
        most: number of candidates of one value.
    """

    def __init__(self, column: str, most: Count) -> None:
        self._column, self._most = column, most

    def bind(self, resources: Resources, key: str) -> None:
        column = resources.catalogue.column(self._column, f"{key}.column")
        self._codes = column.cast(pl.String).rank("dense").fill_null(0).to_numpy().astype(np.int64)

    def keep(self, visitor: Visitor, items: np.ndarray) -> np.ndarray:
        codes = self._codes[items]
        order, place = np.argsort(codes, kind="stable"), np.empty(len(codes), np.int64)
        ordered = codes[order]
        place[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)  # among those of the same value
        return (place < self._most) | (codes == 0)


class Blocked(Filter):
    """Leaves out the items of a list.

    Args:
        items: names of items.
        file: a text file with a name on each line; null: none.
    """

    def __init__(self, items: list[str] | None = None, file: str | None = None) -> None:
        self._items, self._file = items or [], file

    def bind(self, resources: Resources, key: str) -> None:
        names = [str(i) for i in self._items]
        if self._file is not None:
            path = resources.models.root / self._file
            if problem := problem_of(path):
                raise UserError(f"{key}.file={self._file}: {problem}")
            try:
                names += [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            except (OSError, UnicodeDecodeError) as e:
                why = e.strerror if isinstance(e, OSError) else "not text"
                raise UserError(f"{key}.file={self._file}: cannot be read ({why}); name a text file") from e
        if not names:
            raise UserError(f"{key}: blocks nothing; set items or file")
        numbers = resources.catalogue.numbers(names)
        self._blocked = np.unique(numbers[numbers >= 0])
        if not len(self._blocked):
            say(f"{key}: blocks nothing, since no name of its list is that of an item; write one name on each line")

    def keep(self, visitor: Visitor, items: np.ndarray) -> np.ndarray:
        return ~np.isin(items, self._blocked)


def event_condition(sql: str | None, key: str, events: pl.DataFrame) -> np.ndarray:
    """Return whether SQL over the columns of events is true for each, (n,) bool; null: for all."""
    if sql is None:
        return np.ones(events.height, bool)
    found: np.ndarray = is_true(sql, events, key).fill_null(False).to_numpy()
    return found
