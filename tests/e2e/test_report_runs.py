"""recsys.report of runs as training leaves them."""

import json
import subprocess
from pathlib import Path

import polars as pl
import pytest
from forks import run_forked

from recsys.evaluation.metrics_table import LISTS

CLICKS = ["model=dlrm", "data.sample.rows=4000", "metrics.slices=[cat_1]"]
ITEMS = ["data=sample_sequences", "data.sample.rows=4000"]
SMALL = ["trainer.threads=1", "trainer.batch_size=512", "trainer.log_every_n_steps=2", "trainer.max_epochs=3"]


def recsys(command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = run_forked(f"recsys.{command}", *arguments, cwd=cwd, env={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    recsys("train", "model=mf", *ITEMS, *SMALL, "model.dim=8", "run_dir=mf", cwd=path)
    recsys("train", "model=popularity", *ITEMS, *SMALL, "run_dir=popularity", cwd=path)
    return path


@pytest.mark.slow
def test_a_page_of_them(home: Path) -> None:
    for seed in (0, 1):
        recsys("train", *CLICKS, *SMALL, f"seed={seed}", f"run_dir=dlrm/seed-{seed}", cwd=home)
    recsys("train", *CLICKS, *SMALL, "optim.sparse.lr=0.5", "run_dir=fast", cwd=home)
    done = recsys("report", "fast", "dlrm/seed-0", "dlrm/seed-1", "mf", "popularity", "resamples=100", cwd=home)
    page = (home / "report.html").read_text()
    assert "Gini@10" in page and "Gini@20" not in page and "popularity lift@10" in page
    assert "2 seeds" in page and "NDCG@10" in page and "training loss" in page and "cat_1" in page
    assert "mf, popularity: not compared with fast, which was tested on other rows (task retrieval" in done.stderr
    assert "dlrm (2 seeds)" in done.stdout, "named by the folder that they share"


@pytest.mark.parametrize("name", ["mf", "popularity"])
def test_where_targets_stand_is_kept(home: Path, name: str) -> None:
    """They give metrics.json again, whether the model was trained or fitted at once."""
    from recsys.evaluation.retrieval_metrics import ranking_metrics

    test = json.loads((home / name / "metrics.json").read_text())["test"]
    frame = pl.read_parquet(home / name / "test_ranks.parquet")
    columns = (frame[c].to_numpy() for c in ("query", "greater_full", "ties_full"))
    assert frame["query"].n_unique() == test["rows"] and len(frame) == test["targets"]
    ranked = {name: test[name] for name in test if name == "mrr" or ("@" in name and not name.startswith(LISTS))}
    assert ranking_metrics(*columns, (5, 10, 20)) == pytest.approx(ranked)


@pytest.mark.parametrize("name", ["mf", "popularity"])
def test_lists_of_runs_are_measured(home: Path, name: str) -> None:
    """A model that is fitted at once has no item vectors, and so no diversity."""
    test = json.loads((home / name / "metrics.json").read_text())["test"]
    measured = {metric for metric in test if metric.startswith(LISTS)}
    expected = [metric for metric in LISTS if metric != "diversity" or name == "mf"]
    assert measured == {f"{metric}@{k}" for metric in expected for k in (5, 10, 20)}
    history = pl.read_csv(home / name / "metrics.csv")
    assert history["validation/coverage@10"].count() == 1 and (history["validation/ndcg@10"].count() > 1) == (
        name == "mf"
    )
    assert 0 < test["coverage@10"] <= 1 and 0 <= test["gini@10"] < 1 and test["novelty@10"] > 0
