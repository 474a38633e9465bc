"""GET /, /docs and /openapi.json: what is served, as JSON, as a page and as an OpenAPI document."""

from __future__ import annotations

import json
import shlex
from typing import Any

import orjson

from recsys.pages import render
from recsys.pages.page_table import Cell, Cells, PageTable, columns, cut
from recsys.server.core import Core
from recsys.server.rest_v2 import output_specs, server_metadata
from recsys.server.served_models import LoadedVersion, ServedModel

ERRORS = {
    "400": "The request cannot be read; the message names the row and the column",
    "401": "The token is missing or wrong",
    "403": "The host, or the page that sent the request, is not one of this server's",
    "404": "No such model, version or path",
    "413": "The body, or the number of rows, is over the server's limit",
    "429": "The queue of the model is full",
    "504": "The deadline has passed",
}
MODEL_PATHS = {
    "/predict": ("post", "Score rows with the only ranking model"),
    "/recommend": ("post", "Recommend items with the only model that does"),
    "/models/{model}/predict": ("post", "Score rows"),
    "/models/{model}/versions/{version}/predict": ("post", "Score rows with a version"),
    "/models/{model}/recommend": ("post", "Recommend items for a history, or for several in queries"),
}
OTHER_PATHS = {
    "/feedback": ("post", "Say what users did with answers, by request id"),
    "/v2/health/live": ("get", "Whether the server runs"),
    "/v2/health/ready": ("get", "Whether requests are answered; not without a loaded model"),
    "/v2": ("get", "Metadata of the server"),
    "/v2/repository/index": ("post", "List all models and versions"),
    "/v2/repository/models/{model}/load": ("post", "Load a model, or let another version answer"),
    "/v2/repository/models/{model}/unload": ("post", "Stop serving a model"),
    "/v2/models/{model}": ("get", "Metadata of a model"),
    "/v2/models/{model}/config": ("get", "Configuration of a model, as Triton's clients ask for it"),
    "/v2/models/{model}/stats": ("get", "Numbers and times of a model's requests, as Triton's clients ask for them"),
    "/v2/models/{model}/ready": ("get", "Whether a model is ready"),
    "/v2/models/{model}/infer": ("post", "Inference with tensors (open inference protocol v2)"),
    "/metrics": ("get", "Prometheus metrics"),
}


def index(core: Core) -> bytes:
    """Return the answer to GET /: the models that are served, with links."""
    models = [_described(core.registry.get(n)) for n in core.registry.names()]
    links = {"docs": "/docs", "openapi": "/openapi.json", "metrics": "/metrics", "ready": "/v2/health/ready"}
    return orjson.dumps({"server": "recsys", "version": server_metadata()["version"], "models": models, "links": links})


def _described(model: ServedModel) -> dict[str, Any]:
    current = _current(model)
    verb = "predict" if current.servable.kind == "ranking" else "recommend"
    others = {"canary": model.choice.canary, "shadow": model.choice.shadow}
    versions = {role: loaded.version for role, key in others.items() if (loaded := model.loaded(key)) is not None}
    links = {verb: f"/models/{model.name}/{verb}", "metadata": f"/v2/models/{model.name}"}
    named = {"name": model.name, "kind": current.servable.kind, "version": current.version}
    return named | versions | {"links": links}


def _current(model: ServedModel) -> LoadedVersion:
    current = model.loaded(model.choice.current)
    assert current is not None
    return current


def document(core: Core) -> dict[str, Any]:
    """Return the OpenAPI document: a path for each model, and the paths of the open inference protocol."""
    paths: dict[str, Any] = {}
    for name in core.registry.names():
        current = _current(core.registry.get(name))
        verb = "predict" if current.servable.kind == "ranking" else "recommend"
        paths[f"/models/{name}/{verb}"] = {"post": _people(current, verb)}
    for path, (method, summary) in OTHER_PATHS.items():
        kind = "text/plain" if path == "/metrics" else "application/json"
        schema = {"type": {"/metrics": "string", "/v2/repository/index": "array"}.get(path, "object")}
        operation: dict[str, Any] = {"summary": summary, "responses": _responses(schema, kind)}
        if "{model}" in path:
            operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[path] = {method: operation}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "recsys", "version": server_metadata()["version"]},
        "paths": paths,
    }
    if core.settings.token:
        document["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"token": []}]
    return document


def _people(loaded: LoadedVersion, verb: str) -> dict[str, Any]:
    value = {"type": ["string", "number", "boolean", "array", "null"]}
    properties = {s.name: value | {"description": f"{s.datatype} {list(s.shape)}"} for s in loaded.servable.inputs}
    row: dict[str, Any] = {"type": "object", "properties": properties}
    rows = {"type": "array", "items": row}
    if verb == "predict":
        body: dict[str, Any] = {"required": ["rows"], "properties": {"rows": {**rows, "minItems": 1}}}
        shared = {"description": "columns that all rows have, such as the columns of one user", **row}
        body["properties"]["shared"] = shared
        answer: dict[str, Any] = {"properties": {"predictions": {"type": "array"}}}
    else:
        keys = {"k": {"type": "integer", "minimum": 1}, "filter_history": {"type": "boolean"}}
        keys |= {"exclude": {"type": "array"}, "candidates": {"type": "array"}}
        context = {"description": "columns of the request, such as the user's", **row}
        inputs = {"context": context, "history": {"type": "array"}} if loaded.servable.context else {"history": rows}
        body = {"required": list(inputs)[:1], "properties": {**inputs, **keys}}
        answer = {"properties": {"items": {"type": "array"}, "scores": {"type": "array", "items": {"type": "number"}}}}
    return {
        "summary": "Score rows" if verb == "predict" else "Recommend items for a history",
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object", **body}}}},
        "responses": _responses({"type": "object", **answer}),
    }


def _responses(schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    good = {"200": {"description": "The answer", "content": {kind: {"schema": schema}}}}
    return good | {status: {"description": text} for status, text in ERRORS.items()}


def _example(loaded: LoadedVersion) -> dict[str, Any]:
    """Return an example of a request of /predict or /recommend."""
    rows = [{column: value for column, value in row.items() if value is not None} for row in loaded.servable.example]
    if loaded.servable.kind == "ranking":
        return {"rows": rows}
    return {"context": rows[0], "k": 10} if loaded.servable.context else {"history": rows, "k": 10}


def page(core: Core, address: str) -> bytes:
    """Return the documentation as one HTML page, which loads nothing else. address: the server's own, for examples"""
    models = [core.registry.get(name) for name in core.registry.names()]
    heads = columns(("model", "version", "kind", "columns", "path"), left=("model", "version", "kind", "path"))
    shown = [_model(_current(m), address, token=bool(core.settings.token)) for m in models]
    return render(
        "server/api_page.html",
        title="recsys server",
        version=server_metadata()["version"],
        address=address,
        grpc=core.settings.grpc_port,
        token=bool(core.settings.token),
        summary=PageTable(heads, [_summary(i, m) for i, m in enumerate(models)]),
        models=shown,
        paths=MODEL_PATHS | OTHER_PATHS,
        errors=PageTable(columns(("status", "meaning"), left=("status", "meaning")), [list(e) for e in ERRORS.items()]),
    ).encode()


def _summary(i: int, model: ServedModel) -> Cells:
    """Return a row of the table of models. i: number of the model on the page"""
    about = _described(model)
    roles = "".join(f", {role} {about[role]}" for role in ("canary", "shadow") if role in about)
    kind, path = about["kind"], next(iter(about["links"].values()))
    inputs = str(len(_current(model).servable.inputs))
    return [Cell(model.name, link=f"m-{i}"), f"{about['version']}{roles}", kind, inputs, Cell(path, "code")]


def _model(loaded: LoadedVersion, address: str, *, token: bool) -> dict[str, Any]:
    """Return the name, the version, an example and the tensors of a model."""
    ranks = loaded.servable.kind == "ranking"
    request = _example(loaded)
    header = "-H 'Authorization: Bearer TOKEN' " if token else ""
    path = f"/models/{loaded.name}/{'predict' if ranks else 'recommend'}"
    row = next(iter(loaded.servable.example), {})
    specs: list[Cells] = []
    for what, of_kind in (("input", loaded.servable.inputs), ("output", output_specs(loaded))):
        for spec in of_kind:
            value = row.get(spec.name) if what == "input" else None
            example = Cell("") if value is None else cut(str(value), 40, "code")
            specs.append([what, Cell(spec.name, "code"), spec.datatype, str(list(spec.shape)), example])
    heads = ("", "name", "type", "shape", "example")
    return {
        "name": loaded.name,
        "version": loaded.version,
        "about": "Score rows of raw columns." if ranks else "Recommend items for a history, or for a context.",
        "answer": '{"predictions": [...]}' if ranks else '{"items": [...], "scores": [...]}',
        "command": f"curl {header}-d {shlex.quote(json.dumps(request))} {address}{path}",
        "specs": PageTable(columns(heads, left=heads), specs, first=len(specs)),
    }
