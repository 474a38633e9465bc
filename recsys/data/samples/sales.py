"""The built-in sample of daily sales: the shape of Rossmann Store Sales, drawn by a known teacher.

There are STORES stores with a type, an assortment and the distance of a competitor. Each day has a row for each store.
A promotion runs in all stores from Monday to Friday of every second week on average. All stores are closed on Sundays
and on state holidays; `open` and `sales` are then 0. School holidays come in weeks.

The teacher. For store s and day d, with z numbers of mean 0 and standard deviation 1,

    ln sales = LEVEL + store_s + weekday_d + PROMOTION x promo_d x (1 + type_s) + SCHOOL x school_d
               + YEAR cos(2 pi (day of the year - PEAK) / 365.25) + DISTANCE z(ln distance_s) + NOISE z

so E[sales | row] = exp(ln sales without noise + NOISE^2 / 2), and no model can have a lower expected root mean squared
error than it.
"""

from pathlib import Path

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.data.samples.draws import Floats, Ints, Progress

STORES = 200
TYPES, ASSORTMENTS = "abcd", "abc"
FIRST_DAY, MAX_DAYS = np.datetime64("2013-01-01"), 365_000
WEEKS = MAX_DAYS // 7 + 1
LEVEL, STORE, PROMOTION, SCHOOL, YEAR, PEAK, DISTANCE, NOISE = 8.7, 0.3, 0.3, 0.05, 0.1, 350, 0.05, 0.1
WEEKDAY = np.array([0.15, 0.0, -0.05, 0.0, 0.05, -0.1, 0.0])  # Monday first
TYPE = np.array([0.0, 0.5, -0.3, 0.2])  # of the effect of a promotion
STATE_HOLIDAYS = (1, 121, 276, 359, 360)  # days of the year


class SalesTeacher:
    """The stores, the calendar and the teacher of one seed; the module's docstring has the formula."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.type, self.assortment = rng.integers(0, 4, STORES), rng.integers(0, 3, STORES)
        self.distance = np.round(np.exp(rng.normal(7.5, 1, STORES)), -1) + 10
        self.store = STORE * rng.standard_normal(STORES)
        self._promotions, self._school = rng.random(WEEKS) < 0.5, rng.random(WEEKS) < 0.2

    def calendar(self, day: Ints) -> dict[str, Ints]:
        """Return date, weekday (0: Monday), of_year (from 1), promo, state and school (holidays) of days: (n,) each."""
        date = FIRST_DAY + day
        weekday, week = (day + 1) % 7, (day + 1) // 7  # the first day is a Tuesday
        of_year = (date - date.astype("datetime64[Y]")).astype(np.int64) + 1
        promo = self._promotions[week] & (weekday < 5)
        state, school = np.isin(of_year, STATE_HOLIDAYS), self._school[week] & (weekday < 5)
        parts = {"weekday": weekday, "of_year": of_year, "promo": promo, "state": state, "school": school}
        return {"date": date} | {name: part.astype(np.int64) for name, part in parts.items()}

    def log_sales(self, store: Ints, days: dict[str, Ints]) -> Floats:
        """Return ln sales without noise of open stores: (n,)."""
        distance = np.log(self.distance)
        season = np.cos(2 * np.pi * (days["of_year"] - PEAK) / 365.25)
        promotion = PROMOTION * days["promo"] * (1 + TYPE[self.type[store]])
        logs = LEVEL + self.store[store] + WEEKDAY[days["weekday"]] + promotion + SCHOOL * days["school"]
        return logs + YEAR * season + DISTANCE * ((distance - distance.mean()) / distance.std())[store]


def write_sample(folder: Path, *, rows: int, seed: int, progress: Progress = lambda _: None) -> None:
    """Write the sales, the stores, and what the teacher expects, to `folder`.

        sales.csv        store,date,day_of_week,open,promo,state_holiday,school_holiday,sales: day by day; Monday is 1
        stores.csv       store,type,assortment,competition_distance (in metres)
        teacher.parquet  sales, sales_expected: of the rows of open stores, in the order of sales.csv

    The same seed gives the same bytes, and a larger file begins with the smaller one. All rows are held in memory.
    `progress` is called with the number of rows written so far.
    """
    days = -(-rows // STORES)
    if days > MAX_DAYS:
        raise UserError(f"data.sample.rows={rows}: must be at most {MAX_DAYS * STORES:,} for kind sales")
    teacher = SalesTeacher(seed)
    store, day = np.tile(np.arange(STORES), days)[:rows], np.repeat(np.arange(days), STORES)[:rows]
    calendar = teacher.calendar(day)
    logs = teacher.log_sales(store, calendar)
    noise = np.random.default_rng([seed, 1]).standard_normal(rows)
    is_open = (calendar["weekday"] != 6) & (calendar["state"] == 0)
    sales = np.where(is_open, np.round(np.exp(logs + NOISE * noise)), 0).astype(np.int64)
    pl.DataFrame(
        {
            "store": store + 1,
            "date": calendar["date"],
            "day_of_week": calendar["weekday"] + 1,
            "open": is_open.astype(np.int8),
            "promo": calendar["promo"],
            "state_holiday": calendar["state"],
            "school_holiday": calendar["school"],
            "sales": sales,
        }
    ).write_csv(folder / "sales.csv")
    stores = {
        "store": np.arange(STORES) + 1,
        "type": np.array([*TYPES])[teacher.type],
        "assortment": np.array([*ASSORTMENTS])[teacher.assortment],
        "competition_distance": teacher.distance.astype(np.int64),
    }
    pl.DataFrame(stores).write_csv(folder / "stores.csv")
    expected = np.exp(logs + NOISE**2 / 2)
    pl.DataFrame({"sales": sales[is_open], "sales_expected": expected[is_open]}).write_parquet(
        folder / "teacher.parquet"
    )
    progress(rows)
