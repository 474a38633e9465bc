"""Values that the training rows do not hold, counted where they are met: a line, and an error where nearly all are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features import Fitted
from recsys.data.features.row_sources import Cross, Pattern

NEARLY_ALL = 0.95  # of at least MIN_VALUES values, which shows that a column is not that of the training rows
MIN_VALUES = 10
SAID_FROM = 0.05


class UnknownValues:
    """Counts the values of columns, and those of them that have no id, over blocks of parsed rows.

    Args:
        fitted: the fitted transforms.
        allowed: whether a column may have no known value.
    """

    def __init__(self, fitted: Fitted, allowed: bool = False) -> None:
        self._fitted, self._allowed = fitted, allowed
        self._features = {
            name: c
            for name, c in fitted.data.sparse_columns.items()
            if c.encoder.vocabulary is not None and c.look_back is None and not isinstance(c.source, Cross | Pattern)
        }
        self._counts: dict[str, np.ndarray] = {}  # given and unknown values
        self._examples: dict[str, str] = {}

    def add(self, parsed: pl.DataFrame, ids: Mapping[str, pl.Series]) -> None:
        """Count the values of parsed rows. ids: of some features, as `Fitted.apply` returns them"""
        for name in self._features.keys() & ids.keys():
            values, own = parsed[name], ids[name]
            if isinstance(values.dtype, pl.List):
                values, own = (x.explode(empty_as_null=False, keep_nulls=False) for x in (values, own))
            unknown = (own == 0) & (values != "").fill_null(False)
            given = len(values) - values.null_count() - (values == "").sum()
            counted = np.array([given, unknown.sum()])
            self._counts[name] = self._counts.get(name, np.zeros(2, np.int64)) + counted
            if name not in self._examples and unknown.any():
                self._examples[name] = values.filter(unknown)[0]

    def check(self, said: set[str]) -> None:
        """Say which columns have unknown values, if it was not said before.

        Raises UserError if nearly all values of a column are unknown, unless that is allowed.

        said: the features of which it was said, to which it adds
        """
        lines = []
        for name, (given, unknown) in sorted(self._counts.items()):
            if given >= MIN_VALUES and unknown >= NEARLY_ALL * given and not self._allowed:
                hint = "correct the column, or set allow_unknown=true if these values are new"
                raise UserError(f"{self._line(name, given, unknown)}; {hint}")
            if unknown >= SAID_FROM * given and unknown and name not in said:
                said.add(name)
                lines.append(self._line(name, given, unknown))
        for line in lines:
            say(line)

    def _line(self, name: str, given: int, unknown: int) -> str:
        c = self._features[name]
        held = self._fitted.vocabularies[c.table]["value"]
        examples = held.filter(held != "").head(3).sort().to_list()
        rules = c.encoder.vocabulary
        assert rules is not None
        rare = f", or are rarer than min_count={rules.min_count}" * (rules.min_count > 1)
        which = f"which hold {', '.join(map(repr, examples)) or 'none'}{', ...' * (len(held) > 3)}"
        counted = f"{unknown:,} of {given:,} values, such as {self._examples[name]!r}, "
        return f"{c.column}: {counted}are not in the training rows, {which}{rare}"
