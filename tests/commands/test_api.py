"""`import recsys`: train, load, predict, evaluate, export and report in a line each."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import polars as pl
import pytest

import recsys
from recsys.base.console import say_once
from recsys.export.artefact.folder import is_artefact

RAW = pl.DataFrame({"int_1": [1, 2], "cat_1": ["68fd1e64", None]})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> recsys.TrainedRun:
    folder = tmp_path_factory.mktemp("api")
    return recsys.train(
        [
            *("model=dlrm", "data=criteo", "data.sample.rows=3000", "trainer.max_epochs=1", "trainer.threads=1"),
            *(f"data.prepared={folder}/prepared", f"run_dir={folder}/a run"),
        ]
    )


def test_a_run(run: recsys.TrainedRun, capsys: pytest.CaptureFixture[str]) -> None:
    say_once.cache_clear()
    loaded = recsys.load(run.path)
    assert repr(loaded) == f"TrainedRun({str(run.path)!r})"
    assert loaded.metrics == run.metrics
    assert run.evaluate()["auc"] == pytest.approx(run.metrics["test"]["auc"], abs=1e-6)
    found = run.predict(RAW)
    assert isinstance(found, pl.Series) and found.is_between(0, 1).all()
    assert "the data frame lacks columns, whose values are missing: cat_10, " in capsys.readouterr().err
    wide = RAW.with_columns(pl.lit(None, pl.String).alias(f"cat_{i}") for i in range(2, 27))
    assert run.predict(wide).equals(found)
    assert run.predict(RAW.lazy()).equals(found)
    assert run.predict(RAW.to_dicts()).equals(found)
    of_pandas = run.predict(RAW.to_pandas())
    assert isinstance(of_pandas, pd.Series) and of_pandas.tolist() == found.to_list()


@pytest.mark.slow
def test_export_and_report(run: recsys.TrainedRun, tmp_path: Path) -> None:
    assert is_artefact(run.export(tmp_path / "out", ["tables=int8"]))
    assert "<html" in run.report(tmp_path / "report.html").read_text()


def test_mistakes(run: recsys.TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(recsys.UserError, match=r"^model=dlmr: no such choice; did you mean dlrm\?") as raised:
        recsys.train("model=dlmr")
    assert raised.value.__cause__ is None and len(raised.traceback) < 6  # no frames of Hydra
    with pytest.raises(recsys.UserError, match="the data frame has no column cat_1; did you mean cat1"):
        run.predict(RAW.rename({"cat_1": "cat1"}))
    with pytest.raises(recsys.UserError, match="the data frame has no column cat_1"):
        run.predict(pl.DataFrame({"click": [1]}))
    with pytest.raises(recsys.UserError, match="rows: must be a data frame of polars or pandas, not int"):
        run.predict(3)
    with pytest.raises(recsys.UserError, match="nothing"):
        recsys.load(tmp_path / "nothing")


@pytest.mark.slow
def test_a_scripts_traceback_is_pythons_own(run: recsys.TrainedRun) -> None:
    """torch.distributed writes [rank0]: before each line of a traceback, also after its group has ended."""
    code = f"import recsys\nr = recsys.load({str(run.path)!r})\nr.evaluate()\nr.predict(3)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "[rank0]" not in said
    assert said.splitlines()[-1].startswith("recsys.base.errors.UserError: rows: must be a data frame")
