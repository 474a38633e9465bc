"""What CPU tests prove, on a GPU: FBGEMM's fused CUDA kernels, tables in host memory, and a whole run."""

import gc
import gzip
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import torchrec
from data_configs import data_config
from parity import Case, Trained, assert_equal, train_all
from table_steps import after_small_steps
from torchrec.modules.embedding_configs import DataType

from recsys.config.compose import compose
from recsys.data.loader.parquet_loader import ParquetLoader
from recsys.data.prepare.prepared import prepare
from recsys.distributed.ranks import process_group
from recsys.sharding import sharded_checkpoint
from recsys.sharding.optimizers import OPTIMIZERS
from recsys.sharding.sharders import KERNELS
from recsys.sharding.stored_checkpoint import StoredCheckpoint
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train
from recsys.training.run_dir import choose_checkpoint, open_run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

OLD = torchrec.__version__.startswith("1.6")
NO_PREFETCH = pytest.mark.skipif(
    OLD, reason="TorchRec 1.6's prefetch pipeline cannot be emptied, as validations within an epoch do"
)
CASES = [Case("table_wise", o, kernels=(k,)) for o in OPTIMIZERS for k in KERNELS]
CASES += [Case("table_wise", o, dim=6, decay=False) for o in OPTIMIZERS]
CASES += [Case("row_wise", "rowwise_adagrad", dedup=True)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fused_kernels_equal_plain_torch(case: Case) -> None:
    with process_group("gpu", None):
        [result] = train_all(0, 1, [case], "cuda:0")
    assert {e["kernel"] for e in result["plan"]} == set(case.kernels or ["fused"])
    assert_equal([result], case)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
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
        sharded_checkpoint.save(tmp_path / "a", module.sharded, None, state)
        trained.step(1)
        assert not torch.allclose(trained.predict(), expected)
        sharded_checkpoint.load_all(tmp_path / "a", module.sharded, None, step=1)
        torch.testing.assert_close(trained.predict(), expected)


def test_a_run_on_a_gpu_is_read_on_the_cpu(tmp_path: Path) -> None:
    arguments = ["data.sample.rows=20000", f"data.prepared={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    arguments += ["trainer.accelerator=gpu", "trainer.precision=32-true"]
    found = train(compose("train", arguments)).metrics
    cfg = open_run(str(tmp_path / "run"))[0].changed({"trainer.accelerator": "cpu"})
    on_cpu = evaluate(str(tmp_path / "run"), "test", cfg=cfg)["test"]
    assert on_cpu["auc"] == pytest.approx(found["test"]["auc"], abs=1e-4)
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["tables"][0]["kernel"] == "fused"


def test_a_run_that_goes_on_equals_one_that_never_stopped(tmp_path: Path) -> None:
    arguments = ["data.sample.rows=20000", f"data.prepared={tmp_path}", "trainer.accelerator=gpu"]
    arguments += ["trainer.precision=32-true"]
    whole = train(compose("train", [*arguments, "trainer.max_epochs=2", f"run_dir={tmp_path / 'whole'}"])).metrics
    train(compose("train", [*arguments, f"run_dir={tmp_path / 'part'}"]))
    more = train(compose("train", [*arguments, "trainer.max_epochs=2", f"resume={tmp_path / 'part'}"])).metrics
    assert more["test"]["auc"] == pytest.approx(whole["test"]["auc"], abs=1e-4)


@pytest.mark.skipif(OLD, reason="FBGEMM 1.6 warns, on import, that its table of versions lacks FBGEMM 1.6")
def test_a_run_on_a_gpu_prints_no_warnings_of_the_libraries(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recsys.train", "data.sample.rows=20000", "trainer.accelerator=gpu"]
    command += [f"data.prepared={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "WARNING" not in output.partition("checking the config")[2]


def test_batches_are_copied_while_the_gpu_works(tmp_path: Path) -> None:
    """The same batches as without a device, resumable at each; threads end with the epoch, or with the loader."""
    cfg = compose("train", ["data=sample_interactions", "data.sample.rows=20000", f"data.prepared={tmp_path}"])
    prepared = prepare(data_config(cfg))
    loaders = [
        ParquetLoader(
            prepared.files("train"),
            prepared.fitted.features,
            batch_size=512,
            training=True,
            shuffle=True,
            device=device,
        )
        for device in (None, torch.device("cuda:0"))
    ]
    on_cpu, on_gpu = (list(loader) for loader in loaders)  # all held while the loader goes on
    assert len(on_cpu) == len(on_gpu) > 10
    for a, b in zip(on_cpu, on_gpu, strict=True):
        assert b.dense.is_cuda and b.labels.is_cuda and b.sparse.values().is_cuda
        assert torch.equal(a.dense, b.dense.cpu()) and torch.equal(a.labels, b.labels.cpu())
        assert torch.equal(a.sparse.values(), b.sparse.values().cpu())
        assert torch.equal(a.sparse.lengths(), b.sparse.lengths().cpu())
    loader = loaders[1]
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert state["step"] == 1  # batches copied ahead were not handed out
    batches.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("loader-copy")]
    del batches, loader, loaders  # which read the next epoch ahead
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("loader"):
            thread.join(timeout=30)
    assert not [t for t in threading.enumerate() if t.name.startswith("loader")]


LABELS = """
name: shop
root: raw
source: {files: ["*.csv"]}
weight: {column: w}
split: {validation: 0.2, test: 0.2}
dense: {x: {}}
sparse: {s: {vectors: {file: vectors.parquet, key: s, trainable: false}}, t: {}}
"""
SEVERAL = "labels: {click: {}, buy: {only_if: click}, spent: {kind: regression, log: true}}"
ONE = "label: {column: click}"
GROUPED = "label: {column: click}\ngroup: {by: display, together: true}"


def shop(folder: Path, labels: str) -> None:
    rng, n = np.random.default_rng(0), 6000
    x = rng.standard_normal(n)
    click = rng.random(n) < 1 / (1 + np.exp(-2 * x))
    columns = {"click": click.astype(int), "buy": (click & (rng.random(n) < 0.4)).astype(int), "x": x}
    columns |= {"spent": np.exp(1 + x), "w": rng.random(n) + 0.5, "display": np.arange(n) // 8}
    columns |= {"s": rng.choice(list("abc"), n), "t": rng.choice(list("de"), n)}
    (folder / "raw").mkdir(parents=True)
    pl.DataFrame(columns).write_csv(folder / "raw" / "log.csv")
    vectors = {"s": ["a", "b", "c"], "vector": [[float(i)] * 16 for i in (1, 2, 3)]}
    pl.DataFrame(vectors).write_parquet(folder / "raw" / "vectors.parquet")
    (folder / "conf" / "data").mkdir(parents=True)
    (folder / "conf" / "data" / "shop.yaml").write_text(f"{LABELS}{labels}\n")


@pytest.mark.parametrize(
    ("labels", "arguments", "floors"),
    [
        (SEVERAL, ("loss=tasks", "loss.balance=gradnorm", "calibration=platt"), {"click/auc": 0.82}),
        (SEVERAL, ("loss=tasks", "loss.balance=uncertainty", "calibration=isotonic"), {"click/auc": 0.82}),
        (GROUPED, ("loss=pairwise",), {"gauc": 0.8, "gndcg@10": 0.8}),
        (GROUPED, ("loss=listwise", "loss.pointwise=0.5"), {"auc": 0.82, "gndcg@10": 0.8}),
        (ONE, ("data.sample_negatives=0.5", "loss=focal"), {"auc": 0.82}),
    ],
    ids=["gradnorm", "uncertainty", "pairwise", "listwise", "negatives"],
)
def test_labels_and_losses(tmp_path: Path, labels: str, arguments: tuple[str, ...], floors: dict[str, float]) -> None:
    shop(tmp_path, labels)
    command = [sys.executable, "-m", "recsys.train", "data=shop", "trainer.accelerator=gpu", "run_dir=run", *arguments]
    command += ["trainer.max_epochs=5", "trainer.batch_size=256", "optim.dense.lr=0.01"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    test = json.loads((tmp_path / "run" / "metrics.json").read_text())["test"]
    assert all(test[name] > floor for name, floor in floors.items()), test
    stored = StoredCheckpoint(choose_checkpoint(tmp_path / "run", "last"))
    vocabulary = pl.read_parquet(tmp_path / "run" / "vocabularies" / "s.parquet")
    [key] = [key for key in stored.tensors if key.endswith("t_s.weight")]
    table = stored.read(key)
    for value, place in zip(vocabulary["value"], vocabulary["id"], strict=True):
        assert table[place].tolist() == [float("abc".index(value)) + 1] * 16


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}


PIPELINED = ["model=dlrm", "data=criteo", "data.sample.rows=20000", "trainer.batch_size=512", "trainer.accelerator=gpu"]
PIPELINED += ["trainer.precision=32-true"]  # unless a test chooses another one


@pytest.mark.parametrize("pipeline", ["base", "sparse_dist", pytest.param("prefetch", marks=NO_PREFETCH)])
def test_a_pipeline_on_a_gpu_trains_what_the_plain_loop_trains(tmp_path: Path, pipeline: str) -> None:
    """With tables of which the GPU caches a tenth, so that prefetch has rows to load; validations within the epoch."""
    cached = ["sharding.kernels=[fused_uvm_caching]", "sharding.cache_load_factor=0.1"]
    more = [*PIPELINED, *cached, "trainer.validate_every_n_steps=7", f"data.prepared={tmp_path}/prepared"]
    losses = {}
    for name in ("none", pipeline):
        run = train(compose("train", [*more, f"trainer.pipeline={name}", f"run_dir={tmp_path}/{name}"]))
        losses[name] = run.metrics["test"]["logloss"]
    assert losses[pipeline] == pytest.approx(losses["none"], abs=1e-5)


@pytest.mark.parametrize("pipeline", ["none", "sparse_dist"])
def test_float16_on_a_gpu_learns_what_float32_learns(tmp_path: Path, pipeline: str) -> None:
    more = [*PIPELINED, f"data.prepared={tmp_path}/prepared", f"trainer.pipeline={pipeline}"]
    losses = {}
    for precision in ("32-true", "bf16-mixed", "16-mixed"):
        run = train(compose("train", [*more, f"trainer.precision={precision}", f"run_dir={tmp_path}/{precision}"]))
        losses[precision] = run.metrics["test"]["logloss"]
    assert losses["16-mixed"] == pytest.approx(losses["32-true"], abs=2e-3)


def test_the_default_is_16_bits_and_learns_what_float32_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = small_run(tmp_path, "float32")["test"]["auc"]
    capsys.readouterr()
    given = [o for o in PIPELINED if not o.startswith("trainer.precision")]
    more = [*given, f"data.prepared={tmp_path}/prepared", f"run_dir={tmp_path / 'default'}"]
    assert train(compose("train", more)).metrics["test"]["auc"] == pytest.approx(expected, abs=3e-3)
    said = "trainer.precision: bf16-mixed on this machine, and TensorFloat-32 for the rest"
    assert (said in capsys.readouterr().err) == torch.cuda.is_bf16_supported(including_emulation=False)


def small_run(folder: Path, name: str, *more: str) -> dict[str, Any]:
    given = [*PIPELINED, f"data.prepared={folder}/prepared", *more, f"run_dir={folder / name}"]
    return train(compose("train", given)).metrics


@pytest.mark.parametrize(
    ("name", "given", "apart"),
    [
        ("tf32", ["trainer.tf32=true"], 3e-3),
        ("compiled", ["trainer.compile=true", "trainer.cuda_graphs=false"], 1e-3),
        ("graphs", ["trainer.compile=true", "trainer.cuda_graphs=true"], 1e-3),
        ("graphs_16-mixed", ["trainer.compile=true", "trainer.cuda_graphs=true", "trainer.precision=16-mixed"], 3e-3),
        ("fp16_tables", ["sharding.table_dtype=fp16"], 3e-3),
        ("fp16_tables_cached", ["sharding.table_dtype=fp16", "sharding.kernels=[fused_uvm_caching]"], 3e-3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_learns_what_float32_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, given: list[str], apart: float
) -> None:
    expected = small_run(tmp_path, "plain")["test"]["logloss"]
    capsys.readouterr()
    found = small_run(tmp_path, name, *given)
    assert found["test"]["logloss"] == pytest.approx(expected, abs=apart)
    assert ("compile_seconds" in found["train"]) == ("trainer.compile=true" in given)
    assert "has no effect" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data"),
    [
        *((m, "criteo") for m in ["autoint", "dcn", "dcnv2", "dcnv2_lowrank", "dcnv2_moe", "dcnv3", "deepfm", "dlrm"]),
        *((m, "criteo") for m in ["dnn", "eulernet", "fibinet", "finalmlp", "fm", "fwfm", "gdcn", "lr", "masknet"]),
        *((m, "criteo") for m in ["rankmixer", "wide_deep", "wukong", "xdeepfm"]),
        *((m, "sample_tasks") for m in ["esmm", "mmoe", "ple", "shared_bottom", "stem"]),
    ],
)
def test_graphs_of_every_model_learn_what_eager_code_learns(model: str, data: str, tmp_path: Path) -> None:
    """In float32: in bfloat16, 62 steps of stem end .03 of AUC apart by rounding alone, without a compiler."""
    given = [f"model={model}", f"data={data}", "data.sample.rows=20000", "trainer.batch_size=512"]
    given += ["trainer.precision=32-true"]
    found = {}
    for name in ("false", "true"):
        more = [f"trainer.compile={name}", f"data.prepared={tmp_path}/prepared", f"run_dir={tmp_path / name}"]
        found[name] = train(
            compose("train", [*given, "trainer.max_epochs=2", "trainer.accelerator=gpu", *more])
        ).metrics
    assert "compile_seconds" in found["true"]["train"]
    for metric in {"auc", "click/auc", "buy/auc"} & found["true"]["test"].keys():
        assert found["true"]["test"][metric] == pytest.approx(found["false"]["test"][metric], abs=3e-3)


def test_graphs_are_replayed(tmp_path: Path) -> None:
    """The profiler sees fewer launches of kernels than without."""
    launches = {}
    for name, given in (("compiled", ["trainer.cuda_graphs=false"]), ("graphs", [])):
        more = ["trainer.compile=true", *given, "debug.profile_steps=3", f"run_dir={tmp_path / name}"]
        train(compose("train", [*PIPELINED, f"data.prepared={tmp_path}/prepared", *more]))
        with gzip.open(tmp_path / name / "profile" / "trace.json.gz", "rt") as trace:
            events = json.load(trace)["traceEvents"]
        launches[name] = sum("cudaLaunchKernel" in str(e.get("name")) for e in events)
        graphs = sum("cudaGraphLaunch" in str(e.get("name")) for e in events)
        assert (graphs > 0) == (name == "graphs")
    assert launches["graphs"] < launches["compiled"]


def test_fp16_tables_are_rounded_stochastically() -> None:
    """500 steps of 1e-5 on rows of ones: their mean moves as that of float32; a CPU leaves all ones."""
    with process_group("gpu", None):
        half, single = (after_small_steps(t, "cuda:0") for t in (DataType.FP16, DataType.FP32))
    assert float(single.mean()) == pytest.approx(0.99499, abs=1e-5)
    assert float(half.mean()) == pytest.approx(0.995, abs=2e-3) and len(half.unique()) > 1


LISTS = ["bst", "dien", "din", "hstu_rank", "sdim", "sim", "target_attention"]
QUERIES = ["bert4rec", "gru4rec", "hstu", "sasrec", "transformer"]


@pytest.mark.parametrize(
    ("model", "data"), [*((m, "sample_behaviour") for m in LISTS), *((m, "sample_sequences") for m in QUERIES)]
)
def test_lists_train_on_a_gpu(tmp_path: Path, model: str, data: str) -> None:
    given = [
        f"model={model}",
        f"data={data}",
        "data.sample.rows=3000",
        "trainer.batch_size=256",
        "trainer.max_epochs=1",
    ]
    run = [*given, f"data.prepared={tmp_path}/prepared", f"run_dir={tmp_path / 'run'}", "trainer.accelerator=gpu"]
    metrics = train(compose("train", run)).metrics
    assert metrics["train"]["steps"] > 0
    assert all(np.isfinite(v) for v in metrics["test"].values() if isinstance(v, float))


@pytest.mark.slow
@pytest.mark.parametrize("model", [*QUERIES, "comirec", "esasrec", "fuxi_alpha"])
def test_graphs_of_lists_learn_what_eager_code_learns(model: str, tmp_path: Path) -> None:
    given = [f"model={model}", "data=sample_sequences", "data.sample.rows=20000", "trainer.batch_size=256"]
    given += ["trainer.precision=32-true", "trainer.max_epochs=3", "trainer.accelerator=gpu"]
    found = {}
    for name in ("false", "true"):
        more = [f"trainer.compile={name}", f"data.prepared={tmp_path}/prepared", f"run_dir={tmp_path / name}"]
        found[name] = train(compose("train", [*given, *more])).metrics
    assert "compile_seconds" in found["true"]["train"]
    assert found["true"]["test"]["ndcg@10"] == pytest.approx(found["false"]["test"]["ndcg@10"], rel=0.1)


def test_two_processes_on_one_gpu_are_refused_in_one_line(tmp_path: Path) -> None:
    """As if on two hosts with a GPU each, so that only NCCL notices."""
    command = [sys.executable, "-m", "recsys.train", *PIPELINED, "data.prepared=prepared", "run_dir=run"]
    ranks = []
    for rank in range(2):
        of_torchrun = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        more = environment() | of_torchrun | {"RECSYS_STORE": str(tmp_path / "store")}
        ranks.append(subprocess.Popen(command, cwd=tmp_path, env=more, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=300)[1] for process in ranks]
    assert all(process.returncode != 0 for process in ranks)
    assert any("two processes share a GPU, which NCCL refuses" in text for text in said), said
    assert not any("Traceback" in text for text in said)
