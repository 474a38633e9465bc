"""The loader: every row once, the same rows as polars reads, in equal steps, resumable at any batch."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recsys.base.errors import UserError
from recsys.data.features import LABEL
from recsys.data.features.batch_tensors import batch_of
from recsys.data.loader import parquet_loader
from recsys.data.loader.parquet_loader import ParquetLoader, balanced
from recsys.data.loader.row_groups import RowGroups
from recsys.data.prepare import writer as write
from recsys.data.prepare.writer import PartWriter
from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature

SINGLE = (SparseFeature("s", 5000, "s"), SparseFeature("t", 50, "t"))
MULTI = (SparseFeature("m", 40, "m", multi_valued=True), SparseFeature("n", 40, "m", "mean", multi_valued=True))
DENSE = (DenseFeature("row"), DenseFeature("x"))
SPECS = {
    "single": FeatureSpec(DENSE, SINGLE),
    "multi": FeatureSpec(DENSE, (*SINGLE, *MULTI)),
    "bags": FeatureSpec((), MULTI),
    "dense": FeatureSpec(DENSE, ()),
    "ids": FeatureSpec((), SINGLE),
}


OTHERS: set[threading.Thread] = set()  # of loaders of other tests in this process


@pytest.fixture(autouse=True)
def threads_of_other_tests() -> None:
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def table(rows: int) -> pl.DataFrame:
    rng = np.random.default_rng(rows)
    bags = [rng.integers(0, 40, n).tolist() for n in rng.integers(0, 4, rows)]
    return pl.DataFrame(
        {
            LABEL: (np.arange(rows) % 3 == 0).astype(np.float32),
            "row": np.arange(rows, dtype=np.float32),
            "x": rng.normal(size=rows).astype(np.float32),
            "s": np.arange(rows, dtype=np.int32) % 5000,
            "t": rng.integers(0, 50, rows).astype(np.int32),
            "m": pl.Series(bags, dtype=pl.List(pl.Int32)),
            "n": pl.Series(bags[::-1], dtype=pl.List(pl.Int32)),
        }
    )


def files(folder: Path, frame: pl.DataFrame, *, group: int = 64, files: int = 1) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    each = -(-max(frame.height, 1) // files)
    made = []
    for i in range(files):
        path = folder / f"{i}.parquet"
        pq.write_table(frame.slice(i * each, each).to_arrow(), path, row_group_size=group)
        made.append(path)
    return made


def content(batches: list[Batch], spec: FeatureSpec) -> list[tuple[Any, ...]]:
    """Rows of weight 1 as tuples: label, dense, and a list of ids for each sparse feature."""
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        sizes = (batch.rows, batch.dense.shape[0], batch.labels.shape[0], batch.sparse.stride())
        assert len(set(sizes)) == 1 and batch.labels.shape[1] == 1 and batch.dense.shape[1] == len(spec.dense)
        assert batch.sparse.keys() == [f.name for f in spec.sparse]
        assert batch.weight is None or batch.weight.shape == (batch.rows,)
        columns = [[v.tolist() for v in batch.sparse[f.name].to_dense()] for f in spec.sparse]
        if spec.sparse:
            assert batch.sparse.lengths().dtype == batch.sparse.values().dtype == torch.int32
            assert batch.sparse.lengths().numel() == batch.rows * len(spec.sparse)
            assert int(batch.sparse.lengths().sum()) == batch.sparse.values().numel()
        for r in range(batch.rows):
            if batch.weight is None or batch.weight[r] > 0:
                rows.append((batch.labels[r].item(), tuple(batch.dense[r].tolist()), *(c[r] for c in columns)))
    return rows


def expected(frame: pl.DataFrame, spec: FeatureSpec) -> list[tuple[Any, ...]]:
    return [
        (
            r[LABEL],
            tuple(r[f.name] for f in spec.dense),
            *(list(r[f.name]) if f.multi_valued else [r[f.name]] for f in spec.sparse),
        )
        for r in frame.iter_rows(named=True)
    ]


def same(a: Batch, b: Batch) -> bool:
    assert (a.weight is None) == (b.weight is None)
    return (
        torch.equal(a.dense, b.dense)
        and torch.equal(a.labels, b.labels)
        and a.sparse.keys() == b.sparse.keys()
        and torch.equal(a.sparse.values(), b.sparse.values())
        and torch.equal(a.sparse.lengths(), b.sparse.lengths())
        and torch.equal(a.sparse.offsets(), b.sparse.offsets())
        and (a.weight is None or b.weight is None or torch.equal(a.weight, b.weight))
    )


def test_rows_of_few_columns_are_shuffled_over_all_row_groups(tmp_path: Path) -> None:
    """A file of pairs sorted by user: the first batch has users of every row group."""
    rows, group = 330_000, 65_536
    frame = pl.DataFrame({"user": np.arange(rows, dtype=np.int32), "item": np.zeros(rows, np.int32)})
    spec = FeatureSpec((), (SparseFeature("user", rows, "user"), SparseFeature("item", 1, "item")), labels=())
    loader = ParquetLoader(files(tmp_path, frame, group=group), spec, batch_size=1024, shuffle=True, training=True)
    users = next(iter(loader)).sparse["user"].values()
    assert set((users // group).tolist()) == set(range(6))


@pytest.mark.parametrize("kind", list(SPECS))
def test_batch_of_a_frame_is_the_loaders(tmp_path: Path, kind: str) -> None:
    frame, spec = table(90), SPECS[kind]
    for i, batch in enumerate(ParquetLoader(files(tmp_path, frame), spec, batch_size=32, buffer_rows=1)):
        reference = batch_of(frame.slice(32 * i, 32), spec)
        known = batch.sparse.length_per_key_or_none()  # on the CPU: a GPU would be waited for
        assert known == reference.sparse.length_per_key() and same(batch, reference)
        assert batch.sparse.weights_or_none() is None  # FBGEMM computes no gradient of weights
    unlabelled = batch_of(frame.drop(LABEL), spec)
    assert unlabelled.labels.tolist() == [[0.0]] * 90


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_share_of_the_ids_is_unknown(tmp_path: Path, shuffle: bool) -> None:
    """Other ids in each epoch, the same ones again after a resume, and no id of another feature."""
    frame = table(4000)
    paths = files(tmp_path, frame.with_columns(s=pl.col("s") % 4999 + 1, m=pl.col("m").list.eval(pl.element() + 1)))
    spec = FeatureSpec((DenseFeature("row"),), (*SINGLE, *(replace(f, cardinality=41) for f in MULTI)))
    options: dict[str, Any] = {"batch_size": 100, "training": True, "shuffle": shuffle, "buffer_rows": 1000}

    def epoch(loader: ParquetLoader) -> list[list[int]]:
        batches = list(loader)
        return [[x for b in batches for x in b.sparse[name].values().tolist()] for name in ("s", "t", "m", "n")]

    plain = epoch(ParquetLoader(paths, spec, **options))
    loader = ParquetLoader(paths, spec, **options, unknown={"s": 0.1, "m": 0.05})
    first, second = epoch(loader), epoch(loader)
    assert first[1] == plain[1] and first[3] == plain[3] and 0 not in plain[0] + plain[2]
    for got, before, share in ((first[0], plain[0], 0.1), (first[2], plain[2], 0.05)):
        hidden = [i for i, x in enumerate(got) if x == 0]
        assert 0.8 * share < len(hidden) / len(got) < 1.1 * share
        assert all(x == y for x, y in zip(got, before, strict=True) if x)
    assert [x == 0 for x in first[0]] != [x == 0 for x in second[0]]
    resumed = ParquetLoader(paths, spec, **options, unknown={"s": 0.1, "m": 0.05})
    resumed.load_state_dict({"epoch": 0, "step": 15, "lanes": 1})
    rest = epoch(resumed)
    assert rest[0] == first[0][1500:] and epoch(resumed) == second
    two = [
        ParquetLoader(paths, spec, **options | {"batch_size": 50}, unknown={"s": 0.1}, rank=r, world_size=2)
        for r in (0, 1)
    ]
    for lane in two:
        lane.load_state_dict({"epoch": 0, "step": 15, "lanes": 1})
    lanes = [[x for pair in zip(*two, strict=True) for b in pair for x in b.sparse["s"].values().tolist()]]
    alone = ParquetLoader(paths, spec, **options, unknown={"s": 0.1})
    alone.load_state_dict({"epoch": 0, "step": 15, "lanes": 1})
    assert lanes[0] == epoch(alone)[0]


@settings(max_examples=examples(80), deadline=None)
@given(lengths=st.lists(st.integers(0, 200), max_size=300), batch_size=st.integers(1, 40), seed=st.integers(0, 5))
def test_balanced_batches_differ_by_less_than_the_longest_list(lengths: list[int], batch_size: int, seed: int) -> None:
    random = np.random.default_rng(seed).permutation(len(lengths))
    ids = np.array(lengths, np.uint32)
    order = balanced(random, ids, batch_size)
    batches = len(lengths) // batch_size
    assert sorted(order) == list(range(len(lengths)))
    assert set(order[batches * batch_size :]) == set(random[batches * batch_size :])  # what is dropped is random
    sums = ids[order[: batches * batch_size]].reshape(batches, batch_size).sum(axis=1, dtype=np.int64)
    if batches:
        assert sums.max() - sums.min() <= max(lengths)


def test_steps_of_eight_processes_have_equal_numbers_of_ids(tmp_path: Path) -> None:
    """The largest of eight batches of 32 lists of lengths as in logs: 20 % above the mean, or 1 % if balanced."""
    lengths = np.random.default_rng(0).lognormal(2, 0.8, 65_536).astype(int).clip(1, 50)
    lists = pl.Series([[1] * n for n in lengths], dtype=pl.List(pl.Int32))
    paths = files(tmp_path, pl.DataFrame({LABEL: np.zeros(65_536, np.float32), "m": lists}), group=4096)
    spec = FeatureSpec((), (SparseFeature("m", 40, "table", multi_valued=True),))

    def excess(balance: bool) -> float:
        options = {"batch_size": 32, "training": True, "shuffle": True, "world_size": 8, "balance_lists": balance}
        ranks = [ParquetLoader(paths, spec, rank=rank, **options) for rank in range(8)]
        sums = np.array([[b.sparse.values().numel() for b in loader] for loader in ranks])
        assert sums.sum() == lengths.sum()
        return float((sums.max(axis=0) / sums.mean(axis=0)).mean()) - 1

    assert excess(False) > 0.15 and excess(True) < 0.02


@example(written=(33, 64, 1), read=(16, 300, 2), shuffle=False, training=False, kind="multi")  # one rank has a row more
@example(written=(0, 64, 1), read=(8, 300, 1), shuffle=False, training=False, kind="multi")
@settings(max_examples=examples(80), deadline=None)
@given(
    written=st.tuples(st.integers(0, 200), st.integers(1, 90), st.integers(1, 3)),
    read=st.tuples(st.integers(1, 40), st.integers(1, 300), st.integers(1, 4)),
    shuffle=st.booleans(),
    training=st.booleans(),
    kind=st.sampled_from(list(SPECS)),
)
def test_ranks_share_the_rows_in_equal_steps(
    tmp_path_factory: pytest.TempPathFactory,
    written: tuple[int, int, int],
    read: tuple[int, int, int],
    shuffle: bool,
    training: bool,
    kind: str,
) -> None:
    (rows, group, n_files), (batch_size, buffer, world) = written, read
    frame, spec = table(rows), SPECS[kind]
    paths = files(tmp_path_factory.mktemp("ranks"), frame, group=group, files=n_files)
    how = {"batch_size": batch_size, "training": training, "shuffle": shuffle, "buffer_rows": buffer}

    def of(rank: int) -> ParquetLoader:
        return ParquetLoader(paths, spec, **how, seed=1, rank=rank, world_size=world)

    if training and rows < world:
        with pytest.raises(UserError, match="too few"):
            of(0)
        return
    loaders = [of(rank) for rank in range(world)]
    batches = [list(loader) for loader in loaders]
    assert {len(b) for b in batches} == {len(loader) for loader in loaders} == {loaders[0].steps}
    if training:
        assert len({tuple(b.rows for b in of_rank) for of_rank in batches}) == 1
        assert all(b.weight is None for of_rank in batches for b in of_rank)
    for of_rank in batches:
        for b in of_rank:
            assert 1 <= b.rows <= batch_size
            if b.weight is not None:  # only fills up
                assert not b.weight.any() and not b.dense.any() and not b.labels.any()
    read_rows, all_rows = content([b for of_rank in batches for b in of_rank], spec), expected(frame, spec)
    if world == 1 and not shuffle and not training:
        assert read_rows == all_rows  # in the order of the files
    got, all_rows = sorted(read_rows), sorted(all_rows)
    if not training:
        assert got == all_rows
    else:
        share = rows // world
        left_out = share - len(got) // world
        assert len(got) % world == 0 and 0 <= left_out < batch_size
        assert left_out <= max(0.05 * share, 1)
        if share % batch_size < 0.05 * share:
            assert left_out == share % batch_size
        left = list(all_rows)
        for row in got:
            left.remove(row)  # no row twice


def epoch(loader: ParquetLoader) -> list[float]:
    return [x for b in loader for x in b.dense[:, 0].tolist()]


def test_order_is_the_seeds_and_the_epochs(tmp_path: Path) -> None:
    paths = files(tmp_path, table(640), files=2)

    def of(seed: int, shuffle: bool = True) -> ParquetLoader:
        return ParquetLoader(
            paths, SPECS["single"], batch_size=32, training=True, shuffle=shuffle, seed=seed, buffer_rows=100
        )

    a, b, c = of(1), of(1), of(2)
    first, second = epoch(a), epoch(a)
    assert first != second and sorted(first) == sorted(second) == list(range(640))
    assert [epoch(b), epoch(b)] == [first, second] and epoch(c) != first
    assert np.mean(np.abs(np.array(first) - np.arange(640))) > 100  # far from where they lay
    plain = of(1, shuffle=False)
    assert epoch(plain) == epoch(plain) == list(range(640))


def test_what_fills_no_batch_differs_from_epoch_to_epoch(tmp_path: Path) -> None:
    loader = ParquetLoader(
        files(tmp_path, table(490), group=10), SPECS["single"], batch_size=60, training=True, shuffle=True
    )
    assert len(loader) == 8
    left = [frozenset(range(490)) - set(epoch(loader)) for _ in range(4)]
    assert all(len(rows) == 10 for rows in left) and len(set(left)) > 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_after_any_batch(tmp_path: Path, shuffle: bool) -> None:
    paths = files(tmp_path, table(400))

    def of() -> ParquetLoader:
        return ParquetLoader(
            paths, SPECS["multi"], batch_size=30, training=True, shuffle=shuffle, seed=5, buffer_rows=100
        )

    whole = of()
    batches = [*whole, *whole]
    steps = whole.steps
    assert steps == 13 and len(batches) == 2 * steps
    for done in range(2 * steps):
        before = of()
        seen = 0
        while seen < done:
            for _ in before:
                seen += 1
                if seen == done:
                    break
        after = of()
        after.load_state_dict(before.state_dict())
        rest: list[Batch] = []
        while len(rest) < 2 * steps - done:
            rest += list(after)
        assert len(rest) == 2 * steps - done
        assert all(same(a, b) for a, b in zip(rest, batches[done:], strict=True)), done


@pytest.mark.parametrize("kind", list(SPECS))
def test_reading_ahead_changes_no_batch(tmp_path: Path, kind: str) -> None:
    paths = files(tmp_path, table(500), files=2)

    def make(epochs: int | None = None) -> ParquetLoader:
        return ParquetLoader(
            paths, SPECS[kind], batch_size=8, training=True, shuffle=True, buffer_rows=32, epochs=epochs
        )

    alone = []
    for number in range(3):
        loader = make()
        loader.load_state_dict({"epoch": number, "step": 0})
        alone.append(list(loader))
    ahead = make(epochs=3)
    ahead.start_reading()
    for batches in alone:
        assert all(same(a, b) for a, b in zip(list(ahead), batches, strict=True))
    assert ahead._next is None  # after the last epoch nothing is read
    ahead = make()
    ahead.start_reading()
    ahead.load_state_dict({"epoch": 1, "step": 21})  # another position than the one that was read
    assert all(same(a, b) for a, b in zip(list(ahead), alone[1][21:], strict=True))
    del ahead, loader
    assert none_is_left()


def none_is_left() -> bool:
    """Whether the threads of this test's loaders end, some of which may have just been deleted."""
    stop = time.monotonic() + 5
    while any("loader" in t.name for t in {*threading.enumerate()} - OTHERS):
        if time.monotonic() > stop:
            return False
        time.sleep(0.01)
    return True


def test_breaking_off_leaves_no_thread(tmp_path: Path) -> None:
    loader = ParquetLoader(files(tmp_path, table(1000)), SPECS["multi"], batch_size=10, buffer_rows=20)
    for _ in loader:
        break
    assert none_is_left()
    batches: Iterator[Batch] = iter(loader)
    next(batches)
    del batches
    assert none_is_left()


def test_an_error_of_the_reader_reaches_the_consumer(tmp_path: Path) -> None:
    paths = files(tmp_path, table(200), files=2)
    loader = ParquetLoader(paths, SPECS["single"], batch_size=10, buffer_rows=20)
    paths[1].unlink()
    with pytest.raises(FileNotFoundError):
        list(loader)
    assert none_is_left()


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    loader = ParquetLoader(
        files(tmp_path, table(5000), group=500),
        SPECS["multi"],
        batch_size=50,
        training=True,
        shuffle=True,
        buffer_rows=500,
    )
    most = 0
    for _ in range(3):
        for _batch in loader:
            most = max(most, sum(b.nbytes for b in loader._layout._buffers))
    assert most <= 6 * 500 * 5 * 4  # six chunks of 500 rows: two dense, a label, two ids


@pytest.mark.parametrize("keep_bytes", [1, 20_000, 1 << 30])
def test_rows_that_are_kept_change_no_batch(tmp_path: Path, keep_bytes: int) -> None:
    paths = files(tmp_path, table(1000), group=64, files=2)

    def loader(keep_bytes: int) -> ParquetLoader:
        options: dict[str, Any] = {"batch_size": 33, "training": True, "shuffle": True, "buffer_rows": 150, "epochs": 4}
        return ParquetLoader(paths, SPECS["multi"], **options, keep_bytes=keep_bytes)

    kept, plain = loader(keep_bytes), loader(0)
    for epoch in range(4):
        plain_batches = list(plain)
        if keep_bytes == 1 << 30 and epoch == 3:  # all rows are kept by now
            for path in paths:
                path.unlink()
        assert all(same(a, b) for a, b in zip(kept, plain_batches, strict=True))
    groups = -(-500 // 64) * 2
    assert {1: range(1, 5), 20_000: range(5, groups), 1 << 30: range(groups, groups + 1)}[keep_bytes].count(
        len(kept._rows.kept)
    )
    assert not plain._rows.kept


def test_the_last_epoch_keeps_no_rows(tmp_path: Path) -> None:
    once = ParquetLoader(
        files(tmp_path, table(500)), SPECS["single"], batch_size=50, training=True, epochs=1, keep_bytes=1 << 30
    )
    assert len(list(once)) == 10 and not once._rows.kept


def test_the_writer_makes_whole_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "ROW_GROUP_ROWS", 32)
    monkeypatch.setattr(write, "FILE_ROWS", 96)
    frame = table(250)
    writer = PartWriter(tmp_path)
    for start, rows in ((0, 5), (5, 0), (5, 100), (105, 31), (136, 114)):
        writer.write(frame.slice(start, rows))
    writer.flush()
    paths = sorted(tmp_path.glob("*.parquet"))
    groups = [
        pq.read_metadata(p).row_group(i).num_rows for p in paths for i in range(pq.read_metadata(p).num_row_groups)
    ]
    assert len(paths) == 3 and groups == [32] * 7 + [26]
    assert pl.read_parquet(paths).equals(frame)
    assert list(writer.files) == [p.name for p in paths]


def test_wide_rows_have_small_row_groups_and_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(320)
    monkeypatch.setattr(write, "ROW_GROUP_BYTES", int(frame.estimated_size()) // 15)
    writer = PartWriter(tmp_path)
    writer.write(frame)
    writer.flush()
    [path] = tmp_path.glob("*.parquet")
    groups = [pq.read_metadata(path).row_group(i).num_rows for i in range(16)]
    assert pl.read_parquet(path).equals(frame) and set(groups[:-1]) == {21}
    monkeypatch.setattr(parquet_loader, "MAX_CHUNK_BYTES", int(frame.estimated_size()) // 4)
    read: list[int] = []
    decode = RowGroups._decode

    def counted(self: RowGroups, parts: Any) -> list[pl.DataFrame]:
        read.append(sum(stop - start for _, start, stop in parts))
        return decode(self, parts)

    monkeypatch.setattr(RowGroups, "_decode", counted)
    loader = ParquetLoader([path], SPECS["multi"], batch_size=8)
    assert sum(batch.rows for batch in loader) == 320 and max(read) < 160


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "wrong"), [("t", 50), ("s", -1), ("m", 40), ("n", 2**31 - 1)])
def test_an_id_without_a_row_is_refused(tmp_path: Path, name: str, wrong: int, training: bool) -> None:
    """GPUs would read memory that is not of the table."""
    frame = table(200)
    value = pl.lit(wrong, pl.Int32) if name in "st" else pl.lit([0, wrong], pl.List(pl.Int32))
    frame = frame.with_columns(pl.when(pl.col("row") == 150).then(value).otherwise(name).alias(name))
    loader = ParquetLoader(
        files(tmp_path, frame), SPECS["multi"], batch_size=32, training=training, shuffle=training, buffer_rows=64
    )
    rows = next(f for f in SPECS["multi"].sparse if f.name == name).cardinality
    with pytest.raises(UserError, match=f"^prepared data: {name} has the id {wrong}, and its table has {rows} rows"):
        list(loader)
