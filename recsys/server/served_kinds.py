"""The kinds of models: what requests for each hold, and what its answers are. To add a kind, add a class here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from recsys.online.query_parameters import QUERY_KEYS, make_query
from recsys.online.servable import Query, Row, Servable
from recsys.server.payloads import ColumnsPayload, Payload, QueriesPayload, RowsPayload
from recsys.server.request_error import RequestError

Columns = Mapping[str, list[Any]]
Schema = dict[str, Any]  # a part of an OpenAPI document


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
        lists = {"exclude": {"type": "array"}, "candidates": {"type": "array"}}
        return {"history": {"type": "array", "items": row}} | keys | lists


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
KINDS: dict[str, ServedKind] = {"ranking": ScoresRows(), "retrieval": ListsItems()}


def kind_of(servable: Servable) -> ServedKind:
    """Return the kind of a model; one that reads the context of requests is a pipeline."""
    return PIPELINE if servable.context else KINDS[servable.kind]


def _rows(columns: Mapping[str, list[Any]]) -> list[Row]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
