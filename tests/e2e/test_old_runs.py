"""Run folders, artefacts and pipelines of earlier versions still load, and give the same numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from omegaconf import OmegaConf

from recsys.base.errors import UserError
from recsys.config.compose import compose_file, load_config
from recsys.export.artefact.load_artefact import verify
from recsys.job.build import locate
from recsys.job.check_built import check_job
from recsys.online.predictor import predict_files
from recsys.online.recommender import recommend_files
from recsys.stages.lists_for_requests import run_files
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train
from recsys.training.schedules import warmup_cosine

OLD = Path(__file__).parent / "old_runs"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the runs, so that nothing is written beside the originals."""
    folder = tmp_path_factory.mktemp("old") / "runs"
    shutil.copytree(OLD, folder)
    for run in ("ranking", "retrieval", "closed_form"):
        cfg = OmegaConf.load(folder / run / "config.yaml")
        cfg.data.prepared = str(folder / "prepared")
        OmegaConf.save(cfg, folder / run / "config.yaml")
    return folder


def metrics(run: Path) -> dict[str, Any]:
    read = json.loads((run / "metrics.json").read_text())
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize("run", ["ranking", "retrieval", "closed_form"])
def test_evaluated(home: Path, run: str) -> None:
    again = evaluate(str(home / run))
    old = metrics(home / run)["test"]  # without metrics that are newer than the run
    assert {name: again["test"][name] for name in old} == pytest.approx(old, rel=1e-6)
    old_protocol = metrics(home / run)["protocol"]
    assert {name: again["protocol"][name] for name in old_protocol} == old_protocol
    assert again["protocol"].keys() - old_protocol.keys() <= {"order"}


def test_predicted(home: Path) -> None:
    predict_files(str(home / "ranking"), [OLD / "rows.tsv"], home / "p.parquet", checkpoint="best", batch_size=7)
    ours, expected = pl.read_parquet(home / "p.parquet"), pl.read_parquet(OLD / "ranking" / "expected.parquet")
    assert ours["line"].equals(expected["line"])
    torch.testing.assert_close(ours["probability"].to_torch(), expected["probability"].to_torch())


@pytest.mark.parametrize("run", ["retrieval", "closed_form"])
def test_recommended(home: Path, run: str) -> None:
    output = home / f"{run}.parquet"
    how = {"checkpoint": "best", "k": 5, "filter_history": None, "batch_size": 3}
    recommend_files(str(home / run), [OLD / "log.csv"], output, **how)
    ours, expected = pl.read_parquet(output), pl.read_parquet(OLD / run / "expected.parquet")
    assert ours.drop("scores").equals(expected.drop("scores"))
    scores = (x["scores"].explode().to_torch() for x in (ours, expected))
    torch.testing.assert_close(*scores)


def test_resumed(home: Path) -> None:
    """Its state.pt, loader position and optimizers are read, and training goes on for an epoch."""
    run = home / "ranking"
    cfg = load_config(run / "config.yaml")
    cfg.resume, cfg.run_dir, cfg.trainer.max_epochs, cfg.trainer.threads = str(run), None, 2, 1
    before = metrics(run)["train"]["steps"]
    assert train(cfg).metrics["train"]["steps"] == 2 * before


def test_a_mode_that_contradicts_the_metric_is_no_obstacle(home: Path) -> None:
    """0.1.0 had mode=max, whatever was monitored; such runs are measured, and new ones refused."""
    cfg = load_config(home / "ranking" / "config.yaml")
    cfg.checkpoint.monitor = "validation/logloss"
    assert cfg.checkpoint.mode == "max"
    check_job(cfg, trains=False)
    with pytest.raises(UserError, match=r"checkpoint.mode=max: validation/logloss is better when it is lower"):
        check_job(cfg)


def test_old_keys_and_targets() -> None:
    """`ranking:` is now `protocol:`; schedules have moved."""
    cfg = load_config(OLD / "retrieval" / "config.yaml")
    assert "ranking" not in cfg and list(cfg.protocol.candidates) == ["full"] and list(cfg.protocol.k) == [5, 10, 20]
    assert locate("recsys.schedules.warmup_cosine", "optim.scheduler") is warmup_cosine


def test_an_artefact_scores_as_its_run() -> None:
    verified = verify(OLD / "artefact")
    assert verified.rows > 0 and verified.difference <= verified.tolerance


@pytest.mark.slow
def test_a_pipeline_makes_the_same_lists(home: Path) -> None:
    cfg = compose_file(home / "pipeline.yaml", [f"root={home}", f"input={home / 'requests.csv'}", "k=5"])
    run_files(cfg, home / "lists.parquet")
    lists, expected = (pl.read_parquet(f) for f in (home / "lists.parquet", OLD / "pipeline_expected.parquet"))
    assert lists.drop("scores").equals(expected.drop("scores"))
