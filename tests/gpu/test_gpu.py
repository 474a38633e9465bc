"""What CPU tests prove, on a GPU: FBGEMM's fused CUDA kernels, and a whole run whose checkpoint the CPU reads."""

import json
from pathlib import Path

import pytest
import torch
from parity import assert_equal, train_all

from recsys.config import compose, load_config
from recsys.evaluate import evaluate
from recsys.launch import process_group
from recsys.sharding.plan import FUSED_OPTIMIZERS
from recsys.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.mark.parametrize("optimizer", FUSED_OPTIMIZERS)
def test_fused_kernels_equal_plain_torch(optimizer: str) -> None:
    with process_group("gpu", None):
        [result] = train_all(0, 1, [("table_wise", optimizer)], "cuda:0")
    assert {e["kernel"] for e in result["plan"]} == {"fused"}
    assert_equal([result], optimizer)


def test_a_run_on_a_gpu_is_read_on_the_cpu(tmp_path: Path) -> None:
    arguments = ["data.sample.rows=20000", f"data.prepared={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    found = train(compose("train", [*arguments, "trainer.accelerator=gpu"])).metrics
    cfg = load_config(tmp_path / "run" / "config.yaml")
    cfg.trainer.accelerator = "cpu"
    on_cpu = evaluate(str(tmp_path / "run"), "test", cfg=cfg)["test"]
    assert on_cpu["auc"] == pytest.approx(found["test"]["auc"], abs=1e-4)
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["tables"][0]["kernel"] == "fused"
