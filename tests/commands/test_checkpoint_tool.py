"""python -m recsys.checkpoint: what is inside, moved to another plan, and its tables in other formats."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from recsys import checkpoint
from recsys.base.errors import UserError
from recsys.checkpoint import export_embeddings, inspect, reshard
from recsys.config.compose import compose, load_config
from recsys.job.run_config import RunConfig
from recsys.online.predictor import Predictor
from recsys.sharding.stored_checkpoint import StoredCheckpoint
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train
from recsys.training.run_dir import choose_checkpoint, open_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run whose tables are padded, 10 columns in 12 (and DeepFM's wide ones are not)."""
    folder = tmp_path_factory.mktemp("tool")
    arguments = ["data.sample.rows=3000", f"data.prepared={folder}", f"run_dir={folder / 'run'}", "model=deepfm"]
    return train(compose("train", [*arguments, "model.dim=10", "sharding=rowwise"])).path


def test_inspect_tells_sizes_without_reading_a_table(run: Path) -> None:
    stored = StoredCheckpoint(choose_checkpoint(run, "last"))
    found = inspect(stored)
    tables = {t["table"]: t for t in found["tables"]}
    features = json.loads((run / "features.json").read_text())["sparse"]
    assert len(tables) == 2 * len(features)  # DeepFM has a wide table for each
    for f in features:
        t = tables[f"t_{f['name']}"]
        assert (t["rows"], t["dim"], t["width"]) == (f["cardinality"], 10, 12)
        assert t["bytes"] == t["rows"] * 12 * 4
        assert t["optimizer"] == {"sum": t["rows"] * 4}
    assert found["bytes_on_disk"] > sum(t["bytes"] for t in tables.values()) + found["dense"]["bytes"]


@pytest.mark.slow
def test_a_resharded_run_gives_the_same_numbers_and_goes_on(run: Path, tmp_path: Path, run_command: Any) -> None:
    how = ["sharding=dataparallel", "trainer.devices=4", f"output={tmp_path / 'b'}"]
    done = run_command("recsys.checkpoint", "reshard", str(run), *how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    new = StoredCheckpoint(choose_checkpoint(tmp_path / "b", "last"))
    assert new.plan["world_size"] == 4
    assert {e["type"] for e in new.plan["tables"]} == {"data_parallel"}
    before = evaluate(str(run), checkpoint="last")["test"]
    assert evaluate(str(tmp_path / "b"), checkpoint="last")["test"] == pytest.approx(before)
    raw = pl.DataFrame({f"int_{i}": [i, None] for i in range(1, 14)} | {f"cat_{i}": ["a", None] for i in range(1, 27)})
    of_run, of_new = (Predictor.load(str(path), checkpoint="last").predict(raw) for path in (run, tmp_path / "b"))
    assert of_new.to_list() == pytest.approx(of_run.to_list())
    on = ["data.sample.rows=3000", f"data.prepared={run.parent}", "model=deepfm", "model.dim=10"]
    more = train(compose("train", [*on, f"resume={tmp_path / 'b'}", "trainer.max_epochs=2"])).metrics
    assert more["train"]["epochs"] == 2


def test_a_resharded_run_holds_no_secret(run: Path, tmp_path: Path) -> None:
    cfg = load_config(run / "config.yaml")
    root = "ftp://me:s3cret-pa55@host/a"  # pragma: allowlist secret
    cfg.data.root = root
    reshard(run, StoredCheckpoint(choose_checkpoint(run, "last")), RunConfig.of(cfg), tmp_path / "b", devices=2)
    assert load_config(tmp_path / "b" / "config.yaml").data.root == root  # this process's own
    assert not any(b"s3cret-pa55" in f.read_bytes() for f in (tmp_path / "b").rglob("*") if f.is_file())


@pytest.mark.parametrize("format", ["parquet", "safetensors"])
def test_exported_tables_are_those_that_the_model_reads(run: Path, tmp_path: Path, format: str) -> None:
    stored = StoredCheckpoint(choose_checkpoint(run, "best"))
    export_embeddings(run, stored, tmp_path, format=format, globs=["cat_1*"])
    state: dict[str, Any] = Predictor.load(str(run)).module.dmp.state_dict()
    vocabulary = pl.read_parquet(run / "vocabularies" / "cat_1.parquet")
    [weight] = [s.tensor for k, v in state.items() if k.endswith(".t_cat_1.weight") for s in v.local_shards()]
    if format == "safetensors":
        tensors = load_file(tmp_path / "embeddings.safetensors")
        assert sorted(tensors) == ["cat_1", *(f"cat_1{i}" for i in range(10))]
        assert torch.equal(tensors["cat_1"], weight[:, :10])
        assert pl.read_parquet(tmp_path / "cat_1.vocabulary.parquet").equals(vocabulary)
        return
    table = pl.read_parquet(tmp_path / "cat_1.parquet")
    assert table.columns == ["id", "value", "count", "embedding"]
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), weight[:, :10].numpy())
    assert table["value"][0] is None
    assert table[1:].select("value", "count", "id").equals(vocabulary.select("value", "count", "id"))
    assert len(list(tmp_path.iterdir())) == 11


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("inspekt {run}", "action=inspekt: "),
        ("inspect", "python -m recsys.checkpoint inspect|reshard|export-embeddings RUN_DIR"),
        ("inspect {run} checkpoint=first", "checkpoint=first: not in"),
        ("export-embeddings {run}", "output: must be set"),
        ("export-embeddings {run} output={tmp}/x format=csv", "format=csv: "),
        ("export-embeddings {run} output={tmp}/x tables=[cat_99]", "tables=cat_99: matches no table"),
        ("reshard {run} output={run}", "belongs to the run in"),
        ("reshard {run} output={tmp}/x trainer.devices=3", "not divisible by 3 processes"),
        ("reshard {run} output={tmp}/x sharding=columnwise trainer.devices=2", "set model.dim=12 or another"),
    ],
)
def test_mistakes_are_one_line(
    run: Path, tmp_path: Path, arguments: str, told: str, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["checkpoint", *arguments.format(run=run, tmp=tmp_path).split()])
    with pytest.raises(SystemExit) as left:
        checkpoint.main()
    [line] = capfd.readouterr().err.strip().splitlines()
    assert left.value.code == 2 and told in line


def test_a_checkpoint_of_another_model_is_told(run: Path) -> None:
    cfg = open_run(str(run))[0].changed({"model.dim": 12})
    with pytest.raises(UserError, match=r"table t_cat_1 is \d+ rows x 10, but the model's is \d+ rows x 12"):
        evaluate(str(run), cfg=cfg)


def test_a_damaged_checkpoint_is_told(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = choose_checkpoint(tmp_path / "run", "last")
    (path / ".metadata").unlink()
    with pytest.raises(UserError, match=r"/\.metadata: is missing"):
        StoredCheckpoint(path)


def test_a_checkpoint_of_two_runs_is_told(run: Path) -> None:
    """The plan names a table that the tensors lack."""
    stored = StoredCheckpoint(max((run / "checkpoints").glob("step-*")))
    stored.plan["tables"][0]["parameter"] = "model.of_another.weight"
    with pytest.raises(UserError, match=r"plan.json and .metadata are of different checkpoints: only one has "):
        inspect(stored)
