"""Score candidates with a ranking artefact, and combine its predictions by a formula.

The features of the user and of the past are computed once for a request. The features of items alone are computed once
for all requests, when the pipeline is loaded.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np

from recsys.base.errors import UserError, did_you_mean
from recsys.data.features import Fitted
from recsys.data.features.arrays import Arrays
from recsys.data.raw.derive import FeatureInputs
from recsys.export.artefact.served_ranking import ServedRanking
from recsys.online.row_error import RowError
from recsys.online.row_transforms import of_the_past
from recsys.online.servable import Row
from recsys.stages.expressions import Formula
from recsys.stages.merge import Retrieved, column_names
from recsys.stages.open_models import Models, Resources
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
        """Get ready for the items of a catalogue. key: the config key of the stage, for messages

        item, user, time: the columns of rows that name items and users, and hold the time of a request
        """

    @abstractmethod
    def scores(
        self, visitor: Visitor, items: np.ndarray, retrieved: Retrieved
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the score of each candidate, (n,), and the predictions that the score combines, (n,) each.

        items: (n,) numbers of the candidates
        retrieved: the scores and ranks that the sources gave to these candidates
        """


def moved(moment: object, step: int) -> object:
    """Return a raw number plus `step`, or a raw time that is later by so many seconds, or days of dates."""
    if isinstance(moment, str):
        for read in (int, float, datetime.fromisoformat):
            with suppress(ValueError, OverflowError):
                return str(moved(read(moment), step))
        return moment
    if isinstance(moment, date):
        return moment + (timedelta(seconds=step) if isinstance(moment, datetime) else timedelta(days=step))
    return moment + step if isinstance(moment, int | float) else moment


@dataclass(frozen=True)
class _ColumnOrigins:
    """Where the raw columns that a model reads come from.

    item, user: the columns that name them, under the names of the model's files
    order: the column that sorts earlier rows; None if the model reads no earlier rows
    of_items: columns of the catalogue, the item among them
    of_store: columns of the store of items
    of_sources: columns that sources compute for their candidates (scores, ranks)
    shared: columns of the user and the request
    missing: the end of the message about a column that no table and no request has; empty if none is missing
    """

    item: str
    user: str
    order: str | None
    of_items: Sequence[str]
    of_store: Sequence[str]
    of_sources: Sequence[str]
    shared: frozenset[str]
    missing: str


def _column_origins(fitted: Fitted, resources: Resources, item: str, user: str, time: str | None) -> _ColumnOrigins:
    data = fitted.data
    names = {ours: theirs for theirs, ours in data.source.rename.items()}
    item, user = names.get(item, item), names.get(user, user)
    order = None if data.group is None else data.group.order
    needs = FeatureInputs.from_config(data).raw
    of_catalogue = {item, *(needs & set(resources.catalogue.columns.columns))}
    of_store = needs & resources.items.names - of_catalogue if resources.items is not None else set[str]()
    of_sources = needs & set(column_names(resources.sources))
    past = set[str]()  # the columns that earlier rows alone need, and those of the group
    if data.group is not None:
        reads_past = of_the_past(data)
        dense, sparse = ([n for n in given if n not in reads_past] for given in (data.dense, data.sparse))
        every, now = (
            FeatureInputs.from_config(fitted.restricted(*given, grouped=False).data).raw
            for given in ((data.dense, data.sparse), (dense, sparse))
        )
        past = {*(every - now), data.group.by, *filter(None, [order])}
    provided = {user, *resources.user, *resources.context, *of_catalogue, *of_store, *of_sources}
    provided |= {names.get(time, time)} if time else set()
    provided |= past if resources.events is None else past & set(resources.events.frame.columns)
    provided |= set(data.source.optional_columns)
    lacking = sorted(needs - provided - {order})
    missing = f"{lacking[0]}, which no table and no request has{did_you_mean(lacking[0], provided)}" if lacking else ""
    shared = frozenset(needs - of_catalogue - of_store - of_sources)
    return _ColumnOrigins(
        item, user, order, sorted(of_catalogue), sorted(of_store), sorted(of_sources), shared, missing
    )


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
        self._catalogue, self._stored = resources.catalogue, resources.items
        self._origins = _column_origins(self.model.pipeline.fitted, resources, item, user, time)
        if self._origins.missing:
            hint = "add it to items, users or context"
            raise UserError(f"{key}.run={self.run}: the model reads the column {self._origins.missing}; {hint}")
        self._last = 0  # earlier rows that features read
        if data.group is not None:
            sequences = [c.sequence or 0 for c in data.sparse_columns.values()]
            self._last = max([*(look_back.rows for look_back in data.look_backs.values()), *sequences], default=0)
        self._last = sys.maxsize if data.conditions else self._last  # which may choose any of them
        self._step = int(data.has_moments)  # between the last event and a request without a time
        self._division = self.model.shared_columns.division(self._origins.shared)
        item_feature = next(
            (n for n, c in data.sparse_columns.items() if c.column == self._origins.item and not c.is_list), None
        )
        table = data.sparse_columns[item_feature].table if item_feature else ""
        vocabulary = self.model.pipeline.fitted.vocabularies.get(table)
        if vocabulary is not None:
            unknown = ~self._catalogue.names.is_in(vocabulary["value"].implode()).to_numpy()
            if unknown.mean() > self._unknown:
                some = ", ".join(self._catalogue.names.filter(unknown)[:SHOWN])
                raise UserError(
                    f"{key}.run={self.run}: the model does not know {unknown.sum():,} of the {len(unknown):,} items "
                    f"that the sources and the table of items have, such as {some}; train it on them, or raise "
                    f"{key}.unknown"
                )
        outputs = [o.name for o in self.model.outputs]
        self._predictions = {n: n if n.startswith("p_") else f"p_{n}" for n in outputs}  # the names in formulas
        if len(outputs) == 1 and not data.labels and data.label.column:
            self._predictions = {outputs[0]: f"p_{data.label.column}"}
        names = list(self._predictions.values())
        self._formula = Formula(names[0] if self._text is None else self._text, f"{key}.formula", names, resources)
        of_request = self._division.needed or self._division.past or self._origins.of_sources or self._origins.of_store
        self._items = None
        if not of_request:
            parts = []
            for start in range(0, len(self._catalogue), CHUNK):
                items = np.arange(start, min(start + CHUNK, len(self._catalogue)))
                try:
                    parts.append(self._division.each.arrays(self._item_rows(items)))
                except RowError as e:
                    raise self._item_error(e, items) from e
            self._items = Arrays.concatenated(parts)

    def _item_error(self, error: RowError, items: np.ndarray) -> UserError:
        """Return the error of an item's row, with the item's name."""
        name = self._catalogue.names[int(items[error.row or 0])]
        return UserError(f"items: {self._origins.item} {name}: column {error.column}: {error.value!r} {error.why}")

    def _item_rows(self, items: np.ndarray) -> list[dict[str, Any]]:
        """Return raw rows with the columns of items that the model reads."""
        item, catalogue = self._origins.item, self._catalogue.columns
        columns = {n: catalogue[n][items].to_list() for n in self._origins.of_items if n != item}
        columns[item] = self._catalogue.names[items].to_list()
        rows = [dict[str, Any](zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if self._origins.of_store and self._stored is not None:
            [key] = self._stored.keys
            found = self._stored.join([{key: name} for name in columns[item]])
            for row, values in zip(rows, found, strict=True):
                row |= {n: values[n] for n in self._origins.of_store if n in values}
        return rows

    def predictions(self, visitor: Visitor, items: np.ndarray, retrieved: Retrieved) -> dict[str, np.ndarray]:
        """Return the predictions for candidates, (n,) each, by the names that formulas use."""
        given = {**visitor.user, **visitor.context}
        shared: dict[str, Any] = {n: v for n, v in given.items() if n in self._origins.shared}
        shared[self._origins.user] = visitor.key
        user_row: dict[str, Any] = {self._origins.user: visitor.key}
        history = [{**user_row, **row} for row in self._past(visitor, shared)]
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
                for name in self._origins.of_sources:
                    for row, value in zip(rows, retrieved.column(name).tolist(), strict=True):
                        row[name] = None if math.isnan(value) else value
                each = self.model.shared_columns.each(self._division, shared, rows, history)
        except RowError as e:
            raise self._item_error(e, items) from e
        outputs = self.model.run_arrays(self.model.shared_columns.joined(once, each, self._division))
        return {self._predictions[n]: values for n, values in outputs.items()}

    def _past(self, visitor: Visitor, shared: dict[str, Any]) -> Sequence[Row]:
        """Return the events before a request, and give `shared` a time after them if it has none."""
        order, events = self._origins.order, visitor.events
        if order is not None:
            if shared.get(order) is None:
                last = events[-1].get(order) if events else None
                shared[order] = int(time.time()) if last is None else moved(last, self._step)
            if any(row.get(order) is None for row in events):  # they are sorted already
                before = moved(shared[order], -self._step)
                events = [{**row, order: before} for row in events]
            elif self._step:
                events = [row for row in events if row[order] != shared[order]]
        return events[-self._last :] if self._last else ()

    def scores(
        self, visitor: Visitor, items: np.ndarray, retrieved: Retrieved
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        predictions = self.predictions(visitor, items, retrieved)
        return self._formula(visitor, items, predictions), predictions
