"""What the arrays found once: relations that did not hold, and the fewest settings with which they did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import small_stages
from case import Case
from relations import RELATIONS
from settings import complete

from recsys.files.run_files import best_checkpoint
from recsys.online.servable import Query
from recsys.stages.explore import Epsilon
from recsys.stages.filters import Seen
from recsys.stages.visitor import Events

THINNED = {"data.sample_negatives": "0.3"}
BY_BRAND = {"model": "two_tower", "items": "file", "data.items.ids": "False"}  # items of a brand have equal scores
FOUND: list[tuple[str, str, dict[str, str]]] = [
    # a run that went on kept the labels of the first one, and its rows were made by the new config
    ("a_run_is_what_its_config_says", "ranking", {}),
    ("a_run_is_what_its_config_says", "ranking", {"labels": "two"}),
    ("a_run_is_what_its_config_says", "ranking", {"labels": "classes"}),
    ("a_run_is_what_its_config_says", "ranking", {"labels": "number"}),
    ("another_unit_of_weights_later", "ranking", {"weights": "column"}),
    # rows of weight 0 counted where the loss of a label is divided by the number of rows that have it
    ("weight_zero_is_absence", "ranking", {"labels": "nested", "optimizer": "sgd"}),
    ("more_values_later", "ranking", {"model": "deepfm", "dims": "auto"}),
    # target encoding knew the folds of rows by their places in the files
    ("a_random_column_stays_random", "ranking", {"dense": "target"}),
    # training rows were measured as if no negatives were missing
    ("thinned_negatives", "ranking", {"model": "dlrm", **THINNED}),
    ("thinned_windows", "ranking", {"model": "dlrm", **THINNED}),
    # vocabularies counted negatives that do not train
    ("every_value_trains", "ranking", {"features": "noise", **THINNED}),
    # items that the table of items has, but no row of the item table
    ("figures_or_a_line", "retrieval", {"items": "file", "data.sparse.item.min_count": "12"}),
    ("what_is_ranked_can_be_listed", "retrieval", {"model": "tiger"}),
    # gauc was dropped for a first label of classes
    ("figures_or_a_line", "ranking", {"labels": "mixed", "metrics.gauc": "user"}),
    ("esmm_predicts_clicks_that_buy", "ranking", {"model": "esmm"}),
    ("order_of_lines", "retrieval", {"model": "session_knn"}),
    ("order_of_classes", "ranking", {"labels": "classes", "dense": "target"}),
    # the calibration of the best checkpoint was that of all
    ("calibrated_on_validation", "ranking", {"model": "dlrm", "calibration": "platt", "batches": "small"}),
    # Newton's method took steps that were too long
    ("calibration_mends_what_overfits", "ranking", {"model": "dlrm", "calibration": "platt", "batches": "small"}),
    ("exported_as_it_predicts", "ranking", {"calibration": "isotonic"}),
    # recorded rows had the histories of rows that were not recorded
    ("exported_as_it_predicts", "ranking", {"features": "history", "split": "time"}),
    ("exported_as_it_recommends", "retrieval", {"model": "two_tower", "rows": "history"}),
    ("an_exact_index_changes_nothing", "retrieval", BY_BRAND),
    ("alone_as_among_others", "retrieval", BY_BRAND),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "array", "chosen"), FOUND, ids=[f"{f[0]}-{i}" for i, f in enumerate(FOUND)])
def test_found(name: str, array: str, chosen: dict[str, str], tmp_path: Path) -> None:
    fitted = RELATIONS[name].fitted(complete(array, chosen))
    assert fitted is not None
    RELATIONS[name].check(Case(fitted, tmp_path))


# pipelines

LOG = pl.DataFrame({"user": ["u"] * 4, "item": ["i0", "i1", "i2", "i3"], "buy": [1, 0, 1, 0], "time": [1, 2, 3, 4]})
ITEMS = small_stages.catalogue({"kind": ["a"] * 10})


def left(filter_: Seen, rows: list[dict[str, Any]], user: str) -> set[int]:
    """Return which of ten items a filter leaves for a request that brings its history."""
    events = Events(LOG, "user", "item", "time", 10)
    pipeline = small_stages.recommender(
        ITEMS, {"all": small_stages.Listed(range(10))}, {"seen": filter_}, events=events, time="time"
    )
    [answer] = pipeline.answers([Query(rows, k=10, context={"user": user})])
    return set(answer.items.tolist())


@pytest.mark.parametrize("user", ["u", "new"])
@pytest.mark.parametrize("length", [3, 4])
def test_seen_reads_the_history_of_the_request(user: str, length: int) -> None:
    rows = [{"item": f"i{5 + n}", "buy": n % 2, "time": 10 + n} for n in range(length)]
    given = {5 + n for n in range(length)}
    bought = {5 + n for n in range(length) if n % 2}
    new = {*range(5, 10)}  # what the stored events do not have
    assert left(Seen(where="buy = 1"), rows, user) & new == new - bought
    assert left(Seen(), rows, user) & new == new - given
    assert left(Seen(bloom=1, errors=1e-6), rows, user) & new == new - given


def test_places_behind_the_candidates_are_certain() -> None:
    """Epsilon draws from four candidates: the two places behind them are sure."""
    sources = {"all": small_stages.Listed(range(10))}
    pipeline = small_stages.recommender(ITEMS, sources, order={"explore": Epsilon(0.4, 4)}, k=6)
    [answer] = pipeline.answers([Query([], k=6, context={"user": "new"})])
    assert answer.propensities[:4].min() > 0 and answer.propensities[4:].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("kept", "best"), [(None, "auc"), (0, "logloss")])
def test_where_auc_is_not_defined_the_log_loss_selects_and_stops(kept: int | None, best: str, tmp_path: Path) -> None:
    """Also in silence: each validation was the best one, and none stopped the training."""
    case = Case(complete("ranking", {"model": "lr", "calibration": "isotonic"}), tmp_path)
    validation = case.files["validation"]
    rows = validation if kept is None else validation.with_columns(click=pl.lit(kept))
    small = ["trainer.max_epochs=8", "trainer.validate_every=1", "trainer.early_stopping.patience=2"]
    rates = ["optim.dense.lr=0.5", "optim.sparse.lr=0.5"]
    run = case.train(*small, *rates, files=case.files | {"validation": rows}).run.path
    of_run = pl.read_csv(run / "metrics.csv").drop_nulls("validation/logloss")[:-1]  # the last is the best one's
    values = of_run[f"validation/{best}"] * (-1 if best == "logloss" else 1)
    steps = of_run["step"].to_list()
    found = best_checkpoint(run)
    assert found is not None and int(found.name[-8:]) == steps[values.arg_max() or 0] + 1
    assert len(values) < 8 or values.arg_max() >= 5
    assert ("isotonic" in (run / "calibration.json").read_text()) == (kept is None)
