"""Trained, exported and served: the server gives the outputs of the run, which the artefact holds as examples."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from forks import ok, run_forked
from served import Served, serving

import recsys
from recsys.export.artefact import load

pytestmark = pytest.mark.slow
EXAMPLES = 64


def exported(home: Path, model: str, data: str) -> tuple[Path, dict[str, Any]]:
    """Train and export a model, and return the folder of the artefact and its examples."""
    run = (f"model={model}", f"data={data}", "debug=fast", "run_dir=run")
    ok(run_forked("recsys.train", *run, cwd=home))
    ok(run_forked("recsys.export", "run=run", "output=model", cwd=home))
    return home / "model", json.loads((home / "model" / "examples.json").read_text())


def infer(served: Served, rows: list[dict[str, str | None]]) -> list[Any]:
    """Return the results of tritonclient's two protocols for raw rows."""
    found = []
    for triton, url in ((tritonclient.http, served.http), (tritonclient.grpc, served.grpc)):
        inputs = []
        for column in rows[0]:
            array = np.array([[row[column] or ""] for row in rows], dtype=object)
            inputs.append(triton.InferInput(column, list(array.shape), "BYTES"))
            inputs[-1].set_data_from_numpy(array)
        with triton.InferenceServerClient(url) as client:
            found.append(client.infer(served.core.registry.names()[0], inputs))
    return found


def test_a_ranking_model(tmp_path: Path) -> None:
    folder, examples = exported(tmp_path, "dlrm", "sample_interactions")
    rows, expected = examples["rows"][:EXAMPLES], examples["outputs"]["probability"][:EXAMPLES]
    with serving(folder, loader_function=load) as served:
        answer = requests.post(f"{served.url}/predict", json={"rows": rows}).json()
        np.testing.assert_allclose(answer["predictions"], expected, atol=1e-6)
        for result in infer(served, rows):
            np.testing.assert_allclose(result.as_numpy("probability")[:, 0], expected, atol=1e-6)


def test_a_retrieval_model(tmp_path: Path) -> None:
    folder, examples = exported(tmp_path, "two_tower", "sample_interactions_retrieval")
    histories, lists = examples["rows"][:EXAMPLES], examples["outputs"][:EXAMPLES]
    with serving(folder, loader_function=load) as served:
        queries = [{"history": history, "k": examples["k"]} for history in histories]
        answers = requests.post(f"{served.url}/recommend", json={"queries": queries}).json()["recommendations"]
        for answer, expected in zip(answers, lists, strict=True):
            np.testing.assert_allclose(answer["scores"], expected["scores"], atol=1e-6)
        assert [a["items"] for a in answers] == [e["items"] for e in lists]
        chosen = lists[0]["items"][:2]
        asked = [{"item": item, "k": 4, "exclude": [chosen[1]]} for item in chosen]
        several = requests.post(f"{served.url}/similar", json={"queries": asked}).json()["recommendations"]
        run = recsys.similar(tmp_path / "run", chosen, 4, exclude=[chosen[1]])
        assert [a["items"] for a in several] == run["items"].to_list()
        [name] = served.core.registry.names()
        assert requests.post(f"{served.url}/models/{name}/similar", json=asked[0]).json() == several[0]
        for body, message in (
            ({"item": "nix"}, r"item=nix: the model has not learned this item; items look like '"),
            ({"k": 3}, "item: must be an item, such as"),
            ({"item": chosen[0], "history": []}, "history: no such key"),
            ({"queries": [asked[0], {"item": "nix"}]}, r"queries\[1\]: item=nix"),
        ):
            answer = requests.post(f"{served.url}/similar", json=body)
            assert answer.status_code == 400 and re.match(message, answer.json()["error"]), answer.text
        metadata = requests.get(f"{served.url}/v2/models/{served.core.registry.names()[0]}").json()
        shapes = [(t, [1, *(max(n, 1) for n in t["shape"][1:])]) for t in metadata["parameters"]["tensors"]]
        inputs = [{**t, "shape": shape, "data": [0] * math.prod(shape)} for t, shape in shapes]
        vector = requests.post(f"{served.url}/v2/models/{metadata['name']}/infer", json={"inputs": inputs}).json()
        assert [o["name"] for o in vector["outputs"]] == ["query"]  # the model need not read all features
        for result in infer(served, histories[0]):
            assert [i.decode() for i in result.as_numpy("items")] == lists[0]["items"][: len(result.as_numpy("items"))]
