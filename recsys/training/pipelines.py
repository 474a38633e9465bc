"""How the parts of steps follow each other: one after another, or in TorchRec's pipelines.

A pipeline distributes the ids of the next batch while the current one is trained.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.dist_data import KJTAllToAll
from torchrec.distributed.train_pipeline import PrefetchTrainPipelineSparseDist, TrainPipelineSparseDist
from torchrec.distributed.train_pipeline import utils as pipeline_utils
from torchrec.distributed.train_pipeline.runtime_forwards import KJTAllToAllForward
from torchrec.distributed.train_pipeline.tracing import Tracer
from torchrec.distributed.types import ShardedModule

from recsys.interface.batch import Batch
from recsys.training.step import Step

NONE, BASE, SPARSE_DIST, PREFETCH = "none", "base", "sparse_dist", "prefetch"
BATCHES_AHEAD = 2  # batches that a pipeline holds beside the one that is trained
PIPELINES: dict[str, type[TrainPipelineSparseDist[Batch, Tensor]]] = {
    SPARSE_DIST: TrainPipelineSparseDist,
    PREFETCH: PrefetchTrainPipelineSparseDist,
}


class _Parts(NamedTuple):
    """What TorchRec's pipelines call of an optimizer."""

    zero_grad: Callable[[], None]
    step: Callable[[], None]


class Sequential:
    """Trains batch by batch, one part of a step after another."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self._step, self._device = step, device

    def train(self, batch: Batch) -> None:
        """Train a batch."""
        self._step.zero_grad()
        loss, _ = self._step.forward(batch.to(self._device))
        self._step.backward(loss)
        self._step.update()

    def drain(self) -> None:
        """Give the model its own forward pass back: it has it."""


class Pipeline:
    """Trains a sharded model batch by batch with one of TorchRec's pipelines.

    The loader keeps the batches that come next, `upcoming`, so that its position is that of the batch that is trained:
    a checkpoint needs nothing of the pipeline.

    Args:
        kind: sparse_dist or prefetch.
        upcoming: the batches after the current one, which the loader updates.
    """

    def __init__(
        self,
        kind: str,
        dmp: DistributedModelParallel,
        step: Step,
        device: torch.device,
        upcoming: Sequence[Batch],
    ) -> None:
        self._upcoming = upcoming
        pipeline_utils.KJTAllToAllForward = _exchange_of  # type: ignore[assignment,misc]
        # TorchRec names the outermost modules only, and so traces into those of a ModuleList
        pipeline_utils._get_leaf_module_names = _without_tables
        # of the optimizer, TorchRec's pipelines call zero_grad and step alone
        parts = _Parts(step.zero_grad, step.update)
        self._pipeline: Any = PIPELINES[kind](
            dmp, parts, device, execute_all_batches=True, custom_model_fwd=step.forward
        )
        self._pipeline._backward = step.backward

    @classmethod
    def problem(cls, model: nn.Module) -> str | None:
        """Return why a model cannot be trained in a pipeline, or None: torch.fx must be able to trace it."""
        try:
            Tracer(leaf_modules=_without_tables(model)).trace(model)
        except Exception as e:  # whatever the model's code raises for the stand-ins of its inputs
            return f"torch.fx cannot trace its forward pass ({str(e).splitlines()[0].rstrip('.')})"
        return None

    def train(self, batch: Batch) -> None:
        """Train a batch, of which the pipeline may already have distributed the ids."""
        todo = [batch, *self._upcoming]
        self._pipeline.progress(iter(todo[len(self._pipeline.batches) :]))

    def drain(self) -> None:
        """Give the model its own forward pass back, and forget the batches that are not trained yet. Collective."""
        for context in self._pipeline.contexts:
            for _, splits in context.fused_splits_awaitables:
                splits.wait()
            for request in context.input_dist_tensors_requests.values():
                request.wait()
        self._pipeline.detach()
        self._pipeline.reset()


def _exchange_of(pg: ProcessGroup, splits: list[int], stagger: int = 1) -> Callable[..., Any]:
    """Return how a pipeline begins to exchange ids. TorchRec's own also has one process tell itself the numbers of its
    ids, and wait for the answer.
    """
    return KJTAllToAll(pg, splits, stagger).forward if pg.size() == 1 else KJTAllToAllForward(pg, splits, stagger)


def _without_tables(model: nn.Module) -> list[str]:
    """Return the names of the modules that contain no sharded tables, which torch.fx need not trace."""
    return [
        n for n, m in model.named_modules() if not any(isinstance(c, ShardedModule) for c in m.modules() if c is not m)
    ]
