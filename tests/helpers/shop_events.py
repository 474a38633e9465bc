"""Events of a shop, and the views that aggregate them."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.store.request_features import values_at
from recsys.store.stores import FeatureStore
from recsys.store.views import View

START = datetime(2026, 1, 1)
HOUR, DAYS = 3600, 86_400
YAML = """
clicks:
  files: "events-*.parquet"
  key: user
  time: at
  columns: [country]
  aggregates:
    clicks_1h: {count: "*", window: 1h}
    priced_1d: {count: price, window: 1d}
    spent_7d: {sum: price, window: 7d}
    price_30d: {mean: price, window: 30d}
    cheapest: {min: price, window: 1d}
    dearest: {max: price, window: 1d}
    shops_7d: {distinct: shop, window: 7d}
    last_shop: {last: shop}
    history: {last: item, number: 5}
    today: {last: item, number: 20, window: 1d}
"""


def events(rows: int, seed: int = 0, users: int = 25) -> pl.DataFrame:
    """Events of 40 days, many of them at the same times, with missing values."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, 40 * 24 * 4, rows)) * 900
    price = pl.Series(rng.integers(1, 5000, rows) / 4).scatter(rng.choice(rows, rows // 10, replace=False), None)
    return pl.DataFrame(
        {
            "user": [f"u{u}" for u in rng.integers(0, users, rows)],
            "at": [START + timedelta(seconds=int(t)) for t in at],
            "country": [f"c{c}" for c in rng.integers(0, 4, rows)],
            "price": price,
            "shop": [None if s == 9 else f"s{s}" for s in rng.integers(0, 10, rows)],
            "item": rng.integers(0, 500, rows),
        }
    )


def same(a: Any, b: Any) -> bool:
    return a == pytest.approx(b, rel=1e-9) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


def everything(view: View, store: FeatureStore, now: datetime) -> dict[str, Any]:
    users = [f"u{i}" for i in range(40)]
    return values_at(view, store, users, now.timestamp() - datetime(1970, 1, 1).timestamp())
