"""Runs of models that are fitted at once: loggers as of others, one process alone."""

from pathlib import Path

import polars as pl
import pytest

from recsys import evaluate
from recsys.base.errors import UserError
from recsys.cli import command_line
from recsys.config.compose import compose
from recsys.job.run_config import RunConfig
from recsys.training.evaluate_run import evaluate as measure
from recsys.training.run import begin, train

POPULARITY = ["model=popularity", "data=sample_sequences", "data.sample.rows=1000", "run_dir=run", "trainer.threads=1"]


@pytest.mark.slow
def test_loggers_have_the_metrics_of_both_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    test = train(compose("train", [*POPULARITY, "logger=tensorboard"])).metrics["test"]
    history = pl.read_csv("run/metrics.csv")
    assert history["test/ndcg@10"].drop_nulls().to_list() == pytest.approx([test["ndcg@10"]])
    assert history["validation/hr@5"].drop_nulls().len() == 1
    content = b"".join(p.read_bytes() for p in Path("run/tensorboard").glob("events.out.tfevents.*"))
    for name in (b"test/ndcg@10", b"validation/ndcg@10", b"batch_size"):
        assert name in content, name


@pytest.mark.slow
def test_more_processes_than_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train(compose("train", POPULARITY))
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["recsys.evaluate", "run=run", "trainer.devices=2"])
    assert command_line.status("evaluate", evaluate._command) == 2
    told = "trainer.devices=2: closed-form models are fitted in one process; set trainer.devices=1"
    assert capsys.readouterr().err == f"error: {told}\n"
    with pytest.raises(UserError, match=told):  # a process on each of two hosts
        begin(RunConfig.of(compose("train", POPULARITY)), world_size=2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=told):
        measure("run")
