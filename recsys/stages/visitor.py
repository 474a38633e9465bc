"""The user of one request, and what the user did before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from recsys.files.text_values import text_of
from recsys.online.row_error import RowError
from recsys.online.servable import Row


@dataclass(frozen=True)
class Visitor:
    """The user of one request.

    key: the name of the user, or None
    user: the user's columns
    context: the columns of the request, the user's key and the time among them
    events: what models read of what the user did, oldest first, as raw rows of at most `history` events: those of the
        request, or else the stored ones
    seen: numbers of the items of all of these events, (P,), in their order; -1 for items of no catalogue
    k: length of the list
    rows: all rows of the request's history
    stored: numbers of the items of all stored events, (S,), in the order of `Events.places`
    exclude, candidates: numbers of items that the request leaves out, and of the only ones that it wants
    """

    key: str | None
    user: Row
    context: Row
    events: Sequence[Row]
    seen: np.ndarray
    k: int
    exclude: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    candidates: np.ndarray | None = None
    rows: Sequence[Row] = ()
    stored: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


class Events:
    """Events of users, by user and in the order of time.

    Args:
        frame: the events, whose column of users is text.
        user, item, time: names of columns; without a time, events are in the order of time.
        history: most events of `rows`.
    """

    def __init__(self, frame: pl.DataFrame, user: str, item: str, time: str | None, history: int) -> None:
        frame = frame.sort(time, maintain_order=True) if time is not None else frame
        self.frame = frame.with_row_index("__row__").sort(user, "__row__").drop("__row__")
        self._user, self._item, self._history = user, item, history
        lengths = self.frame.select(pl.col(user).rle()).unnest(user)
        stops = np.cumsum(lengths["len"].to_numpy().astype(np.int64))
        bounds = zip(lengths["value"].to_list(), np.append(0, stops).tolist(), stops.tolist(), strict=False)
        self._bounds: dict[str, tuple[int, int]] = {key: (start, stop) for key, start, stop in bounds}

    def rows(self, user: str | None) -> list[dict[str, Any]]:
        """Return the last events of a user, oldest first."""
        start, stop = self._bounds.get(user or "", (0, 0))
        return self.frame[max(start, stop - self._history) : stop].to_dicts()

    def pairs(self, kept: np.ndarray) -> Iterator[tuple[str, str]]:
        """Yield the user and the item of each event that is kept, (n,) bool."""
        frame = self.frame.select(self._user, pl.col(self._item).cast(pl.String)).filter(pl.Series(kept))
        return frame.iter_rows()

    def places(self, user: str | None) -> slice:
        """Return the rows of `frame` that are a user's."""
        return slice(*self._bounds.get(user or "", (0, 0)))


def as_key(value: object, column: str) -> str | None:
    """Return a user's or an item's name as text, as tables have it; None if it is missing.

    Raises RowError if it is not one value.
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(column, value, "must be text or a whole number", None)
    return text_of(value)
