"""Which columns a model needs: as scikit-learn measures it, with all that is made of a column, lists, groups and copies."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression
from small_csv import Commands

import recsys
from recsys.data.features.arrays import Arrays
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import NumberLabel
from recsys.schema.evaluate_schema import ImportanceConfig
from recsys.training import importance
from recsys.training.importance import HeldOutRows, _losses, _measured

ROWS = 4000


def test_a_linear_model_loses_what_scikit_learn_says(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 3)).astype(np.float32)
    y = (2 * x[:, 0] + 0.5 * x[:, 1] + 0.1 * rng.standard_normal(ROWS)).astype(np.float32)
    model = LinearRegression().fit(x, y)
    features = FeatureSpec(tuple(DenseFeature(n) for n in "abc"), (), labels=(NumberLabel("y"),))
    arrays = Arrays(x, np.zeros((ROWS, 0), np.int32), {}, {})
    rows = HeldOutRows(arrays, y[:, None], None, None)
    member: Any = SimpleNamespace(labels=features.labels)
    monkeypatch.setattr(importance, "_predicted", lambda _, __, a: [model.predict(a.dense)[:, None]])
    draws = np.random.default_rng(1)
    base: Any = _measured(member, rows, arrays, ())["y"]
    scoring = "neg_root_mean_squared_error"
    theirs = permutation_importance(model, x, y, scoring=scoring, n_repeats=30, random_state=0).importances_mean
    for i, name in enumerate("abc"):
        shuffled = [arrays.shuffled(features, [name], draws)[0] for _ in range(30)]
        after = [_measured(member, rows, other, ())["y"] for other in shuffled]
        found = _losses(base, after, seed=0)["rmse"]
        assert found.value == pytest.approx(theirs[i], rel=0.02, abs=1e-4)
        assert found.low <= theirs[i] <= found.high or i == 2
        assert (found.low > 0) is (i < 2)


def test_lists_are_shuffled_among_those_of_equal_length() -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([1, 2, 2, 3, 1, 1, 2, 7], np.int32)
    values = np.arange(1, lengths.sum() + 1, dtype=np.int32)
    single = SparseFeature("s", 9, "s")
    features = FeatureSpec((DenseFeature("x"),), (single, SparseFeature("l", 99, "l", multi_valued=True)))
    arrays = Arrays(
        np.arange(8, dtype=np.float32)[:, None], np.arange(8, dtype=np.int32)[:, None], {"l": values}, {"l": lengths}
    )
    starts, moved = np.cumsum(lengths) - lengths, 0
    for _ in range(20):
        other, share = arrays.shuffled(features, ["l", "x"], rng)
        assert share == 6 / 8 and other.lengths["l"].tolist() == lengths.tolist()
        assert other.ids[:, 0].tolist() == list(range(8))  # s is not shuffled
        source = other.dense[:, 0].astype(int)
        assert sorted(source) == list(range(8)) and source[3] == 3 and source[7] == 7
        for row, begin in zip(source, starts, strict=True):  # x and l come from the same row
            n = lengths[row]
            assert other.values["l"][begin : begin + n].tolist() == values[starts[row] : starts[row] + n].tolist()
        moved += int((source != np.arange(8)).sum())
    assert moved > 20


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clicks by a and, weaker, by b; twin copies a, idle says nothing, and country comes from the table of users."""
    home = tmp_path_factory.mktemp("importance")
    rng = np.random.default_rng(0)
    user, a, b, idle = (rng.integers(0, n, 6000) for n in (60, 8, 8, 8))
    logit = 1.2 * (a - 3.5) + 0.3 * (b - 3.5) + (user % 3 - 1)
    click = (rng.random(6000) < 1 / (1 + np.exp(-logit))).astype(int)
    frame = pl.DataFrame({"click": click, "user": user, "a": a, "twin": a * 10, "b": b, "idle": idle})
    frame.with_columns(tags=pl.Series([" ".join("xyz"[: 1 + i]) for i in idle % 3])).write_csv(home / "log.csv")
    pl.DataFrame({"user": range(60), "land": [f"c{i % 3}" for i in range(60)]}).write_csv(home / "users.csv")
    (home / "conf" / "data").mkdir(parents=True)
    (home / "conf" / "data" / "shop.yaml").write_text(
        """
name: shop
root: .
source: {format: csv, files: [log.csv], joins: [{file: users.csv, key: user, columns: {country: land}}]}
derive: {double: "CAST(b AS DOUBLE) * 2"}
label: {column: click}
split: {by: random, validation: 0.1, test: 0.4}
group: {by: user, together: true}
sparse: {a: {}, twin: {}, idle: {}, country: {}, tags: {split: " "}, both: {cross: [b, idle]}}
dense: {double: {}}
"""
    )
    return home


def test_what_is_made_of_a_column_is_shuffled_with_it(
    home: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    recsys.train(["model=gbm", "data=shop", "model.trees=60", "trainer.threads=1", "run_dir=gbm"])
    status, said = commands.said("evaluate", "run=gbm", "importance.on=true", "importance.repeats=3")
    assert status == 0, said
    written = json.loads((home / "gbm" / "importance-test.json").read_text())["labels"]["label"]
    found = {tuple(c["columns"]): c for c in written}
    made = {c: set(own["features"]) for (c,), own in found.items()}
    alone = {c: {c} for c in ("a", "twin", "country", "tags")}
    assert made == alone | {"b": {"double", "both"}, "idle": {"idle", "both"}, "user": {"country"}}
    assert [*found[("a",)]["loss"]][:1] == ["gndcg@10"] and {"auc", "ne"} <= {*found[("a",)]["loss"]}
    gains = {c: own["loss"]["auc"] for (c,), own in found.items()}
    assert gains["country"]["low"] > 0.02 and gains["user"]["value"] == pytest.approx(
        gains["country"]["value"], abs=0.02
    )
    assert gains["idle"]["value"] < 0.01 < gains["b"]["value"]
    assert "a, twin: move together" in said and "importance.together=[[a,twin]]" in said
    assert "can be left out" in said and "tags" in said.partition("can be left out")[2]
    assert commands("evaluate", "run=gbm", "importance.together=[[a,twin]]")[0] == 0
    both = json.loads((home / "gbm" / "importance-test.json").read_text())["labels"]["label"][0]
    assert both["columns"] == ["a", "twin"] and both["loss"]["auc"]["low"] > 0.2
    assert both["loss"]["auc"]["value"] > gains["a"]["value"] + gains["twin"]["value"]
    assert commands("evaluate", "run=[gbm,gbm]", "importance.on=true") == (
        2,
        ["importance: is measured for one run, and run=['gbm', 'gbm'] names 2"],
    )
    status, errors = commands("evaluate", "run=gbm", "importance.together=[[a,twn]]")
    assert status == 2 and errors == [
        "importance.together: no feature of the model is made of column twn; did you mean twin?"
    ]


def test_the_same_rows_and_seed_give_the_same_figures(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    recsys.train(
        ["model=fm", "data=shop", "trainer.max_epochs=1", "trainer.threads=1", "run_dir=dlrm", "trainer.batch_size=256"]
    )
    one, two = (importance.importance("dlrm", "validation", "best", ImportanceConfig(repeats=2)) for _ in range(2))
    assert one == two and len(one["label"]) == 7
