"""A run's task with the dense weights of a checkpoint, and tables only as large as some ids need.

Tables are read from the checkpoint block by block, whatever plan and world size wrote them, so that the memory that an
export takes does not depend on their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recsys.data.features.arrays import Arrays, single_valued
from recsys.data.features.batch_tensors import BatchTensors
from recsys.interface.features import FeatureSpec
from recsys.job.build import with_dims
from recsys.job.run_config import RunConfig
from recsys.sharding.stored_checkpoint import StoredCheckpoint, check_files
from recsys.sharding.tables import TableInfo, rows_of_a_block, tables
from recsys.training.ema import unwrapped
from recsys.training.run_state import RunState


@dataclass(frozen=True)
class StoredTask:
    """A run's task, whose tables are on the meta device, and its checkpoint.

    infos: the tables, by name
    """

    cfg: RunConfig
    features: FeatureSpec
    stored: StoredCheckpoint
    task: Any
    infos: Mapping[str, TableInfo]

    @classmethod
    def load(cls, cfg: RunConfig, features: FeatureSpec, checkpoint: Path) -> StoredTask:
        """Build the task and load its dense weights, or their moving average, if the run has one, and its buffers.

        Raises DamagedFile if the checkpoint is not as it was written.
        """
        check_files(checkpoint)
        features = with_dims(cfg, features)  # dims depend on the rows of tables, which with_rows makes fewer
        stored = StoredCheckpoint(checkpoint)
        task = cfg.kind.build_task(cfg, features, torch.device("meta"))
        infos = tables(task)
        parameters = {i.parameter for i in infos.values()}
        dense = {n: x for n, x in task.state_dict().items() if n not in parameters}
        stored.check_dense(dense)
        state = {n: stored.read(f"model.{n}") for n in dense}
        averages = RunState.load(checkpoint).state.get("ema", {}).get("average", {})
        state |= {unwrapped(name): average for name, average in averages.items()}
        task.load_state_dict(state, strict=False)
        return cls(cfg, features, stored, task.eval(), infos)

    def with_rows(self, ids: Mapping[str, np.ndarray]) -> tuple[Any, FeatureSpec]:
        """Return the task with tables that hold only some rows, and its feature spec.

        ids: the sorted ids of the rows, by table of the data; id i is row i of the smaller table
        """
        sparse = tuple(replace(f, cardinality=len(ids[f.table])) for f in self.features.sparse)
        features = replace(self.features, sparse=sparse)
        task = self.cfg.kind.build_task(self.cfg, features, torch.device("cpu"))
        own = tables(task)
        dense = {n: x for n, x in self.task.state_dict().items() if not x.is_meta}
        task.load_state_dict(dense, strict=False)
        weights = dict(task.named_parameters())
        with torch.no_grad():
            for info in own.values():
                weights[info.parameter].copy_(self._rows(self.infos[info.name], ids[info.vocabulary]))
        return task.eval(), features

    def logits(self, arrays: Arrays) -> Tensor:
        """Return the logits (B, L) of B rows of a ranking model, whose tables hold only the rows that these need."""
        singles = single_valued(self.features)
        ids = {n: arrays.ids[:, i] for i, n in enumerate(singles)} | arrays.values
        kept: dict[str, np.ndarray] = {}  # the sorted distinct ids of each table, row 0 included
        for f in self.features.sparse:
            kept[f.table] = np.union1d(kept.get(f.table, np.zeros(1, np.int64)), ids[f.name].astype(np.int64))
        task, narrow = self.with_rows(kept)
        for f in self.features.sparse:
            ids[f.name] = np.searchsorted(kept[f.table], ids[f.name]).astype(np.int32)
        columns = np.stack([ids[n] for n in singles], axis=1) if singles else arrays.ids
        return logits_of(task.model, replace(arrays, ids=columns, values={n: ids[n] for n in arrays.values}), narrow)

    def _rows(self, info: TableInfo, ids: np.ndarray) -> Tensor:
        """Read rows of a table: sorted ids (n,) -> (n, dim)."""
        key = f"model.{info.parameter}"
        step = rows_of_a_block(self.stored.size(key)[1])
        parts = [torch.zeros(0, info.dim)]
        for first in range(0, info.rows, step):
            inside = ids[np.searchsorted(ids, first) : np.searchsorted(ids, first + step)]
            if len(inside):
                block = self.stored.read(key, first, min(step, info.rows - first))
                parts.append(block[torch.from_numpy(inside - first), : info.dim].float())
        return torch.cat(parts)


def logits_of(model: nn.Module, arrays: Arrays, features: FeatureSpec) -> Tensor:
    """Return the logits (B, L) of B rows of a ranking model."""
    batch = BatchTensors.from_arrays(arrays, features).batch(np.zeros((arrays.rows, len(features.labels)), np.float32))
    logits: Tensor = model(batch.dense, batch.sparse)
    return logits
