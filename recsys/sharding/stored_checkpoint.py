"""Check a checkpoint on disk, and read it region by region, without a model and without running pickled code."""

import io
import pickle
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import filesystem as dcp_filesystem
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.futures import Future

from recsys.base.errors import UserError
from recsys.distributed.ranks import gather_values
from recsys.files import manifest
from recsys.files.manifest import UNREADABLE, DamagedFile, inside
from recsys.files.user_files import problem_of

METADATA = ".metadata"
NOT_LOADED = "which is not part of a checkpoint; it is not loaded"
_METADATA_CLASSES = (
    *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata"),
    *("ChunkStorageMetadata", "_MEM_FORMAT_ENCODING"),
)
# Names of tensors' types, such as torch.float32, are allowed too.
# private: _StorageInfo and _get_layout, because .metadata is a pickle that names them
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(dcp_metadata.__name__, name): getattr(dcp_metadata, name) for name in _METADATA_CLASSES},
    (dcp_filesystem.__name__, "_StorageInfo"): dcp_filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("pathlib", "PosixPath"): PurePosixPath,  # the folder in which the checkpoint was written
    ("pathlib._local", "PosixPath"): PurePosixPath,
    ("collections", "OrderedDict"): dict,
}
# NumPy's arrays, in checkpoints whose random state was written before it was plain numbers.
_ARRAYS: list[Any] = [
    (np.empty(0).__reduce__()[0], "numpy.core.multiarray._reconstruct"),  # type: ignore[index]
    (np.empty(0).__reduce__()[0], "numpy._core.multiarray._reconstruct"),  # type: ignore[index]
    *(np.ndarray, np.dtype, type(np.dtype(np.uint32))),
]
PLAN = "plan.json"


def load_plain(file: Path) -> Any:
    """Load a file of torch.save that holds tensors and plain Python values, onto the CPU.

    Raises:
        DamagedFile: the file is missing, cannot be read, or holds anything else.
    """
    if (problem := problem_of(file)) and problem != "no such file":
        raise DamagedFile(file, problem)
    try:
        with torch.serialization.safe_globals(_ARRAYS):
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DamagedFile(file, "is missing") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, OSError):
        problem = UNREADABLE
        with suppress(Exception), torch.serialization.safe_globals(_ARRAYS):  # whatever damaged bytes lead to
            if refused := torch.serialization.get_unsafe_globals_in_checkpoint(file):
                problem = f"names {refused[0]}, {NOT_LOADED}"
        raise DamagedFile(file, problem) from None


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise _Forbidden(f"{module}.{name}")


class _Forbidden(Exception):
    """A name that is not part of a checkpoint's metadata."""


def read_metadata(checkpoint: Path) -> Metadata:
    """Read .metadata of torch.distributed.checkpoint.

    Raises:
        DamagedFile: the file is missing, cannot be read, names anything but classes of checkpoints, or refers to files
            outside the checkpoint.
    """
    file = checkpoint / METADATA
    try:
        metadata = _MetadataUnpickler(io.BytesIO(file.read_bytes())).load()
        tensors, stored = metadata.state_dict_metadata, metadata.storage_data
        plain = all(isinstance(t, TensorStorageMetadata) for t in tensors.values())
        for name in {s.relative_path for s in stored.values()}:
            inside(checkpoint, name)
    except FileNotFoundError:
        raise DamagedFile(file, "is missing") from None
    except _Forbidden as e:
        raise DamagedFile(file, f"names {e}, {NOT_LOADED}") from None
    except UserError:
        raise
    except Exception:  # whatever the bytes of a damaged pickle lead to
        raise DamagedFile(file, UNREADABLE) from None
    if not isinstance(metadata, Metadata) or not plain:
        raise DamagedFile(file, "describes more than the tensors of this checkpoint; it is not loaded")
    if getattr(metadata, "storage_meta", None) is None:
        metadata.storage_meta = StorageMeta()
    return metadata


class SafeReader(FileSystemReader):
    """Reader of torch.distributed.checkpoint whose metadata `read_metadata` reads."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_metadata(Path(self.path))
        assert metadata.storage_meta is not None
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        try:
            return super().read_data(plan, planner)
        except UserError:
            raise
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, OSError) as e:
            raise DamagedFile(Path(self.path), f"{UNREADABLE} ({type(e).__name__})") from e


class TensorsOnly(DefaultLoadPlanner):
    """Load planner that refuses pickled values; a checkpoint's tensors come by another way."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise UserError(f"checkpoint: {read_item.storage_index.fqn} is not a tensor")


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


def check_checkpoint(path: Path) -> None:
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
