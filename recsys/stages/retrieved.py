"""Scores and ranks that sources gave to candidates, as columns that a ranking model may read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from recsys.stages.sources import Found

SCORE, RANK = "_score", "_rank"  # behind the name of a source


def column_names(sources: Iterable[str]) -> list[str]:
    """Return the names of the columns of some sources."""
    return [f"{name}{what}" for name in sources for what in (SCORE, RANK)]


class Retrieved:
    """The scores and ranks that sources gave to candidates.

    found: the candidates of each source, best first
    items: (n,) the candidates that are looked at
    """

    def __init__(self, found: Mapping[str, Found], items: np.ndarray) -> None:
        self._found, self.items = found, items

    def column(self, name: str) -> np.ndarray:
        """Return a column (n,) float64, NaN for candidates that the source did not list; ranks begin with 1."""
        what = RANK if name.endswith(RANK) else SCORE
        items, scores = self._found[name.removesuffix(what)]
        values = np.full(len(self.items), np.nan)
        if len(items):
            order = np.argsort(items)
            at = order[np.minimum(np.searchsorted(items, self.items, sorter=order), len(items) - 1)]
            known = items[at] == self.items
            given = scores if what == SCORE else np.arange(1, len(items) + 1, dtype=np.float64)
            values[known] = given[at[known]]
        return values
