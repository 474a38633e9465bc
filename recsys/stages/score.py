"""Score candidates with a ranking artefact, and combine its predictions by a formula.

The features of the user and of the past are computed once for a request. The features of items alone are computed once
for all requests, when the pipeline is loaded.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from recsys.data.arrays import Arrays
from recsys.data.raw.derive import FeatureInputs
from recsys.data.transforms.resolved_data import ResolvedData
from recsys.errors import UserError, did_you_mean
from recsys.export.artefact.served_ranking import ServedRanking
from recsys.online.python_values import RowError
from recsys.online.servable import Row
from recsys.stages.expressions import Formula
from recsys.stages.open_models import Models
from recsys.stages.resources import Resources
from recsys.stages.retrieved import Retrieved, column_names
from recsys.stages.visitor import Visitor

CHUNK = 1 << 16  # items whose features are computed at a time
SHOWN = 3  # names in a message


class Score(ABC):
    """Gives candidates scores."""

    @abstractmethod
    def open(self, models: Models, key: str) -> None:
        """Load what the stage needs."""

    @abstractmethod
    def bind(self, resources: Resources, key: str, item: str, user: str, time: str | None) -> None:
        """Get ready for the items of a catalogue. item, user, time: the columns that name them in rows"""

    @abstractmethod
    def scores(
        self, visitor: Visitor, items: np.ndarray, retrieved: Retrieved
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the score of each candidate, (n,) numbers -> (n,), and what it was made of, (n,) each.

        retrieved: what the sources said of these candidates
        """


class Ranking(Score):
    """The predictions of a ranking model, combined by a formula.

    Args:
        run: a run, or an artefact that recsys.export wrote.
        formula: the score, such as p_click * p_buy ** 0.3 * item.price; null: the first prediction. p_NAME is the
            prediction of a label; a single label has the name of its column.
        unknown: largest share of the catalogue's items that the model may not know.
    """

    def __init__(self, run: str, formula: str | None = None, unknown: float = 0.1) -> None:
        self.run, self._text, self._unknown = run, formula, unknown
        self._model: ServedRanking | None = None

    @property
    def model(self) -> ServedRanking:
        assert self._model is not None
        return self._model

    def open(self, models: Models, key: str) -> None:
        self._model = models.ranking(self.run, f"{key}.run")

    def bind(self, resources: Resources, key: str, item: str, user: str, time: str | None) -> None:
        data = self.model.pipeline.fitted.data
        names = {there: here for here, there in data.source.rename.items()}
        self._item, self._user = names.get(item, item), names.get(user, user)
        self._order = None if data.group is None else data.group.order
        self._last = _longest_past(data)
        self._catalogue = resources.catalogue
        reads = self.model.pipeline.fitted
        needs = FeatureInputs.from_config(reads.data).raw
        of_items = {self._item, *(needs & set(resources.catalogue.columns.columns))}
        self._of_items, self._stored = sorted(of_items), resources.items
        self._of_store = sorted(needs & resources.items.names - of_items) if resources.items is not None else []
        of_items |= set(self._of_store)
        provided = {self._user, *resources.user, *resources.context, *of_items}
        provided |= {names.get(time, time)} if time else set()
        provided |= set(resources.events.frame.columns) & self._past() if resources.events is not None else self._past()
        self._of_sources = sorted(needs & set(column_names(resources.sources)))
        provided |= {*data.source.optional_columns, *self._of_sources}
        if missing := sorted(needs - provided - {self._order}):
            known = did_you_mean(missing[0], provided)
            raise UserError(
                f"{key}.run={self.run}: the model reads the column {missing[0]}, which no table and no request has"
                f"{known}; add it to items, users or context"
            )
        self._shared = frozenset(needs - of_items - set(self._of_sources))
        self._division = self.model.shared_columns.division(self._shared)
        self._check_items(key)
        self._predictions = {n: n if n.startswith("p_") else f"p_{n}" for n in (o.name for o in self.model.outputs)}
        if len(self._predictions) == 1 and not data.labels and data.label.column:
            self._predictions = dict.fromkeys(self._predictions, f"p_{data.label.column}")
        names_of = list(self._predictions.values())
        text = names_of[0] if self._text is None else self._text
        self._formula = Formula(text, f"{key}.formula", names_of, resources)
        alone = not self._division.needed and not self._division.past
        alone = alone and not self._of_sources and not self._of_store
        self._items = self._item_features() if alone else None

    def _past(self) -> set[str]:
        """Return the columns that only features of earlier rows read."""
        data = self.model.pipeline.fitted.data
        if data.group is None:
            return set()
        looks_back = [c.column or n for n, c in data.sparse_columns.items() if c.last is not None]
        looks_back += [c.column or n for n, c in data.dense.items() if c and (c.lag is not None)]
        return {*looks_back, data.group.by, *filter(None, [data.group.order])}

    def _check_items(self, key: str) -> None:
        """Raise UserError if the model does not know many items of the catalogue."""
        fitted = self.model.pipeline.fitted
        item = next((n for n, c in fitted.data.sparse_columns.items()
                     if (c.column or n) == self._item and c.last is None), None)  # fmt: skip
        vocabulary = fitted.vocabularies.get((fitted.data.sparse_columns[item].table or item) if item else "")
        if vocabulary is None:
            return
        unknown = ~self._catalogue.names.is_in(vocabulary["value"].implode()).to_numpy()
        if unknown.mean() > self._unknown:
            some = ", ".join(self._catalogue.names.filter(unknown)[:SHOWN])
            raise UserError(
                f"{key}.run={self.run}: the model does not know {unknown.sum():,} of the {len(unknown):,} items that "
                f"the sources and the table of items have, such as {some}; train it on them, or raise {key}.unknown"
            )

    def _item_features(self) -> Arrays:
        parts = []
        for start in range(0, len(self._catalogue), CHUNK):
            items = np.arange(start, min(start + CHUNK, len(self._catalogue)))
            try:
                parts.append(self._division.each.arrays(self._item_rows(items)))
            except RowError as e:
                raise self._item_error(e, items) from e
        return Arrays.concatenated(parts)

    def _item_error(self, error: RowError, items: np.ndarray) -> UserError:
        """Return the error of an item's row, with the item's name."""
        name = self._catalogue.names[int(items[error.row or 0])]
        return UserError(f"items: {self._item} {name}: column {error.column}: {error.value!r} {error.why}")

    def _item_rows(self, items: np.ndarray) -> list[dict[str, Any]]:
        """Return raw rows with the columns of items that the model reads."""
        columns = {n: self._catalogue.columns[n][items].to_list() for n in self._of_items if n != self._item}
        columns[self._item] = self._catalogue.names[items].to_list()
        rows: list[dict[str, Any]] = [
            dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
        ]
        if self._of_store and self._stored is not None:
            [key] = self._stored.keys
            found = self._stored.join([{key: name} for name in columns[self._item]])
            for row, values in zip(rows, found, strict=True):
                row |= {n: values[n] for n in self._of_store if n in values}
        return rows

    def predictions(self, visitor: Visitor, items: np.ndarray, retrieved: Retrieved) -> dict[str, np.ndarray]:
        """Return the predictions for candidates, (n,) each, by the names that formulas use."""
        shared = self._row(visitor)
        past = visitor.events[-self._last :] if self._last else ()
        own: dict[str, Any] = {self._user: visitor.key}
        if self._order is not None and any(row.get(self._order) is None for row in past):
            past = [{**row, self._order: shared[self._order]} for row in past]  # they are in order
        history = [{**own, **row} for row in past]
        try:
            once = self._division.once.arrays(shared, history)
        except RowError as e:
            if e.row is not None and e.row < len(history):
                raise RowError(e.column, e.value, e.why, e.row, "history") from e
            raise RowError(f"context.{e.column}", e.value, e.why, None) from e
        try:
            if self._items is not None:
                each = self._items.take(items)
            else:
                rows = self._item_rows(items)
                for name in self._of_sources:
                    for row, value in zip(rows, retrieved.column(name).tolist(), strict=True):
                        row[name] = None if math.isnan(value) else value
                each = self.model.shared_columns.each(self._division, shared, rows, history)
        except RowError as e:
            raise self._item_error(e, items) from e
        outputs = self.model.run_arrays(self.model.shared_columns.joined(once, each, self._division))
        return {self._predictions[n]: values for n, values in outputs.items()}

    def scores(
        self, visitor: Visitor, items: np.ndarray, retrieved: Retrieved
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        predictions = self.predictions(visitor, items, retrieved)
        return self._formula(visitor, items, predictions), predictions

    def _row(self, visitor: Visitor) -> Row:
        """Return the raw row that all candidates share."""
        row: dict[str, Any] = {n: v for n, v in {**visitor.user, **visitor.context}.items() if n in self._shared}
        row[self._user] = visitor.key
        if self._order is not None and row.get(self._order) is None:
            last = visitor.events[-1].get(self._order) if visitor.events else None
            row[self._order] = last if last is not None else int(time.time())
        return row


def _longest_past(data: ResolvedData) -> int:
    """Return the number of earlier rows that features read, 0 if none reads any."""
    if data.group is None:
        return 0
    dense = [c.lag or c.difference or 0 for c in data.dense.values() if c is not None]
    return max([*dense, *(c.last or 0 for c in data.sparse_columns.values())], default=0)
