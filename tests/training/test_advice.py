"""Lines about metrics that no finished model should have."""

import math
import re
from typing import Any

import numpy as np
import pytest

from recsys.schema.data_schema import GroupConfig, SplitConfig
from recsys.training.advice import (
    below_popularity,
    cut_by,
    sees_the_future,
    still_improving,
    too_few_steps,
    too_good,
    too_weak,
)


def test_metrics_that_are_too_good() -> None:
    assert too_good({"auc": 0.97, "gauc": 0.99}) == (
        "test GAUC 0.990: check that no feature is known only after the label"
    )
    assert too_good({"click/auc": 0.7, "buy/auc": 0.995}) == (
        "test AUC of buy 0.995: check that no feature is known only after the label"
    )
    assert too_good({"auc": 0.9, "accuracy": 0.99}) is None and too_good({"rmse": 1.0}) is None


@pytest.mark.parametrize(("positives", "alarm"), [(4, False), (30, True), (170, True), (196, False)])
def test_few_positives_are_no_alarm(positives: int, alarm: bool) -> None:
    p = positives / 200
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert (too_good({"auc": 1.0, "logloss": 0.3 * entropy, "ne": 0.3, "rows": 200}) is not None) == alarm


@pytest.mark.parametrize(
    ("test", "train", "line"),
    [
        ({"ne": 1.08}, {"steps": 15, "epochs": 1}, "test NE 1.080: .*, after 15 steps only; try trainer=until_best"),
        ({"buy/ne": 1.5, "click/ne": 0.9}, {"steps": 999, "epochs": 1}, "test NE of buy 1.500: .*, after one epoch"),
        ({"ne": 5.3, "logloss": 3.2}, {"steps": 15, "epochs": 1}, "test logloss 3.2 is above 0.69, .* diverged"),
        ({"ne": 2.3, "logloss": 0.69}, {"steps": 1, "epochs": 1}, "after 1 step only; try trainer=until_best"),
        ({"ne": 0.9, "calibration": 0.4}, {"steps": 999, "epochs": 3}, "sum to 0.4 times the labels; try model=gbm"),
        ({"ne": 0.9, "calibration": 2.5}, {}, "predictions sum to 2.5 times the labels; check the label"),
        ({"ne": 0.9, "calibration": 1.9}, {"steps": 15, "epochs": 1}, None),
        ({"ne": math.nan, "calibration": math.nan}, {"steps": 15}, None),
        ({"rmse": 3.0}, {"steps": 15}, None),
        ({"hr@10": 0.0}, {"steps": 15}, None),
    ],
)
def test_models_that_are_too_weak(test: dict[str, Any], train: dict[str, Any], line: str | None) -> None:
    found = too_weak({"test": test, "train": train})
    assert found is None if line is None else re.search(line, str(found)), found


def test_a_short_epoch() -> None:
    assert too_few_steps({"train": {"steps": 1, "epochs": 1}}) == "trained 1 step only: set trainer.max_epochs"
    short = {"train": {"steps": 15, "epochs": 1}}
    assert too_few_steps(short) == "trained 15 steps only: set trainer.max_epochs"
    assert too_few_steps(short | {"validation": {}}) == (
        "trained 15 steps only: trainer=until_best trains until validation no longer improves"
    )
    for train in ({"steps": 15, "epochs": 2}, {"steps": 200, "epochs": 1}, {}):  # {}: fitted at once
        assert too_few_steps({"train": train}) is None


def test_a_model_that_ranks_worse_than_counts() -> None:
    assert below_popularity("test ndcg@20", 0.01807, 0.15247) == (
        "test ndcg@20 0.01807 is below that of the most popular items, 0.15247: the model has not learnt; try other values "
        "of its keys or, if it trains in steps, a higher optim.sparse.lr and optim.dense.lr (lower ones if the loss rose), more epochs "
        "(trainer.max_epochs, trainer.early_stopping.patience), or another loss"
    )
    assert below_popularity("test ndcg@20", 0.14, 0.15) is None  # within the noise of small data
    assert below_popularity("test ndcg@20", 0.0, 0.0) is None


def test_a_training_that_ended_too_early() -> None:
    assert still_improving("validation/ndcg@10", 0.05, 0.052, 20) == (
        "validation/ndcg@10 still improved when the training ended, from 0.05 to 0.052: set trainer.max_epochs=40"
    )
    assert still_improving("validation/logloss", 0.3, 0.29, 2) is not None
    assert still_improving("validation/auc", 0.8, 0.8001, 20) is None


def test_lists_that_are_cut() -> None:
    lengths = np.array([11] * 9 + [101])  # 200 items, of which lists of 11 have 110 and lists of 51 have 150
    assert cut_by(50, lengths) == (
        "data.sequences.max_length=50 leaves out 25% of the training interactions: set data.sequences.max_length=100 "
        "and model.max_length=100, or data.sequences.stride=50, which makes several rows of a long list"
    )
    assert cut_by(80, lengths) is None and cut_by(79, lengths) is not None and cut_by(100, lengths) is None
    assert cut_by(10, np.array([], int)) is None


def test_leave_one_out_sees_the_future_of_other_users() -> None:
    line = sees_the_future(SplitConfig(by="leave_one_out"), GroupConfig(by="user", order="ts"))
    assert line is not None and line.endswith("data.split.by=time data.split.column=ts")
    assert sees_the_future(SplitConfig(by="leave_one_out"), GroupConfig(by="user")) is None  # no time to split by
    assert sees_the_future(SplitConfig(by="time", column="ts"), GroupConfig(by="user", order="ts")) is None
