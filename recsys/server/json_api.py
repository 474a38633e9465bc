"""JSON for people: POST /predict with rows, POST /recommend with histories, POST /similar with an item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from recsys.online.query_parameters import QUERY_KEYS, SIMILAR_KEYS, check_keys, make_query, make_similar
from recsys.online.servable import Query
from recsys.server.call import Call
from recsys.server.core import Core
from recsys.server.feedback import EXAMPLE, check_feedback
from recsys.server.payloads import QueriesPayload, RowsPayload
from recsys.server.request_error import RequestError
from recsys.server.rest_v2 import parse_json
from recsys.server.served_models import LoadedVersion
from recsys.server.v2_tensors import bad, to_json

BODY_KEYS = ("history", "context", *QUERY_KEYS)
LISTS = ("items", "scores", "propensities")
COPIES = 4  # largest size of the copies of what rows share, in bodies of the largest size
MAX_UNREAD = 4096  # bytes of shared columns that the model does not read, up to which the log of samples keeps them


async def predict(core: Core, call: Call, name: str | None, version: str | None, body: bytes) -> bytes:
    """Answer {"rows": [{column: value, ...}, ...]} with {"predictions": [...]}; `shared` holds columns of all rows.

    Args:
        core: the worker.
        call: the request that is answered.
        name: name of the model; None if the request names none.
        version: version of the model; None chooses one of those in memory.
        body: the request, JSON.
    """
    request = parse_json(body)
    check_keys(request, ("rows", "shared"))
    loaded = core.route(call, name, version, lambda: body)
    _check_verb(loaded, "predict")
    rows = _rows(core, request.get("rows"), "rows", has_lists=body.count(b"[") > 1)
    core.check_rows(len(rows))
    shared, payload = request.get("shared"), RowsPayload(rows)
    if shared is not None:
        if type(shared) is not dict:
            raise bad("shared: must be a JSON object of columns and values")
        _rows(core, [shared], "shared")
        known = {k: v for k, v in shared.items() if k in loaded.servable.columns}
        unread = {k: v for k, v in shared.items() if k not in known}
        if unread and len(orjson.dumps(unread)) > MAX_UNREAD:
            unread = {}
        size, most = len(orjson.dumps(known)) * len(rows), COPIES * core.settings.max_body_mb * 2**20
        if size > most:  # of the copies in each row
            what = f"shared: would be {size:,} bytes in {len(rows):,} rows"
            raise RequestError(413, f"{what}; at most {most:,} are taken")
        payload = RowsPayload(rows, known, unread)
    core.check_columns(loaded, rows[0] if shared is None else {**shared, **rows[0]}, "rows[0]")
    outputs = await core.compute(call, loaded, payload, explicit=version is not None)
    columns = {n: to_json(a) if a.size == len(a) else a.tolist() for n, a in outputs.items()}
    predictions = next(iter(columns.values()))
    if len(columns) > 1:
        predictions = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return orjson.dumps({"predictions": predictions})


async def recommend(core: Core, call: Call, name: str | None, version: str | None, body: bytes) -> bytes:
    """Answer a query with {"items": [...], "scores": [...]}, several queries with a list of such answers.

    `known_items` is the number of items of the history that the model knows: 0 answers with the list of nobody.

    Args:
        core, call, name, version, body: as for `predict`.
    """
    return await _answer_queries(core, call, name, version, body, BODY_KEYS, _query)


async def similar(core: Core, call: Call, name: str | None, version: str | None, body: bytes) -> bytes:
    """Answer {"item": ITEM} with the items most like it, as `recommend`; several queries with a list of answers.

    Args:
        core, call, name, version, body: as for `predict`.
    """
    return await _answer_queries(core, call, name, version, body, SIMILAR_KEYS, _similar_query)


async def _answer_queries(
    core: Core,
    call: Call,
    name: str | None,
    version: str | None,
    body: bytes,
    keys: Sequence[str],
    make: Callable[[Core, LoadedVersion, object, str], Query],
) -> bytes:
    """Answer one query or several.

    keys: those of a query
    make: makes a query for the worker and the model of its body and its place in the request
    """
    request = parse_json(body)
    is_list = "queries" in request
    check_keys(request, ("queries",) if is_list else keys)
    loaded = core.route(call, name, version, lambda: body)
    _check_verb(loaded, "recommend")
    bodies = request["queries"] if is_list else [request]
    if type(bodies) is not list:
        raise bad('queries: must be a list, such as [{"history": [...], "k": 10}]')
    core.check_rows(len(bodies), "queries")
    queries = [make(core, loaded, b, f"queries[{i}]." if is_list else "") for i, b in enumerate(bodies)]
    payload = QueriesPayload(queries)
    core.check_rows(payload.weight)
    for i, query in enumerate(queries):
        if query.rows:
            core.check_columns(loaded, query.rows[0], f"queries[{i}].history[0]" if is_list else "history[0]")
    lists = await core.compute(call, loaded, payload, explicit=version is not None)
    answers = [dict(zip(LISTS, values, strict=False)) for values in lists]
    for own, known in zip(answers, payload.known, strict=True):
        own |= {} if known is None else {"known_items": known}
    answer = {"recommendations": answers} if is_list else answers[0]
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY, default=str)


async def feedback(core: Core, body: bytes) -> bytes:
    """Take {"feedback": [{"id": REQUEST_ID, "row": 0, "click": 1}, ...]}, and answer {"received": N}."""
    if core.feedback_log is None:
        raise RequestError(404, "this server takes no feedback; start it with feedback=FOLDER")
    request = parse_json(body)
    check_keys(request, ("feedback",))
    given = request.get("feedback")
    if type(given) is not list:
        raise bad(f"feedback: must be a list, such as {EXAMPLE}")
    core.check_rows(len(given), "pieces of feedback")
    await core.take_feedback([check_feedback(f, f"feedback[{i}]") for i, f in enumerate(given)])
    return orjson.dumps({"received": len(given)})


def _query(core: Core, loaded: LoadedVersion, body: object, where: str) -> Query:
    if type(body) is not dict:
        raise bad(f"{where.rstrip('.')}: must be a JSON object with a history")
    check_keys(body, BODY_KEYS, where)
    known, context = loaded.servable.context, body.get("context")
    if context is None and known and body.get("history") is None:
        example = f'{{"context": {{"{known[0]}": ...}}}}'
        raise bad(f"{where}context: is missing; send the columns of the request, such as {example}, or a history")
    if context is None:
        return make_query(_rows(core, body.get("history"), f"{where}history"), body, where)
    if not known:
        raise bad(f"{where}context: model {loaded.name} takes none; it is for pipelines")
    if type(context) is not dict:
        raise bad(f"{where}context: must be a JSON object of columns and values")
    check_keys(context, known, f"{where}context.")
    _rows(core, [context], f"{where}context")
    history = [] if body.get("history") is None else _rows(core, body["history"], f"{where}history")
    known_values = {name: None if value == "" else value for name, value in context.items()}
    return replace(make_query(history, body, where), context=known_values)


def _similar_query(_: Core, loaded: LoadedVersion, body: object, where: str) -> Query:
    if type(body) is not dict:
        raise bad(f"{where.rstrip('.')}: must be a JSON object with an item")
    check_keys(body, SIMILAR_KEYS, where)
    if loaded.servable.context:
        raise bad(f"model {loaded.name} is a pipeline, which lists items for a context; name a retrieval model")
    return make_similar(body, where)


def _rows(core: Core, rows: object, key: str, has_lists: bool = True) -> list[Any]:
    """Return a list of rows, after checks of its types and of the lengths of lists in it.

    has_lists: whether a value of a row may be a list
    """
    longest = core.settings.max_list
    if type(rows) is not list:
        raise bad(f"{key}: must be a list of JSON objects of columns and values; /docs shows an example")
    if not has_lists and set(map(type, rows)) <= {dict}:
        return rows
    for i, row in enumerate(rows):
        if type(row) is not dict:
            raise bad(f"{key}[{i}]: a row is a JSON object of columns and values")
        for column, value in row.items():
            if type(value) is list and len(value) > longest:
                where = f"{key}[{i}]: column {column[:80]}"
                raise RequestError(413, f"{where}: has {len(value)} elements; this server takes at most {longest}")
    return rows


def _check_verb(loaded: LoadedVersion, verb: str) -> None:
    if loaded.kind.verb != verb:
        raise bad(f"model {loaded.name} {loaded.kind.does}; use POST /{loaded.kind.verb}")


VERBS = {"predict": predict, "recommend": recommend, "similar": similar}  # of the paths /predict and so on
