"""Tiny data with a known truth: clicks of users on items, and what users did one after another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

USERS, ITEMS, ROWS = 12, 20, 900
NEW_ITEMS = [f"new{i}" for i in range(5)]  # in the table of items alone
MAX_CLICKED = 0.3  # share of rows with a click, about


def clicks(rows: int = ROWS, seed: int = 0, first: int = 0) -> pl.DataFrame:
    """Return rows whose click is drawn from sigmoid(x + a user's part + an item's part - 1); only clicks are bought.

    first: the minute of the first row; three rows share each minute
    """
    r = np.random.default_rng(seed)
    user, item, x = r.integers(0, USERS, rows), r.integers(0, ITEMS, rows), r.normal(size=rows)
    click = (r.random(rows) < 1 / (1 + np.exp(1 - x - 0.5 * (user % 5 - 2) - 0.5 * (item % 3 - 1)))).astype(int)
    noisy = x + r.normal(size=rows) * 0.3
    return pl.DataFrame(
        {
            "user": [f"u{u}" for u in user],
            "item": [f"i{i}" for i in item],
            "noise": [f"n{n}" for n in r.integers(0, rows // 2, rows)],
            "x": x.round(4),
            "click": click,
            "buy": click * (r.random(rows) < 0.3),
            "like": (r.random(rows) < 1 / (1 + np.exp(2 * x))).astype(int),
            "cls": np.select([noisy < -0.5, noisy < 1.0], ["red", "green"], "blue"),
            "num": np.exp(1 + 0.7 * x + r.normal(size=rows) * 0.3).round(3),
            "weight": r.choice([0.5, 1.0, 3.0], rows),
            "kind": [f"k{i % 3}" for i in item],
            "ts": 1_700_000_000 + 60 * (first + np.arange(rows) // 3),
        }
    )


def walks(users: int = 60, seed: int = 0) -> pl.DataFrame:
    """Return rows of users who mostly go from item i to 7i + 3, and whose last rows have equal times now and then."""
    r, rows = np.random.default_rng(seed), []
    for u in range(users):
        item, at = int(r.integers(0, ITEMS)), int(r.integers(0, 1000))
        for _ in range(int(r.integers(4, 9))):
            rows.append((f"u{u}", f"i{item}", at, float(r.choice([0.5, 1.0, 3.0])), f"c{u % 3}"))
            item = (7 * item + 3) % ITEMS if r.random() < 0.6 else int(r.integers(0, ITEMS))
            at += 1 + int(r.integers(0, 100))
    frame = pl.DataFrame(rows, ["user", "item", "ts", "weight", "country"], orient="row")
    return frame.sample(fraction=1, shuffle=True, seed=seed)


def items() -> pl.DataFrame:
    """Return the table of items: those of the rows, and new ones."""
    names = [*(f"i{i}" for i in range(ITEMS)), *NEW_ITEMS]
    return pl.DataFrame({"item": names, "brand": [f"b{i % 4}" for i in range(len(names))]})


def vectors() -> pl.DataFrame:
    """Return a vector of four numbers for each item."""
    r = np.random.default_rng(3)
    return items().select("item").with_columns(vector=pl.Series(r.normal(size=(ITEMS + len(NEW_ITEMS), 4)).tolist()))


def write_sides(folder: Path) -> None:
    items().write_csv(folder / "items.csv")
    vectors().write_parquet(folder / "vectors.parquet")
