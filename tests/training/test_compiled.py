"""trainer.compile and trainer.precision=auto. What is compiled must train as what is not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recsys.config.compose import compose
from recsys.config.settings import precision_of
from recsys.models.common import layers
from recsys.training import compiled, module
from recsys.training.run import train

SMALL = ("data.sample.rows=4000", "trainer.batch_size=512", "trainer.threads=1")


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    return train(compose("train", [*SMALL, *overrides, f"run_dir={folder}", f"data.prepared={folder}-data"])).metrics


def test_warming_up_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Dynamo's capture, dropout and batch normalisation, but without Inductor, which takes a minute."""
    compile_module, graphs = nn.Module.compile, []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(layers, "_drop", nn.functional.dropout)  # whose random numbers compiled code has
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compile_module(self, backend=count, **options))
    overrides = ("model=dlrm", "data=criteo", "model.dropout=0.1", "model.batch_norm=true")
    eager = run(tmp_path / "eager", *overrides)
    assert not graphs and "compile_seconds" not in eager["train"]
    metrics = run(tmp_path / "compiled", *overrides, "trainer.compile=true")
    assert len(graphs) == 1  # one for all batches of the size; the last one and evaluation run as written
    assert metrics["train"]["compile_seconds"] > 0
    assert metrics["test"]["auc"] == eager["test"]["auc"] and metrics["test"]["logloss"] == eager["test"]["logloss"]


def test_without_a_compiler_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "no_compiler", lambda: "no C++ compiler is installed")
    assert run(tmp_path / "run", "trainer.compile=true")["train"]["steps"]
    assert "trainer.compile=true: no C++ compiler is installed; the run goes on without" in capsys.readouterr().err


def test_a_missing_compiler_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    assert compiled.no_compiler() is None
    monkeypatch.setattr(config.cpp, "cxx", (None, "no-such-compiler"))
    assert "apt install g++" in str(compiled.no_compiler())


def test_retrieval_models_say_that_they_are_not_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ("model=sasrec", "data=sample_sequences", "data.sample.rows=2000", "trainer.max_epochs=1")
    run(tmp_path / "run", *overrides, "trainer.compile=true")
    assert "trainer.compile=true: has no effect on retrieval models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("features", "precision"),
    [({"amx_bf16": True}, "bf16-mixed"), ({"avx512_bf16": True}, "bf16-mixed"), ({"avx512_f": True}, "32-true")],
)
def test_auto_is_bfloat16_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], precision: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert precision_of("auto", "cpu") == precision
    assert precision_of("32-true", "cpu") == "32-true"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "devices"), [("dlrm", "criteo", 1), ("dlrm", "criteo", 2), ("din", "sample_behaviour", 1)]
)
def test_compiled_models_train_as_eager_ones(tmp_path: Path, model: str, data: str, devices: int) -> None:
    """With Inductor, in float32, in one process and in two."""
    overrides = (f"model={model}", f"data={data}", "trainer.max_epochs=2", f"trainer.devices={devices}")
    eager = run(tmp_path / "eager", *overrides)
    metrics = run(tmp_path / "compiled", *overrides, "trainer.compile=true")
    assert metrics["train"]["compile_seconds"] > 0
    assert metrics["test"]["auc"] == pytest.approx(eager["test"]["auc"], abs=1e-3)
    assert metrics["test"]["logloss"] == pytest.approx(eager["test"]["logloss"], abs=1e-3)
    assert json.loads((tmp_path / "compiled" / "metrics.json").read_text())["train"]["steps"] == eager["train"]["steps"]
