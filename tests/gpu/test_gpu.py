"""What CPU tests prove, on a GPU: FBGEMM's fused CUDA kernels, tables in host memory, and a whole run."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parity import Case, Trained, assert_equal, train_all

from recsys.config.compose import compose, load_config
from recsys.distributed.ranks import process_group
from recsys.sharding import checkpoint
from recsys.sharding.sharders import FUSED_OPTIMIZERS, KERNELS
from recsys.training.evaluate import evaluate
from recsys.training.run import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

CASES = [Case("table_wise", o, kernels=(k,)) for o in FUSED_OPTIMIZERS for k in KERNELS]
CASES += [Case("table_wise", o, dim=6, decay=False) for o in FUSED_OPTIMIZERS]
CASES += [Case("table_wise", "rowwise_adagrad", weighted=True, decay=False)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fused_kernels_equal_plain_torch(case: Case) -> None:
    with process_group("gpu", None):
        [result] = train_all(0, 1, [case], "cuda:0")
    assert {e["kernel"] for e in result["plan"]} == set(case.kernels or ["fused"])
    assert_equal([result], case)


@pytest.mark.parametrize("optimizer", FUSED_OPTIMIZERS)
def test_caching_in_the_gpu_equals_all_in_its_memory(optimizer: str) -> None:
    """To the bit where FBGEMM's kernels are deterministic; a tenth of the rows is cached, so that rows are evicted."""
    case = Case("table_wise", optimizer, kernels=("fused_uvm_caching",), decay=False)
    with process_group("gpu", None):
        cached, held = train_all(0, 1, [case, replace(case, kernels=("fused",))], "cuda:0")
    for a, b in zip(cached["logits"], held["logits"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_loaded_is_what_is_read(kernel: str, tmp_path: Path) -> None:
    """Also where the GPU has rows cached from before."""
    with process_group("gpu", None):
        trained = Trained(Case("table_wise", "rowwise_adagrad", kernels=(kernel,), decay=False), "cuda:0")
        module = trained.module
        trained.step(0)
        expected = trained.predict()
        state = {"global_step": 1}
        checkpoint.save(tmp_path / "a", trained.dmp, module.tables, "rowwise_adagrad", None, state, module.plan)
        trained.step(1)
        assert not torch.allclose(trained.predict(), expected)
        checkpoint.load_all(tmp_path / "a", trained.dmp, module.tables, "rowwise_adagrad", None, step=1)
        torch.testing.assert_close(trained.predict(), expected)


def test_a_run_on_a_gpu_is_read_on_the_cpu(tmp_path: Path) -> None:
    arguments = ["data.sample.rows=20000", f"data.prepared={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    found = train(compose("train", [*arguments, "trainer.accelerator=gpu"])).metrics
    cfg = load_config(tmp_path / "run" / "config.yaml")
    cfg.trainer.accelerator = "cpu"
    on_cpu = evaluate(str(tmp_path / "run"), "test", cfg=cfg)["test"]
    assert on_cpu["auc"] == pytest.approx(found["test"]["auc"], abs=1e-4)
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["tables"][0]["kernel"] == "fused"


def test_a_run_that_goes_on_equals_one_that_never_stopped(tmp_path: Path) -> None:
    arguments = ["data.sample.rows=20000", f"data.prepared={tmp_path}", "trainer.accelerator=gpu"]
    whole = train(compose("train", [*arguments, "trainer.max_epochs=2", f"run_dir={tmp_path / 'whole'}"])).metrics
    train(compose("train", [*arguments, f"run_dir={tmp_path / 'part'}"]))
    more = train(compose("train", [*arguments, "trainer.max_epochs=2", f"resume={tmp_path / 'part'}"])).metrics
    assert more["test"]["auc"] == pytest.approx(whole["test"]["auc"], abs=1e-4)


def test_a_run_on_a_gpu_prints_no_warnings_of_the_libraries(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recsys.train", "data.sample.rows=20000", "trainer.accelerator=gpu"]
    command += [f"data.prepared={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "WARNING" not in output.partition("checking the config")[2]
