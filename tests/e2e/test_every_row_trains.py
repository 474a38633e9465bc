"""The last training before shipping: every row trains, so that nothing is measured, and every command says so or works."""

import json
from pathlib import Path

import polars as pl
import pytest
from forks import ok, run_forked

EVERY = ["data.split.validation=0", "data.split.test=0", "trainer.threads=1", "trainer.max_epochs=1"]
ITEMS = ["data=sample_sequences", "data.sample.rows=2000"]
NONE = "test: the data has no test rows (data.split.test=0), so that nothing is measured on them"


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(["model=dlrm", "data=sample_interactions", "data.sample.rows=3000"], marks=pytest.mark.slow),
        pytest.param(["model=gbm", "data=sample_interactions", "data.sample.rows=3000"], marks=pytest.mark.slow),
        pytest.param(["model=sasrec", *ITEMS], marks=pytest.mark.slow),
        pytest.param(["model=ease", *ITEMS], marks=pytest.mark.slow),
        pytest.param(["model=mf", *ITEMS], marks=pytest.mark.slow),
    ],
)
def test_train_export_and_report(model: list[str], tmp_path: Path) -> None:
    done = ok(run_forked("recsys.train", *model, *EVERY, "run_dir=a", cwd=tmp_path))
    assert NONE in done.stderr and "│" not in done.stdout
    metrics = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert set(metrics) == {"train", "protocol"} and metrics["train"]["samples"] > 0
    refused = run_forked("recsys.evaluate", "run=a", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith("error: split=test: the data has no test rows")
    ok(run_forked("recsys.export", "run=a", "output=art", cwd=tmp_path))
    ok(run_forked("recsys.report", "a", cwd=tmp_path))
    assert "without test rows" in (tmp_path / "report.html").read_text()


def test_validation_rows_choose_the_epochs_first(tmp_path: Path) -> None:
    """Files need no test files then; the same command on all rows starts from the run that was measured."""
    rows = pl.DataFrame({"x": [i % 7 for i in range(600)], "y": [i % 2 for i in range(600)]})
    (tmp_path / "raw").mkdir()
    rows.write_csv(tmp_path / "raw" / "rows.csv")
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "own.yaml").write_text(
        "name: own\nsource: {format: csv}\nlabel: {column: y}\nsparse: {x: {}, z: {column: x, encode: hash, buckets: 50}}\n"
        "split: {by: files, train_files: [rows.csv], test: 0}\n"
    )
    command = ["model=dlrm", "data=own", "data.root=raw", "trainer.threads=1", "trainer.max_epochs=1"]
    done = ok(run_forked("recsys.train", *command, "run_dir=a", cwd=tmp_path))
    assert NONE in done.stderr and "│ validation │" in done.stdout
    assert set(json.loads((tmp_path / "a" / "metrics.json").read_text())) == {"validation", "train", "protocol"}
    shipped = ["start_from=a", "data.split.validation=0", "run_dir=b"]
    done = ok(run_forked("recsys.train", *command, *shipped, cwd=tmp_path))
    assert json.loads((tmp_path / "b" / "metrics.json").read_text())["train"]["samples"] == 600
    scored = ok(run_forked("recsys.predict", "run=b", "input=raw/rows.csv", "output=p.parquet", cwd=tmp_path))
    assert pl.read_parquet(tmp_path / "p.parquet").height == 600, scored.stderr
