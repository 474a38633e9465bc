"""Runs with several labels, weights and a calibration: trained, evaluated and used, in one process and in two."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from forks import ok, run_forked

import recsys
from recsys.base.errors import UserError
from recsys.export.artefact import load
from recsys.files.run_files import best_checkpoint, newest_checkpoint
from recsys.online.predictor import Predictor
from recsys.training.evaluate_run import evaluate

YAML = """
name: shop
root: raw
source: {files: ["*.csv"]}
labels:
  click: {}
  buy: {only_if: click}
  spent: {kind: regression, log: true}
  colour: {kind: classes, classes: [red, blue]}
weight: {column: w}
split: {validation: 0.2, test: 0.2}
derive: {is_click: "CAST(click AS BIGINT) + 1"}   # reads a label, and no feature reads it
dense: {x: {transform: []}}
sparse: {s: {}}
"""
ROWS = 3000
TRAIN = ["data=shop", "trainer.batch_size=200", "trainer.max_epochs=4", "trainer.threads=1", "model.dropout=0"]
TRAIN += ["optim.dense.lr=0.02", "optim.sparse.lr=0.05", "loss=tasks", "loss.balance=uncertainty", "calibration=platt"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data whose labels depend on x, and a finished run `one`."""
    path = tmp_path_factory.mktemp("labels")
    (path / "conf" / "data").mkdir(parents=True)
    (path / "conf" / "data" / "shop.yaml").write_text(YAML)
    (path / "raw").mkdir()
    rng = np.random.default_rng(0)
    x = rng.standard_normal(ROWS)
    click = rng.random(ROWS) < 1 / (1 + np.exp(-2 * x))
    frame = pl.DataFrame(
        {
            "click": click.astype(int),
            "buy": (click & (rng.random(ROWS) < 0.4)).astype(int),
            "spent": np.where(rng.random(ROWS) < 0.5, np.exp(1 + x + 0.1 * rng.standard_normal(ROWS)), np.nan),
            "colour": np.where(rng.random(ROWS) < 1 / (1 + np.exp(-3 * x)), "red", "blue"),
            "w": rng.random(ROWS) + 0.5,
            "x": x,
            "s": rng.choice(list("abc"), ROWS),
        }
    ).with_columns(pl.col("spent").fill_nan(None))
    frame.write_csv(path / "raw" / "log.csv")
    frame.select("x", "s").head(100).write_csv(path / "new.csv")
    ok(run_forked("recsys.train", *TRAIN, "run_dir=one", cwd=path))
    return path


def metrics(run: Path) -> dict[str, Any]:
    content = json.loads((run / "metrics.json").read_text())
    assert isinstance(content, dict)
    return content


def test_every_label_is_learnt(home: Path) -> None:
    test = metrics(home / "one")["test"]
    assert test["click/auc"] > 0.82 and test["colour/accuracy"] > 0.8  # x itself has an AUC of .85 and is right in .84
    assert test["spent/mae"] < 1  # the label's standard deviation is about 6
    assert test["click/ece"] < 0.12 and "click/ece_uncalibrated" in test
    predictions = pl.read_parquet(home / "one" / "test_predictions_colour.parquet")
    assert predictions.columns == ["row", "probability_red", "probability_blue", "label", "weight"]


@pytest.mark.slow
def test_two_processes_learn_as_much(home: Path) -> None:
    ok(run_forked("recsys.train", *TRAIN, "trainer.devices=2", "sharding=tablewise", "run_dir=two", cwd=home))
    one, two = metrics(home / "one")["test"], metrics(home / "two")["test"]
    for name in ("click/auc", "colour/accuracy"):
        assert two[name] == pytest.approx(one[name], abs=0.03), name
    assert two["spent/mae"] < 1 and two["rows"] == one["rows"]


def test_evaluate_and_predict_apply_the_calibration(home: Path) -> None:
    ok(run_forked("recsys.evaluate", "run=one", cwd=home))
    found = json.loads((home / "one" / "evaluate-test.json").read_text())["test"]
    assert found == pytest.approx(metrics(home / "one")["test"], rel=1e-6)
    ok(run_forked("recsys.predict", "run=one", "input=new.csv", "output=p.parquet", cwd=home))
    p = pl.read_parquet(home / "p.parquet")
    assert p.columns == ["file", "line", "click", "buy", "spent", "colour_red", "colour_blue"] and p.height == 100
    x = pl.read_csv(home / "new.csv")["x"]
    assert np.corrcoef(x, np.log1p(p["spent"]))[0, 1] > 0.9
    assert (p["colour_red"] + p["colour_blue"]).to_list() == pytest.approx([1.0] * 100, abs=1e-5)
    ok(run_forked("recsys.predict", "run=one", "input=raw/log.csv", "output=q.parquet", cwd=home))
    tested = pl.read_parquet(home / "one" / "test_predictions.parquet")
    again = pl.read_parquet(home / "q.parquet").tail(ROWS // 5)["click"]
    assert tested["probability"].to_list() == pytest.approx(again.to_list(), abs=1e-5)


def test_another_checkpoint_has_no_calibration_of_the_best(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        recsys.train([*TRAIN, "run_dir=early", "optim.dense.lr=0.3", "checkpoint.keep_last=9"])
        best, last = (chooser(home / "early") for chooser in (best_checkpoint, newest_checkpoint))
        assert best is not None and last is not None and best.name.partition("-")[2] != last.name.partition("-")[2]
        found = evaluate("early", checkpoint="last")["test"]
        assert not any("uncalibrated" in name for name in found)
        assert found["click/logloss"] != metrics(home / "early")["test"]["click/logloss_uncalibrated"]
        rows = pl.read_csv("raw/log.csv").head(50)
        last_rows, best_rows = (Predictor.load("early", name).predict(rows)["click"] for name in ("last", "best"))
        said = capfd.readouterr().err
        assert f"its calibrations are of step {best.name.partition('-')[2]}: {last.name} has none" in said
        assert (last_rows - best_rows).abs().max() > 1e-3
        reshard = ["reshard", "early", "output=resharded", "trainer.devices=2"]  # of the last
        ok(run_forked("recsys.checkpoint", *reshard, cwd=home))
        assert not Path("resharded/calibration.json").exists()
        shutil.move(best, best.with_name("best-99999999"))  # as a training that was killed before it calibrated
        assert not any(label.is_calibrated for label in Predictor.load("early").labels)


@pytest.mark.slow  # tests/pairs exports others every day
def test_an_isotonic_calibration_is_exported(home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        run = recsys.train([*TRAIN, "calibration=isotonic", "run_dir=isotonic"])
        ok(run_forked("recsys.export", "run=isotonic", "output=artefact", cwd=home))
        rows = pl.read_csv("raw/log.csv").head(300)
        predicted, model = run.predict(rows), load(home / "artefact")
        served = model.run(model.features(rows.to_dicts()))
    for name in ("click", "buy", "spent"):
        np.testing.assert_allclose(
            served[name].ravel(), predicted[name], atol=2e-3
        )  # on its steep rises, rounding decides


def test_esmm_predicts_the_conversions_of_all_rows(home: Path) -> None:
    """`buy` is 1 in a fifth of the rows, and in two fifths of those with a click."""
    esmm = ["data=shop", "model=esmm", "~data.labels.spent", "~data.labels.colour", "trainer.threads=1"]
    esmm += ["trainer.batch_size=200", "trainer.max_epochs=6", "optim.dense.lr=0.01"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with pytest.raises(UserError, match=r"^data.labels.buy.only_if=click: .* set data.labels.buy.otherwise=0"):
            recsys.train([*esmm, "run_dir=esmm-0"])
        run = recsys.train([*esmm, "data.labels.buy.otherwise=0", "run_dir=esmm"])
        rows = pl.read_csv("raw/log.csv")
        assert run.predict(rows)["buy"].mean() == pytest.approx(rows["buy"].mean(), abs=0.03)
        assert run.metrics["test"]["buy/calibration"] == pytest.approx(1, abs=0.2)
        rows.with_columns(pl.when(pl.col("click") == 1).then("buy").alias("buy")).write_csv("missing.csv")
        missing = ["data.labels.buy.only_if=null", "data.root=.", "data.source.files=[missing.csv]", "run_dir=esmm-1"]
        with pytest.raises(UserError, match=r"^data.labels.buy: .*% of the training rows lack this label"):
            recsys.train([*esmm, *missing])


def test_gauc_is_that_of_the_first_binary_label(home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        given = ["data=shop", "trainer.threads=1", "trainer.max_epochs=1", "metrics.gauc=s", "~data.labels.buy"]
        others = [*given, "~data.labels.click"]
        found = recsys.train([*others, "+data.labels.b={column: buy}", "run_dir=gauc"]).metrics["test"]
        assert [name for name in found if name.endswith("/gauc")] == ["b/gauc"]
        with pytest.raises(UserError, match=r"^metrics.gauc=s: needs a binary label"):
            recsys.train([*others, "run_dir=gauc-1"])
