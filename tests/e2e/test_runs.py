"""Whole runs as a user starts them: sample, resume after kill -9, evaluate, predict, sweep, own data."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from forks import ok, run_anew, run_forked, warm_python
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

Run = Callable[..., subprocess.CompletedProcess[str]]
SMALL = ["data.sample.rows=20000", "trainer.batch_size=256", "trainer.threads=1"]


def forked(command: str, *args: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run_forked(f"recsys.{command}", *args, cwd=cwd, env=env)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run `a` on a small sample, DLRM with dropout, three epochs of 62 steps."""
    path = tmp_path_factory.mktemp("runs")
    ok(forked("train", *SMALL, *LONG, "run_dir=a", cwd=path))
    return path


LONG = ["trainer.max_epochs=3", "model.dropout=0.1", "checkpoint.every_n_steps=20"]


def weights(run: Path, tmp: Path) -> dict[str, object]:
    [last] = (run / "checkpoints").glob("step-*")
    dcp_to_torch_save(last, tmp)
    return torch.load(tmp, weights_only=False)


def equal(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    assert isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return torch.equal(a, b)


def test_run_folder_holds_what_programs_rely_on(home: Path) -> None:
    names = {"config.yaml", "features.json", "plan.json", "metrics.json", "checkpoints", "metrics.csv", "train.log"}
    assert names <= {p.name for p in (home / "a").iterdir()}
    metrics = json.loads((home / "a" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"auc", "pr_auc", "logloss", "ne", "calibration", "ece", "rows"}
    assert set(metrics["validation"]) == set(metrics["test"])
    assert {"samples", "seconds", "samples_per_second", "epochs"} <= set(metrics["train"])
    job, steps = metrics["train"]["job"], metrics["train"]["seconds"]
    assert sum(share for what, share in job.items() if what != "seconds") == pytest.approx(1)
    assert (job["training"] + job["waiting"]) * job["seconds"] == pytest.approx(steps, abs=0.01)
    assert {"split", "seed"} <= set(metrics["protocol"])
    assert set(metrics["bayes"]) == {"auc", "logloss"}
    assert metrics["train"]["samples"] == 3 * 62 * 256
    assert 0.6 < metrics["test"]["auc"] < metrics["bayes"]["auc"]


@pytest.mark.parametrize("python", ["forked", pytest.param("new", marks=pytest.mark.slow)])
def test_kill_and_resume_gives_equal_weights_bit_for_bit(home: Path, tmp_path: Path, python: str) -> None:
    b = f"killed-{python}"
    start = warm_python() if python == "forked" else sys.executable
    command = [start, "-m", "recsys.train", *SMALL, *LONG, f"run_dir={b}"]
    with (tmp_path / "out").open("w") as out:
        running = subprocess.Popen(command, cwd=home, stdout=out, stderr=out)
        deadline = time.monotonic() + 300
        while not list((home / b / "checkpoints").glob("step-000000[468]0")) and time.monotonic() < deadline:
            assert running.poll() is None, (tmp_path / "out").read_text()
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert not (home / b / "metrics.json").exists()
    resumed = ok(forked("train", f"resume={b}", cwd=home))
    assert f"resuming from {b}/checkpoints/step-" in resumed.stderr
    assert equal(weights(home / "a", tmp_path / "a.pt"), weights(home / b, tmp_path / "b.pt"))
    whole, resumed_run = (json.loads((home / r / "metrics.json").read_text()) for r in ("a", b))
    assert whole["test"] == resumed_run["test"]
    assert whole["train"]["samples"] == resumed_run["train"]["samples"]


def test_evaluate_reproduces_the_test_metrics_exactly(home: Path, run_command: Run) -> None:
    done = ok(run_command("recsys.evaluate", "run=a", cwd=home))
    measured = json.loads((home / "a" / "evaluate-test.json").read_text())["test"]
    assert measured == json.loads((home / "a" / "metrics.json").read_text())["test"]
    assert "│ test │" in done.stdout and f"{measured['auc']:.5f}" in done.stdout


def test_predict_scores_raw_rows_with_or_without_labels(home: Path, run_command: Run) -> None:
    [sample] = (home / "outputs" / "prepared").glob("sample-*/train.tsv")
    lines = sample.read_text().splitlines()[-2000:]  # the test rows
    (home / "labelled.tsv").write_text("\n".join(lines) + "\n")
    (home / "bare.tsv").write_text("\n".join(line.split("\t", 1)[1] for line in lines[:50]) + "\n")
    broken = [lines[0].split("\t", 1)[1], "1\t2", "\t".join(["x"] * 13 + ["deadbeef"] * 26)]
    (home / "broken.tsv").write_text("\n".join(broken) + "\n")
    files = "input=[labelled.tsv,bare.tsv,broken.tsv]"
    done = ok(run_command("recsys.predict", "run=a", files, "output=p.parquet", cwd=home))
    out = pl.read_parquet(home / "p.parquet")
    assert out.height == 2053
    by = {name: out.filter(pl.col("file") == f"{name}.tsv")["probability"] for name in ("labelled", "bare", "broken")}
    np.testing.assert_allclose(by["bare"].to_numpy(), by["labelled"][:50].to_numpy(), rtol=1e-5)
    assert by["broken"].is_null().to_list() == [False, True, True]
    assert "2 rows could not be read" in done.stderr
    assert "cat_26" in done.stdout  # the table of out-of-vocabulary shares
    labels = np.array([int(line[0]) for line in lines])
    found = json.loads((home / "a" / "metrics.json").read_text())["test"]
    p = by["labelled"].to_numpy().astype(np.float64)
    logloss = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean()
    assert logloss == pytest.approx(found["logloss"], rel=1e-5)


@pytest.mark.slow
def test_two_processes_by_devices_and_by_torchrun_train_alike(home: Path) -> None:
    ok(forked("train", *SMALL, "sharding=rowwise", "trainer.devices=2", "run_dir=two", cwd=home))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "recsys.train"]
    done = subprocess.run(
        [*torchrun, *SMALL, "sharding=rowwise", "run_dir=tr"], cwd=home, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    two, tr = (json.loads((home / r / "metrics.json").read_text())["test"] for r in ("two", "tr"))
    assert two == tr
    assert all((home / r / "train.log").read_text().splitlines()[-1].endswith(" s") for r in ("two", "tr"))
    plan = json.loads((home / "two" / "plan.json").read_text())
    assert plan["world_size"] == 2
    assert {t["type"] for t in plan["tables"]} == {"row_wise"}
    ok(forked("evaluate", "run=two", "trainer.devices=1", "sharding=none", cwd=home))
    alone = json.loads((home / "two" / "evaluate-test.json").read_text())["test"]
    assert alone["auc"] == pytest.approx(two["auc"], abs=1e-9)


@pytest.mark.slow
def test_hashed_features_trained_row_wise_by_two_are_scored_by_one(home: Path) -> None:
    """Values that training never saw have rows of their own: on both sides of the checkpoint, the same ones."""
    hashed = ["data.sparse_defaults.encode=hash", "data.sparse_defaults.buckets=1000", "model.dim=4"]
    mixed = ["data.sparse.cat_1.encode=vocabulary", "data.sparse.cat_2.buckets=77"]
    how = ["sharding=rowwise", "trainer.devices=2", "run_dir=hashed"]
    ok(forked("train", *SMALL, *hashed, *mixed, *how, cwd=home))
    features = json.loads((home / "hashed" / "features.json").read_text())["sparse"]
    assert [f["cardinality"] for f in features[1:]] == [78] + [1001] * 24
    assert [p.name for p in (home / "hashed" / "vocabularies").iterdir()] == ["cat_1.parquet"]
    assert {t["type"] for t in json.loads((home / "hashed" / "plan.json").read_text())["tables"]} == {"row_wise"}

    [sample] = (home / "outputs" / "prepared").glob("sample-*/train.tsv")
    rows = [line.split("\t") for line in sample.read_text().splitlines()]
    assert len({r[16] for r in rows[-2000:]} - {r[16] for r in rows[:-2000]}) > 100  # of cat_3
    alike = [[*rows[-1][:16], value, *rows[-1][17:]] for value in ("never", "nor this")]  # but for an unseen cat_3
    (home / "hashed.tsv").write_text("".join("\t".join(r) + "\n" for r in rows[-2000:] + alike))
    done = ok(forked("predict", "run=hashed", "input=hashed.tsv", "output=hashed.parquet", cwd=home))
    assert "cat_1 " in done.stdout and "cat_2 " not in done.stdout  # of the shares out of vocabulary
    p = pl.read_parquet(home / "hashed.parquet")["probability"].to_numpy().astype(np.float64)
    assert p[-1] != p[-2]
    labels = np.array([int(r[0]) for r in rows[-2000:]])
    logloss = -(labels * np.log(p[:2000]) + (1 - labels) * np.log(1 - p[:2000])).mean()
    found = json.loads((home / "hashed" / "metrics.json").read_text())["test"]  # by two processes
    assert logloss == pytest.approx(found["logloss"], rel=1e-5)


def test_own_parquet_data_trains_by_one_yaml_as_the_docs_show(home: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "start" / "your_data.md").read_text()
    yaml = docs.split("```yaml\n")[1].split("```")[0]
    (home / "conf" / "data").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "data" / "clicks.yaml").write_text(yaml)
    rng = np.random.default_rng(0)
    n = 4000
    user = rng.integers(0, 50, n)
    clicked = rng.random(n) < np.where(user % 2 == 0, 0.8, 0.1)
    (home / "clicks").mkdir(exist_ok=True)
    pl.DataFrame(
        {
            "ts": np.arange(n) * 600,
            "user": [f"u{u}" for u in user],
            "price": rng.lognormal(size=n),
            "tags": ["new cheap" if i % 3 else None for i in range(n)],
            "clicked": clicked.astype(int),
        }
    ).write_parquet(home / "clicks" / "part-0.parquet")
    how = ["model=dlrm", "trainer.batch_size=64", "trainer.max_epochs=3", "trainer.threads=1"]
    ok(forked("train", "data=clicks", "data.root=clicks", *how, "run_dir=own", cwd=home))
    assert json.loads((home / "own" / "metrics.json").read_text())["test"]["auc"] > 0.8


def test_help_and_cfg_answer_without_heavy_imports(home: Path) -> None:
    for flag in (["--help"], ["--cfg", "job"]):
        done = ok(run_anew("recsys.train", *flag, cwd=home, env={"PYTHONPROFILEIMPORTTIME": "1"}))
        assert "import time" in done.stderr
        assert not [m for m in ("torch", "polars", "pytorch_lightning") if f"| {m}\n" in done.stderr]
