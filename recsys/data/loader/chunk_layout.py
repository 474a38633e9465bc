"""Make the loader's Batches of chunks of prepared Parquet, in reused buffers. No Python code runs per row."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import polars as pl
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.errors import UserError
from recsys.data.features.arrays import dense_slices
from recsys.data.features.blocks import GROUP, HISTORY, POSITION, TARGETS, WEIGHT, label_column
from recsys.interface.batch import Batch, CandidateIds, CandidateLists
from recsys.interface.features import FeatureSpec

KEPT_BUFFERS = 25  # arrays of the chunks in memory, about six for each


@dataclass(frozen=True)
class BatchColumns:
    """The columns of prepared rows that batches need.

    dense: the dense features of one number
    row_vectors: the dense features whose vectors are in the rows
    vectors: the dense features whose rows hold an index of a matrix of vectors
    single: the single-valued sparse features
    multi: the multi-valued ones
    queries: the columns of targets and history; none in training
    """

    labels: Sequence[str]
    dense: Sequence[str]
    row_vectors: Sequence[str]
    vectors: Sequence[str]
    single: Sequence[str]
    multi: Sequence[str]
    queries: Sequence[str]
    weighted: bool
    grouped: bool
    placed: bool

    @classmethod
    def of(cls, features: FeatureSpec, *, training: bool) -> "BatchColumns":
        """Return the columns that models of these features read."""
        return cls(
            [label_column(i, label.name) for i, label in enumerate(features.labels)],
            [f.name for f in features.dense if not f.vectors and f.width == 1],
            [f.name for f in features.dense if not f.vectors and f.width > 1],
            [f.name for f in features.dense if f.vectors],
            [f.name for f in features.sparse if not f.multi_valued],
            [f.name for f in features.sparse if f.multi_valued],
            [] if training or features.item is None else [TARGETS, HISTORY],
            features.weighted,
            features.grouped,
            features.position is not None,
        )

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        has = {WEIGHT: self.weighted, GROUP: self.grouped, POSITION: self.placed}
        of_rows = [name for name, given in has.items() if given]
        dense = [*self.dense, *self.row_vectors, *self.vectors]
        return [*self.labels, *dense, *self.single, *self.multi, *of_rows, *self.queries]


@dataclass
class LaidOutChunk:
    """The rows of one chunk, laid out by batch.

    rows: R, the number of rows
    dense: (R, D) float32
    labels: (R, T) float32
    ids: (batches, S, B) int32, of the S single-valued features
    bags: for each multi-valued feature, its values and offsets (R + 1,)
    queries: values and offsets of targets and history; empty in training
    weights: (R,) float32; None if all rows have weight 1
    groups: (R,) int64; None if rows have no groups
    positions: (R,) int32; None if rows have no positions
    """

    rows: int
    dense: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    bags: list[tuple[np.ndarray, np.ndarray]]
    queries: list[tuple[np.ndarray, np.ndarray]]
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    positions: np.ndarray | None = None


class ChunkLayout:
    """Makes chunks of prepared frames, and the many batches of a chunk, for the loader.

    Args:
        columns: the columns of the frames.
        vectors: the matrix of each feature in `columns.vectors`.
        negatives: the share of negatives that the frames hold; each of them weighs 1 / negatives times as much.
    """

    def __init__(
        self,
        features: FeatureSpec,
        columns: BatchColumns,
        vectors: Mapping[str, np.ndarray],
        batch_size: int,
        negatives: float = 1.0,
    ) -> None:
        self._negatives = negatives
        self._features, self._columns, self._batch_size = features, columns, batch_size
        self._matrices = {name: vectors[name] for name in columns.vectors}
        self._slices = dense_slices(features)
        self._keys = [f.name for f in features.sparse]
        self._table_rows = {f.name: f.cardinality for f in features.sparse}
        self._buffers: list[np.ndarray] = []
        self._lock = Lock()  # of the buffers: several chunks are laid out at a time
        self._shapes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def chunk(self, frame: pl.DataFrame, batches: int, order: np.ndarray | None) -> LaidOutChunk:
        """Lay the rows of a frame out as this many batches.

        order: (R,) permutation of the rows; None keeps the order of the frame
        """
        rows, full = frame.height, batches * self._batch_size
        dense = self._dense(frame, full, order)
        labels = self._buffer((full, len(self._columns.labels)), np.float32)
        labels[rows:] = 0
        column = self._buffer((rows,), np.float32)
        for i, name in enumerate(self._columns.labels):
            labels[:rows, i] = _permute(_copy(frame, name, column), order)
        weights = None
        if self._columns.weighted:
            weights = self._buffer((full,), np.float32)
            weights[:rows], weights[rows:] = _permute(_copy(frame, WEIGHT, column), order), 0
        if self._negatives < 1:
            if weights is None:
                weights = self._buffer((full,), np.float32)
                weights[:rows], weights[rows:] = 1, 0
            weights[:rows][labels[:rows, 0] == 0] /= self._negatives
        groups = _permute(frame[GROUP].to_numpy(), order) if self._columns.grouped else None
        positions = _permute(frame[POSITION].to_numpy(), order) if self._columns.placed else None
        ids = self._ids(frame, batches, order)
        bags = [_bags(frame[name], order) for name in self._columns.multi]
        for name, (values, _) in zip(self._columns.multi, bags, strict=True):
            self._check_ids(name, values)
        queries = [_bags(frame[name], order) for name in self._columns.queries]
        return LaidOutChunk(rows, dense, labels, ids, bags, queries, weights, groups, positions)

    def _dense(self, frame: pl.DataFrame, full: int, order: np.ndarray | None) -> np.ndarray:
        """Return the dense features of all rows, followed by zeros: (full, D) float32."""
        rows, names = frame.height, self._columns.dense
        dense = self._buffer((full, self._features.dense_width), np.float32)
        dense[rows:] = 0
        if names:
            alone = not self._columns.vectors and not self._columns.row_vectors
            in_place = order is None and alone
            by_row = dense[:rows] if in_place else self._buffer((rows, len(names)), np.float32)
            by_column = self._buffer((len(names), rows), np.float32)
            for i, name in enumerate(names):
                _copy(frame, name, by_column[i])
            by_row[:] = by_column.T  # at once: column by column would write each cache line many times
            if not alone:
                dense[:rows, [self._slices[name].start for name in names]] = _permute(by_row, order)
            elif order is not None:
                np.take(by_row, order, axis=0, out=dense[:rows], mode="clip")
        for name in self._columns.row_vectors:
            dense[:rows, self._slices[name]] = _permute(frame[name].to_numpy(), order)
        for name, matrix in self._matrices.items():
            dense[:rows, self._slices[name]] = matrix[_permute(frame[name].to_numpy(), order)]
        return dense

    def _ids(self, frame: pl.DataFrame, batches: int, order: np.ndarray | None) -> np.ndarray:
        """Return the ids of the single-valued features by batch, followed by zeros: (batches, S, B) int32."""
        rows, size = frame.height, self._batch_size
        ids = self._buffer((batches, len(self._columns.single), size), np.int32)
        ids[rows // size :] = 0
        column = self._buffer((rows,), np.int32)
        permuted = None if order is None else self._buffer((rows,), np.int32)
        whole = rows // size
        for i, name in enumerate(self._columns.single):
            values = _copy(frame, name, column)
            self._check_ids(name, values)
            if order is not None:
                values = np.take(values, order, out=permuted, mode="clip")
            ids[:whole, i] = values[: whole * size].reshape(whole, size)
            if rows > whole * size:
                ids[whole, i, : rows - whole * size] = values[whole * size :]
        return ids

    def ids_of(self, chunk: LaidOutChunk, name: str) -> np.ndarray:
        """Return the ids of a feature in a chunk as a view that can be written to: (batches, B) or (ids,) int32."""
        if name in self._columns.multi:
            return chunk.bags[self._columns.multi.index(name)][0]
        return chunk.ids[:, self._columns.single.index(name)]

    def _check_ids(self, name: str, ids: np.ndarray) -> None:
        """Raise UserError if ids (N,) int32 exceed the table. FBGEMM's kernels on GPUs trust them (sharders.py)."""
        rows = self._table_rows[name]
        if len(ids) and (worst := int(ids.view(np.uint32).max())) >= rows:  # a negative id is a large one
            found = int(np.uint32(worst).view(np.int32))
            where = f"prepared data: {name} has the id {found}, and its table has {rows} rows"
            raise UserError(f"{where}; delete the folder of data.prepared, and train again")

    def _buffer(self, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        """Return an array that no batch refers to any more, or a new one. Reusing arrays avoids page faults."""
        with self._lock:
            for old in self._buffers:
                if old.shape == shape and old.dtype == dtype and sys.getrefcount(old) == 3:
                    # self._buffers, the loop and the argument; a chunk or a batch would hold a fourth reference
                    return old
            new = np.empty(shape, dtype)
            self._buffers = [*self._buffers[1 - KEPT_BUFFERS :], new]
            return new

    def batch(self, chunk: LaidOutChunk, b: int) -> Batch:
        """Return batch number `b` of a chunk; its tensors are views of the chunk's arrays where they can be."""
        start = b * self._batch_size
        rows = min(max(chunk.rows - start, 0), self._batch_size)
        size = max(rows, 1)
        weight = None if rows == size else torch.zeros(size)
        if chunk.weights is not None:
            weight = torch.from_numpy(chunk.weights[start : start + size])
        group, position = (_filled(x, start, rows, size) for x in (chunk.groups, chunk.positions))
        dense = torch.from_numpy(chunk.dense[start : start + size])
        labels = torch.from_numpy(chunk.labels[start : start + size])
        values = torch.from_numpy(chunk.ids[b])[:, :size].reshape(-1)
        lengths, offsets = self._single_shape(size)
        if self._columns.multi:
            parts, sizes = [values], [lengths]
            totals = [size] * len(self._columns.single)
            for bags in chunk.bags:
                bag_values, bag_lengths = _lists(bags, start, rows, size)
                parts.append(torch.from_numpy(bag_values))
                sizes.append(bag_lengths.int())
                totals.append(len(bag_values))
            sparse = KeyedJaggedTensor(
                self._keys, torch.cat(parts), lengths=torch.cat(sizes), stride=size, length_per_key=totals
            )
        else:
            sparse = KeyedJaggedTensor(
                self._keys,
                values,
                lengths=lengths,
                offsets=offsets,
                stride=size,
                length_per_key=[size] * len(self._keys),  # TorchRec would sum the lengths
                offset_per_key=[size * i for i in range(len(self._keys) + 1)],
            )
        queries = [_lists(x, start, rows, size) for x in chunk.queries]
        lists = [CandidateLists(CandidateIds(torch.from_numpy(x.astype(np.int64))), n) for x, n in queries]
        targets, history = lists or (None, None)
        return Batch(dense, sparse, labels, weight, group, position, targets, history)

    def _single_shape(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lengths (all 1) and offsets of `size` single-valued rows; they are cached.

        Offsets are int64, to which TorchRec converts them for each lookup.
        """
        if size not in self._shapes:
            n = size * len(self._columns.single)
            self._shapes[size] = (torch.ones(n, dtype=torch.int32), torch.arange(n + 1))
        return self._shapes[size]


def _copy(frame: pl.DataFrame, name: str, out: np.ndarray) -> np.ndarray:
    """Copy a column into `out`, a contiguous array, cast to its type."""
    at = 0
    for values in frame[name].get_chunks():
        out[at : at + len(values)] = values.to_numpy()
        at += len(values)
    return out


def _lists(bags: tuple[np.ndarray, np.ndarray], start: int, rows: int, size: int) -> tuple[np.ndarray, torch.Tensor]:
    """Return the values and lengths of the lists of rows [start, start + rows), with empty lists up to `size` rows.

    bags: the values and offsets of a chunk's rows
    """
    values, offsets = bags
    stops = offsets[min(start, len(offsets) - 1) : start + rows + 1]
    lengths = torch.zeros(size, dtype=torch.int64)
    lengths[:rows] = torch.from_numpy(np.diff(stops))
    return values[stops[0] : stops[-1]], lengths


def _filled(x: np.ndarray | None, start: int, rows: int, size: int) -> torch.Tensor | None:
    """Return values of rows [start, start + rows), with zeros up to `size` rows; None if rows have none."""
    if x is None:
        return None
    values = torch.zeros(size, dtype=torch.from_numpy(x[:0].copy()).dtype)
    values[:rows] = torch.from_numpy(x[start : start + rows])
    return values


def _permute(x: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return x if order is None else x[order]


def _bags(column: pl.Series, order: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return values and offsets (rows + 1,) of a list column, its rows permuted by `order`."""
    lengths = column.list.len().fill_null(0).to_numpy()
    values = column.explode(empty_as_null=False, keep_nulls=False).cast(pl.Int32).to_numpy(writable=True)
    if order is not None:
        tensors = (torch.from_numpy(x) for x in (order.astype(np.int32), lengths.astype(np.int32), values))
        new_lengths, new_values, _ = torch.ops.fbgemm.permute_1D_sparse_data(*tensors, None, None)
        lengths, values = new_lengths.numpy(), new_values.numpy()
    return values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
