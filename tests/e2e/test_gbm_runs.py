"""Runs of model=gbm: the same files and figures as other models give, from every command."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from google.protobuf import text_format
from sklearn.metrics import log_loss
from small_csv import Commands
from tritonclient.grpc import model_config_pb2

from recsys.config.compose import compose
from recsys.export.artefact.load_artefact import load
from recsys.online.predictor import Predictor
from recsys.report.__main__ import report
from recsys.schema.command_schemas import ReportConfig
from recsys.training.evaluate_run import evaluate, evaluate_ensemble
from recsys.training.run import train

pytest.importorskip("lightgbm")

YAML = """
name: shop
root: raw
source: {files: ["*.csv"]}
labels:
  click: {}
  spent: {kind: regression, log: true}
  colour: {kind: classes, classes: [red, blue]}
weight: {column: w}
split: {validation: 0.2, test: 0.2}
dense: {x: {transform: []}}
sparse: {s: {min_count: 2}, tags: {split: " "}}
"""
ROWS = 2000
SHOP = ["data=shop", "metrics.slices=[s]", "trainer.threads=1", "calibration=platt"]
GBM = ["model=gbm", *SHOP, "model.leaves=15", "model.trees=200", "model.patience=10"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with data whose labels depend on x and tags, and a finished run `gbm`; the current folder."""
    path = tmp_path_factory.mktemp("gbm")
    (path / "conf" / "data").mkdir(parents=True)
    (path / "conf" / "data" / "shop.yaml").write_text(YAML)
    (path / "raw").mkdir()
    rng = np.random.default_rng(0)
    x, tags = rng.standard_normal(ROWS), rng.integers(0, 4, ROWS)
    click = rng.random(ROWS) < 1 / (1 + np.exp(-2 * x - tags + 1.5))
    pl.DataFrame(
        {
            "click": click.astype(int),
            "spent": np.where(rng.random(ROWS) < 0.5, np.exp(1 + x + 0.1 * rng.standard_normal(ROWS)), np.nan),
            "colour": np.where(rng.random(ROWS) < 1 / (1 + np.exp(-3 * x)), "red", "blue"),
            "w": rng.random(ROWS) + 0.5,
            "x": x,
            "s": [*rng.choice(list("abc"), ROWS - 1), "rare"],
            "tags": [" ".join("tuvw"[:n]) for n in tags],
        }
    ).with_columns(pl.col("spent").fill_nan(None)).write_csv(path / "raw" / "log.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        train(compose("train", [*GBM, "run_dir=gbm"]))
        yield path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(monkeypatch, capsys)


def metrics(run: str) -> dict[str, Any]:
    content = json.loads(Path(run, "metrics.json").read_text())
    assert isinstance(content, dict)
    return content


def test_every_label_is_learnt_and_measured(home: Path) -> None:
    found = metrics("gbm")
    test = found["test"]
    assert test["click/auc"] > 0.82 and test["colour/accuracy"] > 0.78 and test["spent/mae"] < 1.2
    assert {"click/ece", "click/ece_uncalibrated", "spent/rmse_uncalibrated"} <= set(test)
    assert test["rows"] == ROWS // 5 and set(found["slices"]["test"]) == {"s"}
    assert found["validation"].keys() == test.keys() and found["train"]["samples"] == ROWS - 2 * (ROWS // 5)
    assert (home / "gbm" / "test_predictions_colour.parquet").exists() and (home / "gbm" / "curves.json").exists()
    said = (home / "gbm" / "train.log").read_text()
    assert "multi-valued features enter as their number of ids, first and last id: tags" in said
    assert "click: " in said and " of at most 200 trees (the lowest loss of the validation rows" in said


def test_evaluate_and_predict_give_the_same_figures(home: Path) -> None:
    for split in ("test", "validation"):
        assert evaluate("gbm", split)[split] == metrics("gbm")[split]
    again, first = (found["slices"]["test"]["s"] for found in (evaluate("gbm"), metrics("gbm")))
    assert [value["click/logloss"] for value in again] == [value["click/logloss"] for value in first]
    assert evaluate("gbm", "train")["train"]["click/auc"] > metrics("gbm")["test"]["click/auc"]
    found = Predictor.load("gbm").predict(pl.read_csv("raw/log.csv").tail(ROWS // 5))
    assert isinstance(found, pl.DataFrame) and found.columns == ["click", "spent", "colour_red", "colour_blue"]
    stored = pl.read_parquet("gbm/test_predictions.parquet")["probability"]
    np.testing.assert_allclose(found["click"], stored, rtol=1e-6)


@pytest.mark.slow  # tests/export/test_trees.py has the parts
def test_an_artefact_serves_the_trees(home: Path, commands: Commands) -> None:
    """Exporting compares its outputs with the run's, row by row."""
    assert commands("export", "run=gbm", "output=artefact", "triton=true", "dense_backend=fil")[0] == 0
    rows = pl.read_csv("raw/log.csv").tail(50).to_dicts()
    model = load(Path("artefact"))
    found, wanted = model.run(model.features(rows)), Predictor.load("gbm").predict(pl.DataFrame(rows))
    assert isinstance(wanted, pl.DataFrame)
    for name in wanted.columns:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)
    configs = {}
    for file in Path("artefact/triton").glob("*/config.pbtxt"):
        configs[file.parent.name] = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
    steps = ["gbm_transforms", "gbm_columns", "gbm_trees_0", "gbm_trees_1", "gbm_trees_2", "gbm_outputs"]
    assert [step.model_name for step in configs.pop("gbm").ensemble_scheduling.step] == steps
    trees = configs["gbm_trees_2"]
    assert trees.backend == "fil" and list(trees.output[0].dims) == [2]
    assert list(trees.input[0].dims) == list(configs["gbm_columns"].output[0].dims) == [1 + 1 + 3]
    assert Path("artefact/triton/gbm_trees_2/1/checkpoint.tl").stat().st_size > 1000


def test_a_run_is_reproduced_and_compared_with_a_deep_model(home: Path) -> None:
    again = train(compose("train", [*GBM, "run_dir=again"])).metrics
    assert {**again["test"], **again["validation"]} == {**metrics("gbm")["test"], **metrics("gbm")["validation"]}
    deep = train(compose("train", ["model=dlrm", *SHOP, "run_dir=dlrm"])).metrics  # one epoch: hardly trained
    assert deep["test"].keys() == again["test"].keys() and deep["protocol"].keys() == again["protocol"].keys()
    report(ReportConfig(runs=["dlrm", "gbm"], resamples=100))
    assert "dlrm does not beat the baseline gbm beyond chance" in Path("report.html").read_text()


@pytest.mark.slow
def test_the_mean_of_two_runs(home: Path, commands: Commands) -> None:
    """Of a deep model and trees, with transforms of their own; evaluate and predict average the same predictions."""
    linear = ["model=lr", *SHOP, "data.dense.x.transform=[standardise]", "trainer.max_epochs=3", "run_dir=linear"]
    train(compose("train", linear))
    found = evaluate_ensemble(["linear", "gbm"])
    assert list(found) == ["linear", "gbm", "mean"]
    for run in ("linear", "gbm"):
        for name in ("click/auc", "click/logloss", "spent/rmse", "colour/accuracy"):
            assert found[run][name] == pytest.approx(metrics(run)["test"][name], rel=1e-5)
    raw = pl.read_csv("raw/log.csv").tail(ROWS // 5)
    raw.write_csv("test.csv")
    assert commands("predict", "run=[linear,gbm]", "input=test.csv", "output=new/mean.parquet")[0] == 0
    mean, parts = pl.read_parquet("new/mean.parquet"), [Predictor.load(run).predict(raw) for run in ("linear", "gbm")]
    for name in ("click", "spent", "colour_red", "colour_blue"):
        one, two = (part[name].to_numpy() for part in parts)  # type: ignore[call-overload]
        np.testing.assert_allclose(mean[name], (one + two) / 2, rtol=1e-5)
    expected = log_loss(raw["click"], mean["click"], sample_weight=raw["w"])
    assert found["mean"]["click/logloss"] == pytest.approx(expected, rel=1e-4)
    assert {p.name for p in Path().iterdir() if p.name.startswith(".")} == set()
    assert [p.name for p in Path("new").iterdir()] == ["mean.parquet"]
    Path("bad.csv").write_text("click,spent,colour,w,x,s,tags\n1,1,red,1,0.5,a,t\n1,1,red,1,none,a,t\n")
    assert commands("predict", "run=[linear,gbm]", "input=bad.csv", "output=new/bad.parquet")[0] == 0
    assert pl.read_parquet("new/bad.parquet")["click"].is_null().to_list() == [False, True]
    assert "none" in Path("new/bad.bad_rows.csv").read_text()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate run=[gbm,gbm] metrics.gauc=s", "metrics.gauc: applies to a single run"),
        ("predict run=[gbm,nix] input=raw/log.csv", "run=nix: is not a run folder"),
        ("train model=gbm data=shop trainer.devices=2", "trainer.devices=2: boosted trees are fitted in one process"),
        ("train model=gbm data=shop loss=focal", "leave loss= out, or write loss=pairwise"),
        ("train model=gbm data=shop loss=pairwise model.library=catboost", "use library=lightgbm"),
        ("train model=gbm data=shop loss=pairwise loss.pointwise=0.5", "loss.pointwise=0.5: boosted trees"),
        ("train model=gbm data=shop loss=pairwise", "set data.group.by=COLUMN data.group.together=true"),
        ("evaluate run=gbm trainer.devices=2", "trainer.devices=2: boosted trees are fitted in one process"),
        ("checkpoint action=inspect run=gbm", "run=gbm: its model was fitted at once"),
        ("export run=gbm output=a tables=int8", "tables=int8: boosted trees have no weights"),
        ("export run=gbm output=a format=aoti", "format=aoti: boosted trees have no such form"),
        ("predict run=gbm input=raw/log.csv output=p.parquet k=5", "k=5: applies to retrieval models"),
    ],
)
def test_mistakes_are_one_line(home: Path, commands: Commands, command: str, message: str) -> None:
    status, errors = commands(*command.split())
    assert status == 2 and len(errors) == 1 and message in errors[0], errors


def test_a_damaged_checkpoint_is_refused(home: Path, commands: Commands) -> None:
    shutil.copytree("gbm", "damaged")
    [file] = Path("damaged/checkpoints").glob("*/label_1.txt")
    file.write_text(file.read_text().replace("=", "=1", 1))
    for command in ("evaluate run=damaged", "predict run=damaged input=raw/log.csv output=p.parquet"):
        status, errors = commands(*command.split())
        assert status == 2 and len(errors) == 1 and f"{file}: is damaged" in errors[0], errors


def test_without_validation_rows_all_trees_are_fitted(home: Path) -> None:
    few = ["model=gbm", "data=shop", "data.split.validation=0", "model.trees=7", "trainer.threads=1", "run_dir=few"]
    assert train(compose("train", few)).metrics.keys() == {"test", "train", "protocol"}
    assert "click: 7 of at most 7 trees (no validation row has this label" in Path("few/train.log").read_text()


@pytest.mark.slow
def test_census_income_reaches_the_published_figures(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    """LightGBM with 200 trees of 63 leaves, fitted to all training rows, has test AUCs of .9571 and .9949."""
    root = real_data("census_income")
    where = [f"data.root={root}", f"data.prepared={tmp_path / 'prepared'}", f"run_dir={tmp_path / 'run'}"]
    test = train(compose("train", ["model=gbm", "data=census_income", *where])).metrics["test"]
    assert test["income/auc"] == pytest.approx(0.9571, abs=0.001)
    assert test["never_married/auc"] == pytest.approx(0.9949, abs=0.001)
