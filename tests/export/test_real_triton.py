"""One client for recsys.serve and for the exported repository in a real Triton: the same answers and statuses.

Installs nvidia-pytriton (300 MB) into an environment; RECSYS_TEST_TRITON=FOLDER keeps it for the next time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from forks import ok, run_forked
from served import ROOT, Served, free_port, serving, until
from tritonclient.utils import InferenceServerException

from recsys.export.artefact import load
from recsys.export.triton.repository import REQUIREMENTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or sys.version_info[:2] != (3, 11), reason="the stub is of Python 3.11"),
]
RANKING, RETRIEVAL = "num", "items"


class Address(NamedTuple):
    http: str
    grpc: str


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artefacts of a ranking and a retrieval model, and a repository of both for Triton."""
    home = tmp_path_factory.mktemp("triton")
    rng, n = np.random.default_rng(0), 2000
    age = [None if rng.random() < 0.1 else int(a) for a in rng.integers(18, 80, n)]
    columns = {
        "user_id": rng.integers(1, 100, n) * 2**54 + 1,
        "price": rng.normal(10, 3, n),
        "flag": rng.random(n) < 0.4,
    }
    shop = [f"s{i}" for i in rng.integers(0, 20, n)]
    pl.DataFrame({**columns, "age": age, "shop": shop, "clicked": rng.integers(0, 2, n)}).write_parquet(
        home / "n.parquet"
    )
    ok(run_forked("recsys.new", "data=num", "files=n.parquet", "label=clicked", "user=null", "yes=true", cwd=home))
    for name, model, data in ((RANKING, "dlrm", "num"), (RETRIEVAL, "two_tower", "sample_interactions_retrieval")):
        ok(run_forked("recsys.train", f"model={model}", f"data={data}", "debug=fast", f"run_dir=run_{name}", cwd=home))
        words = (f"run=run_{name}", f"output={name}", f"name={name}", "triton=true", "dense_backend=python")
        ok(run_forked("recsys.export", *words, "python_path=bundle", cwd=home))
    (home / "all").mkdir()
    for model in home.glob("*/triton/*/"):
        (home / "all" / model.name).symlink_to(model)
    return home


@pytest.fixture(scope="module")
def environment(home: Path) -> Path:
    """The folder of Triton's environment, with the packages that the repositories name and no others."""
    return Path(os.environ.get("RECSYS_TEST_TRITON", home / "environment"))


@contextmanager
def triton(repository: Path, environment: Path, log: Path, packages: str = "") -> Iterator[Address]:
    """Run Triton. Fails with its messages if it does not become ready."""
    http, grpc = free_port(), free_port()
    words = [
        f"environment={environment}",
        f"http={http}",
        f"grpc={grpc}",
        f"metrics={free_port()}",
        f"packages=[{packages}]",
    ]
    command = [sys.executable, str(ROOT / "benchmarks/serving/triton.py"), "serve", str(repository), *words]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        until(lambda: "ready: " in log.read_text() or process.poll() is not None, 400)
        assert process.poll() is None, log.read_text()
        yield Address(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def servers(home: Path, environment: Path) -> Iterator[tuple[Address, Address, Served]]:
    packages = ",".join(f"-r,{home / name / 'triton' / REQUIREMENTS}" for name in (RANKING, RETRIEVAL))
    with (
        triton(home / "all", environment, home / "triton.log", packages) as real,
        serving(home / RANKING, loader_function=load) as ranking,
        serving(home / RETRIEVAL, loader_function=load) as retrieval,
    ):
        yield real, Address(ranking.http, ranking.grpc), retrieval


def address_of(servers: Any, model: str) -> tuple[Address, Address]:
    real, ranking, retrieval = servers
    return real, ranking if model == RANKING else Address(retrieval.http, retrieval.grpc)


TYPES = {"FP64": np.float64, "INT64": np.int64, "BYTES": object, "BOOL": bool}
Columns = dict[str, tuple[str, Any]]


def ask(client: ModuleType, address: Address, model: str, columns: Columns, **how: Any) -> Any:
    """Return the outputs, or the status of the error and its message."""
    inputs = []
    for name, (datatype, values) in columns.items():
        array = np.array(values, TYPES[datatype])
        inputs.append(client.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    names = ("probability",) if model == RANKING else ("items", "scores")
    with client.InferenceServerClient(address.http if client is tritonclient.http else address.grpc) as c:
        try:
            found = c.infer(model, inputs, **how)
        except InferenceServerException as e:
            return e.status(), e.message()
        return [found.as_numpy(name) for name in names]


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def client(request: pytest.FixtureRequest) -> ModuleType:
    return request.param  # type: ignore[no-any-return]


ROWS: Columns = {
    "user_id": ("INT64", [[2**54 + 1], [5]]),
    "age": ("FP64", [[20.0], [np.nan]]),
    "price": ("FP64", [[np.nan], [12.5]]),
    "flag": ("BOOL", [[True], [False]]),
    "shop": ("BYTES", [[""], ["s2"]]),
}


def test_metadata_is_the_same(servers: Any) -> None:
    """What a client learns before its first request: names, types and shapes."""
    for model in (RANKING, RETRIEVAL):
        ours, real = (
            requests.get(f"http://{a.http}/v2/models/{model}").json() for a in reversed(address_of(servers, model))
        )
        assert (ours["inputs"], ours["outputs"]) == (real["inputs"], real["outputs"])
        ours, real = (
            requests.get(f"http://{a.http}/v2/models/{model}/config").json()
            for a in reversed(address_of(servers, model))
        )
        assert (ours["input"], ours["output"]) == (real["input"], real["output"])


@pytest.mark.parametrize("names", [["price"], ["shop", "age"], [*ROWS]])
def test_predictions_are_the_same(servers: Any, client: ModuleType, names: list[str]) -> None:
    real, ours = address_of(servers, RANKING)
    columns = {name: ROWS[name] for name in names}
    [[expected], [found]] = ask(client, ours, RANKING, columns), ask(client, real, RANKING, columns)
    assert found.dtype == expected.dtype and found.shape == expected.shape == (2, 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


BAD: list[tuple[Columns, dict[str, Any], str]] = [
    (ROWS | {"age": ("FP64", [[20.0], [1.5]])}, {}, "rows[1]: column age: 1.5 is not a whole number"),
    (ROWS | {"price": ("FP64", [[np.inf], [1.5]])}, {}, "rows[0]: column price: inf is not a number"),
    (ROWS | {"shop": ("BYTES", [[b"\xff"], [b"s2"]])}, {}, "input shop: a value is not UTF-8 text"),
    (ROWS, {"parameters": {"kk": 3}}, "parameters.kk: no such key"),
    (ROWS | {"price": ("FP64", [[1.0]])}, {}, ""),
    (ROWS | {"prize": ("FP64", [[1.0], [2.0]])}, {}, ""),
    ({"price": ("FP64", [[1.0, 2.0]])}, {}, ""),
]


@pytest.mark.parametrize(("columns", "how", "message"), BAD)
def test_a_bad_request_has_the_same_status(
    servers: Any, client: ModuleType, columns: Columns, how: dict[str, Any], message: str
) -> None:
    """The message is the same if it is recsys that finds the mistake, not Triton."""
    real, ours = address_of(servers, RANKING)
    (status, says), (real_status, real_says) = (ask(client, a, RANKING, columns, **how) for a in (ours, real))
    assert status == real_status and status in ("400", "StatusCode.INVALID_ARGUMENT")
    assert message in says and message in real_says, real_says


def history(home: Path) -> Columns:
    rows = json.loads((home / RETRIEVAL / "examples.json").read_text())["rows"][0]
    return {name: ("BYTES", [row[name] or "" for row in rows]) for name in rows[0]}


PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"k": 2, "filter_history": False, "exclude": "i1,i2"}, ""),
    ({"candidates": "i1,i2,nobody"}, ""),
    ({"candidates": "nobody"}, "candidates: the model knows none of them, such as 'nobody'"),
    ({"candidates": ""}, "candidates: names no item"),
    ({"k": 0}, "k: must be a whole number from 1 to"),
    ({"k": 10**6}, ""),
    ({"k": "3"}, "k: must be a whole number from 1 to"),
    ({"kk": 3}, "parameters.kk: no such key; did you mean k?"),
    ({"filter_history": "yes"}, "filter_history: must be true or false"),
]


@pytest.mark.parametrize(("parameters", "message"), PARAMETERS)
def test_items_are_the_same(
    home: Path, servers: Any, client: ModuleType, parameters: dict[str, Any], message: str
) -> None:
    real, ours = address_of(servers, RETRIEVAL)
    found = [ask(client, a, RETRIEVAL, history(home), parameters=parameters) for a in (ours, real)]
    if message:
        assert found[0] == found[1] and message in found[0][1]
        assert found[0][0] in ("400", "StatusCode.INVALID_ARGUMENT")
        return
    for expected, output in zip(*found, strict=True):
        assert (expected.dtype, expected.shape) == (output.dtype, output.shape)
    assert found[0][0].tolist() == found[1][0].tolist()
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-6)


def test_a_missing_package_is_said_when_the_repository_is_loaded(home: Path, servers: Any, environment: Path) -> None:
    python = environment / "bin" / "python"
    subprocess.run(["uv", "pip", "uninstall", "--quiet", "--python", python, "xxhash", "filelock"], check=True)
    try:
        with pytest.raises(AssertionError) as e, triton(home / RANKING / "triton", environment, home / "missing.log"):
            pass
    finally:
        subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, "xxhash", "filelock"], check=True)
    says = "xxhash, filelock cannot be imported in Triton's Python (No module named 'xxhash'); run: pip install 'xxhash' 'filelock'"
    assert says in str(e.value)
