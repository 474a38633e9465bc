"""Read the pickled files of a checkpoint without executing code that they name.

A pickle can call any function that it names. Here, names outside a short list are refused, so that a run folder from
elsewhere can be evaluated and resumed. Tensors are read by torch.load with weights_only=True.
"""

import io
import pickle
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import filesystem as dcp_filesystem
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from recsys.base.errors import UserError
from recsys.files.input_files import problem_of
from recsys.files.manifest import UNREADABLE, DamagedFile, inside

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
