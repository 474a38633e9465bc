"""Load prepared Parquet as Batches: chunks of row groups are read ahead, shuffled in bounded memory, and sliced.

If rows have groups (data.group.together), the rows of a group stay together: groups are permuted instead of rows, and
a group is divided only where a batch, a Parquet row group or the share of a rank ends.

No Python code runs per row. One thread decodes the chunks (several row groups each, in random order) that come next;
others permute their rows and lay them out as [batches, features, rows], so that the ids of a batch are one contiguous
view. The first chunks of an epoch are read while the epoch before ends, and the first chunks of a
training while its model is built. A chunk is a whole number of batches. Memory is six chunks, whatever the size of the
data: the current one and, for each of the two chunks ahead, its decoded frame, its arrays and half as much to work in.
To these come decoded row groups that a training keeps for its later epochs, as many as it was allowed.
The order depends only on seed, epoch, rank and chunk, so epoch, step and the number of lanes (lanes.py) are the whole
state.
"""

import itertools
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torchrec.streamable import Pipelineable

from recsys.base.errors import UserError
from recsys.data.features.blocks import GROUP
from recsys.data.loader.chunk_layout import BatchColumns, ChunkLayout, LaidOutChunk
from recsys.data.loader.device_copies import copied_ahead, pinned_ahead, with_upcoming
from recsys.data.loader.lanes import lane_batches, parts_of
from recsys.data.loader.row_groups import RowGroup, RowGroups, row_groups, segments
from recsys.files.manifest import BackgroundCheck
from recsys.interface.batch import Batch
from recsys.interface.features import OUT_OF_VOCABULARY, FeatureSpec

CHUNKS_AHEAD = 2  # chunks prepared while one is being used
MAX_DROPPED = 0.05  # share of an epoch's rows
MIN_CHUNK_ROWS, CHUNK_VALUES = 262_144, 1 << 23
MAX_CHUNK_BYTES = 1 << 29  # of rows with long lists, of which MIN_CHUNK_ROWS would not fit into memory
VALUES_OF_LIST = 32  # counted for a list of ids, whose length is not known beforehand


@dataclass(frozen=True)
class _Share:
    """The rows that a rank reads.

    first: the first of them
    rows: how many there are
    steps: the number of batches, the same on all ranks
    rows_of_all: the rows that all ranks read together
    """

    first: int
    rows: int
    steps: int
    rows_of_all: int


def _training_share(total: int, batch_size: int, rank: int, world_size: int, max_steps: int) -> _Share:
    """Return this rank's share of a training epoch: the same number of rows on all ranks.

    Raises UserError if there are fewer rows than ranks.
    """
    share = total // world_size
    if share == 0:
        raise UserError(f"{total} training rows are too few for {world_size} processes; use fewer")
    steps, rest = divmod(share, batch_size)
    if steps == 0 or (rest > 1 and rest >= MAX_DROPPED * share):  # one row is no batch for batch norm
        steps += 1
    steps = min(steps, max_steps)
    rows = min(share, steps * batch_size)
    return _Share(rank * share, rows, steps, rows * world_size)


def _whole_share(total: int, batch_size: int, rank: int, world_size: int, max_steps: int) -> _Share:
    """Return this rank's share of all rows; the first ranks may have one row more than the last ones."""
    share, rest = divmod(total, world_size)
    steps = min(-(-(share + (rest > 0)) // batch_size), max_steps)
    rows = min(share + (rank < rest), steps * batch_size)
    return _Share(rank * share + min(rank, rest), rows, steps, min(total, steps * batch_size * world_size))


class ParquetLoader:
    """Iterates over Batches of this rank's share of the files' rows.

    Args:
        files: Parquet files of prepared data.
        training: give every rank the same number of rows and steps, and drop the last rows that do not fill a batch
            (a different set each epoch if shuffled) unless they are a MAX_DROPPED of the epoch or more. If False,
            every row comes once, and ranks with fewer rows are filled up with rows of weight 0, so that all ranks take
            the same number of steps.
        shuffle: shuffle the rows, in a different order each epoch.
        buffer_rows: number of rows of a chunk, within which rows are shuffled. The default is the number of rows that
            hold about CHUNK_VALUES values, and at least MIN_CHUNK_ROWS, unless they have more than MAX_CHUNK_BYTES.
            If a file is sorted by user and has several chunks, each step sees a part of the users only, from which
            models learn less.
        balance_lists: spread the rows of a chunk by the lengths of their lists, so that its batches, and so the ranks'
            steps, have nearly equal numbers of ids.
        negatives: the share of negatives that the files hold; each of them weighs 1 / negatives times as much.
        unknown: share of the ids of a feature that are replaced by the unknown id, drawn anew in each epoch.
        keep_bytes: bytes of decoded row groups that are kept for later epochs, and up to a chunk more.
        vectors: the vectors of dense features, `Fitted.matrices`.
        limit: use only this many batches of each epoch (the first ones); None uses all.
        epochs: number of epochs of a training, after which nothing is read ahead; None if it is not known.
        check: checks files while rows are read. A damaged file raises DamagedFile at the end of an epoch at the latest.
        device: where batches are yielded; a GPU gets them while it works on earlier ones.
        upcoming: number of batches that are read before they are handed out, for pipelines: `upcoming` has them, and
            they stay on the CPU, in page-locked memory if `device` is a GPU.

    Raises:
        UserError: there are fewer training rows than processes.
    """

    def __init__(
        self,
        files: Sequence[Path],
        features: FeatureSpec,
        *,
        batch_size: int,
        training: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        buffer_rows: int | None = None,
        balance_lists: bool = False,
        negatives: float = 1.0,
        unknown: Mapping[str, float] | None = None,
        keep_bytes: int = 0,
        rank: int = 0,
        world_size: int = 1,
        vectors: Mapping[str, np.ndarray] | None = None,
        limit: int | None = None,
        epochs: int | None = None,
        check: BackgroundCheck | None = None,
        device: torch.device | None = None,
        upcoming: int = 0,
    ) -> None:
        self._check, self._device, self.negatives = check, device, negatives
        self.upcoming, self._upcoming = deque[Batch](), upcoming
        self._epochs = sys.maxsize if epochs is None else epochs
        self._next: _ChunksAhead | None = None
        self._open_lane = partial(
            ParquetLoader,
            files,
            features,
            training=training,
            shuffle=shuffle,
            seed=seed,
            buffer_rows=buffer_rows,
            balance_lists=balance_lists,
            unknown=unknown,
            vectors=vectors,
            limit=limit,
        )
        self.features, self.batch_size, self.seed = features, batch_size, seed
        self._unknown = unknown or {}
        self._training, self._shuffle, self._balance_lists = training, shuffle, balance_lists
        self._rank, self._world_size = rank, world_size
        self._groups = [group for file in files for group in row_groups(file)]
        self.total_rows = sum(g.rows for g in self._groups)
        share_of = _training_share if training else _whole_share
        share = share_of(self.total_rows, batch_size, rank, world_size, limit or sys.maxsize)
        self.steps, self.rows = share.steps, share.rows_of_all
        self._first, self._rank_rows = share.first, share.rows
        self._columns = BatchColumns.of(features, training=training)
        if not buffer_rows:
            lists = len(self._columns.multi) + len(self._columns.queries)
            width = sum(f.width for f in features.dense) + VALUES_OF_LIST * lists
            buffer_rows = max(MIN_CHUNK_ROWS, CHUNK_VALUES // (len(self._columns.names) + width))
            of_row = sum(g.bytes for g in self._groups) / max(self.total_rows, 1)
            buffer_rows = min(buffer_rows, int(MAX_CHUNK_BYTES / max(of_row, 1)))
        self._chunk_steps = max(buffer_rows // batch_size, 1)
        self._rows = RowGroups(self._columns.names, keep_bytes, check)
        self._layout = ChunkLayout(features, self._columns, vectors or {}, batch_size, negatives)
        self.lanes = world_size  # number of processes with which this epoch began (lanes.py)
        self.epoch = 0
        self.step = 0  # batches of this epoch handed out so far
        self.seconds = 0.0  # time that the caller has waited for batches
        # makes the queries of a batch before it is copied to a GPU, in the thread that copies, and draws from a number;
        # None if the model makes them
        self.make_queries: Callable[[Batch, int], Pipelineable] | None = None

    def __len__(self) -> int:
        return self.steps

    def column(self, name: str, start: int, stop: int) -> pl.Series:
        """Return a column of the split's rows [start, stop), of all ranks; the column need not be a model input."""
        rows = Counter[Path]()
        for group in self._groups:
            rows[group.file] += group.rows
        files = [RowGroup(file, 0, n) for file, n in rows.items()]
        parts = [
            pl.read_parquet(g.file, columns=[name], n_rows=b, glob=False).slice(a)
            for g, a, b in segments(files, start, stop)
        ]
        return pl.concat(parts)[name] if parts else pl.Series(name, [], pl.Int32)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "step": self.step, "lanes": self.lanes}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from the position that `state_dict` returned."""
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self.lanes = int(state.get("lanes", self._world_size))

    def __iter__(self) -> Iterator[Batch]:
        if self.step >= self.steps:
            self.epoch, self.step, self.lanes = self.epoch + 1, 0, self._world_size
        elif self.step == 0:
            self.lanes = self._world_size
        if self._check is not None:
            self._check.start()
        batches = self._from_chunks() if self.lanes == self._world_size else self._from_lanes()
        if self._device is not None and self._device.type == "cuda":
            batches = (
                pinned_ahead(batches) if self._upcoming else copied_ahead(batches, self._device, self._queries_ahead())
            )
        if self._upcoming:
            batches = with_upcoming(batches, self.upcoming, self._upcoming)
        start = time.perf_counter()
        try:
            for batch in batches:
                self.step += 1
                self.seconds += time.perf_counter() - start
                yield batch
                start = time.perf_counter()
        finally:
            batches.close()
            if not self._training:  # after an evaluation that stopped early, the next one starts from the beginning
                self.epoch, self.step = 0, 0
        self.finish_check()

    def _queries_ahead(self) -> Callable[[Batch], Pipelineable] | None:
        """Return what makes the queries of the next batches, one after another; what it draws follows from the step."""
        if (make_queries := self.make_queries) is None:
            return None
        steps, of = itertools.count(self.step), [self.seed, self.epoch, self._rank]
        return lambda batch: make_queries(batch, int(np.random.SeedSequence([*of, next(steps)]).generate_state(1)[0]))

    def _from_chunks(self) -> Generator[Batch]:
        step, size = self.step, self._chunk_steps
        position = (self.epoch, step // size)
        chunks, self._next = self._next, None  # perhaps they are being read already
        if chunks is not None and (chunks.epoch, chunks.first) != position:  # the state of another position was loaded
            chunks.close()
            chunks = None
        if chunks is None:
            chunks = self._read_ahead(*position)
        try:
            while step < self.steps:
                chunk = chunks.take()
                if self._check is not None:
                    self._check.finish(wait=False)
                stop = min((step // size + 1) * size, self.steps)
                if stop == self.steps and self._training and self.epoch + 1 < self._epochs:
                    self._next = self._read_ahead(self.epoch + 1, 0)
                while step < stop:
                    batch = self._layout.batch(chunk, step % size)
                    batch.first_row = self._first + step * self.batch_size
                    step += 1
                    yield batch
                del chunk, batch  # so that their arrays can be used again
        finally:
            chunks.close()

    def start_reading(self) -> None:
        """Read the first rows in the background, before they are asked for."""
        if self._check is not None:
            self._check.start()
        self._next = self._read_ahead(self.epoch, self.step // self._chunk_steps)

    def finish_check(self) -> None:
        """Wait until the files are checked. Raises DamagedFile."""
        if self._check is not None:
            self._check.finish()

    def _read_ahead(self, epoch: int, first: int) -> "_ChunksAhead":
        groups, itself = self._groups, weakref.proxy(self)  # no cycle: threads end with the loader
        if self._shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(groups))
            groups = [groups[i] for i in order]
        keep = epoch + 1 < self._epochs
        read, lay_out = partial(ParquetLoader._read, itself, groups, keep), partial(ParquetLoader._chunk, itself, epoch)
        return _ChunksAhead(epoch, first, -(-self.steps // self._chunk_steps), read, lay_out)

    def _from_lanes(self) -> Generator[Batch]:
        """Yield the remaining batches of an epoch that began with another number of processes."""
        step_rows = self.batch_size * self._world_size

        def open_lane(lane: int) -> Iterator[Batch]:
            loader = self._open_lane(batch_size=step_rows // self.lanes, rank=lane, world_size=self.lanes)
            loader.load_state_dict({"epoch": self.epoch, "step": self.step})
            return iter(loader)

        parts = parts_of(self._rank, self._world_size, self.lanes, step_rows)
        yield from lane_batches(open_lane, parts, step_rows // self.lanes)

    def _read(self, groups: list[RowGroup], keep: bool, k: int) -> pl.DataFrame:
        """Read the rows of this rank's chunk k. keep: keep row groups for later epochs"""
        size = self._chunk_steps * self.batch_size
        start = self._first + k * size
        stop = self._first + min((k + 1) * size, self._rank_rows)
        return self._rows.read(groups, start, stop, keep)

    def _chunk(self, epoch: int, frame: pl.DataFrame, k: int) -> LaidOutChunk:
        """Lay out this rank's chunk k, its rows permuted by an order of (seed, epoch, rank, k)."""
        order = None
        if self._shuffle:
            random = np.random.default_rng([self.seed, epoch, self._rank, k])
            if self._columns.grouped:  # the groups, whose rows are neighbours, in random order
                group = frame[GROUP].to_numpy()
                first = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
                sizes = np.diff(np.append(first, len(group)))
                chosen = random.permutation(len(first))
                stops = np.cumsum(sizes[chosen])
                order = np.repeat(first[chosen] - (stops - sizes[chosen]), sizes[chosen]) + np.arange(len(group))
            else:
                order = random.permutation(frame.height)
            if self._balance_lists and self._columns.multi:
                ids = frame.select(pl.sum_horizontal(pl.col(self._columns.multi).list.len())).to_series().to_numpy()
                order = balanced(order, ids, self.batch_size)
        chunk = self._layout.chunk(frame, min(self._chunk_steps, self.steps - k * self._chunk_steps), order)
        random = np.random.default_rng([self.seed, epoch, self._rank, k, 1])
        for name, share in self._unknown.items():
            ids = self._layout.ids_of(chunk, name)
            ids.flat[random.integers(0, max(ids.size, 1), random.binomial(ids.size, share))] = OUT_OF_VOCABULARY
        return chunk


class _ChunksAhead:
    """The chunks of an epoch, of which CHUNKS_AHEAD are read and laid out in the background before they are taken.

    Args:
        first, stop: number of the first chunk, and of the one after the last.
    """

    def __init__(
        self,
        epoch: int,
        first: int,
        stop: int,
        read: Callable[[int], pl.DataFrame],
        lay_out: Callable[[pl.DataFrame, int], LaidOutChunk],
    ) -> None:
        self.epoch, self.first = epoch, first
        self._read, self._lay_out = read, lay_out
        self._decoder, self._writer = (
            ThreadPoolExecutor(1, "loader-decode"),
            ThreadPoolExecutor(CHUNKS_AHEAD, "loader-layout"),
        )
        self._numbers = iter(range(first, stop))
        self._futures = deque[Future[LaidOutChunk]]()
        for _ in range(CHUNKS_AHEAD):
            self._submit()

    def _submit(self) -> None:
        if (k := next(self._numbers, None)) is not None:
            frame, lay_out = self._decoder.submit(self._read, k), self._lay_out
            self._futures.append(self._writer.submit(lambda: lay_out(frame.result(), k)))

    def take(self) -> LaidOutChunk:
        """Return the next chunk, and begin with another one."""
        chunk = self._futures.popleft().result()
        self._submit()
        return chunk

    def close(self) -> None:
        """Stop reading."""
        for pool in (self._writer, self._decoder):
            pool.shutdown(cancel_futures=True)


def balanced(order: np.ndarray, ids: np.ndarray, batch_size: int) -> np.ndarray:
    """Return a permutation whose batches have nearly equal numbers of ids, and whose last rows fill no batch.

    Rows are dealt to the batches from the most ids to the fewest, to and fro.

    Args:
        order: (R,) a random permutation of the rows, which decides between rows of equal numbers.
        ids: (R,) the number of ids of each row.
        batch_size: rows of a batch.
    """
    batches = len(order) // batch_size
    full, rest = np.split(order, [batches * batch_size])
    dealt = full[np.argsort(-ids[full].astype(np.int64), kind="stable")].reshape(batch_size, batches)
    dealt[1::2] = dealt[1::2, ::-1]
    return np.concatenate([dealt.T.ravel(), rest])
