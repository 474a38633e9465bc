"""sharding.table_dtype=fp16: tables of half the bytes, trained, stored, read and planned."""

import json
from pathlib import Path

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from forks import ok, run_forked
from table_steps import after_small_steps
from torchrec.modules.embedding_configs import DataType

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.features.resolved_data import feature_spec
from recsys.distributed.ranks import ensure_process_group
from recsys.job.check_built import check_job
from recsys.job.run_config import RunConfig
from recsys.plan import plan
from recsys.sharding.optimizers import sparse_optimizer
from recsys.sharding.sharders import Sharder
from recsys.sharding.stored_checkpoint import StoredCheckpoint
from recsys.sharding.tables import tables
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train
from recsys.training.run_dir import choose_checkpoint

RUN = ["model=dlrm", "data=criteo", "data.sample.rows=20000", "trainer.batch_size=256", "trainer.threads=1"]


def test_a_cpu_loses_steps_that_are_small_beside_a_weight() -> None:
    ensure_process_group()
    assert float(after_small_steps(DataType.FP16, "cpu").unique()) == 1.0
    assert float(after_small_steps(DataType.FP32, "cpu").unique()) == pytest.approx(0.99499, abs=1e-5)


@pytest.mark.parametrize(
    ("device", "bfloat16", "model", "output"),
    [
        ("cuda", True, [], SparseType.BF16),
        ("cuda", True, ["model.interaction=cross"], None),  # its residuals stay in float32
        ("cuda", True, ["model=deepfm"], None),
        ("cuda", False, [], None),
        ("cpu", True, [], None),
    ],
)
def test_lookups_return_what_is_multiplied(
    device: str, bfloat16: bool, model: list[str], output: SparseType | None
) -> None:
    cfg = RunConfig.of(compose("train", ["model=dlrm", "data=criteo", *model]))
    infos = tables(cfg.kind.build_task(cfg, feature_spec(cfg.data, lambda *_: 50), torch.device("meta")))
    optimizer = sparse_optimizer(cfg.optim.sparse)
    sharder = Sharder(optimizer, torch.device(device), infos, cfg.sharding, bfloat16=bfloat16)
    params = [sharder._params(1.0, i.rounded) for i in infos.values()]
    assert {p.get("output_dtype") for p in params} == {output}
    checks = {p.get("bounds_check_mode", BoundsCheckMode.WARNING) for p in params}
    assert checks == {BoundsCheckMode.NONE if device == "cuda" else BoundsCheckMode.WARNING}  # the loader has checked


@pytest.mark.slow
def test_a_run_says_so_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stored in half the bytes; evaluated, resumed in float32 and back."""
    losses, sizes = {}, {}
    for name in ("fp32", "fp16"):
        given = [*RUN, f"data.prepared={tmp_path}/prepared", f"run_dir={tmp_path / name}"]
        losses[name] = train(compose("train", [*given, f"sharding.table_dtype={name}"])).metrics["test"]["logloss"]
        said = (
            "sharding.table_dtype=fp16: CPUs round to the nearest number, so that small steps of large weights are lost"
        )
        assert (said in capsys.readouterr().err) == (name == "fp16")
        sizes[name] = sum(t["bytes"] for t in json.loads((tmp_path / name / "plan.json").read_text())["tables"])
    assert sizes["fp16"] * 2 == sizes["fp32"]
    assert losses["fp16"] == pytest.approx(losses["fp32"], abs=5e-3) and losses["fp16"] != losses["fp32"]
    again = evaluate(str(tmp_path / "fp16"), "test")["test"]["logloss"]
    assert again == pytest.approx(losses["fp16"], abs=1e-6)
    stored = StoredCheckpoint(choose_checkpoint(tmp_path / "fp16", "last"))
    keys = [key for key in stored.tensors if key.startswith("model.") and "embedding_bags" in key]
    assert keys and all(stored.dtype(key) == torch.float16 and stored.read(key).dtype == torch.float32 for key in keys)
    overrides = ["sharding=rowwise", "trainer.devices=2", "output=resharded"]
    ok(run_forked("recsys.checkpoint", "reshard", "fp16", *overrides, cwd=tmp_path))
    moved = StoredCheckpoint(choose_checkpoint(tmp_path / "resharded", "last"))
    assert all(moved.dtype(k) == torch.float16 and torch.equal(moved.read(k), stored.read(k)) for k in keys)
    more = [*RUN, f"data.prepared={tmp_path}/prepared", f"resume={tmp_path / 'fp16'}", "trainer.max_epochs=2"]
    found = train(compose("train", [*more, "sharding.table_dtype=fp32"])).metrics
    assert found["train"]["steps"] > 0 and found["test"]["logloss"] < losses["fp16"] + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["rowwise", "columnwise"])
def test_two_processes(tmp_path: Path, sharding: str) -> None:
    given = [*RUN, "data.sample.rows=2000", f"sharding={sharding}", "trainer.devices=2", "sharding.table_dtype=fp16"]
    ok(run_forked("recsys.train", *given, "data.prepared=prepared", "run_dir=run", cwd=tmp_path))
    plan_json = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert all(t["bytes"] == t["rows"] * t["width"] * 2 for t in plan_json["tables"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("table_dtype=bf16", "bf16: must be fp32 or fp16; did you mean fp16?"),
        ("table_dtype=fp61", "fp61: must be fp32 or fp16; did you mean fp16?"),
        ("table_dtype=fp16 optim.sparse.name=adam", "fp16: only FBGEMM's fused kernels train such tables: on CPUs, "),
        ("table_dtype=fp16 trainer.accumulate=2", "fp16: only FBGEMM's fused kernels train such tables: on CPUs, "),
        ("table_dtype=fp16 sharding=none trainer.devices=2", "fp16: replicas are updated without FBGEMM's fused "),
    ],
)
def test_what_does_not_exist_is_refused(given: str, why: str) -> None:
    with pytest.raises(UserError) as error:
        check_job(compose("train", [*RUN, *f"sharding.{given}".split()]))
    assert str(error.value).startswith(f"sharding.table_dtype={why}") and "\n" not in str(error.value)


def test_a_plan_counts_half_the_bytes() -> None:
    given = ["data=criteo_1tb_t15", "model.dim=128", "trainer.batch_size=65536", "cluster=dgx_h100", "sharding=rowwise"]
    found = {name: plan(compose("plan", [*given, f"sharding.table_dtype={name}"])) for name in ("fp32", "fp16")}
    whole, half = (sum(t.bytes for t in report.tables) for report in found.values())
    assert whole == 2 * half
    assert max(d.hbm for d in found["fp16"].devices) < 0.7 * max(d.hbm for d in found["fp32"].devices)
    assert found["fp16"].devices[0].lookup_bytes < found["fp32"].devices[0].lookup_bytes
