"""The sample whose taste drifts: what changes when, items that come and go, days that are wrong on purpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.data.samples.drifting import HORIZON, DriftingTeacher, write_days, write_sample
from recsys.evaluation.binary import binary_metrics

ROWS = 20_000


def aucs(folder: Path, drift: str, change: int, days: list[int]) -> list[tuple[float, float]]:
    """Return, for each day, the best AUC, and that of the teacher of day 0."""
    found = []
    for day in days:
        [file] = write_days(folder, days=1, rows_per_day=ROWS, drift=drift, first=day, change=change)
        rows = pl.read_parquet(file, glob=False)
        teacher = pl.read_parquet(folder / "teacher" / f"{file.parent.name.removeprefix('day=')}.parquet")
        label, best = rows["click"].to_numpy(), teacher["click_expected"].to_numpy()
        assert teacher["click"].to_list() == label.tolist()
        old = DriftingTeacher(0, drift, change)
        number = lambda name: rows[name].str.slice(1).cast(pl.Int64).to_numpy()  # noqa: E731
        at = np.unique(rows["device"], return_inverse=True)[1]
        device = np.array([2, 0, 1])[at]  # desktop, phone, tablet -> their numbers
        old.day(0)
        p = old._click(number("user"), number("item"), device, np.full(ROWS, old._share_mean))
        found.append((binary_metrics(best, label)["auc"], binary_metrics(p, label)["auc"]))
    return found


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("drift", "days", "distance"),  # from the best AUC of the teacher of day 0: large (True) or none
    [
        ("none", [0, 9], [False, False]),
        ("sudden", [0, 4, 5, 9], [False, False, True, True]),
        ("gradual", [0, 5, 9], [False, True, True]),
        ("seasonal", [0, 2, 5], [False, True, False]),
    ],
)
def test_taste(tmp_path: Path, drift: str, days: list[int], distance: list[bool]) -> None:
    for (best, old), far in zip(aucs(tmp_path, drift, 5, days), distance, strict=True):
        assert 0.74 < best < 0.82
        assert best - old > 0.03 if far else best == old


@pytest.mark.slow
def test_items_come_and_go_and_days_are_the_same_one_by_one(tmp_path: Path) -> None:
    together = write_days(tmp_path / "a", days=3, rows_per_day=1000, first=2)
    alone = write_days(tmp_path / "b", days=1, rows_per_day=1000, first=3)
    assert together[1].read_bytes() == alone[0].read_bytes()
    assert [f.parent.name for f in together] == ["day=2025-01-03", "day=2025-01-04", "day=2025-01-05"]
    rows = pl.read_parquet(together[0], glob=False)
    assert rows["time"].is_sorted() and rows["time"].min() // 86_400 == rows["time"].max() // 86_400
    teacher = DriftingTeacher(0)
    alive = []
    for day in (0, HORIZON):
        teacher.day(day)
        alive.append(teacher.alive)
    [file] = write_days(tmp_path, days=1, rows_per_day=ROWS, first=HORIZON)
    seen = set(pl.read_parquet(file, glob=False)["item"].str.slice(1).cast(pl.Int64))
    assert seen <= set(np.flatnonzero(alive[1])) and (alive[0] & ~alive[1]).sum() > 50 < (alive[1] & ~alive[0]).sum()


def test_days_that_are_wrong(tmp_path: Path) -> None:
    right = [pl.read_parquet(f, glob=False) for f in write_days(tmp_path / "a", days=3, rows_per_day=1000)]
    poison = {0: "labels", 1: "column", 2: "volume"}
    wrong = [
        pl.read_parquet(f, glob=False) for f in write_days(tmp_path / "b", days=3, rows_per_day=1000, poison=poison)
    ]
    assert (wrong[0]["click"] + right[0]["click"] == 1).all() and wrong[0].drop("click").equals(right[0].drop("click"))
    assert (wrong[1]["price"] / right[1]["price"] - 100).abs().max() < 1e-6
    assert [w.height for w in wrong] == [1000, 1000, 100]


def test_the_sample(tmp_path: Path) -> None:
    done: list[int] = []
    write_sample(tmp_path, rows=2005, seed=1, progress=done.append)
    rows = pl.concat(pl.read_parquet(f, glob=False) for f in sorted(tmp_path.glob("day=*/part.parquet")))
    assert done == [2005] and rows.height == 2005 and rows["time"].is_sorted()
    assert pl.read_parquet(tmp_path / "teacher.parquet")["click"].equals(rows["click"])
