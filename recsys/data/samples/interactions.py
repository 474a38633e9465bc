"""The built-in sample of users and items: rows in time order, whose click, buy and rating a known teacher draws.

There are USERS users with a country and an age, and ITEMS items with a kind and a price. A row shows an item to a user
on a device. Users are Zipf-distributed. The item is of one of the user's LIKED kinds with probability ON_TASTE, else
any item; both are drawn by popularity.

The teacher. With u the user, i the item, and z numbers of mean 0 and standard deviation 1,

    logit(click) = bias + taste[country_u, kind_i] + user_u + item_i + device + price + recent
    logit(buy)   = bias + taste'[country_u, kind_i] + user_u + price'         only after a click; otherwise buy is 0
    P(rating > k) = sigmoid(taste''[country_u, kind_i] + user_u + 2 item_i - CUTS[k])              k = 1, 2, 3, 4

    price  = SLOPE z(age_u) z(ln price_i)         older users prefer higher prices
    price' = -SLOPE[device] z(ln price_i)         a slope for each device
    recent = RECENT z(share of the last LAST items shown to u that have the kind of i)

Every row has a rating, from 1 to 5: the one that the user would give the item, clicked or not. The biases make the
shares of clicks, and of buys among clicks, about CLICK_RATE and BUY_RATE. Expectations follow from the row and the
user's earlier rows alone, so no model can have a better expected AUC, log loss or root mean squared error than
    P(click), P(buy | click), and E[rating] = 1 + sum_k P(rating > k).
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from recsys.data.samples.draws import Floats, Ints, Progress, names, sigmoid, zipf

BLOCK = 50_000  # rows drawn at a time, always whole blocks, so that a larger sample begins with the smaller one
USERS, ITEMS, CATEGORIES, COUNTRIES, LIKED = 1000, 300, 15, 8, 3
DEVICES = ("phone", "tablet", "desktop")
ZIPF = 0.6
ON_TASTE = 0.5
CLICK_RATE, BUY_RATE = 0.25, 0.3
TASTE, USER, ITEM, DEVICE, SLOPE, RECENT = 1.0, 0.3, 0.5, 0.3, 0.5, 0.6  # standard deviations in logits
LAST = 10
CUTS = (-3.0, -1.5, 0.0, 1.5)
START, MAX_SECONDS = 1_600_000_000, 120  # of the first row, and between two rows


class Shown(NamedTuple):
    """The inputs of n rows: user, item and device, and the seconds since the row before, (n,) each."""

    user: Ints
    item: Ints
    device: Ints
    seconds: Ints


class Expected(NamedTuple):
    """The probabilities of n rows by the teacher, (n,) each: P(click), P(buy | click), and P(rating > k) as (n, 4)."""

    click: Floats
    buy: Floats
    rating_above: Floats

    @property
    def rating(self) -> Floats:
        """E[rating]."""
        return 1 + self.rating_above.sum(1)


class InteractionTeacher:
    """The users, the items and the teacher of one seed; the module's docstring has the formulas."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.country, self.kind = (
            rng.integers(0, COUNTRIES, USERS),
            rng.permutation(np.arange(ITEMS) % CATEGORIES),
        )
        self.age = rng.integers(18, 71, USERS)
        self.price = np.round(np.exp(rng.normal(3, 0.8, ITEMS)), 2)
        self._activity, self._popularity = zipf(rng, USERS, ZIPF), zipf(rng, ITEMS, ZIPF)
        self._liked = rng.permuted(np.tile(np.arange(CATEGORIES), (USERS, 1)), axis=1)[:, :LIKED]
        self._taste = TASTE * rng.standard_normal((3, COUNTRIES, CATEGORIES)) * np.array([1, 0.7, 1])[:, None, None]
        self._user, self._item = USER * rng.standard_normal(USERS), ITEM * rng.standard_normal(ITEMS)
        self._device = DEVICE * np.array([1.0, 0.0, -1.0])
        self._slope = SLOPE * np.array([1.5, 1.0, 0.5])
        self._bias = np.zeros(2)
        pilot = self.draw(rng, BLOCK)  # for the scale and the biases; these rows are not in the sample
        share = self._share_of_kind(pilot)
        self._share_mean, self._share_std = share.mean(), share.std()
        for _ in range(50):  # a fixed point: the pilot's mean probabilities are the rates
            expected = self.expect(pilot)
            means = np.array([expected.click.mean(), np.average(expected.buy, weights=expected.click)])
            self._bias += _logit(np.array([CLICK_RATE, BUY_RATE])) - _logit(means)

    def draw(self, rng: np.random.Generator, n: int) -> Shown:
        """Draw what n rows show."""
        user = rng.choice(USERS, n, p=self._activity)
        item = rng.choice(ITEMS, n, p=self._popularity)
        kind = self._liked[user, rng.integers(0, LIKED, n)]
        liked = rng.random(n) < ON_TASTE
        for k in range(CATEGORIES):
            members, mine = np.flatnonzero(self.kind == k), np.flatnonzero(liked & (kind == k))
            p = self._popularity[members]
            item[mine] = rng.choice(members, len(mine), p=p / p.sum())
        return Shown(user, item, rng.choice(3, n, p=[0.6, 0.1, 0.3]), rng.integers(1, MAX_SECONDS, n))

    def _share_of_kind(self, rows: Shown) -> Floats:
        """Return the share of the user's LAST rows before each that have its kind, 0 without such rows: (n,)."""
        order = np.argsort(rows.user, kind="stable")
        user, kind = rows.user[order], self.kind[rows.item[order]]
        same, before = np.zeros(len(user)), np.zeros(len(user))
        for lag in range(1, min(LAST, len(user) - 1) + 1):
            same_user = user[lag:] == user[:-lag]
            before[lag:] += same_user
            same[lag:] += same_user & (kind[lag:] == kind[:-lag])
        share = np.empty(len(user))
        share[order] = same / np.maximum(before, 1)
        return share

    def expect(self, rows: Shown) -> Expected:
        """Return the teacher's probabilities for rows, which must include all earlier rows of their users."""
        u, i = rows.user, rows.item
        _, buy, rating = self._taste[:, self.country[u], self.kind[i]]
        price = _standardised(np.log(self.price))[i]
        buy = buy + self._user[u] - self._slope[rows.device] * price + self._bias[1]
        rating = rating + self._user[u] + 2 * self._item[i]
        click = self._click(u, i, rows.device, self._share_of_kind(rows))
        return Expected(click, sigmoid(buy), sigmoid(rating[:, None] - np.array(CUTS)))

    def _click(self, u: Ints, i: Ints, device: Ints, share: Floats) -> Floats:
        """Return P(click) of users, items and devices. share: that of the kind among the user's last rows"""
        price, age = _standardised(np.log(self.price))[i], _standardised(self.age.astype(float))[u]
        recent = (share - self._share_mean) / self._share_std
        logit = self._taste[0, self.country[u], self.kind[i]] + self._user[u] + self._item[i] + self._device[device]
        return sigmoid(logit + SLOPE * age * price + (RECENT * recent + self._bias[0]))

    def expect_next(self, rows: Shown, device: Ints) -> Floats:
        """Return P(click) of each user and item if the user were shown the item after these rows: (USERS, ITEMS).

        device: (USERS,)
        """
        of_kind = np.zeros((USERS, CATEGORIES))
        order = np.argsort(rows.user, kind="stable")
        user = rows.user[order]
        from_end = np.searchsorted(user, user, side="right") - np.arange(len(user))
        last = order[from_end <= LAST]
        np.add.at(of_kind, (rows.user[last], self.kind[rows.item[last]]), 1)
        shares = of_kind / np.maximum(of_kind.sum(1, keepdims=True), 1)
        u, i = np.divmod(np.arange(USERS * ITEMS), ITEMS)
        return self._click(u, i, device[u], shares[u, self.kind[i]]).reshape(USERS, ITEMS)


def _logit(p: Floats) -> Floats:
    return np.log(p / (1 - p))


def _standardised(x: Floats) -> Floats:
    return (x - x.mean()) / x.std()


def write_sample(folder: Path, *, rows: int, seed: int, progress: Progress = lambda _: None) -> None:
    """Write the log, its side tables, and what the teacher expects of each row, to `folder`.

        log.csv          user,item,time,device,click,buy,rating: in order of `time`, in seconds since 1970, without ties
        users.csv        user,country,age
        items.csv        item,kind,price
        teacher.parquet  for each of click, buy and rating, in the order of log.csv: the label, null where a row has
                         none, and LABEL_expected, its probability or expectation

    The same seed gives the same bytes, and a larger log begins with the smaller one. All rows are held in memory.
    `progress` is called with the number of rows written so far.
    """
    teacher = InteractionTeacher(seed)
    shown, draw = _shown(teacher, rows, seed)
    expected = teacher.expect(shown)
    click = draw[:, 0] < expected.click
    buy = click & (draw[:, 1] < expected.buy)
    rating = 1 + (draw[:, 2:] < expected.rating_above).sum(1)
    log = pl.DataFrame(
        {
            "user": shown.user,
            "item": shown.item,
            "time": START + shown.seconds.cumsum(),
            "device": np.array(DEVICES)[shown.device],
            "click": click.astype(np.int8),
            "buy": buy.astype(np.int8),
            "rating": rating,
        }
    )
    log.with_columns(names("user", "item")).write_csv(folder / "log.csv")
    users = {"user": np.arange(USERS), "country": teacher.country, "age": teacher.age}
    pl.DataFrame(users).with_columns(names("user", "country")).write_csv(folder / "users.csv")
    items = {"item": np.arange(ITEMS), "kind": teacher.kind, "price": teacher.price}
    pl.DataFrame(items).with_columns(names("item", "kind")).write_csv(folder / "items.csv")
    bought = pl.when(pl.col("click") == 1).then("buy").alias("buy")
    expectations = {"click": expected.click, "buy": expected.buy, "rating": expected.rating}
    log.select("click", bought, "rating").with_columns(
        pl.Series(f"{name}_expected", values) for name, values in expectations.items()
    ).write_parquet(folder / "teacher.parquet")
    progress(rows)


def _shown(teacher: InteractionTeacher, rows: int, seed: int) -> tuple[Shown, Floats]:
    """Return the inputs of the rows, and the draws (rows, 3) that decide click, buy and rating."""
    blocks, draws = [], []
    for block in range(-(-rows // BLOCK)):
        rng = np.random.default_rng([seed, 1, block])
        blocks.append(teacher.draw(rng, BLOCK))
        draws.append(rng.random((BLOCK, 3)))
    shown = Shown(*(np.concatenate(column)[:rows] for column in zip(*blocks, strict=True)))
    return shown, np.concatenate(draws)[:rows]


def write_next(folder: Path, *, rows: int, seed: int) -> None:
    """Write what each user would click if shown each item after the log that `write_sample` writes.

    requests.csv     user,time,device: one row for each user
    next.parquet     user, item, click (0 or 1, drawn) and expected, P(click): USERS x ITEMS rows
    """
    teacher = InteractionTeacher(seed)
    shown, _ = _shown(teacher, rows, seed)
    rng = np.random.default_rng([seed, 2])
    device = rng.choice(3, USERS, p=[0.6, 0.1, 0.3])
    expected = teacher.expect_next(shown, device).ravel()
    now = START + int(shown.seconds.sum()) + 1
    requests = {"user": np.arange(USERS), "time": now, "device": np.array(DEVICES)[device]}
    pl.DataFrame(requests).with_columns(names("user")).write_csv(folder / "requests.csv")
    user, item = np.divmod(np.arange(USERS * ITEMS), ITEMS)
    click = (rng.random(len(expected)) < expected).astype(np.int8)
    pl.DataFrame({"user": user, "item": item, "click": click, "expected": expected}).with_columns(
        names("user", "item")
    ).write_parquet(folder / "next.parquet")
