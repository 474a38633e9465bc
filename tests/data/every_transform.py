"""A config with every transform that there is, over CSV and over Parquet, and raw files for it; for tests."""

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROWS = 3000
FEATURES = """
derive: {hour: "CAST(clock AS BIGINT) % 100", late: "hour > 2", unused: "CAST(y AS BIGINT) + 1"}
dense:
  price: {fill: median, transform: [{clip: [0, 100]}, log, standardise]}
  mean: {column: price, fill: mean, transform: [minmax]}
  bounded: {column: price, fill: 0, transform: [{clip: {quantiles: [0.05, 0.95]}}, standardise]}
  place: {column: price, fill: mean, transform: [quantile]}
  raw_price: {column: price}
  clock: {transform: []}
  user_count: {column: user, transform: [count]}
  user_ctr: {column: user, transform: [{target: {smoothing: 3}}, minmax]}
  at: {column: when, cyclic: [hour, day_of_week, month]}
  weight: {fill: mean, transform: [log]}
sparse:
  user: {min_count: 2}
  user_hash: {column: user, encode: hash, buckets: 50}
  item: {table: things}
  other: {table: things}
  colour: {}
  shop: {}
  bucket: {column: price, quantiles: 7}
  pair: {cross: [user, late, price], encode: hash, buckets: 64}
  couple: {cross: [colour, user]}
  late: {}
  day: {column: when}
  tags: {split: " ", max_length: 3, pooling: mean}
  hashtags: {column: text, pattern: '#\\w+'}
  hashed_tags: {column: tags, split: " ", encode: hash, buckets: 20}
"""
JOINS = """
  joins:
    - {file: items.txt, key: item, columns: {colour: the colour, weight: weight, shop_id: shop}}
    - {file: shops.parquet, key: shop_id, columns: {shop: name}}
"""
CSV = 'source:\n  files: ["f.csv"]\n  rename: {user: the user}' + JOINS + FEATURES
PARQUET = (
    'source:\n  format: parquet\n  files: ["f.parquet"]'
    + JOINS
    + FEATURES
    + """
  small: {}
  flag: {}
  kind: {}
  born: {}
  labels: {split: "|"}
  floats: {split: "|"}
"""
)


def write_csv(folder: Path) -> None:
    sides(folder)
    raw = columns()
    raw["the user"] = raw.pop("user")
    pl.DataFrame(raw, strict=False).write_csv(folder / "f.csv")


def write_parquet(folder: Path) -> None:
    """Types of all sorts."""
    sides(folder)
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(columns(), strict=False).with_columns(
        pl.col("when").cast(pl.String).str.to_datetime(strict=False).dt.replace_time_zone("UTC"),
        pl.col("item").cast(pl.Int64),
        small=pl.Series(some(rng, rng.integers(-128, 128, ROWS)), dtype=pl.Int8),
        flag=pl.Series(some(rng, rng.integers(0, 2, ROWS) == 1), dtype=pl.Boolean),
        kind=pl.Series(some(rng, rng.choice(["p", "q"], ROWS)), dtype=pl.Categorical),
        born=pl.Series([date(2000, 1, 1) + timedelta(int(d)) for d in rng.integers(0, 50, ROWS)]),
        labels=pl.Series([[int(i) for i in rng.integers(0, 9, n)] for n in rng.integers(0, 4, ROWS)]),
        floats=pl.Series([[float(i), None] for i in rng.integers(0, 5, ROWS)], dtype=pl.List(pl.Float64)),
    )
    nan = pl.when(pl.int_range(ROWS) % 13 == 0).then(float("nan")).otherwise(pl.col("price"))
    frame.with_columns(nan.alias("price")).write_parquet(folder / "f.parquet")


def sides(folder: Path) -> None:
    folder.mkdir()
    lines = ["item,the colour,weight,shop", *(f"{i},c{i % 4},{i * 1.5},{i % 3}" for i in range(20)), '21,,"",']
    (folder / "items.txt").write_text("\n".join(lines) + "\n")
    pl.DataFrame({"shop_id": [0, 1], "name": ["corner", "mall"]}).write_parquet(folder / "shops.parquet")


def columns() -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    start = datetime(2024, 1, 1)
    words = np.array(["a", "b", "c", "dé", "日本", "#x", "#yz"])
    said = [" ".join(rng.choice(words, n)) or None for n in rng.integers(0, 6, ROWS)]
    return {
        "y": rng.integers(0, 2, ROWS).tolist(),
        "price": some(rng, (rng.normal(20, 30, ROWS)).round(3)),
        "clock": some(rng, rng.integers(24010100, 24010124, ROWS)),
        "when": some(rng, [start + timedelta(minutes=int(m)) for m in rng.integers(0, 500_000, ROWS)]),
        "user": some(rng, [f"{u}" for u in rng.zipf(1.5, ROWS) % 400]),
        "item": some(rng, rng.integers(0, 25, ROWS)),
        "other": some(rng, [f"{i}" for i in rng.integers(0, 30, ROWS)]),
        "text": said,
        "tags": said[::-1],
    }


def some(rng: np.random.Generator, values: Any) -> list[Any]:
    """Each twentieth or so missing."""
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    return [None if r < 0.05 else v for v, r in zip(listed, rng.random(ROWS), strict=True)]
