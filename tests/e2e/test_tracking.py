"""A run tracked offline: all that `wandb sync` will upload is in its file, which is read back here."""

import json
import struct
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from forks import fork, run_forked

SMALL = ["data.sample.rows=6000", "trainer.batch_size=256", "trainer.threads=1", "trainer.log_every_n_steps=5"]


def train(cwd: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {"WANDB_API_KEY": "", "HOME": str(cwd), "NETRC": str(cwd / "none")} | more
    return run_forked("recsys.train", *SMALL, "logger=wandb", *args, cwd=cwd, env=env)


def records(run: Path) -> Iterator[Any]:
    """Of the offline file: LevelDB's log format, blocks of 32 KiB of chunks with a header of 7 bytes each."""
    from wandb.proto.wandb_internal_pb2 import Record  # takes a second, which no other process of a session needs

    [file] = run.glob("wandb/offline-run-*/*.wandb")
    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def history(run: Path) -> list[dict[str, Any]]:
    rows = (r.history.item for r in records(run) if r.WhichOneof("record_type") == "history")
    return [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items} for items in rows]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("tracked")
    trial = {"RECSYS_SWEEP": "s", "RECSYS_JOB_TYPE": "trial", "RECSYS_RUN_NAME": "s/0"}
    done = train(home, "trainer.max_epochs=2", "run_dir=a", "metrics.slices=[cat_1]", "logger.wandb.name=mine", **trial)
    assert done.returncode == 0, done.stderr[-3000:]
    return home / "a"


def test_every_metric_is_there(run: Path) -> None:
    rows = history(run)
    keys = set().union(*rows)
    for name in ("auc", "pr_auc", "logloss", "ne", "calibration", "ece"):
        assert {f"validation/{name}", f"test/{name}"} <= keys
    assert {"train/loss", "train/samples_per_second", "train/loader_wait"} <= keys
    told = json.loads((run / "metrics.json").read_text())
    [tested] = [r["test/auc"] for r in rows if "test/auc" in r]
    assert tested == pytest.approx(told["test"]["auc"])
    assert len([r for r in rows if "validation/auc" in r]) == 3  # two epochs, and the best checkpoint


def test_tables_curves_config_and_summary(run: Path) -> None:
    rows = history(run)
    norms = [r["tables/t_cat_26/norm"] for r in rows if "tables/t_cat_26/norm" in r]
    touched = [r["tables/t_cat_26/touched"] for r in rows if "tables/t_cat_26/touched" in r]
    assert len(norms) == len(touched) == 2
    assert norms[1] > norms[0] > 0 and 0.5 < touched[0] <= touched[1] <= 1
    files = [str(f.relative_to(run)) for f in run.glob("wandb/offline-run-*/files/media/table/**/*.json")]
    assert all(any(f"{name}" in f for f in files) for name in ("roc", "pr", "calibration"))
    config, summary = {}, {}
    for record in records(run):
        for update in record.config.update if record.WhichOneof("record_type") == "config" else ():
            config[update.key] = json.loads(update.value_json)
        for update in record.summary.update if record.WhichOneof("record_type") == "summary" else ():
            summary["/".join([update.key, *update.nested_key]).lstrip("/")] = json.loads(update.value_json)
    assert config["trainer"]["batch_size"] == 256
    assert config["plan"] == json.loads((run / "plan.json").read_text())
    best = summary.get("best/test/auc") or summary["best/test"]["auc"]
    assert best == pytest.approx(json.loads((run / "metrics.json").read_text())["test"]["auc"])


def test_a_trial_has_the_group_of_its_sweep_and_what_the_user_sets_stays(run: Path) -> None:
    [told, *_] = [r.run for r in records(run) if r.WhichOneof("record_type") == "run"]
    assert (told.run_group, told.job_type, told.display_name) == ("s", "trial", "mine")
    assert sorted(told.tags) == ["DLRM", "criteo"]


def test_lineage(run: Path) -> None:
    """Prepared data -> run -> model: references to where they lie."""
    artifacts = [r.request.log_artifact.artifact for r in records(run) if r.request.HasField("log_artifact")] + [
        r.artifact for r in records(run) if r.WhichOneof("record_type") == "artifact"
    ]
    by_type = {a.type: a for a in artifacts}
    assert by_type.keys() - {"run_table"} == {"dataset", "model"}  # those of the curves
    data, model = by_type["dataset"], by_type["model"]
    assert data.use_after_commit and not model.use_after_commit
    prepared = next((run.parent / "outputs" / "prepared").glob("criteo-*/prepared.json")).parent
    assert data.name == prepared.name
    manifest = {e.path: e.ref for e in data.manifest.contents}
    assert manifest["features.json"] == f"file://{prepared}/features.json"
    [best] = (run / "checkpoints").glob("best-*")
    assert f"file://{best}/.metadata" in {e.ref for e in model.manifest.contents}


@pytest.mark.slow
def test_an_alert_where_the_loss_is_no_number(run: Path) -> None:
    done = train(run.parent, "run_dir=nan", "optim.dense.lr=1e30", "optim.sparse.lr=1e30")
    assert done.returncode == 2 and "error: the loss is" in done.stderr
    [alert] = [r.alert for r in records(run.parent / "nan") if r.WhichOneof("record_type") == "alert"]
    assert alert.title == "the loss is not finite" and "last good checkpoint" in alert.text
    assert alert.level == "ERROR"


def trains_thrice() -> None:
    """Train in one process: a training that fails, one that ends, and one inside the caller's own run of W&B."""
    import wandb

    import recsys
    from recsys.base.errors import NotFinite

    small = ["model=dlrm", "data=criteo", *SMALL, "trainer.max_epochs=1", "logger=wandb"]
    with pytest.raises(NotFinite):
        recsys.train([*small, "run_dir=first", "optim.dense.lr=1e30", "optim.sparse.lr=1e30"])
    recsys.train([*small, "run_dir=second"])
    own = wandb.init(project="mine", mode="offline")
    recsys.train([*small, "run_dir=third"])
    assert wandb.run is own
    own.finish()


@pytest.mark.slow
def test_each_training_of_a_process_has_a_run_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "")
    assert fork(trains_thrice).wait(120) == 0
    found = {run: len([*(tmp_path / run).glob("wandb/offline-run-*")]) for run in ("first", "second", "third", ".")}
    assert found == {"first": 1, "second": 1, "third": 0, ".": 1}


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="MLflow is installed")
def test_a_logger_without_its_package_is_one_line(tmp_path: Path) -> None:
    done = run_forked("recsys.train", *SMALL, "logger=mlflow", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.strip().splitlines()[-1].startswith("error: logger.mlflow: ")
