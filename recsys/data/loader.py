"""Load prepared Parquet as Batches: chunks of row groups are read ahead, shuffled in bounded memory, and sliced.

If rows have groups (data.group.together), the rows of a group stay together: groups are permuted instead of rows, and
only the ends of batches, and of the row groups and shares that are read, divide a group.

No Python code runs per row. One thread decodes the chunk after next (several row groups, in random order); another
one permutes the rows of the next chunk and lays them out as [batches, features, rows], so that the ids of a batch are
one contiguous view. A chunk is a whole number of batches. Memory is five chunks, whatever the size of the data. The
order is a function of (seed, epoch, chunk), so the position (epoch, step) is the whole state.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.batch import Batch, JaggedIds
from recsys.data.arrays import dense_slices
from recsys.data.batch_tensors import BatchTensors
from recsys.data.device_copies import copied_ahead
from recsys.data.lanes import lane_batches, parts_of
from recsys.data.row_groups import RowGroup, row_groups, segments
from recsys.data.transforms import HISTORY, TARGETS
from recsys.data.transforms.column_names import GROUP, WEIGHT, label_column
from recsys.errors import UserError
from recsys.features import FeatureSpec
from recsys.files.manifest import BackgroundCheck

AHEAD = 2  # chunks prepared while one is being used


@dataclass
class _Chunk:
    """The rows of one chunk, laid out by batch.

    rows: R, the number of rows
    dense: (R, D) float32
    labels: (R, T) float32
    ids: (batches, S, B) int32, of the S single-valued features
    bags: for each multi-valued feature, its values and offsets (R + 1,)
    queries: values and offsets of targets and history; empty in training
    weights: (R,) float32; None if all rows have weight 1
    groups: (R,) int64; None if rows have no groups
    """

    rows: int
    dense: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    bags: list[tuple[np.ndarray, np.ndarray]]
    queries: list[tuple[np.ndarray, np.ndarray]]
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None


class ParquetLoader:
    """Iterates over Batches of this rank's share of the files' rows.

    Args:
        files: Parquet files of prepared data.
        features: the feature spec.
        batch_size: rows of a batch.
        training: give every rank the same number of rows and steps, and drop the last rows that do not fill a batch
            (a different set each epoch if shuffled). If False, every row comes once, and ranks with fewer rows are
            filled up with rows of weight 0, so that all ranks take the same number of steps.
        shuffle: shuffle the rows, in a different order each epoch.
        seed: seed of the order.
        buffer_rows: number of rows of a chunk, within which rows are shuffled.
        rank: rank of this process.
        world_size: the number of processes.
        vectors: the vectors of dense features, `Fitted.matrices`.
        limit: use only this many batches of each epoch (the first ones); None uses all.
        check: checks files while rows are read. A damaged file raises DamagedFile at the end of an epoch at the latest.
        device: where batches are yielded; a GPU gets them while it works on earlier ones.

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
        buffer_rows: int = 262_144,
        rank: int = 0,
        world_size: int = 1,
        vectors: Mapping[str, np.ndarray] | None = None,
        limit: int | None = None,
        check: BackgroundCheck | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._check, self._device = check, device
        self._open_lane = partial(
            ParquetLoader,
            files,
            features,
            training=training,
            shuffle=shuffle,
            seed=seed,
            buffer_rows=buffer_rows,
            vectors=vectors,
            limit=limit,
        )
        self.features, self.batch_size, self.seed = features, batch_size, seed
        self._training, self._shuffle = training, shuffle
        self._rank, self._world_size = rank, world_size
        self._groups = [group for file in files for group in row_groups(file)]
        self.total_rows = sum(g.rows for g in self._groups)
        share, rest = divmod(self.total_rows, world_size)
        if training:
            if share == 0:
                raise UserError(f"{self.total_rows} training rows are too few for {world_size} processes; use fewer")
            self._first, self._rows = rank * share, share
            self.steps = min(max(share // batch_size, 1), limit or sys.maxsize)
            self._rows = min(share, self.steps * batch_size)
        else:
            self._first = rank * share + min(rank, rest)
            self._rows = share + (rank < rest)
            self.steps = min(-(-(share + (rest > 0)) // batch_size), limit or sys.maxsize)
            self._rows = min(self._rows, self.steps * batch_size)
            self.rows = min(self.total_rows, self.steps * batch_size * world_size)
        self._chunk_steps = max(buffer_rows // batch_size, 1)
        self._single = [f.name for f in features.sparse if not f.multi_valued]
        self._multi = [f.name for f in features.sparse if f.multi_valued]
        self._dense = [f.name for f in features.dense if not f.vectors and f.width == 1]
        self._row_vectors = [f.name for f in features.dense if not f.vectors and f.width > 1]
        self._vectors = [(f.name, (vectors or {})[f.name]) for f in features.dense if f.vectors]
        self._slices = dense_slices(features)
        self._labels = [label_column(i, label.name) for i, label in enumerate(features.labels)]
        self._weights = [WEIGHT] if features.weighted else []
        names = [f.name for f in features.dense]
        self._queries = [] if training or features.item is None else [TARGETS, HISTORY]
        self._grouped = [GROUP] if features.grouped else []
        others = [*self._weights, *self._grouped, *self._queries]
        self._columns = [*self._labels, *names, *self._single, *self._multi, *others]
        self._keys = [f.name for f in features.sparse]
        self._buffers: list[np.ndarray] = []
        self._shapes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.lanes = world_size  # number of processes with which this epoch began (lanes.py)
        self.epoch = 0
        self.step = 0  # batches of this epoch handed out so far
        self.seconds = 0.0  # time that the caller has waited for batches

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
            batches = copied_ahead(batches, self._device)
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
        if self._check is not None:
            self._check.finish()

    def _from_chunks(self) -> Generator[Batch]:
        groups, step = self._order(), self.step
        first = step // self._chunk_steps
        last = -(-self.steps // self._chunk_steps)
        decoder, writer = ThreadPoolExecutor(1, "loader-decode"), ThreadPoolExecutor(1, "loader-layout")

        def submit(k: int) -> Future[_Chunk]:
            frame = decoder.submit(self._read, groups, k)
            return writer.submit(lambda: self._layout(frame.result(), k))

        ahead = deque(submit(k) for k in range(first, min(first + AHEAD, last)))
        try:
            for k in range(first, last):
                chunk = ahead.popleft().result()
                if self._check is not None:
                    self._check.finish(wait=False)
                if k + AHEAD < last:
                    ahead.append(submit(k + AHEAD))
                while step < min((k + 1) * self._chunk_steps, self.steps):
                    batch = self._batch(chunk, step - k * self._chunk_steps)
                    batch.first_row = self._first + step * self.batch_size
                    step += 1
                    yield batch
                del chunk, batch
        finally:
            for pool in (writer, decoder):
                pool.shutdown(cancel_futures=True)

    def _from_lanes(self) -> Generator[Batch]:
        """Yield the remaining batches of an epoch that began with another number of processes."""
        step_rows = self.batch_size * self._world_size

        def open_lane(lane: int) -> Iterator[Batch]:
            loader = self._open_lane(batch_size=step_rows // self.lanes, rank=lane, world_size=self.lanes)
            loader.load_state_dict({"epoch": self.epoch, "step": self.step})
            return iter(loader)

        yield from lane_batches(open_lane, parts_of(self._rank, self._world_size, self.lanes, step_rows))

    def _order(self) -> list[RowGroup]:
        if not self._shuffle:
            return self._groups
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self._groups))
        return [self._groups[i] for i in order]

    # --- reading -------------------------------------------------------------------------------------

    def _read(self, groups: list[RowGroup], k: int) -> pl.DataFrame:
        """Read the rows of this rank's chunk k, decoded by all of polars' threads."""
        size = self._chunk_steps * self.batch_size
        start = self._first + k * size
        stop = self._first + min((k + 1) * size, self._rows)
        parts = [(g.file, g.first + a, b - a) for g, a, b in segments(groups, start, stop)]
        if not parts:  # this rank has no row left, but must take the same number of steps as the others
            parts = [(groups[0].file, 0, 0)]
        scans = [pl.scan_parquet(f, glob=False).select(self._columns).slice(at, rows) for f, at, rows in parts]
        # common-subplan elimination would share the scans of one file by reading all of it
        separate = pl.QueryOptFlags(comm_subplan_elim=False)
        try:
            return pl.concat(pl.collect_all(scans, optimizations=separate), rechunk=False)
        except pl.exceptions.PolarsError:
            if self._check is not None:
                self._check.check_now(file for file, _, _ in parts)
            raise

    def _layout(self, frame: pl.DataFrame, k: int) -> _Chunk:
        """Permute the rows by an order of (seed, epoch, rank, k), and lay them out by batch."""
        rows, order = frame.height, None
        if self._shuffle:
            random = np.random.default_rng([self.seed, self.epoch, self._rank, k])
            order = _by_group(frame[GROUP].to_numpy(), random) if self._grouped else random.permutation(rows)
        batches = min((k + 1) * self._chunk_steps, self.steps) - k * self._chunk_steps
        full = batches * self.batch_size
        dense = self._buffer((full, self.features.dense_width), np.float32)
        labels = self._buffer((full, len(self._labels)), np.float32)
        ids = self._buffer((batches, len(self._single), self.batch_size), np.int32)
        if rows < full:  # only the last chunk
            dense[rows:], labels[rows:], ids[rows // self.batch_size :] = 0, 0, 0
        column = self._buffer((rows,), np.float32)
        if self._dense:
            alone = not self._vectors and not self._row_vectors
            in_place = order is None and alone
            by_row = dense[:rows] if in_place else self._buffer((rows, len(self._dense)), np.float32)
            for i, name in enumerate(self._dense):
                by_row[:, i] = _copy(frame, name, column)
            if not alone:
                dense[:rows, [self._slices[name].start for name in self._dense]] = _permute(by_row, order)
            elif order is not None:
                np.take(by_row, order, axis=0, out=dense[:rows], mode="clip")
        for name in self._row_vectors:
            dense[:rows, self._slices[name]] = _permute(frame[name].to_numpy(), order)
        for name, matrix in self._vectors:
            dense[:rows, self._slices[name]] = matrix[_permute(frame[name].to_numpy(), order)]
        for i, name in enumerate(self._labels):
            labels[:rows, i] = _permute(_copy(frame, name, column), order)
        weights = None
        if self._weights:
            weights = self._buffer((full,), np.float32)
            weights[:rows], weights[rows:] = _permute(_copy(frame, WEIGHT, column), order), 0
        groups = _permute(frame[GROUP].to_numpy(), order) if self._grouped else None
        column = self._buffer((rows,), np.int32)
        for i, name in enumerate(self._single):
            values = _copy(frame, name, column)
            for b in range(batches):
                start, stop = b * self.batch_size, min((b + 1) * self.batch_size, rows)
                out = ids[b, i, : stop - start]
                if order is None:
                    out[:] = values[start:stop]
                else:
                    np.take(values, order[start:stop], out=out, mode="clip")
        bags = [_bags(frame[name], order) for name in self._multi]
        queries = [_bags(frame[name], order) for name in self._queries]
        return _Chunk(rows, dense, labels, ids, bags, queries, weights, groups)

    def _buffer(self, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        """Return an array that no batch refers to any more, or a new one. Reusing arrays avoids page faults."""
        for old in self._buffers:
            if old.shape == shape and old.dtype == dtype and sys.getrefcount(old) == 3:  # list, loop, call
                return old
        new = np.empty(shape, dtype)
        self._buffers = [*self._buffers[-24:], new]
        return new

    # --- slicing -------------------------------------------------------------------------------------

    def _batch(self, chunk: _Chunk, b: int) -> Batch:
        start = b * self.batch_size
        rows = min(max(chunk.rows - start, 0), self.batch_size)
        size = max(rows, 1)
        weight = None if rows == size else torch.zeros(size)
        if chunk.weights is not None:
            weight = torch.from_numpy(chunk.weights[start : start + size])
        group = None
        if chunk.groups is not None:
            group = torch.zeros(size, dtype=torch.int64)
            group[:rows] = torch.from_numpy(chunk.groups[start : start + rows])
        dense = torch.from_numpy(chunk.dense[start : start + size])
        labels = torch.from_numpy(chunk.labels[start : start + size])
        values = torch.from_numpy(chunk.ids[b])[:, :size].reshape(-1)
        lengths, offsets = self._single_shape(size)
        if self._multi:
            parts, sizes = [values], [lengths]
            for bag_values, bag_offsets in chunk.bags:
                stops = bag_offsets[min(start, rows + start) : start + rows + 1]
                parts.append(torch.from_numpy(bag_values[stops[0] : stops[-1]]))
                bag_lengths = torch.zeros(size, dtype=torch.int32)
                bag_lengths[:rows] = torch.from_numpy(np.diff(stops).astype(np.int32))
                sizes.append(bag_lengths)
            sparse = KeyedJaggedTensor(self._keys, torch.cat(parts), lengths=torch.cat(sizes))
        else:
            sparse = KeyedJaggedTensor(self._keys, values, lengths=lengths, offsets=offsets, stride=size)
        targets, history = [_jagged_ids(x, start, rows, size) for x in chunk.queries] or (None, None)
        return Batch(dense, sparse, labels, weight, group, targets, history)

    def _single_shape(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lengths (all 1) and offsets of `size` single-valued rows; they are cached."""
        if size not in self._shapes:
            n = size * len(self._single)
            self._shapes[size] = (torch.ones(n, dtype=torch.int32), torch.arange(n + 1, dtype=torch.int32))
        return self._shapes[size]


def batch_of(frame: pl.DataFrame, features: FeatureSpec, vectors: Mapping[str, np.ndarray] | None = None) -> Batch:
    """Return all rows of a frame that `Fitted.apply` returned as one Batch; labels are 0 if it has none."""
    columns = [label_column(i, label.name) for i, label in enumerate(features.labels)]
    labels = np.zeros((frame.height, len(columns)), np.float32)
    if columns and columns[0] in frame.columns:
        labels = frame.select(columns).to_numpy()
    return BatchTensors.from_frame(frame, features, vectors).batch(labels)


def _copy(frame: pl.DataFrame, name: str, out: np.ndarray) -> np.ndarray:
    """Copy a column into `out`, a contiguous array, cast to its type."""
    at = 0
    for values in frame[name].get_chunks():
        out[at : at + len(values)] = values.to_numpy()
        at += len(values)
    return out


def _jagged_ids(bags: tuple[np.ndarray, np.ndarray], start: int, rows: int, size: int) -> JaggedIds:
    """Return the lists of rows [start, start + rows), followed by empty lists up to `size` rows."""
    values, offsets = bags
    stops = offsets[min(start, len(offsets) - 1) : start + rows + 1]
    lengths = torch.zeros(size, dtype=torch.int64)
    lengths[:rows] = torch.from_numpy(np.diff(stops))
    return JaggedIds(torch.from_numpy(values[stops[0] : stops[-1]].astype(np.int64)), lengths)


def _permute(x: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return x if order is None else x[order]


def _by_group(group: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return an order of the rows (R,) with the groups, which are neighbours, in random order."""
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    sizes = np.diff(np.append(first, len(group)))
    chosen = random.permutation(len(first))
    stops = np.cumsum(sizes[chosen])
    return np.repeat(first[chosen] - (stops - sizes[chosen]), sizes[chosen]) + np.arange(len(group))


def _bags(column: pl.Series, order: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return values and offsets (rows + 1,) of a list column, its rows permuted by `order`."""
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    values = column.explode(empty_as_null=False, keep_nulls=False).cast(pl.Int32).to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    if order is None:
        return values, starts
    new_lengths = lengths[order]
    offsets = np.concatenate([[0], np.cumsum(new_lengths)])
    index = np.repeat(starts[:-1][order] - offsets[:-1], new_lengths) + np.arange(offsets[-1])
    return values[index], offsets
