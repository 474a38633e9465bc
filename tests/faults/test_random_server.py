"""Whatever callers send, in whatever order models are loaded, unloaded and changed: a server answers as before.

Requests and changes are drawn at random, against one running server. No answer may be an error of the server itself,
nothing in the log may be a traceback, a model that is served must answer a good request, and once the first versions
are loaded again, all answers must be those of the beginning.
"""

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_models
import numpy as np
import pytest
import tritonclient.grpc
from served import Served, serving
from tritonclient.utils import InferenceServerException

from recsys.files.atomic import write_json

STEPS, MANY = 400, 20_000
UNLIKE = "9"  # a version of another kind, which may only answer once the model was unloaded
VALUES: list[Any] = [
    *(None, True, -1, 0, 1.5, 2**31, 2**63, 1e300, "", "nan", "b7", "b" * 20_000, "\u0000", "\u202e", "1_0", "item1"),
    *([], [None], [1, "a"], [[]], {}, {"a": 1}, [{}] * 200, [{"a": 1, "item": "item1"}], {"version": "2"}),
]
KEYS = """rows shared history context queries k exclude candidates filter_history parameters \
inputs outputs id version weights a b item """.split(" ")
PATHS = """/models/ctr/predict /models/items/recommend /predict /recommend /v2/models/ctr/infer /v2/models/items/infer
/v2/repository/index /models/ctr/versions/9/predict /docs /metrics /v2/.. /v2/repository/models//load /models//predict
/v2/models/ctr/versions/2/infer""".split()
HEADERS = {
    "Host": ("evil.example", "localhost", "", "a b", "[::1", "127.0.0.1:1"),
    "Origin": ("http://evil.example", "null", "http://localhost", ""),
    "Content-Type": ("text/plain", "multipart/form-data", "application/json", ";"),
    "timeout": ("0", "-1", "x", "99999999999999999999", "1000000"),
    "inference-header-content-length": ("0", "5", "-1", "99"),
    "x-routing-key": ("u1", "", "\xff"),
    "content-encoding": ("gzip", "identity"),
}
DOCUMENTED = {200, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431}
ALIASES: list[Any] = [
    *({"version": "1"}, {"version": "2"}, {"version": "1", "canary": {"version": "2", "share": 0.5}}, {"shadow": "2"}),
    *({"version": v} for v in ("8", "9", "nix")),
    *({"canary": {"version": "9", "share": 1}}, {"shadow": "9"}),
    *({"version": None}, {"unloaded": True}, {"versions": ["9", "2"]}, [], {"canary": "2"}, {"version": "../1"}),
]
GOOD = {
    "/models/ctr/predict": {"rows": [{"a": 0.5, "b": "b7"}, {}]},
    "/models/items/recommend": {"history": [{"item": "item1"}], "k": 3},
}


class Caller:
    """Sends requests over one connection that is opened anew when the server has closed it."""

    def __init__(self, served: Served, models: Path, rng: np.random.Generator) -> None:
        self.served, self.models, self.rng = served, models, rng
        self.connection = http.client.HTTPConnection(served.http, timeout=20)

    def choose(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request("POST", path, content, headers or {})
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def hostile(self) -> int:
        """Send a request of random keys, values and headers."""
        body: Any = {self.choose(KEYS): self.choose(VALUES) for _ in range(self.rng.integers(4))}
        good = self.choose(list(GOOD.values()))
        body = self.choose([body, good | body, [body], json.dumps(body).encode()[: int(self.rng.integers(40))]])
        names = [str(n) for n in self.rng.permutation(list(HEADERS))[: int(self.rng.integers(3))]]
        return self.post(self.choose(PATHS), body, {n: self.choose(HEADERS[n]) for n in names})[0]

    def control(self) -> int:
        """Load or unload a model, perhaps as a page of another site."""
        name, action = self.choose(["ctr", "ctr", "items", "nix", ".."]), self.choose(["load", "load", "unload"])
        version = self.choose([None, None, "1", "2", "8", "9", 2, "", "../1"])
        body = {} if version is None else {"parameters": {"version": version}}
        names = [n for n in ("Origin", "Content-Type") if self.rng.random() < 0.2]
        headers = {n: self.choose(HEADERS[n]) for n in names}
        return self.post(f"/v2/repository/models/{name}/{action}", body, headers)[0]

    def rpc(self) -> int:
        """Do the same over gRPC."""
        with tritonclient.grpc.InferenceServerClient(self.served.grpc) as client:
            try:
                self.choose([client.load_model, client.unload_model])(self.choose(["ctr", "items", "nix", ""]))
            except InferenceServerException as e:
                return 400 if e.status() in ("StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND") else 500
        return 200

    def alias(self) -> int:
        """Change a model's serving.json, as an operator does, and let the server see it."""
        write_json(self.models / self.choose(["ctr", "items"]) / "serving.json", self.choose(ALIASES))
        self.served.call(self.served.core.registry.reload_changed())
        return 200

    def answers(self) -> list[tuple[int, bytes]]:
        return [self.post(path, body) for path, body in GOOD.items()]


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Path]:
    for version in ("1", "2"):
        fake_models.write_model(tmp_path / "ctr" / version, bias=float(version))
        fake_models.write_model(tmp_path / "items" / version, kind="retrieval")
    fake_models.write_model(tmp_path / "ctr" / "8", broken=True)
    fake_models.write_model(tmp_path / "ctr" / UNLIKE, kind="retrieval")
    fake_models.write_model(tmp_path / "items" / UNLIKE, outputs=["p", "q"])
    (tmp_path / "items" / "8").mkdir()
    for name in ("ctr", "items"):
        write_json(tmp_path / name / "serving.json", {"version": "1"})
    return tmp_path


@pytest.mark.parametrize("steps", [STEPS, pytest.param(MANY, marks=pytest.mark.slow)])
def test_answers_stay(models: Path, capfd: pytest.CaptureFixture[str], steps: int) -> None:
    rng, bad = np.random.default_rng(steps), []
    settings = {"max_rows": 150, "max_body_mb": 1, "sample": 0.5, "sample_dir": str(models / ".samples")}
    with serving(models, **settings) as served:
        caller = Caller(served, models, rng)
        before = caller.answers()
        assert [status for status, _ in before] == [200, 200]
        kinds: list[Callable[[], int]] = [caller.hostile, caller.control, caller.alias, caller.rpc]
        for number in range(steps):
            act = kinds[int(rng.choice(len(kinds), p=[0.7, 0.17, 0.1, 0.03]))]
            status = act()
            nothing_served = status == 503 and not served.core.registry.names()
            if status not in DOCUMENTED and not nothing_served:
                bad.append(f"{number}: {act.__name__}: {status}")
            if number % 10 == 0:  # what is served answers
                for path, (status, text) in zip(GOOD, caller.answers(), strict=True):
                    model = served.core.registry.find(path.split("/")[2])
                    answers = None if model is None else model.choice.current
                    if status != (404 if answers is None else 400 if answers == UNLIKE else 200):
                        bad.append(f"{number}: {path} while {model} is served: {status} {text!r}")
        for name in ("ctr", "items"):
            write_json(models / name / "serving.json", {"version": "1"})
            caller.post(f"/v2/repository/models/{name}/unload", b"")  # a version of another kind may answer now
            assert caller.post(f"/v2/repository/models/{name}/load", b"") == (200, b"{}")
        assert caller.answers() == before
        assert served.core.request_log is not None and served.core.request_log.take_dropped() == 0
    log = capfd.readouterr().err
    assert "raceback" not in log, log[log.index("raceback") - 500 :][:3000]
    assert not bad, "\n".join([f"{len(bad)} fell through:", *bad])
