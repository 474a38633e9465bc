"""What must hold whatever the settings: each relation trains a combination in two ways, and compares.

`RELATIONS` has them by name.
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
import sample
import torch
from case import Case, Trial, in_columns
from settings import BY_STEPS, CLOSED, LABELS, ONE_LABEL, RANKERS, RETRIEVERS, STEPWISE, Chosen, When, legal
from sklearn.metrics import log_loss, roc_auc_score

import recsys
from recsys.base.errors import UserError
from recsys.data.features import LABEL
from recsys.export.artefact import load
from recsys.online.predictor import predict_files
from recsys.online.recommender import recommend_files
from recsys.online.servable import Query

Check = Callable[[Case], None]
Given = Mapping[str, Sequence[str]]  # setting -> values, of which a combination gets the first if it has none of them


@dataclass(frozen=True)
class Relation:
    """A relation, the values of settings with which it is tried, and those that it gives to a combination."""

    check: Check
    when: When
    given: Given

    def fitted(self, chosen: Chosen) -> dict[str, str] | None:
        """Return a combination with which the relation must hold; None if the settings are not those."""
        if not all(chosen.get(setting) in values for setting, values in self.when.items()):
            return None
        given = {s: chosen[s] if chosen[s] in v else v[0] for s, v in self.given.items() if s in chosen}
        return legal({**chosen, **given})


RELATIONS: dict[str, Relation] = {}
RANKS, LISTS = {"array": {"ranking"}}, {"array": {"retrieval"}}
LEARNS = {"model": BY_STEPS["model"] | STEPWISE["model"]}
WHOLE = {"batches": ["full"], "trainer.precision": ["None"], "data.sample_negatives": ["None"]}  # one batch an epoch
ALONE = {"split": ["files", "hash", "kfold"]}  # other rows do not move a row to another split
# numbers are scaled by the mean of all rows, whatever their weights
WEIGHTED = {"weights": ["column"], "labels": ["click", "two", "nested", "classes", "mixed"]}
COUNTS = ["rows", "gauc_rows"]
# a target's fold, and which of the rows of one moment are among the last three, are matters of places
SINGLE = {"features": ["items", "noise"], "dense": ["plain", "standardise", "quantile"]}
WITHOUT_DIN = RANKS | {"model": {*RANKERS} - {"din"}}
BY_WEIGHT = RANKS | {"model": BY_STEPS["model"] - {"din"}}  # trees count the rows of leaves


def relation(when: When | None = None, given: Given | None = None) -> Callable[[Check], Check]:
    """Name a relation."""

    def named(check: Check) -> Check:
        RELATIONS[check.__name__] = Relation(check, when or {}, given or {})
        return check

    return named


def same(a: Trial, b: Trial, but: Sequence[str] = (), near: float = 2e-3) -> None:
    """Check that two runs answer alike and measure alike. but: metrics that may differ"""
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
    return {
        k: v
        for k, v in metrics.items()
        if isinstance(v, int | float) and not {*but} & {*k.replace("@", "/").split("/")}
    }


def each(case: Case, change: Callable[[pl.DataFrame], pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the case's files, all changed."""
    return {name: change(rows) for name, rows in case.files.items()}


# rows


@relation(BY_WEIGHT, WHOLE | ALONE | WEIGHTED | SINGLE | {"encoder": ["vocabulary", "hash", "capacity"]})
def weight_zero_is_absence(case: Case) -> None:
    """All rows once more with weight 0 and another label: the statistics of features are the same."""
    others = {name: 1 - pl.col(name) for name in ("click", "like", "buy")}
    wrong = {**others, "num": 3 * pl.col("num"), "cls": pl.lit("red"), "weight": pl.lit(0.0)}
    same(case.train(files=each(case, lambda rows: pl.concat([rows, rows.with_columns(**wrong)]))), case.base, COUNTS)


@relation(
    BY_WEIGHT,
    WHOLE
    | ALONE
    | WEIGHTED
    | {"features": ["items"], "encoder": ["hash"], "dense": ["plain"], "numeric": ["None"]}
    | {"calibration": ["None"]},  # Platt's targets count rows
)
def weight_two_is_twice(case: Case) -> None:
    some = pl.col("x") > 0.3
    twice = each(case, lambda rows: pl.concat([rows, rows.filter(some)]))
    heavy = each(case, lambda rows: rows.with_columns(weight=pl.col("weight") * pl.when(some).then(2).otherwise(1)))
    same(case.train(files=twice), case.train(files=heavy), COUNTS)


def in_grams(case: Case) -> dict[str, pl.DataFrame]:
    return each(case, lambda rows: rows.with_columns(pl.col("weight") * 1000))


@relation(RANKS | {"weights": {"column"}})
def another_unit_of_weights(case: Case) -> None:
    same(case.train(files=in_grams(case)), case.base)


@relation(RANKS | LEARNS | {"weights": {"column"}})
def another_unit_of_weights_later(case: Case) -> None:
    same(case.go_on(case.base, files=in_grams(case)), case.go_on(case.base, files=case.files))


@relation(WITHOUT_DIN, WHOLE | ALONE | SINGLE)
def order_of_files_and_rows(case: Case) -> None:
    shuffled = each(case, lambda rows: rows.sample(fraction=1, shuffle=True, seed=5))
    same(case.train(files=dict(reversed(shuffled.items()))), case.base)


@relation(LISTS | {"model": CLOSED})
def order_of_lines(case: Case) -> None:
    same(case.train(files=each(case, lambda rows: rows.sort("user", "ts", descending=True))), case.base)


@relation(WITHOUT_DIN | {"split": {"time"}}, WHOLE | SINGLE)
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


@relation(LISTS | {"model": CLOSED, "items": {"file"}})
def an_item_that_nobody_saw(case: Case) -> None:
    new = pl.DataFrame({"item": ["nobody"], "brand": ["b0"]})
    more = case.train(files={**case.files, "items": pl.concat([sample.items(), new])}).answers
    agree({k: more[k] for k in case.base.answers}, case.base.answers, 1e-6)


# config


@relation()
def order_of_keys(case: Case) -> None:
    """Features and labels keep their order, which is that of the model's inputs."""

    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            kept = ("dense", "sparse", "labels", "vectors")
            return {k: v if k in kept else turned(v) for k, v in reversed(value.items())}
        return value

    same(case.train(data=turned(case.data)), case.base, near=1e-6)


@relation(RANKS | {"labels": {"classes", "mixed"}, "model": ONE_LABEL})
def order_of_classes(case: Case) -> None:
    """The features of the prepared rows are the same."""
    with suppress(UserError):  # a transform may refuse classes
        other = case.train("data.labels.cls.classes=[blue,green,red]").prepared("train")
        features = [f["name"] for part in ("dense", "sparse") for f in case.base.features[part]]
        assert other.select(features).equals(case.base.prepared("train").select(features))


@relation(
    RANKS | {"labels": {"two"}},
    {"model": ["gbm"], "dense": ["plain", "standardise", "quantile"], "metrics.gauc": ["None"]},
)
def order_of_labels(case: Case) -> None:
    """Trees are fitted to each label by itself."""
    same(case.train(data={**case.data, "labels": {"like": {}, "click": {}}}), case.base)


@relation(given={"trainer.precision": ["None"]})
def batches_of_evaluation(case: Case) -> None:
    same(case.train("trainer.eval_batch_size=7"), case.base, near=1e-4)


@relation()
def another_thread(case: Case) -> None:
    same(case.train("trainer.threads=2"), case.base)


@relation(
    RANKS | LEARNS | {"sharding": {"rowwise"}},
    WHOLE | {"data.split.window": ["None"], "split": ["files"], "calibration": ["None"]},  # as many rows on both
)
def another_process(case: Case) -> None:
    same(case.train("trainer.devices=2"), case.base)


# negatives


def close(calibration: float) -> bool:
    return abs(math.log(calibration)) < 0.5


@relation(RANKS | {"data.sample_negatives": {"0.3"}}, {"data.split.window": ["None"], "dims": ["one"]})
def thinned_negatives(case: Case) -> None:
    """Probabilities are those of all rows, of the test and of the training rows."""
    run = case.train("trainer.max_epochs=8")
    for measured in (run.metrics["test"], run.evaluated("train")[0]):
        assert close(measured["calibration"]), measured


@relation(
    RANKS | LEARNS | {"model": ONE_LABEL - {"gbm"}, "data.sample_negatives": {"0.3"}},
    {"labels": ["click"], "split": ["time"], "batches": ["steps"], "data.split.window": ["3600.0"]},
)
def thinned_windows(case: Case) -> None:
    """Windows of training rows are measured as later rows are."""
    log = pl.read_csv(case.base.run.path / "metrics.csv")["validation/calibration"].drop_nulls()
    windows, later = log[:-2], log[-2]  # the last two are of the validation rows, and the last one may be calibrated
    assert close(windows.mean() / later), log.to_list()


@relation(RANKS | {"encoder": {"vocabulary", "capacity"}})
def every_value_trains(case: Case) -> None:
    """Each row of a table but that of unknown values has a training row."""
    rows, features = case.base.prepared("train"), case.base.features["sparse"]
    shared = {f["table"] for f in features if f["multi_valued"]}
    for f in features:
        if f["table"] not in shared:
            assert rows[f["name"]].filter(rows[f["name"]] > 0).n_unique() == f["cardinality"] - 1, f["name"]


# runs that go on


@relation({"model": LEARNS["model"] - {"tiger"}}, {"data.k_core": ["None"]})
def start_from_without_learning(case: Case) -> None:
    same(case.go_on(case.base, "optim.dense.lr=0", "optim.sparse.lr=0"), case.base, ["novelty"], 1e-4)  # counts add up


@relation(LEARNS, {"schedule": ["None"]})
def resumed_is_whole(case: Case) -> None:
    part = case.train("trainer.max_steps=2")
    same(case.resume(part.run.path, "trainer.max_steps=-1"), case.base, near=1e-4)


@relation(
    RANKS | LEARNS | {"model": ONE_LABEL - {"gbm"}},
    {"labels": ["click", "two", "classes"], "optimizer": ["sgd"], "batches": ["steps"], "schedule": ["None"]}
    | {"encoder": ["hash"], "dense": ["plain"], "features": ["items", "noise"], "split": ["files"], "weights": ["none"]}
    | {"numeric": ["None"], "optim.ema": ["None"], "calibration": ["None"], "data.sample_negatives": ["None"]}
    | {"trainer.precision": ["None"]},
)
def two_trainings_are_one(case: Case) -> None:
    """Two batches and, in a run that goes on, the next two: nothing is fitted, and SGD keeps no state."""
    how, rows = ["trainer.max_epochs=1", "loader.shuffle=false", "loader.unknown=0"], case.files["train"]
    parts = [{**case.files, "train": rows[start:stop]} for start, stop in ((0, 256), (256, 512), (0, 512))]
    later = case.go_on(case.train(*how, files=parts[0]), *how, files=parts[1])
    same(later, case.train(*how, files=parts[2]), near=1e-4)


CHANGES = {  # of a run that goes on from one with these labels
    "click": ["data.sample_negatives=0.2", "data.labels={like: {}}", "data.labels={click: {positive: ['0']}}"],
    "two": ["data.labels={click: {}, like: {}, buy: {}}", "data.labels={like: {}, click: {}}"],
    "nested": ["data.labels={click: {}, buy: {}}"],
    "classes": ["data.labels.cls.classes=[blue,red,green]"],
    "mixed": ["data.labels.cls.classes=[blue,red,green]"],
    "number": ["data.label.log=false"],
}


@relation(RANKS | {"model": ONE_LABEL - {"gbm"}})
def a_run_is_what_its_config_says(case: Case) -> None:
    """A run that goes on with other labels or weights is refused, or has them as a new run has."""
    others = {"none": "data.weight.column=weight", "column": "data.weight.column=null"}[case.chosen["weights"]]
    for change in [*CHANGES[case.chosen["labels"]], others]:
        with suppress(UserError):
            later, new = case.go_on(case.base, change), case.train(change)
            for part in ("labels", "weighted"):
                assert later.features.get(part) == new.features.get(part), change


@relation(RANKS | LEARNS | {"dense": {"target"}, "labels": {"click", "two", "nested"}})
def a_random_column_stays_random(case: Case) -> None:
    """A later run reads the old rows again, at other places: their encoded noise must not give their label away."""
    new = case.files["validation"].head(50)
    later = case.go_on(case.base, files={**case.files, "train": pl.concat([new, case.files["train"]])})
    for rows in (case.base.prepared("train"), later.prepared("train")):
        known = abs(np.corrcoef(rows["noise"], rows["click" if "click" in rows.columns else LABEL])[0, 1])
        assert known < 0.25, known


@relation(RANKS | LEARNS)
def more_values_later(case: Case) -> None:
    """Days go on with users that were not there."""
    rows = case.files["train"].with_columns(user=pl.format("v{}", pl.int_range(pl.len()) % 200))
    assert case.go_on(case.base, files={**case.files, "train": rows}).metrics["test"]["rows"] > 0


# figures


@relation()
def figures_or_a_line(case: Case) -> None:
    """Each figure that is asked for is there and finite, or a line says why not."""
    found, said = figures(case.base.metrics["test"]), case.base.said
    bad = [k for k, v in found.items() if not math.isfinite(v)]
    assert found and (not bad or "undefined" in said), bad
    asked = case.chosen.get("metrics.gauc") == "user"
    assert not asked or any("gauc" in name for name in found) or "gauc" in said, found
    assert case.chosen["metrics.slices"] == "None" or case.base.metrics["slices"]["test"]["item"] or "slices" in said


@relation(RANKS | {"model": ONE_LABEL, "labels": {"click", "two"}})
def metrics_are_those_of_the_predictions(case: Case) -> None:
    rows = pl.read_parquet(case.base.run.path / "test_predictions.parquet")
    y, p = rows["label"].to_numpy(), rows["probability"].to_numpy().astype(float)
    w = rows["weight"].to_numpy() if "weight" in rows.columns else np.ones(len(y))
    first = {k.removeprefix("click/"): v for k, v in case.base.metrics["test"].items()}
    assert first["auc"] == pytest.approx(roc_auc_score(y, p, sample_weight=w), abs=1e-5)
    assert first["logloss"] == pytest.approx(log_loss(y, np.clip(p, 1e-7, 1 - 1e-7), sample_weight=w), rel=1e-4)
    assert first["calibration"] == pytest.approx((w * p).sum() / (w * y).sum(), rel=1e-4)
    if case.chosen["split"] == "files" and "history" not in case.data["sparse"]:  # which the file alone lacks
        predicted = in_columns(case.base.run.predict(case.files["test"], allow_unknown=True)).to_series(0)
        assert predicted.to_list() == pytest.approx(p.tolist(), abs=0.02)  # of bf16


@relation(RANKS | {"model": ONE_LABEL, "calibration": {"platt"}}, {"labels": ["click"], "data.split.window": ["None"]})
def calibrated_on_validation(case: Case) -> None:
    """Platt's scaling expects as many clicks of the validation rows as there are, for any checkpoint that is measured."""
    fast = [] if case.chosen["model"] == "gbm" else ["optim.dense.lr=0.05", "optim.sparse.lr=0.5"]
    run = case.train("trainer.max_epochs=12", *fast)
    for checkpoint in ("best", "last"):
        with suppress(UserError):  # trees have one checkpoint
            measured, said = run.evaluated("validation", checkpoint)
            assert abs(measured["calibration"] - 1) < 0.03 or "calibrat" in said, (checkpoint, measured)


@relation(
    LISTS | {"model": {*RETRIEVERS} - {"mf", "lightgcn", "ultragcn"}},  # which list no items that only a table has
    {"split": ["leave_one_out"], "protocol.candidates": ["None"], "rows": ["none"]}
    | {"data.sparse.item.min_count": ["None"], "data.k_core": ["None"]},  # lists hold no rare items, evaluation does
)
def metrics_are_those_of_the_lists(case: Case) -> None:
    ordered, recommender = case.files["train"].sort("user", "ts"), case.base.run.recommender
    last = pl.int_range(pl.len(), 0, -1).over("user") == 1
    lists = recommender.recommend(ordered.filter(~last), recommender.nameable, allow_unknown=True)
    wanted = dict(ordered.filter(last).select("user", "item").iter_rows())
    ranks = [items.index(wanted[u]) if wanted[u] in items else 99 for u, items in lists[:, :2].iter_rows()]
    for k in (5, 10, 20):
        found = {
            f"hr@{k}": np.mean([r < k for r in ranks]),
            f"ndcg@{k}": np.mean([1 / math.log2(2 + r) if r < k else 0.0 for r in ranks]),
        }
        expected = {name: case.base.metrics["test"][name] for name in found}
        assert found == pytest.approx(expected, abs=0.03)  # ties are broken here


@relation(LISTS | {"model": {"tiger", "two_tower"}})
def what_is_ranked_can_be_listed(case: Case) -> None:
    recommender = case.base.run.recommender
    assert recommender.nameable == len(recommender.fitted.candidates)


# doors


@relation(RANKS)
def exported_as_it_predicts(case: Case) -> None:
    """An artefact gives the predictions of the run."""
    served: Any = load(case.base.run.export(case.folder / "artefact"))
    rows = case.files["test"].drop("click", "buy", "like", "cls", "num", "weight")
    outputs = served.run(served.features(rows.to_dicts()))
    expected = in_columns(case.base.run.predict(rows, allow_unknown=True))
    for name, values in zip(expected.columns, outputs.values(), strict=True):
        agree(dict(enumerate(values.tolist())), dict(enumerate(expected[name])), 0.02)  # of bf16


@relation()
def predicted_files_are_frames(case: Case) -> None:
    """The command's file of predictions holds what Python gets for a frame."""
    rows, output, run = case.files["test" if case.ranks else "train"], case.folder / "out.parquet", case.base.run
    rows.write_csv(case.folder / "rows.csv")
    how: dict[str, Any] = {"checkpoint": "best", "batch_size": 50, "allow_unknown": True}
    if case.ranks:
        predict_files(str(run.path), [case.folder / "rows.csv"], output, **how)
        found, expected = pl.read_parquet(output), in_columns(run.predict(rows, allow_unknown=True))
        for name, values in zip(found.columns[2:], expected, strict=True):
            agree(dict(enumerate(found[name])), dict(enumerate(values)), 0.02)  # of bf16
    else:
        recommend_files(str(run.path), [case.folder / "rows.csv"], output, k=3, filter_history=None, **how)
        assert pl.read_parquet(output)["items"].to_list() == case.base.lists(3)["items"].to_list()


def served_lists(case: Case, *overrides: str) -> tuple[list[list[str]], list[list[float]], pl.DataFrame]:
    """Return the lists of an artefact and their scores, and those of the run."""
    lists, rows = case.base.lists(10), case.files["train"].sort("user", "ts")
    served: Any = load(case.base.run.export(case.folder / f"artefact{len(overrides)}", overrides))
    k = max(map(len, lists["items"]))
    found = served.recommend([Query(rows.filter(user=user).to_dicts(), k=k) for user in lists["user"]])
    return [items for items, _ in found], [scores for _, scores in found], lists


@relation(LISTS)
def exported_as_it_recommends(case: Case) -> None:
    """An artefact gives the lists of the run, up to the order of scores that are equal or nearly so."""
    items, scores, lists = served_lists(case)
    for i, (known, expected) in enumerate(lists[:, 1:].iter_rows()):
        assert scores[i] == pytest.approx(expected, rel=1e-3, abs=1e-3)
        sure = [s - expected[-1] > 1e-3 * max(1, abs(s)) for s in expected]
        assert {k for k, is_sure in zip(known, sure, strict=True) if is_sure} <= {*items[i]}, (items[i], known)


@relation(LISTS)
def similar_items_are_the_same_at_every_door(case: Case) -> None:
    """The run and its artefact list the items with the largest cosines, or the highest scores of an item alone."""
    run, served = case.base.run, load(case.base.run.export(case.folder / "artefact"))
    names = run.recommender.fitted.candidates[: run.recommender.nameable]
    asked, left_out = names[:3].to_list(), names[4]
    queries = [Query([], k=6, item=item, exclude=[left_out]) for item in asked]
    if case.chosen["model"] == "popularity":
        for refused in (lambda: recsys.similar(run, asked), lambda: served.recommend(queries)):
            with pytest.raises(UserError, match="neither has vectors of items nor relates them"):
                refused()
        return
    lists = recsys.similar(run, asked, 6, exclude=[left_out])
    scores = {item: dict(recsys.similar(run, item, len(names), exclude=[left_out]).iter_rows()) for item in asked}
    if (vectors := run.recommender.items) is not None:
        units = torch.nn.functional.normalize(vectors[1 : 1 + len(names)].double(), dim=1)
        for item, cosines in zip(asked, units[:3] @ units.T, strict=True):
            wanted = {name: x for name, x in zip(names, cosines.tolist(), strict=True) if name not in (item, left_out)}
            assert scores[item] == pytest.approx(wanted, abs=1e-5)
    for (item, items, own), (found, near) in zip(lists.iter_rows(), served.recommend(queries), strict=True):
        assert items == [*scores[item]][:6] and own == [*scores[item].values()][:6]
        assert near == pytest.approx(own, rel=1e-3, abs=1e-3) and len({*found}) == len(items)
        assert [scores[item][name] for name in found] == pytest.approx(own, rel=1e-3, abs=1e-3)


@relation(LISTS | {"model": {*RETRIEVERS} - CLOSED - {"tiger", "mult_vae"}})
def an_exact_index_changes_nothing(case: Case) -> None:
    items, _, lists = served_lists(case, "index=exact")
    assert items == lists["items"].to_list()


@relation(LISTS | {"model": {*RETRIEVERS} - {"gf_cf", "chebycf"}})  # whose sums over users round by the batch
def alone_as_among_others(case: Case) -> None:
    """Equal scores are in the same order in every batch."""
    together = case.base.lists(10)
    for user, items in together[:, :2].iter_rows():
        rows = case.files["train"].filter(pl.col("user") == user)
        found = case.base.run.recommender.recommend(rows, len(items), allow_unknown=True)
        assert found["items"].to_list() == [items]


@relation(LISTS)
def longer_lists_begin_alike(case: Case) -> None:
    short, long = (case.base.lists(k)["items"].to_list() for k in (3, 10))
    assert [items[:3] for items in long] == short


# truth


@relation(
    RANKS | LEARNS | {"model": ONE_LABEL - {"gbm"}, "calibration": {"platt"}},
    {"labels": ["click"], "data.split.window": ["None"]},
)
def calibration_mends_what_overfits(case: Case) -> None:
    """The validation rows' log loss is at most that of a constant, however wrong the model is."""
    measured = case.train("trainer.max_epochs=12", "optim.dense.lr=0.3", "optim.sparse.lr=1").metrics["validation"]
    assert measured["logloss"] < 0.75 and abs(measured["calibration"] - 1) < 0.06, measured


@relation(RANKS | {"model": {"esmm"}})
def esmm_predicts_clicks_that_buy(case: Case) -> None:
    """Its second prediction is that of both, also where the second label is only that of rows with the first."""
    rows = case.files["test"]
    for labels in (LABELS["nested"]["data.labels"], {"click": {}, "buy": {}}):
        with suppress(UserError):
            run = case.train("trainer.max_epochs=20", data={**case.data, "labels": labels}).run
            predicted = in_columns(run.predict(rows, allow_unknown=True)).to_series(1).mean()
            assert 0.5 < predicted / rows["buy"].mean() < 1.7, (labels, predicted)
