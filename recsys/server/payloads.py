"""The inputs of a request, which are merged into batches and divided again, and the kinds of models that take them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from recsys.base.errors import UserError
from recsys.online.query_parameters import QUERY_KEYS, make_query, of_history
from recsys.online.row_error import RowError
from recsys.online.servable import Features, Outputs, Query, Row, Servable
from recsys.server.request_error import RequestError

AT_ONCE = 32  # queries of a pipeline that are computed at once


@dataclass(slots=True)
class Result:
    """The outputs of a batch, and how long its parts took, in seconds.

    outputs: arrays by name, or a list with items and scores of each query
    features: the features, if the server has computed them from raw values
    """

    outputs: Any
    transform_seconds: float = 0.0
    model_seconds: float = 0.0
    features: Features | None = None


class _ByRow:
    """A payload whose outputs are arrays with an element, or a part, for each row."""

    __slots__ = ()
    count: int  # number of rows

    @property
    def weight(self) -> int:
        """Return how much the payload counts in a queue and in a batch."""
        return self.count

    def kind(self, servable: Servable) -> Hashable:
        """Return what payloads that can be merged have in common."""
        return id(self) if servable.rows_depend_on_others else type(self).__name__

    def parts(self, _: Servable) -> list[Any]:
        """Return the parts that are computed one by one: a single part with all rows."""
        return [self]

    def divide(self, outputs: Outputs, start: int, end: int) -> Outputs:
        return {name: array[start:end] for name, array in outputs.items()}


@dataclass(slots=True)
class RowsPayload(_ByRow):
    """Raw rows, one mapping each.

    shared: values that all rows have, too; such rows are not merged with others
    unread: further shared values, which only the log of samples keeps
    """

    rows: list[Row]
    shared: Row | None = None
    unread: Row = field(default_factory=dict)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.rows)

    def kind(self, servable: Servable) -> Hashable:
        return id(self) if self.shared is not None else _ByRow.kind(self, servable)

    def merge(self, others: Sequence[RowsPayload]) -> RowsPayload:
        return RowsPayload([*self.rows, *(row for other in others for row in other.rows)])

    def compute(self, servable: Servable) -> Result:
        started = perf_counter()
        return _run(servable, servable.features(self.rows, self.shared), started)

    def raw_rows(self) -> list[Row]:
        """Return the rows for the log of samples."""
        return self.rows if self.shared is None else [{**self.unread, **self.shared, **row} for row in self.rows]


@dataclass(slots=True)
class ColumnsPayload(_ByRow):
    """Raw columns of `count` values each."""

    columns: dict[str, list[Any]]
    count: int

    def merge(self, others: Sequence[ColumnsPayload]) -> ColumnsPayload:
        parts = (self, *others)
        names = dict.fromkeys(name for p in parts for name in p.columns)
        merged = {n: list(chain.from_iterable(p.columns.get(n) or [None] * p.count for p in parts)) for n in names}
        return ColumnsPayload(merged, sum(p.count for p in parts))

    def compute(self, servable: Servable) -> Result:
        started = perf_counter()
        return _run(servable, servable.features_of_columns(self.columns, self.count), started)

    def raw_rows(self) -> list[Row]:
        """Return the rows for the log of samples."""
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*self.columns.values(), strict=True)]


@dataclass(slots=True)
class TensorsPayload(_ByRow):
    """Features that the caller has computed. Only arrays whose first dimension is the row can be merged."""

    tensors: dict[str, np.ndarray]
    count: int

    def kind(self, servable: Servable) -> Hashable:
        if any(a.shape[0] != self.count for a in self.tensors.values()):
            return id(self)
        return tuple((n, a.dtype, a.shape[1:]) for n, a in sorted(self.tensors.items()))

    def merge(self, others: Sequence[TensorsPayload]) -> TensorsPayload:
        parts = (self, *others)
        merged = {n: np.concatenate([p.tensors[n] for p in parts]) for n in self.tensors}
        return TensorsPayload(merged, sum(p.count for p in parts))

    def compute(self, servable: Servable) -> Result:
        started = perf_counter()
        outputs = servable.run_tensors(self.tensors)
        return Result(outputs, model_seconds=perf_counter() - started)

    def raw_rows(self) -> list[Row]:
        """Return no rows: the log of samples holds raw values."""
        return []


@dataclass(slots=True)
class QueriesPayload:
    """Requests for items.

    start: the place of the first one in a request that was divided
    known: the number of known items of each history, once the queries have been answered
    """

    queries: list[Query]
    start: int | None = None
    known: list[int | None] = field(default_factory=list)
    count: int = field(init=False)
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.queries)
        self.weight = sum(max(1, len(q.rows)) for q in self.queries)

    def kind(self, servable: Servable) -> Hashable:
        return QueriesPayload

    def parts(self, servable: Servable) -> list[QueriesPayload]:
        """Return queries of a pipeline in parts: each query takes the time of many rows."""
        if not servable.context:
            return [self]
        places = range(0, len(self.queries), AT_ONCE)
        return [self] if len(places) < 2 else [QueriesPayload(self.queries[i : i + AT_ONCE], i) for i in places]

    def merge(self, others: Sequence[QueriesPayload]) -> QueriesPayload:
        return QueriesPayload([*self.queries, *(q for other in others for q in other.queries)])

    def compute(self, servable: Servable) -> Result:
        started = perf_counter()
        try:
            lists = servable.recommend(self.queries)
        except UserError as e:
            raise self._named(servable, of_history(e)) from e
        return Result(lists, model_seconds=perf_counter() - started)

    def _named(self, servable: Servable, error: UserError) -> UserError:
        """Return the error of the first query that fails alone, with its place if there are several."""
        if len(self.queries) == 1 and self.start is None:
            return error
        for i, query in enumerate(self.queries, self.start or 0):
            try:
                servable.recommend([query])
            except UserError as e:
                where = "." if isinstance(e, RowError) else ": "
                return RequestError(400, f"queries[{i}]{where}{of_history(e)}")
        return error

    def divide(self, outputs: list[Any], start: int, end: int) -> list[Any]:
        return outputs[start:end]

    def raw_rows(self) -> list[Row]:
        """Return the histories for the log of samples, one after another."""
        return [row for q in self.queries for row in q.rows]


Payload = RowsPayload | ColumnsPayload | TensorsPayload | QueriesPayload


def _run(servable: Servable, features: Features, started: float) -> Result:
    transformed = perf_counter()
    outputs = servable.run(features)
    return Result(outputs, transformed - started, perf_counter() - transformed, features)


Columns = Mapping[str, list[Any]]
Schema = dict[str, Any]  # a part of an OpenAPI document
LISTS: Schema = {"exclude": {"type": "array"}, "candidates": {"type": "array"}}


class ScoresRows:
    """Models that score rows.

    verb: the path of requests in JSON, /predict; `does` says the same in messages
    answer: the properties of an answer in JSON
    parameters: those of requests of the open inference protocol
    batches: whether the first dimension of inputs and outputs is that of a batch, whose rows are independent
    """

    name, about = "ranking model", "Score rows of raw columns"
    verb, does = "predict", "scores rows"
    answer: ClassVar[Schema] = {"predictions": {"type": "array"}}
    parameters: Sequence[str] = ()
    batches = True

    def empty(self) -> Payload:
        """Return the smallest payload, which warms a model up."""
        return RowsPayload([{}])

    def payload(self, servable: Servable, columns: Columns, rows: int, _: Mapping[str, Any]) -> Payload:
        """Return the payload of raw columns (rows,). Raises UserError for a parameter of the request."""
        return ColumnsPayload(dict(columns), rows)

    def example(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return an example of a request in JSON."""
        return {"rows": rows}

    def body(self, row: Schema) -> Schema:
        """Return the properties of a request in JSON, a required one first. row: the schema of a row"""
        shared = {"description": "columns that all rows have, such as the columns of one user", **row}
        return {"rows": {"type": "array", "items": row, "minItems": 1}, "shared": shared}


class ListsItems:
    """Models that list items for a history."""

    name, about = "retrieval model", "Recommend items for a history, or for a context"
    verb, does = "recommend", "recommends items"
    answer: ClassVar[Schema] = {"items": {"type": "array"}, "scores": {"type": "array", "items": {"type": "number"}}}
    parameters: Sequence[str] = QUERY_KEYS
    batches = False

    def empty(self) -> Payload:
        return QueriesPayload([Query([])])

    def payload(self, servable: Servable, columns: Columns, rows: int, parameters: Mapping[str, Any]) -> Payload:
        """Return one query, whose history is the columns."""
        return QueriesPayload([make_query(_rows(columns), parameters)])

    def example(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {"history": rows, "k": 10}

    def body(self, row: Schema) -> Schema:
        keys = {"k": {"type": "integer", "minimum": 1}, "filter_history": {"type": "boolean"}}
        return {"history": {"type": "array", "items": row}} | keys | LISTS


class RunsPipeline(ListsItems):
    """Pipelines of stages, which list items for the context of a request."""

    name = "pipeline"

    def payload(self, servable: Servable, columns: Columns, rows: int, parameters: Mapping[str, Any]) -> Payload:
        """Return one query, whose context is the only row of the columns."""
        if rows != 1:
            raise RequestError(400, f"{rows} rows: pipeline {servable.name} takes one, the context of a request")
        return QueriesPayload([replace(make_query([], parameters), context=_rows(columns)[0])])

    def example(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {"context": rows[0], "k": 10}

    def body(self, row: Schema) -> Schema:
        context = {"description": "columns of the request, such as the user's", **row}
        return {"context": context} | super().body({})


ServedKind = ScoresRows | ListsItems
PIPELINE = RunsPipeline()
PAYLOADS: dict[str, ServedKind] = {"ranking": ScoresRows(), "retrieval": ListsItems()}


def kind_of(servable: Servable) -> ServedKind:
    """Return the kind of a model; one that reads the context of requests is a pipeline."""
    return PIPELINE if servable.context else PAYLOADS[servable.kind]


def _rows(columns: Mapping[str, list[Any]]) -> list[Row]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
