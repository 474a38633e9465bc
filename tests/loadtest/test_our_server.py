"""Load tests of recsys.serve: each protocol is answered, with the rows that were sent, and its metrics are read."""

import json
import subprocess
from pathlib import Path
from typing import Any

import fake_models
import pytest
from served import Served, serving

from recsys.base.errors import UserError
from recsys.base.secrets import mask_text
from recsys.loadtest.measure_loads import prepare, run
from recsys.schema.command_schemas import LoadTestConfig

ROWS = [{"a": 1.5, "b": "b2"}, {"a": 0.5, "b": None}, {"a": 0.0, "b": "b1"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    return fake_models.write_model(tmp_path / "model", seconds=0.002)


def config(served: Served, folder: Path, protocol: str, **changes: Any) -> LoadTestConfig:
    settings: dict[str, Any] = {"protocol": protocol.removesuffix(" json"), "binary": protocol != "http json"}
    settings |= {"concurrency": [2], "batch_sizes": [2], "seconds": 0.3, "warmup_s": 0.0}
    settings["target"] = served.grpc if protocol == "grpc" else served.http
    settings["metrics"] = f"http://{served.http}/metrics" if protocol == "grpc" else None
    return LoadTestConfig(**{"rows": str(folder.parent / "rows.jsonl"), **settings, **changes})


@pytest.mark.parametrize("protocol", ["http", "http json", "grpc", "rows"])
def test_every_protocol(folder: Path, protocol: str) -> None:
    with serving(folder) as served:
        [m] = run(config(served, folder, protocol)).measurements
        model = served.core.registry.get("ctr")
        loaded = model.loaded(model.choice.current)
    assert m.errors == 0 and m.requests > 0
    assert loaded is not None and sum(loaded.servable.batches) >= 2 * m.requests
    assert m.compute_ms is not None and m.mean_ms is not None and m.queue_ms is not None
    assert 2 <= m.compute_ms < m.mean_ms


def test_mistakes(folder: Path) -> None:
    with serving(folder, token="right") as served:
        for token in (None, "wrong"):
            for protocol in ("http", "grpc", "rows"):
                with pytest.raises(UserError) as e:
                    prepare(config(served, folder, protocol, token=token))
                sent = "refuses the token that was sent; correct" if token else "needs a token, and none was sent; set"
                assert str(e.value).endswith(f": {sent} the variable RECSYS_TOKEN, or the key token")
                assert mask_text(str(e.value)) == str(e.value)  # the message says what to type
        assert prepare(config(served, folder, "http", token="right")).model.name == "ctr"
        with pytest.raises(UserError, match=r"model=crt: .* did you mean ctr\?"):
            prepare(config(served, folder, "http", token="right", model_name="crt"))
        with pytest.raises(UserError, match=r"refuses a request with batch size 9999: .*; correct rows or batch_sizes"):
            prepare(config(served, folder, "http", token="right", batch_sizes=9999))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate of localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    return self_signed(folder / "cert.pem", folder / "key.pem")


def self_signed(cert: Path, key: Path) -> tuple[Path, Path]:
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", *kind, "-keyout", key, "-out", cert, *subject]
    subprocess.run(made, check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize("protocol", ["http", "grpc", "rows"])
def test_tls(folder: Path, certificate: tuple[Path, Path], protocol: str) -> None:
    cert, key = certificate
    with serving(folder, tls_cert=str(cert), tls_key=str(key)) as served:
        port = served.settings.grpc_port if protocol == "grpc" else served.settings.port
        scheme = "grpcs" if protocol == "grpc" else "https"

        def settings(target: str, **changes: Any) -> LoadTestConfig:
            return config(served, folder, protocol, metrics=None, target=f"{target}:{port}", **changes)

        [m] = run(settings(f"{scheme}://localhost", tls_ca=str(cert))).measurements
        assert m.errors == 0 and m.requests > 0
        for target, changes, message in (
            (f"{scheme}://localhost", {}, r"certificate cannot be verified \(self.signed certificate\); add tls_ca="),
            (f"{scheme}://127.0.0.1", {"tls_ca": str(cert)}, r"mismatch.*\); write the host into target"),
            (f"{scheme.removesuffix('s')}://localhost", {}, f"does not .*; for TLS write {scheme}://"),
        ):
            with pytest.raises(UserError, match=f"^target=.*: .*{message}") as e:
                prepare(settings(target, **changes))
            assert "\n" not in str(e.value)


HISTORIES = [[{"item": "item1"}, {"item": "item2"}], [{"item": "item7"}], []]


@pytest.mark.parametrize(("protocol", "sizes"), [("rows", [1, 2]), ("http", [1]), ("http json", [1]), ("grpc", [1])])
def test_histories_of_a_retrieval_model(tmp_path: Path, protocol: str, sizes: list[int]) -> None:
    folder = fake_models.write_model(tmp_path / "model", "rec", kind="retrieval")
    (folder / "examples.json").write_text(json.dumps({"rows": HISTORIES, "outputs": []}))
    with serving(folder) as served:
        settings = config(served, folder, protocol, rows=str(folder), batch_sizes=sizes)
        plan = prepare(settings)
        for size, m in zip(sizes, run(settings).measurements, strict=True):
            assert m.errors == 0 and m.requests > 0 and m.rows_per_s == size * m.requests_per_s
        if protocol == "rows":
            bodies = {n: [json.loads(r.partition(b"\r\n\r\n")[2]) for r in made] for n, made in plan.requests.items()}
            one, other = ({"history": h} for h in HISTORIES[:2])
            assert bodies == {1: [one, other], 2: [{"queries": [one, other]}]}
            assert plan.requests[1][0].startswith(b"POST /recommend ")
        else:
            assert len(plan.requests[1]) == 2
            with pytest.raises(
                UserError, match=r"^batch_sizes: .* one history; use batch_sizes=\[1\], or protocol=rows$"
            ):
                prepare(config(served, folder, protocol, rows=str(folder), batch_sizes=[1, 8]))
