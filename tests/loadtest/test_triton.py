"""The script that starts a real Triton; with RECSYS_TEST_TRITON=DIR, a folder for its environment, Triton itself."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import text_format
from served import free_port
from tritonclient.grpc.model_config_pb2 import TYPE_FP32, ModelConfig

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving" / "triton.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("triton_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(["example", str(tmp_path)]) == 0
    config = text_format.Parse((tmp_path / "identity" / "config.pbtxt").read_text(), ModelConfig())
    assert (config.name, config.backend, config.input[0].data_type) == ("identity", "python", TYPE_FP32)
    compile((tmp_path / "identity" / "1" / "model.py").read_text(), "model.py", "exec")


@pytest.mark.parametrize("arguments", [["serve", "nowhere", "environment=e"], ["serve", "."], ["stop", "."]])
def test_mistakes(script: ModuleType, arguments: list[str]) -> None:
    assert script.main(arguments) == 2


@pytest.mark.slow
@pytest.mark.skipif("RECSYS_TEST_TRITON" not in os.environ, reason="RECSYS_TEST_TRITON names no folder")
def test_a_real_triton(tmp_path: Path) -> None:
    """Triton answers over both protocols, its statistics fit the latency, and it leaves no process behind."""
    subprocess.run([sys.executable, SCRIPT, "example", tmp_path / "models"], check=True)
    (tmp_path / "rows.csv").write_text("x\n1.5\n2\n")
    http, grpc, metrics = (free_port() for _ in range(3))
    ports = [f"http={http}", f"grpc={grpc}", f"metrics={metrics}"]
    line = [sys.executable, SCRIPT, "serve", tmp_path / "models", f"environment={os.environ['RECSYS_TEST_TRITON']}"]
    server = subprocess.Popen([*line, *ports], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert any(line.startswith("ready: ") for line in server.stdout)
        page = f"metrics=http://127.0.0.1:{metrics}/metrics"
        targets = [(f"target=127.0.0.1:{http}",), (f"target=127.0.0.1:{grpc}", "protocol=grpc")]
        for where in [*targets, (*targets[1], page)]:
            arguments = ("rows=rows.csv", "concurrency=[2]", "batch_sizes=[1,8]", "seconds=1", f"output={len(where)}")
            subprocess.run([sys.executable, "-m", "recsys.loadtest", *where, *arguments], cwd=tmp_path, check=True)
            measured = json.loads((tmp_path / str(len(where)) / "results.json").read_text())["measurements"]
            assert [m["batch_size"] for m in measured] == [1, 8] and not any(m["errors"] for m in measured)
            assert all(0 < m["compute_ms"] < m["mean_ms"] and m["requests"] > 100 for m in measured)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    time.sleep(0.5)
    with socket.socket() as s:
        assert s.connect_ex(("127.0.0.1", http)) != 0
