"""The built-in sample for retrieval: users who choose items one after another, by a known rule.

There are ITEMS items of ITEM_KINDS kinds, with Zipf-distributed popularity. A user likes LIKED kinds, drawn by
popularity. After item i, a user chooses one of i's FOLLOWERS with probability FOLLOW_PROBABILITY. Followers are drawn
once, by popularity, most of them from i's kind; followers drawn earlier are chosen more often. Otherwise, the user
chooses an item of a liked kind, by popularity. Nobody chooses an item twice. The number of items of a user is geometric
with mean MEAN_LENGTH, and at least MIN_LENGTH.

So popularity predicts the next item a little, the items chosen together better (kinds), and the last item best.
"""

from pathlib import Path

import numpy as np
import polars as pl

from recsys.data.samples.draws import Ints, Progress, names, zipf

ITEMS, ITEM_KINDS, LIKED, FOLLOWERS = 200, 20, 3, 3
ZIPF = 0.6
SAME_KIND = 0.7  # the share of an item's followers that have its kind
FOLLOW_PROBABILITY = 0.8
MEAN_LENGTH, MIN_LENGTH = 15, 5
TRIES = 20  # draws to find an item that a user has not chosen yet


class World:
    """The rule, which is the same for all users: kinds (ITEMS,), popularity (ITEMS,), followers (ITEMS, FOLLOWERS)."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.popularity = zipf(rng, ITEMS, ZIPF)
        self.kinds = rng.permutation(np.arange(ITEMS) % ITEM_KINDS)
        self.members = [np.flatnonzero(self.kinds == kind) for kind in range(ITEM_KINDS)]
        self.taste = np.array([self.popularity[m].sum() for m in self.members])
        followers = []
        for item in range(ITEMS):
            alike = np.where(self.kinds == self.kinds[item], self.popularity, 0.0)
            weights = SAME_KIND * alike / alike.sum() + (1 - SAME_KIND) * self.popularity
            weights[item] = 0
            followers.append(rng.choice(ITEMS, FOLLOWERS, replace=False, p=weights / weights.sum()))
        self.followers = np.stack(followers)
        self.price = np.round(np.exp(rng.normal(2 + self.kinds / ITEM_KINDS, 0.5)), 2)

    def next(self, rng: np.random.Generator, item: Ints, liked: Ints) -> Ints:
        """Draw the items (U,) that users choose after `item` (U,). liked: their kinds, (U, LIKED)."""
        rank = np.minimum(rng.geometric(0.5, len(item)) - 1, FOLLOWERS - 1)
        return np.where(
            rng.random(len(item)) < FOLLOW_PROBABILITY, self.followers[item, rank], self.by_taste(rng, liked)
        )

    def by_taste(self, rng: np.random.Generator, liked: Ints) -> Ints:
        """Draw an item of one of each user's kinds: (U, LIKED) -> (U,)."""
        kind = liked[np.arange(len(liked)), rng.integers(0, LIKED, len(liked))]
        items = np.zeros(len(liked), np.int64)
        for k in range(ITEM_KINDS):
            mine, p = kind == k, self.popularity[self.members[k]]
            items[mine] = rng.choice(self.members[k], mine.sum(), p=p / p.sum())
        return items


def write_sample(folder: Path, *, rows: int, seed: int, progress: Progress = lambda _: None) -> None:
    """Write `log.csv` (user,item,time), of `rows` rows, and `items.csv` (item,kind,price) to `folder`.

    The same seed gives the same bytes. `progress` is called with the number of rows written so far.
    """
    world, rng = World(seed), np.random.default_rng([seed, 1])
    users = rows // MIN_LENGTH + 1  # enough even if all of them choose only MIN_LENGTH items
    lengths = MIN_LENGTH - 1 + rng.geometric(1 / (MEAN_LENGTH - MIN_LENGTH + 1), users).clip(max=ITEMS // 2)
    users = int(np.searchsorted(lengths.cumsum(), rows)) + 1
    lengths = lengths[:users]
    likings = np.log(world.taste) + rng.gumbel(size=(users, ITEM_KINDS))  # taking the largest draws without replacement
    liked = np.argsort(-likings, axis=1)[:, :LIKED]
    chosen = np.zeros((users, lengths.max()), np.int64)
    chosen[:, 0] = world.by_taste(rng, liked)
    already_chosen = np.zeros((users, ITEMS), bool)
    for t in range(1, chosen.shape[1]):
        longer = np.flatnonzero(lengths > t)
        already_chosen[longer, chosen[longer, t - 1]] = True
        left = longer
        for _ in range(TRIES):
            chosen[left, t] = world.next(rng, chosen[left, t - 1], liked[left])
            left = left[already_chosen[left, chosen[left, t]]]
        chosen[left, t] = np.argmin(already_chosen[left], axis=1)
    user = np.repeat(np.arange(users), lengths)
    place = np.arange(len(user)) - np.repeat(lengths.cumsum() - lengths, lengths)
    start = rng.integers(1_600_000_000, 1_700_000_000, users)
    log = pl.DataFrame({"user": user, "item": chosen[user, place], "time": start[user] + 60 * place}).head(rows)
    log.with_columns(names("user", "item")).write_csv(folder / "log.csv")
    items = pl.DataFrame({"item": np.arange(ITEMS), "kind": world.kinds, "price": world.price})
    items.with_columns(names("item", "kind")).write_csv(folder / "items.csv")
    progress(rows)
