"""A checkpoint from elsewhere executes nothing, whichever of its files names a function, and whoever reads it."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_run import Home
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from recsys.base.errors import UserError
from recsys.files import manifest
from recsys.files.run_files import checkpoints_of
from recsys.online.predictor import Predictor
from recsys.sharding.stored_checkpoint import METADATA, StoredCheckpoint, load_plain, read_metadata
from recsys.training.evaluate_run import evaluate


class Run:
    """Unpickling this touches a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def hostile_metadata(file: Path, mark: Path) -> None:
    metadata = pickle.loads(file.read_bytes())
    metadata.planner_data = Run(mark)
    file.write_bytes(pickle.dumps(metadata))


def hostile_state(file: Path, mark: Path) -> None:
    state = torch.load(file, weights_only=False)
    torch.save({**state, "more": Run(mark)}, file)


def hostile_tensor(file: Path, mark: Path) -> None:
    """Metadata that calls a tensor a pickled value, in whose place the file has a hostile one."""
    metadata = pickle.loads(file.read_bytes())
    key = next(iter(metadata.state_dict_metadata))
    metadata.state_dict_metadata[key] = BytesStorageMetadata()
    file.write_bytes(pickle.dumps(metadata))


KINDS = {
    "metadata": (METADATA, hostile_metadata, r"names (posix|os)\.system, which is not part of a checkpoint"),
    "state": ("state.pt", hostile_state, r"names posix\.system, which is not part of a checkpoint; it is not loaded"),
    "random state": ("rank-0.pt", hostile_state, r"names posix\.system, which is not part of a checkpoint"),
    "tensor": (METADATA, hostile_tensor, r"names .*BytesStorageMetadata, which is not part of a checkpoint"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_nothing_runs(home: Home, tmp_path: Path, kind: str) -> None:
    """The sender writes a manifest that fits."""
    name, make, message = KINDS[kind]
    mark = tmp_path / "ran"
    for checkpoint in checkpoints_of(home.run):
        make(checkpoint / name, mark)
        manifest.write(checkpoint, manifest.entries_of(checkpoint))
    run = str(home.run)
    readers: dict[str, Callable[[], Any]] = {
        "resume": lambda: home.train(f"resume={run}", "trainer.max_epochs=3"),
        "evaluate": lambda: evaluate(run),
        "predict": lambda: Predictor.load(run),
        "inspect": lambda: StoredCheckpoint(checkpoints_of(home.run)[0]),
    }
    if kind == "random state":  # only a resumed run reads it
        readers = {"resume": readers["resume"]}
    if kind == "state":
        del readers["inspect"]
    for reader in readers.values():
        with pytest.raises(UserError, match=message):
            reader()
    assert not mark.exists()


def test_paths_outside_the_checkpoint_are_refused(home: Home) -> None:
    file = checkpoints_of(home.run)[0] / METADATA
    (file.parent / "link.distcp").symlink_to("/etc/passwd")
    for path in ("../../../elsewhere.distcp", "/etc/passwd", "link.distcp"):
        metadata = pickle.loads(file.read_bytes())
        for stored in metadata.storage_data.values():
            stored.relative_path = path
        file.write_bytes(pickle.dumps(metadata))
        with pytest.raises(UserError, match=f"names the file '{path}', which is not in this folder; it is not read"):
            read_metadata(file.parent)


@pytest.mark.parametrize("value", [Path("/"), np.random.default_rng(0)], ids=["path", "generator"])
def test_only_what_a_checkpoint_needs_is_allowed(tmp_path: Path, value: Any) -> None:
    torch.save({"x": value}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x\.pt: names .*, which is not part of a checkpoint"):
        load_plain(tmp_path / "x.pt")
