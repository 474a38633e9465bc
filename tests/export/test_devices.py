"""Which of ONNX Runtime's providers serves, without a GPU: lists of providers stand in for other machines."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from fake_triton import config_of

from recsys.base.errors import UserError
from recsys.base.packages import install_command
from recsys.config.compose import compose, parsed
from recsys.export.artefact import graph_io, load, load_artefact
from recsys.export.artefact.graph_io import CPU, CUDA, open_session, providers
from recsys.export.triton.graph import device_of

INSTALL = install_command("serve-gpu")
OPTIONS = {"use_tf32": "0", "device_id": "0"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets this machine have CUDA's provider, and a GPU."""

    def have(provider: bool, gpu: bool) -> None:
        offered = [CUDA, CPU] if provider else [CPU]
        monkeypatch.setattr(ort, "get_available_providers", lambda: offered)
        monkeypatch.setattr(ort, "preload_dlls", lambda: None)
        monkeypatch.setattr(graph_io, "has_gpu", lambda: gpu)

    return have


@pytest.mark.parametrize(
    ("device", "provider", "gpu", "expected"),
    [
        ("auto", True, True, [(CUDA, OPTIONS), CPU]),
        ("cuda", True, True, [(CUDA, OPTIONS), CPU]),
        ("auto:1", True, True, [(CUDA, OPTIONS | {"device_id": "1"}), CPU]),
        ("cpu", True, True, [CPU]),
        ("auto", True, False, [CPU]),
        ("auto", False, True, [CPU]),
        ("cpu", False, False, [CPU]),
    ],
)
def test_the_order_of_providers(device: str, provider: bool, gpu: bool, expected: list[Any], machine: Any) -> None:
    """The CPU's takes what CUDA's lacks. Products are those of float32, as in training."""
    machine(provider, gpu)
    assert providers(device) == expected


def test_cuda_without_its_provider_says_what_to_install(machine: Any) -> None:
    machine(provider=False, gpu=True)
    with pytest.raises(UserError) as error:
        providers("cuda")
    assert str(error.value) == f"device=cuda: onnxruntime {ort.__version__} has no CUDA provider; run: {INSTALL}"
    machine(provider=True, gpu=False)
    with pytest.raises(UserError, match=r"^device=cuda: CUDA's driver finds no GPU here .*; use device=cpu$"):
        providers("cuda")


def test_this_machine_has_a_gpu_if_torch_finds_one() -> None:
    import torch

    assert graph_io.has_gpu() is torch.cuda.is_available()


def test_a_session_gets_the_providers(artefact: Path, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's libraries that are not found leave a session on the CPU, which is an error only for device=cuda."""
    machine(provider=True, gpu=True)
    given, real = [], ort.InferenceSession

    def opened(graph: Any, options: Any, providers: Any) -> Any:
        given.append(providers)
        return real(graph, options, providers=[CPU])

    monkeypatch.setattr(ort, "InferenceSession", opened)
    open_session(artefact / "model.onnx")
    open_session(artefact / "model.onnx", device="cpu")
    open_session(artefact / "model.onnx", own_share=0.0)  # its tables would be copied to the GPU in each call
    assert given == [[(CUDA, OPTIONS), CPU], [CPU], [CPU]]
    with pytest.raises(UserError, match=r"^device=cuda: onnxruntime .* cannot load CUDA's libraries; run: "):
        open_session(artefact / "model.onnx", device="cuda")
    with pytest.raises(UserError, match=r"have more than half of the memory; use device=cpu$"):
        open_session(artefact / "model.onnx", own_share=0.0, device="cuda")


def test_a_gpu_must_give_the_outputs_of_the_run(artefact: Path, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded examples are compared when a model is loaded on a GPU: there, they never were before."""
    real = ort.InferenceSession
    monkeypatch.setattr(ort, "InferenceSession", lambda graph, options, **_: real(graph, options, [CPU]))
    machine(provider=True, gpu=True)
    compared = []
    check = load_artefact.check_examples
    monkeypatch.setattr(load_artefact, "check_examples", lambda *given: compared.append(check(*given)))
    model = load(artefact)
    assert len(compared[0]) == 256 and max(compared[0]) <= 1e-5
    load(artefact, device="cpu")
    assert len(compared) == 1
    monkeypatch.setattr(type(model), "run", lambda _, features: {"probability": np.full(features.rows, 0.5)})
    with pytest.raises(UserError, match=r"gives an output that differs by .*; the artefact must not be served$"):
        load(artefact)


@pytest.mark.skipif(graph_io.has_gpu(), reason="there is a GPU")
def test_the_command_ends_in_one_line(artefact: Path) -> None:
    command = [sys.executable, "-m", "recsys.serve", str(artefact), "port=0", "grpc_port=null", "device=cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"has no CUDA provider; run: {INSTALL}")


def test_other_devices_are_refused(tmp_path: Path, artefact: Path) -> None:
    with pytest.raises(UserError, match=r"^device=gpu: must be auto, cpu or cuda"):
        compose("serve", [f"models={artefact}", "device=gpu"])
    from recsys import serve

    cfg = parsed("serve", ["pipeline_file=x.yaml", "device=cuda"])
    with pytest.raises(UserError, match=r"^device=cuda: applies to a model; "):
        serve._command(cfg)


def test_triton_puts_the_graph_on_its_gpus(artefact: Path) -> None:
    kinds = {f.name: config_of(f).instance_group[0] for f in (artefact / "triton").glob("clicks_*")}
    assert {name: group.Kind.Name(group.kind) for name, group in kinds.items()} == {
        "clicks_model": "KIND_AUTO",
        "clicks_transforms": "KIND_CPU",
    }
    assert device_of({"model_instance_kind": "CPU"}) == device_of({}) == "cpu"
    assert device_of({"model_instance_kind": "GPU", "model_instance_device_id": "1"}) == "auto:1"
