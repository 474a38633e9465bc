"""Columns whose values imply the label are left out, though they do not predict it in all rows."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.new.columns import columns_of
from recsys.new.label import label_of
from recsys.new.leaks import leaks

RNG = np.random.default_rng(0)
CLICK = RNG.random(4000) < 0.2
BOUGHT = CLICK & (RNG.random(4000) < 0.3)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (BOUGHT.astype(int), "1 implies the label"),
        (np.where(BOUGHT, "yes", "no"), "yes implies the label"),
        ([f"{7.5 * i % 97:.2f}" if b else None for i, b in enumerate(BOUGHT)], "not missing implies"),
        (np.where(BOUGHT, RNG.lognormal(size=4000), 0.0), "other than 0.0 implies"),
        (np.where(BOUGHT, "paid", RNG.choice(["a", "b", "c"], 4000)), "the value paid implies"),
        (RNG.choice(["a", "b"], 4000), None),  # says nothing
        (np.where(RNG.random(4000) < 0.5, CLICK, 0), "1 implies the label"),
        (np.where(RNG.random(4000) < 0.1, 1, CLICK), None),  # a good feature: each value has rows of both kinds
    ],
)
def test_values_that_imply_the_label(values: Any, what: str | None) -> None:
    columns, _ = columns_of(pl.DataFrame({"click": CLICK.astype(int), "purchase": values}))
    label = label_of(columns[0])
    assert label is not None
    found = leaks(columns, label)
    assert set(found) == ({"purchase"} if what else set())
    if what:
        assert what in found["purchase"]


def test_a_good_category_is_no_leak() -> None:
    """A smell that only poisonous mushrooms have is known before the label."""
    poisonous = np.arange(2000) % 2
    smell = np.where((poisonous == 1) & (RNG.random(2000) < 0.5), "foul", RNG.choice(["none", "anise"], 2000))
    columns, _ = columns_of(pl.DataFrame({"label": poisonous, "smell": smell}))
    label = label_of(columns[0])
    assert label is not None and not leaks(columns, label)


def test_a_few_rows_are_chance() -> None:
    clicked = np.array([1] * 20 + [1, 1, 0, 0] * 100)
    columns, _ = columns_of(pl.DataFrame({"click": clicked, "x": [1] * 20 + [0] * 400}))
    label = label_of(columns[0])
    assert label is not None and label.share < 0.6 and not leaks(columns, label)


def test_a_second_label_is_suggested() -> None:
    columns, _ = columns_of(pl.DataFrame({"click": CLICK.astype(int), "purchase": BOUGHT.astype(int)}))
    label = label_of(columns[0])
    assert label is not None
    assert "labels: {click: {}, purchase: {only_if: click}}" in leaks(columns, label)["purchase"]
