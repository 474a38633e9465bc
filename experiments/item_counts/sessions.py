"""Generate sessions of a shop with any number of items: train.csv, validation.csv, test.csv (session,item,time).

    python sessions.py ITEMS SESSIONS FOLDER

Items have Zipf-distributed popularity and belong to kinds of KIND items. After item i, a session goes on with one of
i's FOLLOWERS (of the same kind; earlier ones more often) with probability FOLLOW, otherwise with an item of the same
kind with probability SAME_KIND, otherwise with any item; both by popularity. Lengths are at least 2, and 5 on average.
HELD_OUT further sessions validate, and as many test.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

KIND, FOLLOWERS, FOLLOW, SAME_KIND = 50, 8, 0.7, 0.7
ZIPF, MEAN_LENGTH, MOST = 0.8, 5, 30
HELD_OUT = 3_000


def main(items: int, sessions: int, folder: Path) -> None:
    """Write the three files for this number of items and training sessions."""
    rng = np.random.default_rng(0)
    weight = rng.permutation(np.arange(1, items + 1) ** -ZIPF)
    cumulative = np.append(0.0, weight.cumsum())  # item i belongs to kind i // KIND
    first = np.arange(items) // KIND * KIND
    last = np.minimum(first + KIND, items)

    def draw(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Draw an item of each range low ... high - 1 by popularity."""
        point = cumulative[low] + rng.random(len(low)) * (cumulative[high] - cumulative[low])
        return np.clip(np.searchsorted(cumulative, point, side="right") - 1, low, high - 1)

    followers = np.stack([draw(first, last) for _ in range(FOLLOWERS)], 1)
    total = sessions + 2 * HELD_OUT
    lengths = np.minimum(1 + rng.geometric(1 / (MEAN_LENGTH - 1), total), MOST)
    everything = np.zeros(total, np.int64), np.full(total, items)
    chosen = np.zeros((total, MOST), np.int64)
    chosen[:, 0] = draw(*everything)
    for t in range(1, MOST):
        now = chosen[:, t - 1]
        rank = np.minimum(rng.geometric(0.4, total) - 1, FOLLOWERS - 1)
        kind = rng.random(total) < SAME_KIND
        other = draw(np.where(kind, first[now], everything[0]), np.where(kind, last[now], everything[1]))
        chosen[:, t] = np.where(rng.random(total) < FOLLOW, followers[now, rank], other)
    folder.mkdir(parents=True, exist_ok=True)
    bounds = {"train": (0, sessions), "validation": (sessions, total - HELD_OUT), "test": (total - HELD_OUT, total)}
    for name, (start, stop) in bounds.items():
        session = np.repeat(np.arange(start, stop), lengths[start:stop])
        place = np.arange(len(session)) - np.repeat(
            lengths[start:stop].cumsum() - lengths[start:stop], lengths[start:stop]
        )
        pl.DataFrame({"session": session, "item": chosen[session, place], "time": place}).write_csv(
            folder / f"{name}.csv"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
