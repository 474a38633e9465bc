"""A run must not import what it does not use, and what it does use must be the real thing."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn

from recsys.models.common.meta_values import without_meta_values

# loaded by `import torchrec` and `import pytorch_lightning` unless deferred_imports.py holds them back
HEAVY = (
    "torch._dynamo.eval_frame",
    "sympy",
    "scipy.signal._signaltools",
    "matplotlib.figure",
    "tensordict.base",
    "torch.distributed.tensor._api",
)


def run(program: str, *, as_command: bool = True, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[0] = {'-m' if as_command else '-c'!r}; {program}"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_training_loads_none_of_the_heavy_packages(tmp_path: Path) -> None:
    """If a new version of a package calls one of them, find who does: that import costs each command seconds."""
    program = f"""
import json, sys
import recsys
from recsys.training.run import train
run = train(recsys.compose("train", ["data.sample.rows=3000", "run_dir={tmp_path}/run"]))
print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))
"""
    assert json.loads(run(program, HOME=str(tmp_path))) == []
    assert (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.slow
def test_deferred_packages_are_the_real_ones_once_they_are_used(tmp_path: Path) -> None:
    program = """
import recsys, sys
import torch, torchrec, torchrec.distributed, pytorch_lightning
from lightning_fabric.wrappers import OptimizedModule
from torchrec.distributed.embedding import TensorDict as Placeholder

assert "sympy" not in sys.modules
linear = torch.nn.Linear(3, 4)
assert not isinstance(linear, OptimizedModule) and "torch._dynamo.eval_frame" not in sys.modules
compiled = torch.compile(linear, backend="eager")
x = torch.ones(2, 3)
assert torch.equal(compiled(x), linear(x))
assert isinstance(compiled, OptimizedModule) and isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule)

from tensordict import TensorDict
assert isinstance(TensorDict({"a": x}, [2]), Placeholder) and isinstance(Placeholder({"a": x}, [2]), TensorDict)

from torch.distributed.checkpoint import default_planner
from torch.distributed.tensor import DTensor
assert not isinstance(x, default_planner.DTensor) and DTensor.__module__ == "torch.distributed.tensor"
assert "torch.distributed.tensor._api" in sys.modules and isinstance(DTensor, type(torch.Tensor))

import matplotlib, scipy.stats, torchmetrics
matplotlib.use("agg")
figure, axes = torchmetrics.MeanMetric().plot(torch.tensor(3.0))
assert isinstance(figure, matplotlib.figure.Figure) and scipy.stats.norm.cdf(0) == 0.5
assert torch.optim.SGD(linear.parameters(), lr=0.1).step() is None
print("all real")
"""
    assert run(program, HOME=str(tmp_path)) == "all real"


def test_packages_that_torchmetrics_finds_installed(tmp_path: Path) -> None:
    """Transformers is not loaded; scikit-learn, which other packages load, reads the version of scipy."""
    for name, code in {
        "transformers": "raise RuntimeError('loaded')",
        "sklearn": "import scipy\nfound = scipy.__version__",
        "torchmetrics": "from transformers import AutoModel\nimport sklearn\nfrom scipy import stats",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(code)
    program = "import recsys, torchmetrics, sklearn; print(sklearn.found, torchmetrics.stats.norm.cdf(0))"
    assert run(program, PYTHONPATH=str(tmp_path), HOME=str(tmp_path)) == f"{version('scipy')} 0.5"


@pytest.mark.slow
def test_a_checkpoint_is_inspected_without_the_packages_of_training() -> None:
    folder = Path(__file__).parent / "e2e" / "old_runs" / "ranking"
    command = [sys.executable, "-X", "importtime", "-m", "recsys.checkpoint", "inspect", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torch.distributed.checkpoint" in imported
    assert not imported & {*HEAVY, "torchrec", "fbgemm_gpu", "pytorch_lightning"}


@pytest.mark.slow
def test_imports_can_be_eager(tmp_path: Path) -> None:
    program = "import recsys, sys, tensordict; print('tensordict.base' in sys.modules)"
    assert run(program, HOME=str(tmp_path), RECSYS_EAGER_IMPORTS="1") == "True"
    assert run(program, HOME=str(tmp_path)) == "False"
    assert run("import recsys, torchrec; print('tensordict.base' in sys.modules)", as_command=False) == "True"


def test_modules_on_other_devices_get_their_initial_values() -> None:
    torch.manual_seed(0)
    expected = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    torch.manual_seed(0)
    with without_meta_values():
        meta = nn.Embedding(5, 3, device="meta")
        made = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    assert meta.weight.is_meta
    assert all(torch.equal(a, b) for a, b in zip(expected.parameters(), made.parameters(), strict=True))


MISSING_RUNS = """
import importlib, sys
for command in ("evaluate run=nope", "predict run=nope input=rows.csv", "checkpoint inspect nope", "export run=nope output=x"):
    name, *given = command.split()
    sys.argv = [f"recsys.{name}", *given]
    try:
        importlib.import_module(f"recsys.{name}.__main__" if name == "export" else f"recsys.{name}").main()
    except SystemExit as e:
        assert e.code == 2
assert "torch" not in sys.modules
"""


def test_a_missing_run_is_told_without_torch(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    done = subprocess.run([sys.executable, "-c", MISSING_RUNS], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: run=nope: is not a run folder (it has no config.yaml)\n") == 4
