"""What must hold whatever the settings: each relation trains a combination in two ways, and compares.

`RELATIONS` has them by name. A relation is tried on the combinations that `when` allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest
from case import Case, Trial, in_columns
from settings import BY_STEPS, CLOSED, LABELS, RANKERS, RETRIEVERS, STEPWISE, Chosen, When
from sklearn.metrics import log_loss, roc_auc_score

from recsys.base.errors import UserError
from recsys.data.features import LABEL
from recsys.export.artefact import load
from recsys.online.servable import Query

Check = Callable[[Case], None]


@dataclass(frozen=True)
class Relation:
    """A relation, and the values of settings with which it must hold."""

    check: Check
    when: When

    def applies(self, chosen: Chosen) -> bool:
        return all(chosen.get(setting) in values for setting, values in self.when.items())


RELATIONS: dict[str, Relation] = {}


def relation(**when: Any) -> Callable[[Check], Check]:
    """Name a relation; keys of `when` are settings, whose dots are two underscores."""

    def named(check: Check) -> Check:
        allowed = {setting.replace("__", "."): values for setting, values in when.items()}
        RELATIONS[check.__name__] = Relation(check, allowed)
        return check

    return named


def same(a: Trial, b: Trial, but: Sequence[str] = (), near: float = 2e-3) -> None:
    """Check that two runs answer alike and measure alike. but: metrics that differ"""
    agree(a.answers, b.answers, near)
    for split in ("validation", "test"):
        agree(*(figures(t.metrics[split], but) for t in (a, b)), 10 * near)


def agree(a: Mapping[Any, float], b: Mapping[Any, float], near: float) -> None:
    """Check that numbers of the same names are close, or both NaN."""
    assert a.keys() == b.keys(), [*(a.keys() ^ b.keys())][:5]
    apart = {k: (a[k], b[k]) for k in a if a[k] != pytest.approx(b[k], rel=near, abs=near, nan_ok=True)}
    assert not apart, f"{len(apart)} of {len(a)} differ, such as {dict([*apart.items()][:3])}"


def figures(metrics: Mapping[str, Any], but: Sequence[str] = ()) -> dict[str, float]:
    """Return the numbers of a split, by name."""
    return {k: v for k, v in metrics.items() if isinstance(v, int | float) and k.rpartition("/")[2] not in but}


def each(case: Case, change: Callable[[pl.DataFrame], pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the case's files, all changed."""
    return {name: change(rows) for name, rows in case.files.items()}


# rows

ALONE = {"files", "hash", "kfold"}  # splits in which other rows do not move a row to another split
WITHOUT_STATISTICS = {"plain"}
UNORDERED = {"items", "noise"}


@relation(
    array={"ranking"},
    trainer__precision={"None"},
    weights={"column"},
    split=ALONE,
    features=UNORDERED,
    batches={"full"},
    data__sample_negatives={"None"},
    model={*RANKERS} - {"gbm"},
    encoder={"vocabulary", "hash", "capacity"},
)
def weight_zero_is_absence(case: Case) -> None:
    """All rows once more with weight 0 and another label: the statistics of features are the same."""
    others = {
        "click": 1 - pl.col("click"),
        "like": 1 - pl.col("like"),
        "buy": 1 - pl.col("buy"),
        "num": 3 * pl.col("num"),
    }
    wrong = [*(e.alias(n) for n, e in others.items()), pl.lit("red").alias("cls"), pl.lit(0.0).alias("weight")]
    same(case.train(files=each(case, lambda rows: pl.concat([rows, rows.with_columns(wrong)]))), case.base, ["rows"])


@relation(
    array={"ranking"},
    trainer__precision={"None"},
    weights={"column"},
    split=ALONE,
    features={"items"},
    batches={"full"},
    data__sample_negatives={"None"},
    model={*RANKERS} - {"gbm"},
    encoder={"hash"},
    dense={"plain"},
)
def weight_two_is_twice(case: Case) -> None:
    def heavy(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(
            pl.when(pl.col("x") > 0.3).then(2 * pl.col("weight")).otherwise("weight").alias("weight")
        )

    twice = each(case, lambda rows: pl.concat([rows, rows.filter(pl.col("x") > 0.3)]))
    same(case.train(files=twice), case.train(files=each(case, heavy)), ["rows"])


@relation(array={"ranking"}, weights={"column"})
def another_unit_of_weights(case: Case) -> None:
    same(case.train(files=in_grams(case)), case.base)


@relation(array={"ranking"}, weights={"column"}, **BY_STEPS)
def another_unit_of_weights_later(case: Case) -> None:
    later = case.go_on(case.base, files=in_grams(case))
    same(later, case.go_on(case.base, files=case.files))


def in_grams(case: Case) -> dict[str, pl.DataFrame]:
    return each(case, lambda rows: rows.with_columns(pl.col("weight") * 1000))


@relation(
    array={"ranking"},
    trainer__precision={"None"},
    split=ALONE,
    batches={"full"},
    data__sample_negatives={"None"},
    dense={"plain", "standardise", "quantile"},
)
def order_of_rows(case: Case) -> None:
    same(case.train(files=each(case, lambda rows: rows.sample(fraction=1, shuffle=True, seed=5))), case.base)


@relation(array={"retrieval"}, model=CLOSED)
def order_of_lines(case: Case) -> None:
    same(case.train(files=each(case, lambda rows: rows.sort("user", "ts", descending=True))), case.base)


@relation(
    array={"ranking"},
    trainer__precision={"None"},
    split={"time"},
    batches={"full"},
    data__sample_negatives={"None"},
    dense={"plain", "standardise", "quantile"},
)
def order_of_equal_times(case: Case) -> None:
    def shuffled(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.sample(fraction=1, shuffle=True, seed=5).sort("ts", maintain_order=True)

    same(case.train(files=each(case, shuffled)), case.base)


@relation()
def order_of_columns(case: Case) -> None:
    same(case.train(files=each(case, lambda rows: rows.select(rows.columns[::-1]))), case.base, near=1e-6)


@relation()
def an_unread_column(case: Case) -> None:
    unread = pl.int_range(pl.len()).cast(pl.String).alias("unread")
    same(case.train(files=each(case, lambda rows: rows.with_columns(unread))), case.base, near=1e-6)


# config


@relation()
def order_of_keys(case: Case) -> None:
    """Features and labels keep their order, which is that of the model's inputs."""

    def turned(value: Any) -> Any:
        ordered = ("dense", "sparse", "labels", "vectors")
        if isinstance(value, dict):
            return {k: v if k in ordered else turned(v) for k, v in reversed(value.items())}
        return value

    same(case.train(data=turned(case.data)), case.base, near=1e-6)


@relation(array={"ranking"}, labels={"classes", "mixed"})
def order_of_classes(case: Case) -> None:
    """The features of the prepared rows are the same."""
    key = "data.labels.cls.classes=[blue,green,red]"
    with suppress(UserError):  # a setting may refuse classes
        other = case.train(key).prepared("train")
        features = [f["name"] for part in ("dense", "sparse") for f in case.base.features[part]]
        assert other.select(features).equals(case.base.prepared("train").select(features))


@relation(
    array={"ranking"}, labels={"two"}, model={"gbm"}, metrics__gauc={"None"}, dense={"plain", "standardise", "quantile"}
)
def order_of_labels(case: Case) -> None:
    same(case.train(data={**case.data, "labels": {"like": {}, "click": {}}}), case.base)


@relation()
def batches_of_evaluation(case: Case) -> None:
    same(case.train("trainer.eval_batch_size=7"), case.base, near=1e-4)


@relation()
def another_thread(case: Case) -> None:
    same(case.train("trainer.threads=2"), case.base)


# negatives


def close(calibration: float) -> bool:
    return abs(math.log(calibration)) < 0.5


@relation(data__sample_negatives={"0.3"}, data__split__window={"None"})
def thinned_negatives(case: Case) -> None:
    """Probabilities are those of all rows, of the test and of the training rows."""
    run = case.train("trainer.max_epochs=8")
    for measured in (run.metrics["test"], run.evaluated("train")[0]):
        assert close(measured["calibration"]), measured


@relation(data__sample_negatives={"0.3"}, data__split__window={"3600.0"})
def thinned_windows(case: Case) -> None:
    """Windows of training rows are measured as later rows are."""
    log = pl.read_csv(case.base.run.path / "metrics.csv")["validation/calibration"].drop_nulls()
    windows, later = log[:-2], log[-1]  # the last two are of the validation rows
    assert close(windows.mean() / later), log.to_list()


@relation(array={"ranking"}, encoder={"vocabulary", "capacity"})
def every_value_trains(case: Case) -> None:
    """Each row of a table but that of unknown values has a training row."""
    rows = case.base.prepared("train")
    for f in case.base.features["sparse"]:
        found = rows[f["name"]].explode() if f["multi_valued"] else rows[f["name"]]
        tables = {g["table"] for g in case.base.features["sparse"] if g["multi_valued"]}
        if f["table"] not in tables:
            assert found.filter(found > 0).n_unique() == f["cardinality"] - 1, f["name"]


# runs that go on


@relation(**STEPWISE, array={"retrieval"})
def start_from_without_learning_lists(case: Case) -> None:
    start_from_without_learning(case)


@relation(**BY_STEPS, array={"ranking"})
def start_from_without_learning(case: Case) -> None:
    same(case.go_on(case.base, "optim.dense.lr=0", "optim.sparse.lr=0"), case.base, near=1e-4)


@relation(**STEPWISE, array={"retrieval"}, schedule={"None"})
def resumed_lists_are_whole(case: Case) -> None:
    resumed_is_whole(case)


@relation(**BY_STEPS, array={"ranking"}, schedule={"None"})
def resumed_is_whole(case: Case) -> None:
    part = case.train("trainer.max_steps=2")
    same(case.resume(part, "trainer.max_steps=-1"), case.base, near=1e-4)


CHANGES = {  # of a run that goes on from one with these labels
    "click": ["data.sample_negatives=0.2", "data.labels={like: {}}", "data.labels={click: {positive: ['0']}}"],
    "two": ["data.labels={click: {}, like: {}, buy: {}}", "data.labels={like: {}, click: {}}"],
    "nested": ["data.labels={click: {}, buy: {}}"],
    "classes": ["data.labels.cls.classes=[blue,red,green]"],
    "mixed": ["data.labels.cls.classes=[blue,red,green]"],
    "number": ["data.label.log=false"],
}


@relation(array={"ranking"}, model={"lr", "dlrm", "deepfm", "din"})
def a_run_is_what_its_config_says(case: Case) -> None:
    """A run that goes on with other labels or weights is refused, or has them as a new run has."""
    others = {"none": "data.weight.column=weight", "column": "data.weight.column=null"}[case.chosen["weights"]]
    for change in [*CHANGES[case.chosen["labels"]], others]:
        with suppress(UserError):
            later = case.go_on(case.base, change)
            new = case.train(change)
            for part in ("labels", "weighted"):
                assert later.features.get(part) == new.features.get(part), change


@relation(array={"ranking"}, dense={"target"}, labels={"click", "two", "nested"}, **BY_STEPS)
def a_random_column_stays_random(case: Case) -> None:
    """A later run reads the old rows again, at other places: their encoded noise must not give their label away."""
    new = case.files["validation"].head(50)
    later = case.go_on(case.base, files={**case.files, "train": pl.concat([new, case.files["train"]])})
    for rows in (case.base.prepared("train"), later.prepared("train")):
        click = rows["click" if "click" in rows.columns else LABEL]
        assert abs(np.corrcoef(rows["noise"], click)[0, 1]) < 0.25


@relation(array={"ranking"}, **BY_STEPS)
def more_values_later(case: Case) -> None:
    """Days go on with users that were not there: the run goes on, and nothing is dropped."""
    rows = case.files["train"].with_columns(user=pl.format("v{}", pl.int_range(pl.len()) % 200))
    assert case.go_on(case.base, files={**case.files, "train": rows}).metrics["test"]["rows"] > 0


# figures


@relation()
def figures_or_a_line(case: Case) -> None:
    """Each figure that is asked for is there and finite, or a line says why not."""
    found = figures(case.base.metrics["test"])
    assert found and not [k for k, v in found.items() if not math.isfinite(v) and "undefined" not in case.base.said]
    if case.chosen.get("metrics.gauc") == "user":
        assert any("gauc" in k for k in found) or "gauc" in case.base.said
    if case.chosen["metrics.slices"] != "None":
        assert case.base.metrics["slices"]["test"]["item"] or "slices" in case.base.said


@relation(array={"ranking"}, labels={"click", "two"}, model={*RANKERS} - {"esmm", "mmoe_nested"})
def metrics_are_those_of_the_predictions(case: Case) -> None:
    rows = pl.read_parquet(case.base.run.path / "test_predictions.parquet")
    y, p = rows["label"].to_numpy(), rows["probability"].to_numpy().astype(float)
    w = rows["weight"].to_numpy() if "weight" in rows.columns else np.ones(len(y))
    first = {k.removeprefix("click/"): v for k, v in case.base.metrics["test"].items()}
    assert first["auc"] == pytest.approx(roc_auc_score(y, p, sample_weight=w), abs=1e-5)
    assert first["logloss"] == pytest.approx(log_loss(y, np.clip(p, 1e-7, 1 - 1e-7), sample_weight=w), rel=1e-4)
    assert first["calibration"] == pytest.approx((w * p).sum() / (w * y).sum(), rel=1e-4)
    if case.chosen["split"] == "files":
        assert in_columns(case.base.run.predict(case.files["test"], allow_unknown=True)).to_series(0).to_list() == (
            pytest.approx(p.tolist(), abs=1e-3 if case.chosen["trainer.precision"] == "None" else 0.02)
        )


@relation(
    array={"ranking"}, calibration={"platt"}, labels={"click"}, model={*RANKERS} - {"mmoe_nested", "esmm", "mmoe"}
)
def calibrated_on_validation(case: Case) -> None:
    """Platt's scaling gives validation rows as many expected clicks as they have, for the checkpoint that is measured."""
    run = case.train("trainer.max_epochs=12") if case.chosen["data.split.window"] == "None" else case.base
    for checkpoint in ("best", "last"):
        with suppress(UserError):  # trees have one checkpoint
            measured, said = run.evaluated("validation", checkpoint)
            assert measured["calibration"] == pytest.approx(1, abs=0.03) or "calibrat" in said, (checkpoint, measured)


@relation(
    array={"retrieval"}, split={"leave_one_out"}, protocol__candidates={"None"}, protocol__filter_history={"None"}
)
def metrics_are_those_of_the_lists(case: Case) -> None:
    ordered = case.files["train"].sort("user", "ts")
    last = pl.int_range(pl.len(), 0, -1).over("user") == 1
    lists = case.base.run.recommender.recommend(ordered.filter(~last), case.base.run.recommender.nameable)
    wanted = dict(ordered.filter(last).select("user", "item").iter_rows())
    found = [
        items.index(wanted[u]) if wanted[u] in items else 99 for u, items in lists.select("user", "items").iter_rows()
    ]
    gains = [1 / math.log2(2 + r) if r < 10 else 0.0 for r in found]
    assert np.mean(gains) == pytest.approx(case.base.metrics["test"]["ndcg@10"], abs=0.03)  # ties are broken here


@relation(array={"retrieval"}, model={"tiger", "two_tower"})
def what_is_ranked_can_be_listed(case: Case) -> None:
    recommender = case.base.run.recommender
    assert recommender.nameable == len(recommender.fitted.candidates)


# doors


@relation()
def exported_as_it_predicts(case: Case) -> None:
    """An artefact gives the answers of the run."""
    served: Any = load(case.base.run.export(case.folder / "artefact"))
    if case.ranks:
        rows = case.files["test"].drop("click", "buy", "like", "cls", "num", "weight").to_dicts()
        if case.chosen["features"] == "history" or case.chosen["model"] == "din":
            rows = rows[:1]  # rows of one request see each other
        outputs = served.run(served.features(rows))
        expected = in_columns(case.base.run.predict(pl.DataFrame(rows), allow_unknown=True))
        for name, values in zip(expected.columns, outputs.values(), strict=True):
            assert values.tolist() == pytest.approx(expected[name].to_list(), abs=2e-2), name
        return
    lists = case.base.lists(5)
    found = served.recommend([Query(rows, k=5) for rows in histories(case, lists["user"])])
    for (items, scores), (known, expected) in zip(found, lists.select("items", "scores").iter_rows(), strict=True):
        assert scores == pytest.approx(expected, rel=1e-3, abs=1e-3)
        assert len({*items} - {*known}) == 0 or len({round(s, 4) for s in expected}) < len(expected), (items, known)


def histories(case: Case, users: pl.Series) -> list[list[dict[str, Any]]]:
    rows = case.files["train"].sort("user", "ts")
    by_user = {u: frame.to_dicts() for (u,), frame in rows.group_by("user")}
    return [by_user[u] for u in users]


@relation(array={"retrieval"})
def longer_lists_begin_alike(case: Case) -> None:
    short, long = (case.base.lists(k)["items"].to_list() for k in (3, 10))
    assert [items[:3] for items in long] == short


@relation(array={"retrieval"}, model={*RETRIEVERS} - CLOSED - {"tiger", "mult_vae"})
def an_exact_index_changes_nothing(case: Case) -> None:
    lists = case.base.lists(10)
    served: Any = load(case.base.run.export(case.folder / "indexed", ["index=exact"]))
    found = served.recommend([Query(rows, k=10) for rows in histories(case, lists["user"])])
    assert [items for items, _ in found] == lists["items"].to_list()


@relation(array={"retrieval"})
def alone_as_among_others(case: Case) -> None:
    """Equal scores are in the same order in every batch."""
    together = case.base.lists(10)
    for user, items in together.select("user", "items").head(20).iter_rows():
        rows = case.files["train"].filter(pl.col("user") == user)
        assert case.base.run.recommender.recommend(rows, 10)["items"].to_list() == [items]


# truth


@relation(array={"ranking"}, model={"esmm"})
def esmm_predicts_clicks_that_buy(case: Case) -> None:
    """Its second prediction is that of both, also where the second label is only that of rows with the first."""
    rows = case.files["test"]
    for labels in (LABELS["nested"]["data.labels"], {"click": {}, "buy": {}}):
        with suppress(UserError):
            run = case.train("trainer.max_epochs=20", data={**case.data, "labels": labels}).run
            predicted = in_columns(run.predict(rows, allow_unknown=True)).to_series(1)
            assert 0.5 < predicted.mean() / rows["buy"].mean() < 1.7, labels
