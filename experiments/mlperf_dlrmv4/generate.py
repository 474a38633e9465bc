"""Write rows in the layout of Yambda (https://huggingface.co/datasets/yandex/yambda), drawn from a teacher.

    python experiments/mlperf_dlrmv4/generate.py DIR [users=300] [days=12] [seed=0]

DIR/multi_event.parquet has all rows, sorted by user and time, as Yambda has them; DIR/days/day=NNN/rows.parquet has
the same rows by day, for recsys.follow. DIR and DIR/days have artists.parquet and albums.parquet, with one row of an
item.

Whether a user listens to the end depends on how well the item's vector fits his own, on the item, and on how often he
has lately listened to its artist; the best AUC that a model could reach is printed.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

ITEMS, WIDTH, DAY = 3000, 8, 86_400
LISTENS_A_DAY, CANDIDATES, LIKES, ORGANIC = 8, 6, 0.05, 0.6


def auc(probability: np.ndarray, label: np.ndarray) -> float:
    """Return the area under the ROC curve of probabilities (N,) without ties."""
    rank = np.empty(len(label))
    rank[np.argsort(probability)] = np.arange(1, len(label) + 1)
    positives = int(label.sum())
    return float((rank[label].sum() - positives * (positives + 1) / 2) / (positives * (len(label) - positives)))


def rows_of(users: int, days: int, random: np.random.Generator, artist: np.ndarray) -> tuple[pl.DataFrame, float]:
    """Return the events of all users, and the AUC of the teacher's probabilities."""
    item_vectors = random.normal(size=(ITEMS, WIDTH)) / WIDTH**0.25
    item_bias, popularity = random.normal(size=ITEMS) * 0.7, random.zipf(1.3, ITEMS).clip(max=1000).astype(float)
    popularity /= popularity.sum()
    parts, probabilities, labels = [], [], []
    for user in range(1, users + 1):
        number = max(int(random.poisson(LISTENS_A_DAY * days)), 1)
        taste = random.normal(size=WIDTH) / WIDTH**0.25
        seen = random.choice(ITEMS, size=(number, CANDIDATES), p=popularity)
        liking = item_vectors[seen] @ taste + random.gumbel(size=seen.shape)
        item = seen[np.arange(number), liking.argmax(1)]
        recent = np.array([(artist[item[max(t - 20, 0) : t]] == artist[item[t]]).sum() for t in range(number)])
        logit = 1.5 * item_vectors[item] @ taste + item_bias[item] + 0.4 * np.minimum(recent, 3) - 0.5
        probability = 1 / (1 + np.exp(-logit))
        listens = random.random(number) < probability
        played = np.where(listens, random.integers(50, 101, number), random.integers(0, 50, number))
        time = np.sort(random.integers(0, days * DAY // 5, number)) * 5
        likes = np.flatnonzero(listens & (random.random(number) < LIKES))
        organic = (random.random(number) < ORGANIC).astype(np.uint8)
        columns = {
            "uid": np.full(number + len(likes), user, np.uint32),
            "timestamp": np.append(time, time[likes]).astype(np.uint32),
            "item_id": np.append(item, item[likes]).astype(np.uint32) + 1,
            "is_organic": np.append(organic, organic[likes]),
            "event_type": ["listen"] * number + ["like"] * len(likes),
            "played_ratio_pct": [*played.tolist(), *[None] * len(likes)],
            "track_length_seconds": [*random.integers(60, 400, number).tolist(), *[None] * len(likes)],
        }
        types = {"played_ratio_pct": pl.UInt16, "track_length_seconds": pl.UInt32}
        parts.append(pl.DataFrame(columns, schema_overrides=types).sort("timestamp", maintain_order=True))
        probabilities.append(probability)
        labels.append(listens)
    return pl.concat(parts), auc(np.concatenate(probabilities), np.concatenate(labels))


def write(folder: Path, users: int = 300, days: int = 12, seed: int = 0) -> float:
    """Write the files, and return the AUC of the teacher's probabilities."""
    random = np.random.default_rng(seed)
    artist = random.integers(1, ITEMS // 10, ITEMS)
    rows, best = rows_of(users, days, random, artist)
    by_day = folder / "days"
    by_day.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(folder / "multi_event.parquet")
    for (day,), part in rows.group_by(pl.col("timestamp") // DAY, maintain_order=True):
        (by_day / f"day={day:03d}").mkdir(exist_ok=True)
        part.write_parquet(by_day / f"day={day:03d}" / "rows.parquet")
    items = pl.Series("item_id", np.arange(1, ITEMS + 1), pl.UInt32)
    for name, values in (("artist", artist), ("album", random.integers(1, ITEMS // 3, ITEMS))):
        for place in (folder, by_day):
            pl.DataFrame([items, pl.Series(f"{name}_id", values, pl.UInt32)]).write_parquet(place / f"{name}s.parquet")
    return best


if __name__ == "__main__":
    target = Path(sys.argv[1])
    numbers = {key: int(value) for key, _, value in (a.partition("=") for a in sys.argv[2:])}
    print(f"wrote {target}; the teacher's AUC is {write(target, **numbers):.4f}")
