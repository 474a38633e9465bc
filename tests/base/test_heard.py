"""What machines read of a command: lines of JSON in place of the console's text, and a page of Prometheus."""

import json
import logging
import re
import socket
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_csv import Commands

from recsys.base import console, metrics_page
from recsys.base.errors import UserError

MINE = ["data=mine", "data.root=raw", "trainer.threads=1", "trainer.batch_size=32"]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def page(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}


def test_a_training_in_json_and_on_a_page(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    port, pages = free_port(), list[dict[str, float]]()

    def look(event: str, level: str, fields: dict[str, Any]) -> None:
        if event == "metrics":  # of the events before this one
            pages.append(page(port))

    monkeypatch.setattr(console, "listeners", [look])
    monkeypatch.setattr(console, "_unlogged", [])  # messages of other tests
    args = ["run_dir=runs/a", "trainer.log_every_n_steps=2", "logging=json", f"metrics_port={port}"]
    status, said = commands.said("train", *MINE, *args)
    assert status == 0 and console.listeners == [look]
    lines = [json.loads(x) for x in said.splitlines()]
    assert Path("runs/a/train.log").read_text() == said
    assert all(x["level"] == "info" and x["rank"] == 0 and x["time"] > 1e9 for x in lines)
    assert {x["event"] for x in lines} == {"message", "progress", "metrics"}
    assert {x["run"] for x in lines[1:]} == {"a"}
    told = json.loads(Path("runs/a/metrics.json").read_text())
    [tested] = [x for x in lines if "test/auc" in x]
    assert tested["test/auc"] == pytest.approx(told["test"]["auc"])
    steps = [x for x in lines if "train/loss" in x]
    assert [x["step"] for x in steps] == [1, 3] and all(x["train/samples_per_second"] > 0 for x in steps)
    progress = {x["of"]: x for x in lines if x["event"] == "progress"}
    assert {"reading", "fitting", "writing", "training", "evaluating"} <= progress.keys()
    assert progress["training"]["loss"] > 0 and progress["training"]["done"] == progress["training"]["total"] == 160
    last = pages[-1]
    assert last["recsys_train_loss"] == pytest.approx(steps[-1]["train/loss"])
    assert last['recsys_progress_done{of="training",unit="samples"}'] == 160
    assert last['recsys_events_total{event="message",level="info"}'] >= 3
    with pytest.raises(OSError, match="refused"):
        page(port)  # it is closed with the command
    monkeypatch.setattr(console, "listeners", [])
    commands("train", *MINE, "run_dir=runs/b")
    assert not Path("runs/b/train.log").read_text().startswith("{")


@pytest.mark.parametrize("where", ["command line", "file"])
def test_mistakes_in_json(commands: Commands, where: str) -> None:
    Path("conf/experiment").mkdir()
    Path("conf/experiment/fleet.yaml").write_text("# @package _global_\nlogging: json\n")
    how = "logging=json" if where == "command line" else "experiment=fleet"
    status, said = commands.said("train", *MINE, "trainer.batch_size=-1", how)
    [line] = [json.loads(x) for x in said.splitlines()]
    assert (status, line["level"]) == (2, "error")
    assert line["message"] == "error: trainer.batch_size=-1: must be at least 1"


def test_preparing_in_json(commands: Commands) -> None:
    status, said = commands.said("preprocess", "data=mine", "data.root=raw", "logging=json")
    lines = [json.loads(x) for x in said.splitlines()]
    assert status == 0 and {"reading", "fitting", "writing"} <= {x.get("of") for x in lines}


@pytest.mark.parametrize("port", ["99999", "abc", "1.5"])
def test_no_port(commands: Commands, port: str) -> None:
    status, said = commands.said("train", *MINE, f"metrics_port={port}")
    assert status == 2 and said.startswith("error: metrics_port") and said.count("\n") == 1


def test_a_page_needs_a_port_and_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with metrics_page.heard(SimpleNamespace(metrics_port=port)):
        console.emit("metrics", step=3, **{"validation/ndcg@10": 0.5, "text": "a"})
        assert page(port)["recsys_validation_ndcg_10"] == 0.5
        assert page(port)["recsys_step"] == 3
        with pytest.raises(UserError, match=rf"^metrics_port={port}: cannot listen on 127\.0\.0\.1 \("):
            metrics_page.MetricsPage(port, "127.0.0.1")
    monkeypatch.setenv("RANK", "1")
    with metrics_page.heard(SimpleNamespace(metrics_port=port)), pytest.raises(OSError, match="refused"):
        page(port)  # rank 0 has it
    monkeypatch.delenv("RANK")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setattr("recsys.base.packages.is_installed", lambda module: module != "prometheus_client")
    missing = re.escape(f"metrics_port={port}: needs prometheus_client, which is not installed; run: ")
    with pytest.raises(UserError, match=missing), metrics_page.heard(SimpleNamespace(metrics_port=port)):
        raise AssertionError


def test_what_torch_logs_is_json_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from torch.distributed.elastic.agent.server import api

    from recsys.distributed.ranks import silence

    names = [n for n in logging.root.manager.loggerDict if n.partition(".")[0] == "torch"]
    loggers = [logging.getLogger(name) for name in names]
    before = [(x.handlers[:], x.propagate, x.level) for x in loggers]
    text = console.write_json()
    try:
        silence()
        logging.getLogger("torch._dynamo").warning("graph break")
        logging.getLogger("torch.distributed.c10d").warning("slow")
        api.logger.warning("Received 15 death signal, shutting down workers")
    finally:
        console.write_json(text)
        for x, (handlers, propagate, level) in zip(loggers, before, strict=True):
            x.handlers, x.propagate = handlers, propagate
            x.setLevel(level)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [e["message"] for e in said] == ["graph break", "slow"]
