"""GET /, /docs and /openapi.json: what is served, as JSON, as a page and as an OpenAPI document."""

from __future__ import annotations

import json
import shlex
from typing import Any

import orjson

from recsys.pages import render
from recsys.server.core import Core
from recsys.server.rest_v2 import output_specs, server_metadata, spec_json
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
    token = bool(core.settings.token)
    models = [_model(_current(core.registry.get(name)), address, token) for name in core.registry.names()]
    return render("server/api_page.html", models=models, paths=OTHER_PATHS, errors=ERRORS).encode()


def _model(loaded: LoadedVersion, address: str, token: bool) -> dict[str, Any]:
    """Return the name, the version, an example and the tensors of a model."""
    verb = "predict" if loaded.servable.kind == "ranking" else "recommend"
    body = shlex.quote(json.dumps(_example(loaded)))
    header = "-H 'Authorization: Bearer TOKEN' " if token else ""
    command = f"curl {header}-d {body} {address}/models/{loaded.name}/{verb}"
    specs = [("input", spec_json(s)) for s in loaded.servable.inputs]
    specs += [("output", spec_json(s)) for s in output_specs(loaded)]
    return {"name": loaded.name, "version": loaded.version, "command": command, "specs": specs}
