"""GET /, /docs and /openapi.json: what is served, as JSON, as a page and as an OpenAPI document."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from recsys.pages import render
from recsys.pages.page_table import Cell, Cells, PageTable, columns, cut
from recsys.server.core import Core
from recsys.server.rest_v2 import server_metadata
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
OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Route:
    """A path of the server. /docs, /openapi.json and the dispatch of requests follow from it.

    method: GET or POST
    path: with {model} and the like, which `answer` gets by name; /versions/{version} may follow a model
    meaning: one line
    answer: called with the worker's Core, the request, and the parts of the path
    body: JSON Schema of the body; None if there is none, or any is taken
    answered: JSON Schema of the answer
    content: its content type
    of_each_model: whether the document has a path for each model instead, which has a schema of its own
    """

    method: Literal["GET", "POST"]
    path: str
    meaning: str
    answer: Callable[..., Any]
    body: Mapping[str, Any] | None = None
    answered: Mapping[str, Any] = field(default_factory=lambda: OBJECT)
    content: str = "application/json"
    of_each_model: bool = False

    @property
    def operation(self) -> dict[str, Any]:
        """The operation of an OpenAPI document."""
        operation: dict[str, Any] = {"summary": self.meaning, "responses": _responses(self.answered, self.content)}
        if "{model}" in self.path:
            operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
        if self.body is not None:
            required = bool(self.body.get("required"))
            operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": self.body}}}
        return operation


def body_of(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """Return the JSON Schema of an object. required: the properties that it must have"""
    return OBJECT | {"properties": dict(properties)} | ({"required": [*required]} if required else {})


def index(core: Core) -> bytes:
    """Return the answer to GET /: the models that are served, with links."""
    models = [_described(core.registry.get(n)) for n in core.registry.names()]
    links = {"docs": "/docs", "openapi": "/openapi.json", "metrics": "/metrics", "ready": "/v2/health/ready"}
    return orjson.dumps({"server": "recsys", "version": server_metadata()["version"], "models": models, "links": links})


def _described(model: ServedModel) -> dict[str, Any]:
    current = _current(model)
    verb = current.kind.verb
    others = {"canary": model.choice.canary, "shadow": model.choice.shadow}
    versions = {role: loaded.version for role, key in others.items() if (loaded := model.loaded(key)) is not None}
    links = {verb: f"/models/{model.name}/{verb}", "metadata": f"/v2/models/{model.name}"}
    named = {"name": model.name, "kind": current.servable.kind, "version": current.version}
    return named | versions | {"links": links}


def _current(model: ServedModel) -> LoadedVersion:
    current = model.loaded(model.choice.current)
    assert current is not None
    return current


def document(core: Core, routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document: a path for each model in place of /predict and /recommend, and the other paths."""
    paths: dict[str, Any] = {}
    value = {"type": ["string", "number", "boolean", "array", "null"]}
    for name in core.registry.names():
        current = _current(core.registry.get(name))
        kind = current.kind
        inputs = {s.name: value | {"description": f"{s.datatype} {list(s.shape)}"} for s in current.servable.inputs}
        properties = kind.body({"type": "object", "properties": inputs})
        body = body_of(properties, *list(properties)[:1])
        paths[f"/models/{name}/{kind.verb}"] = {
            "post": {
                "summary": kind.about,
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                "responses": _responses({"type": "object", "properties": kind.answer}),
            }
        }
    for route in (r for r in routes if not r.of_each_model):
        paths.setdefault(route.path, {})[route.method.lower()] = route.operation
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "recsys", "version": server_metadata()["version"]},
        "paths": paths,
    }
    if core.settings.token:
        document["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"token": []}]
    return document


def _responses(schema: Mapping[str, Any], kind: str = "application/json") -> dict[str, Any]:
    good = {"200": {"description": "The answer", "content": {kind: {"schema": schema}}}}
    return good | {status: {"description": text} for status, text in ERRORS.items()}


def page(core: Core, address: str, routes: Sequence[Route]) -> bytes:
    """Return the documentation as one HTML page, which loads nothing else. address: the server's own, for examples"""
    models = [core.registry.get(name) for name in core.registry.names()]
    heads = columns(("model", "version", "kind", "columns", "path"), left=("model", "version", "kind", "path"))
    shown = [_model(_current(m), address, token=bool(core.settings.token)) for m in models]
    summary: list[Cells] = []
    for i, model in enumerate(models):
        about = _described(model)
        roles = "".join(f", {role} {about[role]}" for role in ("canary", "shadow") if role in about)
        kind, path = about["kind"], next(iter(about["links"].values()))
        inputs = str(len(_current(model).servable.inputs))
        name = Cell(model.name, link=f"m-{i}")
        summary.append([name, f"{about['version']}{roles}", kind, inputs, Cell(path, "code")])
    return render(
        "server/api_page.html",
        title="recsys server",
        version=server_metadata()["version"],
        address=address,
        grpc=core.settings.grpc_port,
        token=bool(core.settings.token),
        summary=PageTable(heads, summary),
        models=shown,
        paths={r.path: (r.method.lower(), r.meaning) for r in routes},
        errors=PageTable(columns(("status", "meaning"), left=("status", "meaning")), [list(e) for e in ERRORS.items()]),
    ).encode()


def _model(loaded: LoadedVersion, address: str, *, token: bool) -> dict[str, Any]:
    """Return the name, the version, an example and the tensors of a model."""
    examples = [{k: value for k, value in row.items() if value is not None} for row in loaded.servable.example]
    request = loaded.kind.example(examples)
    header = "-H 'Authorization: Bearer TOKEN' " if token else ""
    path = f"/models/{loaded.name}/{loaded.kind.verb}"
    row = next(iter(loaded.servable.example), {})
    specs: list[Cells] = []
    for what, of_kind in (("input", loaded.servable.inputs), ("output", loaded.output_specs)):
        for spec in of_kind:
            value = row.get(spec.name) if what == "input" else None
            example = Cell("") if value is None else cut(str(value), 40, "code")
            specs.append([what, Cell(spec.name, "code"), spec.datatype, str(list(spec.shape)), example])
    heads = ("", "name", "type", "shape", "example")
    return {
        "name": loaded.name,
        "version": loaded.version,
        "about": f"{loaded.kind.about}.",
        "answer": ", ".join(loaded.kind.answer),
        "command": f"curl {header}-d {shlex.quote(json.dumps(request))} {address}{path}",
        "specs": PageTable(columns(heads, left=heads), specs, first=len(specs)),
    }
