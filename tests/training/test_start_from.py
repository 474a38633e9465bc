"""start_from=RUN: a training goes on from another run, whose tables give new values rows of their own."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import OmegaConf
from raw_rows import of_yaml

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.features import Fitted
from recsys.data.features.grow import check_growth, check_same_labels
from recsys.export.artefact import load
from recsys.export.exported import ExportSource, Form
from recsys.export.write_artefact import write_artefact
from recsys.files.run_files import best_checkpoint
from recsys.job.config_of import composed_config
from recsys.online.predictor import Predictor
from recsys.sharding.stored_checkpoint import StoredCheckpoint
from recsys.training.evaluate_run import evaluate
from recsys.training.run import train
from recsys.training.run_dir import choose_checkpoint, open_run

DATA = """
name: days
source: {format: parquet, files: ["*.parquet"]}
label: {column: y}
split: {by: order, validation: 0, test: 0.2}
dense: {x: {transform: [standardise]}}
sparse: {user: {capacity: 60}, item: {}}
"""


def write(folder: Path, users: range, items: range, seed: int) -> None:
    rng = np.random.default_rng(seed)
    u, i = rng.integers(users.start, users.stop, 1500), rng.integers(items.start, items.stop, 1500)
    y = rng.random(1500) < 1 / (1 + np.exp(-((u * 7 + i * 3) % 11 - 5)))
    folder.mkdir()
    pl.DataFrame({"user": u, "item": i, "x": rng.normal(size=1500), "y": y.astype(int)}).write_parquet(
        folder / "a.parquet"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """first: 40 users and 30 items; second goes on from it, with 40 users of whom 30 are new, and 20 new items."""
    tmp = tmp_path_factory.mktemp("start_from")
    write(tmp / "day0", range(40), range(30), 0)
    write(tmp / "day1", range(30, 70), range(20, 50), 1)
    run(tmp, "first", "day0")
    run(tmp, "second", "day1", f"start_from={tmp / 'first'}")
    return tmp


def run(tmp: Path, name: str, day: str, *more: str, data: Any = None) -> Any:
    given = ["model=dlrm", "model.dim=8", "trainer.batch_size=50", "trainer.threads=1", f"run_dir={tmp / name}", *more]
    cfg = composed_config(compose("train", given), [*more, f"run_dir={tmp / name}"])
    if not any(m.startswith("start_from") for m in more):
        cfg.data = OmegaConf.create(DATA)
    cfg.data = OmegaConf.merge(cfg.data, OmegaConf.create(data or {}))
    cfg.data.root, cfg.data.prepared = str(tmp / day), str(tmp / "prepared")
    return train(cfg)


def vocabulary(run: Path, table: str) -> dict[str, int]:
    v = pl.read_parquet(run / "vocabularies" / f"{table}.parquet")
    return dict(zip(v["value"], v["id"], strict=True))


def test_old_values_keep_their_ids_and_new_ones_get_rows(folder: Path) -> None:
    before, after = (vocabulary(folder / name, "item") for name in ("first", "second"))
    assert before.items() <= after.items() and len(after) == 50
    before, after = (vocabulary(folder / name, "user") for name in ("first", "second"))
    kept = before.keys() & after.keys()
    assert len(after) == 59  # the capacity less row 0: 19 new rows, and 11 of users that did not come again
    assert {str(u) for u in range(30, 70)} <= after.keys() and all(before[u] == after[u] for u in kept)
    assert len(kept) == 29


def test_rows_of_values_that_did_not_come_again_are_those_of_the_first_run(folder: Path) -> None:
    first, second = (StoredCheckpoint(best_checkpoint(folder / name)) for name in ("first", "second"))  # type: ignore[arg-type]
    [key] = [k for k in first.tensors if k.startswith("model.") and k.endswith("t_item.weight")]
    old = [i for value, i in vocabulary(folder / "first", "item").items() if int(value) < 20]
    same = (first.read(key)[old] == second.read(key)[old]).all()
    assert same and len(old) == 20
    assert not (first.read(key)[1:31] == second.read(key)[1:31]).all()


def test_it_starts_where_the_first_run_ended(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its first epoch on the same rows continues to lower the loss; from random weights it would begin again."""
    run(folder, "again", "day0", f"start_from={folder / 'first'}")
    said = (
        f"these are the rows that {folder / 'first'} was trained on: name new ones with data.root or data.source.files"
    )
    assert said in capfd.readouterr().err
    first, again = (json.loads((folder / n / "metrics.json").read_text())["test"]["auc"] for n in ("first", "again"))
    assert again > first + 0.02


def test_the_grown_run_is_measured_used_and_exported(folder: Path) -> None:
    found = json.loads((folder / "second" / "metrics.json").read_text())
    assert evaluate(str(folder / "second"))["test"]["auc"] == pytest.approx(found["test"]["auc"])
    rows = pl.read_parquet(folder / "day1" / "a.parquet").head(40)
    predicted = Predictor.load(str(folder / "second")).predict(rows.drop("y"))
    cfg, path = open_run(str(folder / "second"))
    write_artefact(ExportSource(path, cfg, choose_checkpoint(path, "best")), Form("dlrm"), folder / "artefact")
    model = load(folder / "artefact")
    served = model.run(model.features(rows.drop("y").to_dicts()))["probability"]
    np.testing.assert_allclose(served, predicted.to_numpy().ravel(), atol=1e-5)


def test_a_grown_run_is_resumed_with_its_own_ids(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (folder / "second" / "vocabularies" / "user.parquet").read_bytes()
    cfg = composed_config(compose("train", o := [f"resume={folder / 'second'}", "trainer.max_epochs=2"]), o)
    assert train(cfg).metrics["train"]["epochs"] == 2
    assert "resuming from" in capfd.readouterr().err
    assert (folder / "second" / "vocabularies" / "user.parquet").read_bytes() == before


def test_a_smaller_capacity_keeps_the_rows_and_says_so(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    smaller = {"sparse": {"user": {"capacity": 10}}}
    run(folder, "smaller", "day1", f"start_from={folder / 'first'}", data=smaller)
    assert len(vocabulary(folder / "smaller", "user")) == 40
    assert "capacity=10 of table user: the run that this one starts from has given 41 rows" in capfd.readouterr().err


def labelled(tmp: Path, name: str, data: str, *more: str, seed: int = 0, unit: float = 1.0) -> dict[str, Any]:
    """Train on 600 rows of random labels and weights, and return metrics.json. data: YAML"""
    rng, root = np.random.default_rng(seed), tmp / f"rows-{name}"
    root.mkdir()
    columns = {
        "k": rng.integers(0, 300, 600),
        "x": rng.normal(size=600),
        "a": rng.integers(0, 2, 600),
        "b": rng.integers(0, 2, 600),
        "c": np.array(["red", "green"])[rng.integers(0, 2, 600)],
        "w": rng.random(600) * unit,
    }
    pl.DataFrame(columns).write_parquet(root / "a.parquet")
    given = ["model=lr", "trainer.threads=1", "trainer.batch_size=100", f"run_dir={tmp / name}", *more]
    cfg = composed_config(compose("train", given), [*more, f"run_dir={tmp / name}"])
    cfg.data = OmegaConf.merge(
        OmegaConf.create(
            "{name: r, source: {format: parquet, files: [a.parquet]}, split: {by: order, validation: 0, test: 0.2}, "
            "dense: {x: {}}, sparse: {u: {column: k}}}"
        ),
        OmegaConf.create(data),
    )
    cfg.data.root, cfg.data.prepared = str(root), str(tmp / "prepared")
    return dict(train(cfg).metrics)


LABELS = "labels: {a: {}, b: {only_if: a}, c: {kind: classes, classes: [red, green]}}"


@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ("label: {column: a}", "label: {column: a}\nsample_negatives: 0.5", "data.sample_negatives=0.5"),
        ("label: {column: a}\nsample_negatives: 0.5", "label: {column: a}", "data.sample_negatives=1"),
        ("label: {column: w, kind: regression}", "label: {column: b, kind: regression}", "data.label.column="),
        ("label: {column: w, kind: regression, log: true}", "label: {column: w, kind: regression}", "data.label.log="),
        (
            "label: {column: w, kind: binary, at_least: 0.5}",
            "label: {column: w, kind: binary, at_least: 0.2}",
            "data.label.at_least=0.2",
        ),
        (LABELS, LABELS.replace("red, green", "green, red"), "data.labels.c.classes="),
        (LABELS, LABELS.replace("only_if: a", ""), "data.labels.b.only_if="),
        (LABELS, LABELS.replace("b: {only_if: a}, ", ""), "data.labels: the run has a, b, c"),
        ("labels: {a: {}, b: {}}", "labels: {b: {}, a: {}}", "data.labels: the run has a, b"),
    ],
)
def test_labels_are_those_of_the_run(before: str, now: str, key: str) -> None:
    old, new = (of_yaml(f"{text}\nsparse: {{u: {{column: k}}}}") for text in (before, now))

    def check(data: Any) -> None:
        check_same_labels(Fitted(old, {}), data)
        check_growth(Fitted(old, {}), data)

    check(old)
    with pytest.raises(UserError, match=re.escape(key)):
        check(new)


def test_a_run_with_other_labels_is_refused(tmp_path: Path) -> None:
    labelled(tmp_path, "one", "{label: {column: a}}")
    with pytest.raises(UserError, match=r"^data.label.column="):
        labelled(tmp_path, "two", "{label: {column: b}}", f"start_from={tmp_path / 'one'}", seed=1)


def test_weights_have_a_mean_of_1_in_each_training(tmp_path: Path) -> None:
    """In another unit they change nothing, also where a run had none before."""
    data, start = "{label: {column: a}, weight: {column: w}}", f"start_from={tmp_path / 'one'}"
    labelled(tmp_path, "one", data.replace(", weight: {column: w}", ""))
    found = [labelled(tmp_path, f"u{unit}", data, start, seed=1, unit=unit) for unit in (1, 100)]
    assert found[0]["test"]["logloss"] == pytest.approx(found[1]["test"]["logloss"], abs=1e-6)
    for unit in (1, 100):
        folder = json.loads((tmp_path / f"u{unit}" / "data.json").read_text())["prepared"]
        assert pl.read_parquet(f"{folder}/train/*.parquet")["__weight__"].mean() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    "changed", ["order", "new", *(pytest.param(x, marks=pytest.mark.slow) for x in ("types", "split"))]
)
def test_rows_that_come_again_do_not_see_their_labels_in_old_means(
    tmp_path: Path, changed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Values and labels are independent, so the encoded numbers of training rows must be, too."""
    labelled(tmp_path, "one", "{label: {column: a}, dense: {mean: {column: k, transform: [{target: {smoothing: 1}}]}}}")
    whole = pl.read_parquet(tmp_path / "rows-one" / "a.parquet")
    rows = pl.concat([whole.head(480).reverse(), whole.tail(120)])
    more = ["data.split.by=hash", "data.split.column=w"] if changed == "split" else []
    if changed == "types":
        rows = rows.cast({"x": pl.Float32, "k": pl.Float64})
    if changed == "new":
        rows = rows.with_columns(x=pl.col("x") + 1)
    cfg = composed_config(compose("train", given := [f"start_from={tmp_path / 'one'}", *more]), given)
    (tmp_path / "again").mkdir()
    rows.write_parquet(tmp_path / "again" / "a.parquet")
    cfg.data.root, cfg.run_dir = str(tmp_path / "again"), str(tmp_path / "two")
    train(cfg)
    assert ("target is fitted to these" in capfd.readouterr().err) == (changed != "new")
    first, second = (pl.read_parquet(tmp_path / n / "vocabularies/encodings/mean.parquet") for n in ("one", "two"))
    assert first.sort("value").equals(second.sort("value")) == (changed == "new")
    folder = json.loads((tmp_path / "two" / "data.json").read_text())["prepared"]
    known = pl.read_parquet(f"{folder}/train/*.parquet")
    assert changed == "new" or abs(np.corrcoef(known["mean"], known["__label__"])[0, 1]) < 0.12


def test_a_run_does_not_go_on_with_means_of_other_files(tmp_path: Path) -> None:
    data = "{label: {column: a}, dense: {mean: {column: k, transform: [target]}}}"
    labelled(tmp_path, "one", data, "trainer.max_epochs=2", "trainer.max_steps=5")
    pl.read_parquet(tmp_path / "rows-one" / "a.parquet").reverse().write_parquet(tmp_path / "rows-one" / "a.parquet")
    given = [f"resume={tmp_path / 'one'}", "trainer.max_steps=-1", "resume_on_changed_data=true"]
    with pytest.raises(UserError, match=r"^data.dense.mean: .*start_from="):
        train(composed_config(compose("train", given), given))


def test_tables_keep_the_widths_of_the_first_run(tmp_path: Path) -> None:
    """With dims=auto, a width follows the rows of its table, which have grown here from 33 to 60."""
    write(tmp_path / "day0", range(3), range(2), 0)
    write(tmp_path / "day1", range(200), range(100), 1)
    auto = ["model.dim=64", "dims=auto"]
    dims = []
    run(tmp_path, "0", "day0", *auto)
    for name in ("1", "2"):
        dims.append(run(tmp_path, name, "day1", f"start_from={tmp_path / str(int(name) - 1)}", "dims=auto").metrics)
        dims.append(OmegaConf.load(tmp_path / name / "config.yaml").dims)
    assert dims[1] == dims[3] == {"user": 12, "item": 8}


def test_mistakes(folder: Path) -> None:
    start = f"start_from={folder / 'first'}"
    with pytest.raises(UserError, match=r"start_from=nowhere: is not a run folder \(it has no config.yaml\)"):
        run(folder, "mistake-1", "day1", "start_from=nowhere")
    with pytest.raises(UserError, match=r"start_from=.*first: is run_dir, too; name a new folder, or resume the run"):
        run(folder, "first", "day1", start)
    with pytest.raises(UserError, match=r"data.dense.x: differs from the run's; start_from needs equal features"):
        run(folder, "mistake-2", "day1", start, data={"dense": {"x": {"transform": ["log"]}}})
    with pytest.raises(UserError, match=r"data.dense.z: only this config has this feature; start_from needs equal"):
        run(folder, "mistake-3", "day1", start, data={"dense": {"z": {"column": "x"}}})
    for model, why in {
        "gbm": r"the model GBM is fitted at once, and cannot start from another model; name one that is trained step by",
        "dcnv2": r"its model is DLRM, and this one is DCNv2; leave out model=",
    }.items():
        with pytest.raises(UserError, match=rf"start_from=.*first: {why}"):
            run(folder, "mistake-5", "day1", start, f"model={model}", "~model.dim")
    assert not (folder / "mistake-5").exists()
    with pytest.raises(UserError, match=r"optim.sparse.name=adam: start_from goes on with rowwise_adagrad, as "):
        run(folder, "mistake-4", "day1", start, "optim.sparse.name=adam")
