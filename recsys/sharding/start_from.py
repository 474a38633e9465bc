"""Start a training from the weights and optimizer states of another run's checkpoint, whose tables may be smaller."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from recsys.base.errors import UserError
from recsys.sharding.sharded_checkpoint import column_edges, local_tables
from recsys.sharding.sharded_model import ShardedModel
from recsys.sharding.stored_checkpoint import SafeReader, StoredCheckpoint, TensorsOnly, check_checkpoint
from recsys.sharding.tables import TableShards
from recsys.sharding.touched_rows import RowOptimizer


def start_from(
    path: Path, sharded: ShardedModel, row_optimizer: RowOptimizer | None, fresh: Mapping[str, np.ndarray]
) -> None:
    """Load dense weights, and the rows and optimizer states of all values that kept their rows. Collective.

    Rows in `fresh`, and rows that the checkpoint's tables lack, keep their initial weights, and their optimizer states
    are those of a row that was never looked up.

    Args:
        path: the checkpoint; any plan may have written it.
        sharded: the model with initial weights; the optimizer of its tables must be the checkpoint's.
        row_optimizer: optimizer of the tables with dense kernels; None if there are none.
        fresh: rows that have got a new value, by vocabulary.
    """
    check_checkpoint(path)
    stored, optimizer = StoredCheckpoint(path), sharded.optimizer
    if stored.plan["optimizer"] != optimizer.name:
        theirs = stored.plan["optimizer"]
        raise UserError(f"optim.sparse.name={optimizer.name}: start_from goes on with {theirs}, as {path} was written")
    weights, states = local_tables(sharded, row_optimizer)
    entries = {t["parameter"]: t for t in stored.plan["tables"]}
    for table in sharded.tables.values():
        there = entries.get(table.parameter)
        if there is None or there["dim"] != table.dim or there["rows"] > table.rows:
            text = "missing" if there is None else f"{there['rows']} rows x {there['dim']}"
            hint = "; set model.dim and dims as in that run" if there is not None and there["dim"] != table.dim else ""
            raise UserError(f"{path}: table {table.name} is {text}, but here {table.rows} rows x {table.dim}{hint}")
    by_parameter = {i.parameter: i for i in sharded.tables.values()}
    shards = {f"model.{k}": w for k, w in weights.items()} | {f"tables.{k}": s for k, s in states.items()}
    for key, part in shards.items():
        parameter, _, state = key.partition(".")[2].partition("/")
        info, entry = by_parameter[parameter], entries[parameter]
        new = np.union1d(fresh.get(info.vocabulary, np.empty(0, np.int64)), np.arange(entry["rows"], info.rows))
        with _Kept(part, torch.from_numpy(new)):
            read = partial(_read, stored, key, entry["rows"])
            if optimizer.rowwise.get(state):
                part.convert(read, info.dim, column_edges(entry))
            else:
                part.fill(read, info.dim)
    tensors = {k: v for k, v in sharded.dmp.state_dict().items() if k not in weights}
    for name, weight in tensors.items():
        if isinstance(weight, Tensor) and f"model.{name}" in stored.tensors:
            size = stored.size(f"model.{name}")
            if size != list(weight.shape):
                why = "a weight for each value cannot grow with the vocabulary"
                raise UserError(f"{path}: weight {name} is {size}, but this model's is {list(weight.shape)}; {why}")
    stored.check_dense(tensors)
    dcp.load(
        {f"model.{k}": v for k, v in tensors.items()}, storage_reader=SafeReader(stored.path), planner=TensorsOnly()
    )
    for lookup in (x for m in sharded.dmp.modules() for x in getattr(m, "_lookups", ())):
        getattr(lookup, "module", lookup).purge()  # drop the GPU's cached rows, which are out of date


def _read(stored: StoredCheckpoint, key: str, rows: int, first: int, count: int) -> Tensor:
    """Read rows of a stored tensor; those beyond its last row are zeros."""
    held = max(min(count, rows - first), 0)
    width = stored.size(key)[1]
    found = stored.read(key, first, held) if held else torch.empty(0, width)
    return torch.cat([found, found.new_zeros(count - held, width)])


class _Kept:
    """Context in which the local rows `new` (R,) of a table keep their values."""

    def __init__(self, table: TableShards, new: Tensor) -> None:
        self._rows = []
        for region, tensor in zip(table.local_regions, table.local_tensors, strict=True):
            places = new - region.row
            inside = places[(places >= 0) & (places < region.rows)]
            self._rows.append((tensor, inside.to(tensor.device)))
        self._values: list[Tensor] = []

    def __enter__(self) -> None:
        self._values = [tensor[rows].clone() for tensor, rows in self._rows]

    def __exit__(self, *_: object) -> None:
        for (tensor, rows), values in zip(self._rows, self._values, strict=True):
            tensor[rows] = values
