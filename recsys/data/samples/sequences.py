"""The built-in sample for retrieval: users who choose items one after another, by a known rule.

ITEMS items lie in KINDS kinds, and each has a popularity, Zipf's. A user likes LIKED kinds, drawn by their popularity.
After item i a user goes on with probability GOES_ON: to one of i's FOLLOWERS, which are drawn once, by popularity, most
of them of i's kind, and are the likelier the earlier they were drawn. Else he takes an item of a kind that he likes,
by popularity. Nobody chooses an item twice; how long users stay is geometric, of MEAN_LENGTH items and MIN_LENGTH or
more.

So what most choose says little, what is chosen together more (kinds), and most is said by what was chosen last.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

ITEMS, KINDS, LIKED, FOLLOWERS = 200, 20, 3, 3
ZIPF = 0.6
SAME_KIND = 0.7  # of an item's followers
GOES_ON = 0.8
MEAN_LENGTH, MIN_LENGTH = 15, 5
TRIES = 20  # to find an item that a user has not had

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class World:
    """What is the same for all users: kinds (ITEMS,), popularity (ITEMS,) and followers (ITEMS, FOLLOWERS)."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        popularity = np.arange(1, ITEMS + 1) ** -ZIPF
        self.popularity = rng.permutation(popularity / popularity.sum())
        self.kinds = rng.permutation(np.arange(ITEMS) % KINDS)
        self.members = [np.flatnonzero(self.kinds == kind) for kind in range(KINDS)]
        self.taste = np.array([self.popularity[m].sum() for m in self.members])
        self.followers = np.stack([self._followers(rng, item) for item in range(ITEMS)])
        self.price = np.round(np.exp(rng.normal(2 + self.kinds / KINDS, 0.5)), 2)

    def _followers(self, rng: np.random.Generator, item: int) -> Ints:
        alike = np.where(self.kinds == self.kinds[item], self.popularity, 0.0)
        weights = SAME_KIND * alike / alike.sum() + (1 - SAME_KIND) * self.popularity
        weights[item] = 0
        return rng.choice(ITEMS, FOLLOWERS, replace=False, p=weights / weights.sum())

    def next(self, rng: np.random.Generator, item: Ints, liked: Ints) -> Ints:
        """(U,) what users choose after these items; liked (U, LIKED)."""
        rank = np.minimum(rng.geometric(0.5, len(item)) - 1, FOLLOWERS - 1)
        return np.where(rng.random(len(item)) < GOES_ON, self.followers[item, rank], self.by_taste(rng, liked))

    def by_taste(self, rng: np.random.Generator, liked: Ints) -> Ints:
        """(U,) an item of one of each user's kinds."""
        kind = liked[np.arange(len(liked)), rng.integers(0, LIKED, len(liked))]
        found = np.zeros(len(liked), np.int64)
        for k in range(KINDS):
            mine, p = kind == k, self.popularity[self.members[k]]
            found[mine] = rng.choice(self.members[k], mine.sum(), p=p / p.sum())
        return found


def write_sample(folder: Path, *, rows: int, seed: int, progress: Callable[[int], None] | None = None) -> None:
    """Write `log.csv` (user,item,time), of `rows` rows, and `items.csv` (item,kind,price) to `folder`.

    The same seed gives the same bytes. `progress` gets the number of rows written so far.
    """
    world, rng = World(seed), np.random.default_rng([seed, 1])
    users = rows // MIN_LENGTH + 1  # enough, however soon they leave
    lengths = MIN_LENGTH - 1 + rng.geometric(1 / (MEAN_LENGTH - MIN_LENGTH + 1), users).clip(max=ITEMS // 2)
    users = int(np.searchsorted(lengths.cumsum(), rows)) + 1
    lengths = lengths[:users]
    likings = np.log(world.taste) + rng.gumbel(size=(users, KINDS))  # the greatest are drawn without replacement
    liked = np.argsort(-likings, axis=1)[:, :LIKED]
    chosen = np.zeros((users, lengths.max()), np.int64)
    chosen[:, 0] = world.by_taste(rng, liked)
    had = np.zeros((users, ITEMS), bool)
    for t in range(1, chosen.shape[1]):
        there = np.flatnonzero(lengths > t)
        had[there, chosen[there, t - 1]] = True
        left = there
        for _ in range(TRIES):
            chosen[left, t] = world.next(rng, chosen[left, t - 1], liked[left])
            left = left[had[left, chosen[left, t]]]
        chosen[left, t] = np.argmin(had[left], axis=1)
    user = np.repeat(np.arange(users), lengths)
    place = np.arange(len(user)) - np.repeat(lengths.cumsum() - lengths, lengths)
    start = rng.integers(1_600_000_000, 1_700_000_000, users)
    log = pl.DataFrame({"user": user, "item": chosen[user, place], "time": start[user] + 60 * place}).head(rows)
    log = log.with_columns(pl.format("u{}", "user").alias("user"), pl.format("i{}", "item").alias("item"))
    log.write_csv(folder / "log.csv")
    items = {"item": [f"i{i}" for i in range(ITEMS)], "kind": [f"k{k}" for k in world.kinds], "price": world.price}
    pl.DataFrame(items).write_csv(folder / "items.csv")
    if progress is not None:
        progress(rows)
