"""Splits: every row in exactly one, by the rule that was asked for."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.split import Part, Splitter, check_split
from recsys.data.transforms import TIME
from recsys.errors import UserError
from recsys.schema import SplitConfig


def parts(folder: Path, times: list[list[float]], splits: list[int | None] | None = None) -> list[Part]:
    made, first = [], 0
    for i, t in enumerate(times):
        path = folder / f"{i}.parquet"
        pl.DataFrame({TIME: pl.Series(t, dtype=pl.Float64)}).write_parquet(path)
        made.append(Part(path, first, len(t), splits[i] if splits else None))
        first += len(t)
    return made


def splits_of(config: SplitConfig, made: list[Part]) -> np.ndarray:
    splitter = Splitter(config, made)
    which = [splitter.of(p, p.read()) for p in made]
    for p, w in zip(made, which, strict=True):
        assert w.dtype == np.uint8 and len(w) == p.rows and w.max(initial=0) <= 2
        assert (splitter.of(p, p.read()) == w).all()  # the same when asked again
    assert splitter.describe()
    return np.concatenate(which)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.floats(0, 0.45), st.floats(0.01, 0.5))
def test_order(sizes: list[int], validation: float, test: float) -> None:
    made, first = [], 0
    for n in sizes:
        made.append(Part(Path("none"), first, n, None))
        first += n
    splitter = Splitter(SplitConfig(by="order", validation=validation, test=test), made)
    which = np.concatenate([splitter.of(p, pl.DataFrame()) for p in made])
    assert (np.diff(which.astype(int)) >= 0).all()  # train, then validation, then test
    assert (which == 2).sum() == round(first * test)
    assert (which == 1).sum() == round(first * (validation + test)) - round(first * test)


def test_time_sorts_and_keeps_a_moment_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = rng.integers(0, 50, 1000).astype(float)
    made = parts(tmp_path, [list(times[:300]), list(times[300:301]), list(times[301:])])
    which = splits_of(SplitConfig(by="time", column="t", validation=0.2, test=0.1), made)
    for moment in np.unique(times):
        assert len(np.unique(which[times == moment])) == 1
    assert times[which == 0].max() < times[which == 1].min() <= times[which == 1].max() < times[which == 2].min()
    assert abs((which == 2).mean() - 0.1) < 0.03 and abs((which == 1).mean() - 0.2) < 0.03


def test_time_without_validation_and_one_moment(tmp_path: Path) -> None:
    made = parts(tmp_path, [[float(i) for i in range(100)][::-1]])
    which = splits_of(SplitConfig(by="time", column="t", validation=0, test=0.25), made)
    assert which.tolist() == [2] * 25 + [0] * 75
    which = splits_of(SplitConfig(by="time", column="t"), parts(tmp_path, [[7.0] * 10]))
    assert set(which.tolist()) == {2}


def test_random(tmp_path: Path) -> None:
    made = parts(tmp_path, [[0.0] * 6000, [0.0] * 4000])
    which = splits_of(SplitConfig(by="random", validation=0.2, test=0.1, seed=3), made)
    np.testing.assert_allclose([(which == i).mean() for i in range(3)], [0.7, 0.2, 0.1], atol=0.02)
    assert (which == splits_of(SplitConfig(by="random", validation=0.2, test=0.1, seed=3), made)).all()
    other = splits_of(SplitConfig(by="random", validation=0.2, test=0.1, seed=4), made)
    assert 0.3 < (which != other).mean() < 0.6
    assert (which[:4000] != which[6000:]).any()  # parts draw on their own


def test_files(tmp_path: Path) -> None:
    made = parts(tmp_path, [[0.0] * 5, [0.0] * 3, [0.0] * 2], [2, 0, 1])
    assert splits_of(SplitConfig(by="files"), made).tolist() == [2] * 5 + [0] * 3 + [1] * 2


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (SplitConfig(by="ordre"), "must be order"),
        (SplitConfig(by="time"), "column"),
        (SplitConfig(by="files", train_files=["a"], test_files=["b"]), "validation_files"),
        (SplitConfig(validation=-0.1), "shares"),
        (SplitConfig(test=0.0), "shares"),
        (SplitConfig(validation=0.6, test=0.4), "below 1"),
        (SplitConfig(test=float("nan")), "shares"),
    ],
)
def test_mistakes(split: SplitConfig, expected: str) -> None:
    with pytest.raises(UserError) as e:
        check_split(split)
    assert expected in str(e.value) and "\n" not in str(e.value)
