"""Check a checkpoint on disk, and read it region by region, in one process and without a model."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from recsys.base.errors import UserError
from recsys.distributed.ranks import gather_values
from recsys.files import manifest
from recsys.files.manifest import DamagedFile
from recsys.sharding.safe_reader import METADATA, SafeReader, TensorsOnly

PLAN = "plan.json"


class StoredCheckpoint:
    """Tensors of a checkpoint folder, by key: `model.<parameter>`, `tables.<parameter>/<state>`."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise UserError(f"{path}: no such checkpoint")
        manifest.check(path, [METADATA, PLAN])
        self.path = path
        self._reader = SafeReader(path)
        self._metadata: Metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)

    @cached_property
    def tensors(self) -> dict[str, TensorStorageMetadata]:
        return {k: m for k, m in self._metadata.state_dict_metadata.items() if isinstance(m, TensorStorageMetadata)}

    @cached_property
    def plan(self) -> dict[str, Any]:
        """plan.json: step, world size, the tables' optimizer, and the tables as they were sharded."""
        return manifest.read_json(self.path / PLAN)

    def check_dense(self, weights: Mapping[str, Any]) -> None:
        """Raise UserError if a weight of a model is missing, or has another size. weights: name -> tensor"""
        for name, weight in weights.items():
            key = f"model.{name}"
            found = list(self.tensors[key].size) if key in self.tensors else "missing"
            if isinstance(weight, Tensor) and found != list(weight.shape):
                hint = "the config of the run is not that with which it was trained"
                raise UserError(
                    f"{self.path}: weight {name} is {found}, but the model's is {list(weight.shape)}; {hint}"
                )

    def size(self, key: str) -> list[int]:
        return list(self.tensors[key].size)

    def dtype(self, key: str) -> torch.dtype:
        return self.tensors[key].properties.dtype

    def read(self, key: str, first: int = 0, rows: int | None = None) -> Tensor:
        """Read rows [first, first + rows) in full width, from the blocks that contain them only.

        Tables of float16 become float32.
        """
        size = self.size(key)
        if size:
            size[0] = size[0] - first if rows is None else rows
        out = torch.empty(size, dtype=self.dtype(key))
        region = ChunkStorageMetadata(torch.Size([first, *[0] * (len(size) - 1)][: len(size)]), torch.Size(size))
        items = create_read_items_for_chunk_list(key, self.tensors[key], [region])
        self._reader.read_data(LoadPlan(items), _Into(out)).wait()
        return out.float() if out.dtype == torch.float16 else out


def check_files(path: Path) -> None:
    """Check that a checkpoint's files are as they were written; each rank reads a share of them. Collective.

    Raises:
        DamagedFile: on all ranks, if a file is missing or damaged.
    """
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    damage = None
    try:
        entries = manifest.read(path)
        if entries is None and StoredCheckpoint(path).plan.get("manifest"):
            raise DamagedFile(path / manifest.FILE, "is missing")
        manifest.check(path, sorted(entries or ())[rank::world_size])
    except DamagedFile as e:
        damage = e
    if first_damage := next(filter(None, gather_values(damage)), None):
        raise first_damage


class _Into(TensorsOnly):
    """Load planner that reads into one tensor."""

    def __init__(self, out: Tensor) -> None:
        super().__init__()
        self._out = out

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._out
