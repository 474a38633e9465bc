"""Columns whose values imply the label are left out, though they do not predict it in all rows."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.new.find_kinds import columns_of
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
        (np.where(RNG.random(4000) < 0.1, 1, CLICK), "no row with the value 0 is positive"),
        (np.where(RNG.random(4000) < 0.1, RNG.random(4000) < 0.5, CLICK).astype(int), None),  # rows of both kinds
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


def test_a_step_before_the_label_is_left_out() -> None:
    """Without a click there is no purchase."""
    columns, _ = columns_of(pl.DataFrame({"purchase": BOUGHT.astype(int), "click": CLICK.astype(int)}))
    label = label_of(columns[0])
    assert label is not None
    found = leaks(columns, label)
    assert "no row with the value 0 is positive" in found["click"]
    assert "labels: {click: {}, purchase: {only_if: click}}" in found["click"]


def test_a_value_that_is_missing_without_the_label() -> None:
    seconds = pl.Series(np.where(CLICK | (RNG.random(4000) < 0.1), RNG.random(4000), np.nan)).fill_nan(None)
    columns, _ = columns_of(pl.DataFrame({"click": CLICK.astype(int), "seconds": seconds}))
    label = label_of(columns[0])
    assert label is not None and "a missing value" in leaks(columns, label)["seconds"]


def test_a_value_that_is_missing_with_one_class() -> None:
    """Airbnb's date_first_booking is missing exactly if the country is NDF."""
    country = RNG.choice(["NDF", "US", "FR"], 4000, p=[0.6, 0.3, 0.1])
    frame = pl.DataFrame({"country": country, "code": np.char.add("c", country)})
    frame = frame.with_columns(
        booked=pl.when(pl.col("country") != "NDF").then(
            pl.lit("2014-01-0") + (pl.int_range(4000) % 9 + 1).cast(pl.String)
        ),
        age=pl.when(pl.int_range(4000) % 3 > 0).then(pl.int_range(4000) % 71),
        language=pl.when(pl.col("country") == "FR").then(pl.lit("fr")).otherwise(pl.lit("en")),
    )
    columns, _ = columns_of(frame)
    label = label_of(columns[0])
    assert label is not None and label.classes
    found = leaks(columns, label)
    assert set(found) == {"booked", "code"} and "exactly if the label is NDF" in found["booked"]
