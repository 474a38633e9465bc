"""A sample whose teacher's taste drifts: days of impressions, with items that appear and disappear.

The users, items and teacher are those of the sample `interactions`, without the term `recent`; of the two halves of the
taste, A and B, day d has

    taste_d = ((1 - w) A + w B) / sqrt((1 - w)^2 + w^2)

    none       w = 0
    sudden     w = 0 before day CHANGE, then 1
    gradual    w = min(d / CHANGE, 1)
    seasonal   w = (1 - cos(2 pi d / CHANGE)) / 2, so that it returns after CHANGE days

A third of the items is always there, a third appears and a third disappears on a day within the first HORIZON days.
A day depends only on the seed and its number, so days can be written one by one. Since P(click) is known, so is the
best AUC of each day.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from recsys.base.errors import UserError, did_you_mean
from recsys.data.samples.draws import Floats, Progress, names
from recsys.data.samples.interactions import (
    CATEGORIES,
    COUNTRIES,
    DEVICES,
    ITEMS,
    TASTE,
    InteractionTeacher,
    Shown,
)

DRIFTS = ("none", "sudden", "gradual", "seasonal")
FIRST_DAY = date(2025, 1, 1)
CHANGE = 10
HORIZON = 30
SAMPLE_DAYS = 10  # of the built-in sample
TEACHER = "teacher"  # folder of what the teacher expects: DAY.parquet with click and click_expected

Poison = Literal["labels", "column", "volume"]
POISONS = ("labels", "column", "volume")


class DriftingTeacher(InteractionTeacher):
    """The users, the items and the teacher of one seed, whose `day` says which taste and items there are."""

    def __init__(self, seed: int, drift: str = "gradual", change: int = CHANGE) -> None:
        super().__init__(seed)
        if drift not in DRIFTS:
            raise UserError(f"drift={drift}: must be one of {', '.join(DRIFTS)}{did_you_mean(drift, DRIFTS)}")
        if change < 1:
            raise UserError(f"change={change}: must be 1 day or more")
        rng = np.random.default_rng([seed, 3])
        self._drift, self._change, self._always = drift, change, self._popularity
        self._halves = self._taste[0].copy(), TASTE * rng.standard_normal((COUNTRIES, CATEGORIES))
        place = np.empty(ITEMS, np.int64)  # of an item among those of its kind, so that each kind always has some
        for kind in range(CATEGORIES):
            members = np.flatnonzero(self.kind == kind)
            place[members] = np.arange(len(members))
        days = rng.integers(1, HORIZON + 1, ITEMS)
        self._appears, self._disappears = np.where(place % 3 == 1, days, 0), np.where(place % 3 == 2, days, 2**31)

    def day(self, number: int) -> None:
        """Set the taste and the items of a day."""
        share = {
            "none": 0.0,
            "sudden": float(number >= self._change),
            "gradual": min(number / self._change, 1.0),
            "seasonal": (1 - np.cos(2 * np.pi * number / self._change)) / 2,
        }[self._drift]
        first, second = self._halves
        self._taste[0] = ((1 - share) * first + share * second) / np.hypot(1 - share, share)
        self.alive = (self._appears <= number) & (number < self._disappears)
        popularity = self._always * self.alive
        self._popularity = popularity / popularity.sum()

    def click(self, rows: Shown) -> Floats:
        """Return P(click) of each row."""
        return self._click(rows.user, rows.item, rows.device, np.full(len(rows.user), self._share_mean))


def write_days(
    folder: Path,
    *,
    days: int,
    rows_per_day: int,
    drift: str = "gradual",
    seed: int = 0,
    first: int = 0,
    change: int = CHANGE,
    poison: Mapping[int, Poison] | None = None,
) -> list[Path]:
    """Write days of impressions, and return their files: folder/day=YYYY-MM-DD/part.parquet.

    The columns are user, country, age, item, kind, price, device, time and click. folder/teacher/YYYY-MM-DD.parquet has
    click and click_expected, the teacher's P(click), for the same rows.

    Args:
        folder: the folder; days that are there are written again.
        drift: none, sudden, gradual or seasonal.
        seed: of the teacher and the rows.
        first: number of the first day; day 0 is FIRST_DAY.
        change: days of a change; see the module.
        poison: days, by number, that are wrong: labels (inverted), column (prices in cents), volume (a tenth).
    """
    teacher = DriftingTeacher(seed, drift, change)
    for number, kind in (poison or {}).items():
        if kind not in POISONS:
            raise UserError(f"poison of day {number}: {kind}: must be one of {', '.join(POISONS)}")
    (folder / TEACHER).mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(first, first + days):
        wrong = (poison or {}).get(number)
        rows = max(rows_per_day // 10, 1) if wrong == "volume" else rows_per_day
        frame, expected = _draw_day(teacher, number, rows, seed)
        if wrong == "labels":
            frame = frame.with_columns(click=1 - pl.col("click"))
        elif wrong == "column":
            frame = frame.with_columns(price=pl.col("price") * 100)
        name = (FIRST_DAY + timedelta(days=number)).isoformat()
        file = folder / f"day={name}" / "part.parquet"
        file.parent.mkdir(exist_ok=True)
        frame.write_parquet(file)
        frame.select("click", click_expected=pl.Series(expected)).write_parquet(folder / TEACHER / f"{name}.parquet")
        files.append(file)
    return files


def _draw_day(teacher: DriftingTeacher, number: int, rows: int, seed: int) -> tuple[pl.DataFrame, Floats]:
    """Return the rows of a day in time order, and the teacher's P(click) for them."""
    rng = np.random.default_rng([seed, 4, number])
    teacher.day(number)
    shown = teacher.draw(rng, rows)
    expected = teacher.click(shown)
    start = datetime.combine(FIRST_DAY + timedelta(days=number), datetime.min.time(), UTC).timestamp()
    time = int(start) + np.sort(rng.integers(0, 86_400, rows))
    click = (rng.random(rows) < expected).astype(np.int8)
    return rows_of(teacher, shown).with_columns(time=pl.Series(time), click=pl.Series(click)), expected


def rows_of(teacher: InteractionTeacher, shown: Shown) -> pl.DataFrame:
    """Return the columns user, country, age, item, kind, price and device of rows."""
    frame = pl.DataFrame(
        {
            "user": shown.user,
            "country": teacher.country[shown.user],
            "age": teacher.age[shown.user],
            "item": shown.item,
            "kind": teacher.kind[shown.item],
            "price": teacher.price[shown.item],
            "device": np.array(DEVICES)[shown.device],
        }
    )
    return frame.with_columns(names("user", "country", "item", "kind"))


def write_sample(folder: Path, *, rows: int, seed: int, progress: Progress = lambda _: None) -> None:
    """Write SAMPLE_DAYS days with `rows` rows in all, the last one with the rest, whose taste drifts gradually.

    `write_days` describes the files. teacher.parquet has the teacher's columns of all days.
    """
    most = rows // SAMPLE_DAYS
    write_days(folder, days=SAMPLE_DAYS - 1, rows_per_day=most, seed=seed)
    write_days(folder, days=1, rows_per_day=rows - most * (SAMPLE_DAYS - 1), seed=seed, first=SAMPLE_DAYS - 1)
    pl.concat(map(pl.read_parquet, sorted((folder / TEACHER).glob("*.parquet")))).write_parquet(
        folder / "teacher.parquet"
    )
    progress(rows)
