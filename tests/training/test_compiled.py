"""trainer.compile and trainer.precision=auto. What is compiled must train as what is not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.distributed.ranks import process_group
from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.job.check_config import check_config
from recsys.job.run_config import RunConfig, precision_of
from recsys.losses.task import Task
from recsys.models.common import layers
from recsys.models.din import DIN
from recsys.models.dlrm import DLRM
from recsys.models.dnn import DNN
from recsys.schema.run_schema import ShardingConfig, SparseOptimConfig
from recsys.sharding.sharded_model import Placement
from recsys.training import compiled, module
from recsys.training.module_settings import Updates
from recsys.training.run import train
from recsys.training.trainer import _set_tf32

SMALL = ("data.sample.rows=4000", "trainer.batch_size=512", "trainer.threads=1")


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    return train(compose("train", [*SMALL, *overrides, f"run_dir={folder}", f"data.prepared={folder}-data"])).metrics


@pytest.mark.slow
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
    monkeypatch.setattr(compiled, "cannot_compile", lambda _: "no C++ compiler is installed")
    assert run(tmp_path / "run", "trainer.compile=true")["train"]["steps"]
    assert "no C++ compiler is installed" in capsys.readouterr().err


def test_without_triton_a_gpu_is_not_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    assert "run uv sync --no-group cpu --group cuda" in str(compiled.cannot_compile("cuda"))
    assert compiled.cannot_compile("cpu") is None


LISTS = FeatureSpec(
    dense=(DenseFeature("x"),),
    sparse=(SparseFeature("s", 9, "s"), SparseFeature("t", 9, "t", "mean", multi_valued=True)),
)


def batch_of_lists(*lengths: int) -> Batch:
    """Rows with one id of s, and lists of t of these lengths."""
    rows = len(lengths)
    ids = torch.arange(rows + sum(lengths), dtype=torch.int32) % 9
    sparse = KeyedJaggedTensor(["s", "t"], ids, lengths=torch.tensor([1] * rows + list(lengths), dtype=torch.int32))
    return Batch(torch.ones(rows, 1), sparse, torch.ones(rows, 1))


def test_graphs_begin_with_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the mark of a step, PyTorch overwrites no result."""
    marks: list[int] = []
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    monkeypatch.setattr(nn.Module, "compile", lambda _, **options: given.update(options))
    model = compiled.CompiledModel(Task(DNN(LISTS, dim=4, deep_mlp=[4])), 4, graphs=True)
    model.warm_up(batch_of_lists(3, 0, 1, 2))
    assert given == {"mode": "reduce-overhead", "dynamic": False}
    assert len(marks) == compiled.GRAPH_STEPS
    with model.context(4), model.context(3), model.context(4, training=False):
        assert len(marks) == compiled.GRAPH_STEPS + 1


@pytest.mark.parametrize(("graphs", "parts"), [(False, 1), (True, 2)])
def test_graphs_begin_behind_the_dots(monkeypatch: pytest.MonkeyPatch, graphs: bool, parts: int) -> None:
    """A graph copies its inputs, which are then the products of the vectors, not all vectors."""
    compile_module, found = nn.Module.compile, []

    def count(graph: Any, inputs: Any) -> Any:
        found.append([tuple(x.shape) for x in inputs if x.dim() > 1 and type(x) is not nn.Parameter])
        return graph.forward

    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compile_module(self, backend=count, dynamic=False))
    task = Task(DLRM(LISTS, dim=4, bottom_mlp=[4], top_mlp=[4]))
    task.model.embeddings.bags = nn.Identity()
    task.model.embeddings.forward = torch.compiler.disable(lambda _: torch.ones(4, 2, 4, requires_grad=True))
    model = compiled.CompiledModel(task, 4, graphs=graphs)
    model.warm_up(batch_of_lists(3, 0, 1, 2))
    assert len(found) == parts
    assert any(shape == (4, 2, 4) for shapes in found for shape in shapes) != graphs


def test_pooled_lists_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups of lists run around one static graph, which serves batches whose lists have other lengths."""
    compile_module, graphs = nn.Module.compile, []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compile_with_count = lambda self, dynamic, **_: compile_module(self, backend=count, dynamic=dynamic)  # noqa: E731
    monkeypatch.setattr(nn.Module, "compile", compile_with_count)
    with process_group("cpu", None):
        made = module.RecsysModule(
            lambda: Task(DNN(LISTS, dim=4, deep_mlp=[4], device=torch.device("meta"))),
            Placement(ShardingConfig(), SparseOptimConfig(name="sgd", lr=0.1), 4, local_world_size=1),
            Updates(make_optimizer=torch.optim.SGD, compile=True),
        )
        made.setup_model(torch.device("cpu"))
        assert isinstance(made.compiled, compiled.CompiledModel)
        made.compiled.warm_up(batch_of_lists(3, 0, 1, 2))
        for lengths in ((1, 1, 1, 1), (0, 0, 0, 0), (9, 8, 7, 6)):
            with made.compiled.context(4, training=False):
                loss, _ = made.dmp(batch_of_lists(*lengths))
            with made.compiled.context(4):
                compiled_loss, _ = made.dmp(batch_of_lists(*lengths))
                compiled_loss.backward()
            torch.testing.assert_close(compiled_loss, loss)
    assert len(graphs) == 1


def test_models_that_read_lists_have_no_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    past = replace(LISTS.sparse[1], table="s")
    task = Task(DIN(replace(LISTS, sparse=(LISTS.sparse[0], past)), history={"s": "t"}, dim=4))
    assert not compiled.CompiledModel(task, 4, graphs=True)._graphs
    assert "trainer.cuda_graphs=true: DIN reads lists, which have other lengths" in capsys.readouterr().err


@pytest.mark.slow
def test_graphs_on_a_cpu_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(nn.Module, "compile", lambda _, **options: given.update(options))
    run(tmp_path / "run", "trainer.compile=true", "trainer.cuda_graphs=true", "trainer.tf32=true")
    assert given["mode"] is None
    said = capsys.readouterr().err
    assert "trainer.cuda_graphs=true: has no effect on CPUs" in said
    assert "trainer.tf32=true: has no effect on CPUs" in said and torch.get_float32_matmul_precision() == "highest"


def test_graphs_need_compiled_code_and_fresh_gradients() -> None:
    with pytest.raises(UserError, match=r"^trainer.cuda_graphs=true: .*; set trainer.compile=true, too$"):
        check_config(compose("train", ["trainer.cuda_graphs=true", "trainer.compile=false"]))
    given = ["trainer.cuda_graphs=true", "trainer.compile=true", "trainer.accumulate=2"]
    with pytest.raises(UserError, match=r"^trainer.cuda_graphs=true: .* trainer.accumulate=2 keeps .*; set "):
        check_config(compose("train", given))


@pytest.mark.parametrize(
    ("device", "updates", "graphs"),
    [
        ("cuda", {}, True),
        ("cuda", {"steps": compiled.MIN_COMPILED_STEPS - 1}, None),
        ("cuda", {"precision": "32-true"}, None),
        ("cuda", {"accumulate": 2}, None),
        ("cuda", {"compile": False}, None),
        ("cuda", {"cuda_graphs": False}, None),
        ("cuda", {"steps": 1, "compile": True}, True),
        ("cuda", {"steps": 1, "compile": True, "accumulate": 2}, False),
        ("cuda", {"steps": 1, "compile": True, "cuda_graphs": False}, False),
        ("cuda", {"steps": 1, "cuda_graphs": True}, True),
        ("cpu", {}, None),
        ("cpu", {"compile": True}, False),
    ],
)
def test_long_trainings_on_a_gpu_are_compiled(
    device: str, updates: dict[str, Any], graphs: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """graphs: whether there are CUDA graphs; None: nothing is compiled."""
    monkeypatch.setattr(compiled, "cannot_compile", lambda _: None)
    monkeypatch.setattr(compiled.dist, "get_world_size", lambda: 1)
    past = replace(LISTS.sparse[1], table="s")
    pooled = Task(DNN(LISTS, dim=4, deep_mlp=[4]))
    lists = Task(DIN(replace(LISTS, sparse=(LISTS.sparse[0], past)), history={"s": "t"}, dim=4))
    given = replace(Updates(precision="bf16-mixed", steps=compiled.MIN_COMPILED_STEPS), **updates)
    made = compiled.compiled_model(pooled, given, torch.device(device), 4)
    assert getattr(made, "_graphs", None) == graphs
    made = compiled.compiled_model(lists, replace(given, cuda_graphs=None), torch.device(device), 4)
    assert getattr(made, "_graphs", None) == (False if given.compile else None)


@pytest.mark.parametrize(
    ("wanted", "capability", "precision"), [(True, 8, "high"), (True, 7, "highest"), (False, 9, "highest")]
)
def test_tf32_is_set_where_a_gpu_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wanted: bool, capability: int, precision: str
) -> None:
    found = ["highest"]
    monkeypatch.setattr(torch, "set_float32_matmul_precision", found.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (capability, 0))
    _set_tf32(wanted, "gpu", typed=True)
    assert found[-1] == precision
    assert ("trainer.tf32=true: has no effect on GPUs before Ampere" in capsys.readouterr().err) == (capability == 7)


OF_LISTS = ("data=sample_sequences", "data.sample.rows=8000", "trainer.batch_size=64", "trainer.max_epochs=2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert4rec", "esasrec", "gru4rec", "hstu", "sasrec"])
def test_lists_are_compiled_once_for_all_batches(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, but without Inductor. What is compiled has the sizes of its lists as inputs."""
    compile_, graphs = torch.compile, []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    dropout = "model.dropout=0" if name != "gru4rec" else "model={dropout: 0, dropout_items: 0}"
    given = (f"model={name}", *OF_LISTS, dropout, "trainer.precision=32-true")
    eager = run(tmp_path / "eager", *given)
    assert "compile_seconds" not in run(tmp_path / "cpu", *given, "trainer.compile=true")["train"]
    no_effect = compiled._no_effect
    monkeypatch.setattr(compiled, "_no_effect", lambda task, _: no_effect(task, True))
    monkeypatch.setattr(torch, "compile", lambda f, **options: compile_(f, backend=count, dynamic=options["dynamic"]))
    found = run(tmp_path / "compiled", *given, "trainer.compile=true")
    assert found["train"]["compile_seconds"] > 0
    assert len(graphs) <= (1 if name != "gru4rec" else 8)  # around the network, which Dynamo cannot trace
    assert found["test"]["ndcg@10"] == pytest.approx(eager["test"]["ndcg@10"], abs=1e-4)


@pytest.mark.parametrize(
    ("features", "precision"),
    [
        ({"amx_bf16": True}, "bf16-mixed"),
        ({"avx512_bf16": True, "cpu_name": "Intel(R) Xeon(R) Processor"}, "32-true"),
        ({"avx512_bf16": True, "cpu_name": "AMD EPYC"}, "bf16-mixed"),
        ({"avx512_f": True, "cpu_name": "AMD EPYC"}, "32-true"),
    ],
)
def test_auto_is_bfloat16_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, object], precision: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert precision_of("auto", "cpu") == precision
    assert precision_of("32-true", "cpu") == precision_of(None, "cpu") == "32-true"


@pytest.mark.parametrize(
    ("since_ampere", "typed", "precision", "tf32"),
    [
        (True, [], "bf16-mixed", True),
        (True, ["trainer.precision=32-true"], "32-true", False),
        (True, ["trainer.precision=32-true", "trainer.tf32=true"], "32-true", True),
        (True, ["trainer.tf32=false"], "bf16-mixed", False),
        (False, [], "32-true", False),
    ],
)
def test_the_default_on_a_gpu_is_what_its_tensor_cores_multiply(
    monkeypatch: pytest.MonkeyPatch, since_ampere: bool, typed: list[str], precision: str, tf32: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: since_ampere)
    cfg = RunConfig.of(compose("train", ["trainer.accelerator=gpu", *typed]))
    assert (cfg.precision, cfg.tf32) == (precision, tf32)


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
