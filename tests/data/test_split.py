"""Splits: every row in exactly one, by the rule that was asked for."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.features.blocks import IN_SPLIT, KEY, TIME
from recsys.data.features.group_features import CONTEXT
from recsys.data.prepare import split as split_module
from recsys.data.prepare.chunks import ParsedChunk, write_info, write_rows
from recsys.data.prepare.split import Splitter, check_split, order_statistic
from recsys.schema.data_schema import SplitConfig


def chunks(folder: Path, frames: list[pl.DataFrame], splits: list[int | None] | None = None) -> list[ParsedChunk]:
    """Each frame as a chunk of two parts."""
    made: list[ParsedChunk] = []
    for i, frame in enumerate(frames):
        here = folder / f"{len(list(folder.iterdir()))}"
        here.mkdir()
        half = frame.height // 2
        write_rows(here, 0, frame.head(half))
        write_rows(here, 1, frame.slice(half))
        write_info(here, {"rows": [half, frame.height - half], "bad": 0, "lines": frame.height})
        made.append(ParsedChunk(here, sum(c.rows for c in made), splits[i] if splits else None))
    return made


def parts(folder: Path, times: list[list[float]], splits: list[int | None] | None = None) -> list[ParsedChunk]:
    return chunks(folder, [pl.DataFrame({TIME: pl.Series(t, dtype=pl.Float64)}) for t in times], splits)


def splits_of(config: SplitConfig, made: list[ParsedChunk]) -> np.ndarray:
    splitter = Splitter(config, made)
    frames = [(f, c.split) for c in made for f in c.frames()]
    which = [splitter.assign(f, split) for f, split in frames]
    for (f, split), w in zip(frames, which, strict=True):
        assert w.dtype == np.uint8 and len(w) == f.height and w.max(initial=0) <= 2
        assert (splitter.assign(f, split) == w).all()  # the same when asked again
    assert splitter.describe()
    return np.concatenate(which)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(50, 300), st.floats(0, 0.2), st.floats(0.02, 0.15), st.integers(0, 3))
def test_rolling_origins(folds: int, rows: int, validation: float, test: float, seed: int) -> None:
    """Each fold trains before its validation rows, tests after them, and leaves out what is later."""
    time = np.random.default_rng(seed).permutation(rows).astype(float)
    tested = np.zeros(rows, int)
    with tempfile.TemporaryDirectory() as folder:
        made = parts(Path(folder), [list(time)])
        for fold in range(folds):
            config = SplitConfig(
                by="time", column="t", validation=validation, test=test, origins=max(folds, 2), fold=fold
            )
            splitter = Splitter(config, made)
            which = np.concatenate([splitter.assign(f, None) for c in made for f in c.frames()])
            in_order = which[np.argsort(time)]
            assert (np.diff(in_order.astype(int)) >= 0).all() and set(in_order) <= {0, 1, 2, CONTEXT}
            after = config.origins - 1 - fold
            assert (which == CONTEXT).sum() == round(rows * test * after)
            assert abs((which == 2).sum() - rows * test) <= 1 and (which == 0).any()
            assert splitter.describe().startswith(f"time: {1 - validation - (after + 1) * test:.0%} / ")
            tested += which == 2
    assert tested.max() == 1  # no row is tested by two folds


def test_held_out_rows_begin_with_a_window(tmp_path: Path) -> None:
    time = np.arange(0, 100.0, 0.5)
    splitter = Splitter(
        SplitConfig(by="time", column="t", validation=0.3, test=0.2, window=10), made := parts(tmp_path, [list(time)])
    )
    [frame] = [pl.concat([*c.frames()]) for c in made]
    which, windows = splitter.assign(frame, None), splitter.windows(frame)
    assert [time[which == i].min() for i in (1, 2)] == [50, 80]
    assert windows is not None and windows.to_list() == [t // 10 for t in time]


def test_rows_in_no_split_are_left_out_of_every_split(tmp_path: Path) -> None:
    made = chunks(tmp_path, [pl.DataFrame({TIME: [1.0, 2, 3, 4], IN_SPLIT: [1.0, 0, 1, 1]})])
    [frame] = [pl.concat([*c.frames()]) for c in made]
    config = SplitConfig(by="time", column="t", validation=0.25, test=0.25, rows="r")
    assert Splitter(config, made).assign(frame, None).tolist() == [0, CONTEXT, 1, 2]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.floats(0, 0.45), st.floats(0.01, 0.5))
def test_order(sizes: list[int], validation: float, test: float) -> None:
    first = sum(sizes)
    with tempfile.TemporaryDirectory() as folder:
        made = parts(Path(folder), [[0.0] * n for n in sizes])
        which = splits_of(SplitConfig(by="order", validation=validation, test=test), made)
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


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.lists(st.floats(-1e300, 1e300) | st.sampled_from([0.0, 1.0, 1.0000000000000002, 5e-324])),
        min_size=1,
        max_size=4,
    ).filter(any),
    st.data(),
)
def test_order_statistics_in_little_memory(arrays: list[list[float]], data: st.DataObject) -> None:
    whole = sorted(x for a in arrays for x in a)
    k = data.draw(st.integers(0, len(whole) - 1))
    with pytest.MonkeyPatch.context() as m:
        m.setattr(split_module, "IN_MEMORY", 2)
        assert order_statistic(lambda: iter([np.array(a, dtype=float) for a in arrays]), k) == whole[k]


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


def keyed(folder: Path, users: list[list[str]]) -> list[ParsedChunk]:
    return chunks(folder, [pl.DataFrame({KEY: names}) for names in users])


def test_hash_keeps_values_together_and_is_stable_when_rows_are_added(tmp_path: Path) -> None:
    users = [f"user {i % 700}" for i in range(3000)]
    config = SplitConfig(by="hash", column="user", validation=0.2, test=0.1, seed=3)
    which = splits_of(config, keyed(tmp_path, [users[:1000], users[1000:]]))
    by_user = {u: set(which[[i for i, v in enumerate(users) if v == u]]) for u in set(users)}
    assert {len(s) for s in by_user.values()} == {1}
    np.testing.assert_allclose([(which == i).mean() for i in range(3)], [0.7, 0.2, 0.1], atol=0.05)
    more = splits_of(config, keyed(tmp_path, [["new"] * 50, users[1000:], users[:1000], ["other"]]))
    assert (more[50:2050] == which[1000:]).all()
    assert (more[2050:3050] == which[:1000]).all()
    other = splits_of(SplitConfig(by="hash", column="user", validation=0.2, test=0.1, seed=4), keyed(tmp_path, [users]))
    assert 0.3 < (which != other).mean() < 0.6


@pytest.mark.parametrize("column", ["user", None])
def test_every_row_tests_once_over_the_folds(tmp_path: Path, column: str | None) -> None:
    users = [f"{i % 97}" for i in range(2000)]
    made = keyed(tmp_path, [users]) if column else parts(tmp_path, [[0.0] * 2000])
    folds = [splits_of(SplitConfig(by="kfold", column=column, folds=4, fold=f), made) for f in range(4)]
    assert (np.stack([f == 2 for f in folds]).sum(0) == 1).all()
    assert (np.stack([f == 1 for f in folds]).sum(0) == 1).all()
    if column:
        for which in folds:
            assert all(len(set(which[[i for i, v in enumerate(users) if v == u]])) == 1 for u in set(users))


def test_files_without_validation(tmp_path: Path) -> None:
    """The last training rows validate, over the ends of files, whatever lies between those."""
    made = parts(tmp_path, [[0.0] * 5, [0.0] * 3, [0.0] * 6], [0, 2, 0])
    expected = {0.0: 0, 0.1: 1, 0.5: 6, 0.6: 7, 0.9: 10}
    for share, rows in expected.items():
        found = splits_of(SplitConfig(by="files", validation=share), made).tolist()
        assert found[5:8] == [2] * 3 and found[:5] + found[8:] == [0] * (11 - rows) + [1] * rows


def test_files_with_validation_rows_at_random(tmp_path: Path) -> None:
    made = parts(tmp_path, [[0.0] * 5000, [0.0] * 300, [0.0] * 4000], [0, 2, 0])
    config = SplitConfig(by="files", validation=0.2, validation_rows="random", seed=3)
    which = splits_of(config, made)
    train = np.append(which[:5000], which[5300:])
    assert (which[5000:5300] == 2).all() and set(train) == {0, 1}
    assert abs((train == 1).mean() - 0.2) < 0.02 and abs((train[:1000] == 1).mean() - 0.2) < 0.05
    assert "20% of train's rows, drawn with seed 3, validate, not train" in Splitter(config, made).describe()
    other = SplitConfig(by="files", validation=0.2, validation_rows="random", seed=4)
    assert (splits_of(other, made) != which).any()
    none = SplitConfig(by="files", validation=0.0, validation_rows="random")
    assert set(splits_of(none, made)) == {0, 2}


@pytest.mark.parametrize("validation", [0.0, 0.2])
@pytest.mark.parametrize(
    "split",
    [
        {"by": "order"},
        {"by": "time", "column": "t"},
        {"by": "time", "column": "t", "window": 100},
        {"by": "random"},
        {"by": "hash", "column": "u"},
        {"by": "files", "train_files": ["a", "b"]},
        {"by": "files", "train_files": ["a", "b"], "validation_rows": "random"},
    ],
)
def test_without_test_rows_all_others_train(split: dict[str, Any], validation: float, tmp_path: Path) -> None:
    if not validation and "window" in split:
        return  # its last window is measured on the validation rows
    config = SplitConfig(**split, validation=validation, test=0.0)
    check_split(config)
    time = np.random.default_rng(0).permutation(1000).astype(float)
    frame = pl.DataFrame({TIME: time, KEY: [f"u{int(t) % 400}" for t in time]})
    made = chunks(tmp_path, [frame.head(600), frame.tail(400)], [0, 0] if split["by"] == "files" else None)
    which = splits_of(config, made)
    assert abs((which == 1).mean() - validation) < 0.05 and (which != 2).all()
    if split["by"] == "time" and validation:
        assert time[which == 0].max() < time[which == 1].min()
    assert "test" not in Splitter(config, made).describe()
