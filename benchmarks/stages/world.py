"""python benchmarks/stages/world.py DIR [ITEMS]: a pipeline of a million items, whose models are trained on clicks.

Writes a log of 20,000 users' clicks on ITEMS items (each item at least once), items with a kind, a brand, a price and
a stock, users with an age and a country; trains a two-tower model (64 numbers a vector) and a DLRM on it; exports them,
with an index; and writes the users' features to SQLite. run.py measures the result.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl

USERS, KINDS, BRANDS, LIKED, NOW = 20_000, 1_000, 20_000, 3, 1_600_000_000
RETRIEVAL = """
name: million
source:
  format: parquet
  files: [clicks.parquet]
  joins:
    - {file: people.parquet, key: user, columns: {age: age, country: country}}
    - {file: items.parquet, key: item, columns: {kind: kind}}
group: {by: user, order: time}
sequences: {max_length: 20, stride: 4}
split: {by: hash, column: user, validation: 0.002, test: 0.002}
items:
  feature: item
  file: items.parquet
  key: item
  dense: {price: {transform: [log, standardise]}}
  sparse: {kind: {}, brand: {}}
sparse:
  item: {min_count: 0}
  kind: {}
  country: {per: group}
  age: {per: group, quantiles: 10}
"""
RANKING = """
name: million_shown
source:
  format: parquet
  files: [shown.parquet]
label: {column: click}
split: {by: order, validation: 0.02, test: 0.02}
dense: {age: {transform: [standardise]}, price: {transform: [log, standardise]}}
sparse: {user: {}, item: {}, country: {}, device: {}, kind: {}, brand: {}}
"""
PIPELINE = """
defaults: [pipeline_schema, merge: rrf, order: mmr, _self_]
name: million
root: ???
time: time
context: [device, budget]
k: 20
candidates: 500
history: 20
events: {file: data/clicks.parquet}
items: {file: data/items.parquet}
features: {definition: features.yaml, store: "sqlite:///features.db"}
sources: {two_tower: {_target_: recsys.stages.sources.Model, run: two_tower, k: 500}}
filters:
  stock: {_target_: recsys.stages.filters.Where, sql: "item.stock > 0 and item.price <= context.budget"}
score: {_target_: recsys.stages.score.Ranking, run: ranker, unknown: 0.5}
order: {mmr: {relevance: 0.8, vectors: two_tower}}
"""
FEATURES = """
users: {files: [data/users.parquet], key: user, time: time, columns: [age, country]}
"""


def write_data(folder: Path, items: int, rng: np.random.Generator) -> None:
    """Write items, users, clicks (twice as many as items), and shown items, of which half were clicked."""
    kind = rng.permutation(np.arange(items) % KINDS)
    brand = kind * (BRANDS // KINDS) + rng.integers(0, BRANDS // KINDS, items)
    price = np.round(np.exp(rng.normal(3, 0.8, items) + 0.3 * np.sin(kind)), 2)
    table = {"item": np.arange(items), "kind": kind, "brand": brand, "price": price,
             "stock": (rng.random(items) < 0.9).astype(int)}  # fmt: skip
    pl.DataFrame(table).with_columns(pl.format("k{}", "kind").alias("kind")).write_parquet(folder / "items.parquet")
    liked = rng.integers(0, KINDS, (USERS, LIKED))
    age, country = rng.integers(18, 71, USERS), rng.integers(0, 30, USERS)
    users = {"user": np.arange(USERS), "time": np.full(USERS, NOW), "age": age, "country": country}
    pl.DataFrame(users).with_columns(pl.col("user").cast(pl.String)).write_parquet(folder / "users.parquet")
    pl.DataFrame(users).drop("time").write_parquet(folder / "people.parquet")
    fans = np.argsort(liked.ravel(), kind="stable")  # places (user, like) by kind
    starts = np.searchsorted(liked.ravel()[fans], np.arange(KINDS + 1))
    every = np.arange(items)
    picks = starts[kind] + (rng.random(items) * (starts[kind + 1] - starts[kind])).astype(int)
    first = fans[np.minimum(picks, len(fans) - 1)] // LIKED  # somebody who likes the item's kind
    by_kind = np.argsort(kind, kind="stable")
    of_kind = np.searchsorted(kind[by_kind], np.arange(KINDS + 1))
    user = rng.integers(0, USERS, items)
    wanted = liked[user, rng.integers(0, LIKED, items)]
    rank = (rng.random(items) ** 3 * (of_kind[wanted + 1] - of_kind[wanted])).astype(int)  # few items are popular
    more = by_kind[of_kind[wanted] + rank]
    user, item = np.concatenate([first, user]), np.concatenate([every, more])
    order = rng.permutation(len(user))
    user, item = user[order], item[order]
    clicks = pl.DataFrame({"user": user, "item": item, "time": NOW - len(user) + np.arange(len(user))})
    clicks.write_parquet(folder / "clicks.parquet")
    other = rng.integers(0, items, len(item))
    shown_item = np.where(rng.random(len(item)) < 0.5, item, other)
    shown = {
        "user": user, "item": shown_item, "click": (shown_item == item).astype(int), "age": age[user],
        "country": country[user], "device": rng.integers(0, 3, len(user)), "price": price[shown_item],
        "kind": kind[shown_item], "brand": brand[shown_item],
    }  # fmt: skip
    pl.DataFrame(shown).with_columns(pl.format("k{}", "kind").alias("kind")).write_parquet(folder / "shown.parquet")


def call(command: str, folder: Path, made: str) -> None:
    """Run a command of recsys in the folder, unless what it makes is there."""
    if not (folder / made).exists():
        print(f"$ python -m recsys.{command}", flush=True)
        subprocess.run([sys.executable, "-m", *f"recsys.{command}".split()], cwd=folder, check=True)


def main() -> None:
    folder, items = Path(sys.argv[1]).resolve(), int((sys.argv[2:] or ["1000000"])[0])
    (folder / "conf" / "data").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "data" / "million.yaml").write_text(RETRIEVAL)
    (folder / "conf" / "data" / "million_shown.yaml").write_text(RANKING)
    (folder / "pipeline.yaml").write_text(PIPELINE.lstrip())
    (folder / "features.yaml").write_text(FEATURES.lstrip())
    data = folder / "data"
    data.mkdir(exist_ok=True)
    if not (data / "shown.parquet").exists():
        write_data(data, items, np.random.default_rng(0))
    fused = "optim.sparse.name=rowwise_adagrad optim.sparse.lr=0.05"  # FBGEMM fuses no Adam on CPU
    short = f"{fused} trainer.max_epochs=2 trainer.batch_size=1024 protocol.lists=[]"
    call(
        f"train model=two_tower data=million data.root=data {short} run_dir=runs/two_tower",
        folder,
        "runs/two_tower/metrics.json",
    )
    call(
        "train model=dlrm data=million_shown data.root=data trainer.max_epochs=1 run_dir=runs/ranker",
        folder,
        "runs/ranker/metrics.json",
    )
    call("export run=runs/two_tower output=two_tower index=auto recall_target=0.98", folder, "two_tower")
    call("export run=runs/ranker output=ranker", folder, "ranker")
    call("feature_store materialise definition=features.yaml store=sqlite:///features.db", folder, "features.db")


if __name__ == "__main__":
    main()
