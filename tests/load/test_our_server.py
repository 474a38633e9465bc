"""Load tests of recsys.serve: each protocol is answered, with the rows that were sent, and its metrics are read."""

import json
from pathlib import Path
from typing import Any

import fake_models
import pytest
from served import Served, serving

from recsys.config.schema_commands import LoadTestConfig
from recsys.errors import UserError
from recsys.load.run import prepare, run

ROWS = [{"a": 1.5, "b": "b2"}, {"a": 0.5, "b": None}, {"a": 0.0, "b": "b1"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    return fake_models.write_model(tmp_path / "model", seconds=0.002)


def config(served: Served, folder: Path, protocol: str, **changes: Any) -> LoadTestConfig:
    settings = {"protocol": protocol.removesuffix(" json"), "binary": protocol != "http json"}
    settings |= {"concurrency": [2], "batch_sizes": [2], "seconds": 0.3, "warmup_s": 0.0}
    target = served.grpc if protocol == "grpc" else served.http
    metrics = f"http://{served.http}/metrics" if protocol == "grpc" else None
    return LoadTestConfig(target, rows=str(folder.parent / "rows.jsonl"), metrics=metrics, **settings | changes)


@pytest.mark.parametrize("protocol", ["http", "http json", "grpc", "rows"])
def test_every_protocol(folder: Path, protocol: str) -> None:
    with serving(folder) as served:
        [m] = run(config(served, folder, protocol)).measurements
        model = served.core.registry.get("ctr")
        loaded = model.loaded(model.choice.current)
    assert m.errors == 0 and m.requests > 3
    assert loaded is not None and sum(loaded.servable.batches) >= 2 * m.requests
    assert m.compute_ms is not None and m.mean_ms is not None and m.queue_ms is not None
    assert 2 <= m.compute_ms < m.mean_ms


def test_mistakes(folder: Path) -> None:
    with serving(folder, token="right") as served:
        for token in (None, "wrong"):
            for protocol in ("http", "grpc"):
                with pytest.raises(UserError, match="refuses the token; set token=TOKEN"):
                    prepare(config(served, folder, protocol, token=token))
        assert prepare(config(served, folder, "http", token="right")).model.name == "ctr"
        with pytest.raises(UserError, match=r"model=crt: .* did you mean ctr\?"):
            prepare(config(served, folder, "http", token="right", model_name="crt"))
        with pytest.raises(UserError, match=r"refuses a request with batch size 9999: .*; correct rows or batch_sizes"):
            prepare(config(served, folder, "http", token="right", batch_sizes=9999))
