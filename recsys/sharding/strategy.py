"""Lightning strategy that leaves the module to DistributedModelParallel and writes checkpoints through DCP."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.plugins.environments import ClusterEnvironment
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch.optim import Optimizer


class Checkpointable(Protocol):
    """Methods of the LightningModule that the strategy calls: only the module knows its shards and optimizers."""

    def save_checkpoint(self, path: Path, state: dict[str, Any]) -> None: ...
    def load_checkpoint(self, path: Path, training: bool) -> dict[str, Any]: ...


class ProcessGroupEnvironment(ClusterEnvironment):
    """Ranks of the process group, which exists before Lightning starts."""

    def __init__(self, local_rank: int, local_world_size: int) -> None:
        self._local_rank, self._local_world_size = local_rank, local_world_size

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        return 0

    @staticmethod
    def detect() -> bool:
        return dist.is_initialized()

    def world_size(self) -> int:
        return dist.get_world_size()

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return dist.get_rank()

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return self._local_rank

    def node_rank(self) -> int:
        return dist.get_rank() // self._local_world_size


class ShardedStrategy(DDPStrategy):
    """One process per device; the module shards itself in `configure_model`."""

    def __init__(self, device: torch.device, local_rank: int, local_world_size: int) -> None:
        super().__init__(
            parallel_devices=[device] * local_world_size,
            cluster_environment=ProcessGroupEnvironment(local_rank, local_world_size),
        )
        self._device = device

    @property
    def root_device(self) -> torch.device:
        return self._device

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        return True

    @property
    def lightning_restore_optimizer(self) -> bool:
        return False

    @property
    def module(self) -> Checkpointable:
        return self.lightning_module  # type: ignore[return-value]

    def _configure_launcher(self) -> None:
        pass  # the processes exist; Lightning's launcher would reset the number of threads

    def setup_distributed(self) -> None:
        self.set_world_ranks()

    def setup(self, trainer: pl.Trainer) -> None:
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return {}  # save_checkpoint writes it, shard by shard

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return {}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        pass  # load_checkpoint has loaded it

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: object = None) -> None:
        self.module.save_checkpoint(Path(filepath), checkpoint)

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        trainer = self.lightning_module.trainer  # type: ignore[union-attr]
        return self.module.load_checkpoint(Path(checkpoint_path), trainer.state.fn == TrainerFn.FITTING)

    def teardown(self) -> None:
        self.precision_plugin.teardown()
        assert self.accelerator is not None
        self.accelerator.teardown()
