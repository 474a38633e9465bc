"""torch.compile of a model's dense part, around its tables, and blocks that are computed again going backward."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.checkpoint import checkpoint
from torchrec.distributed.types import ShardedModule

from recsys.base.console import say, say_once
from recsys.base.packages import no_compiler
from recsys.interface.batch import Batch
from recsys.losses.task import RetrievalTask, Task
from recsys.models.common.embeddings import SequenceEmbeddings
from recsys.models.common.items import QueriesAhead
from recsys.models.common.layers import has_batch_norm
from recsys.models.common.lists import at_most, known_longest
from recsys.models.protocols import says
from recsys.training.module_settings import Updates

GRAPH_STEPS = 3  # PyTorch runs the code, records the graph, and replays it
MIN_COMPILED_STEPS = 10_000  # where trainer.compile is null; an H200 gains 2 to 4 ms a step (docs, GPUs)


class Eager:
    """The model as it is, which is not compiled."""

    is_warm = True

    @property
    def facts(self) -> dict[str, Any]:
        return {}

    def context(self, rows: int, training: bool = True) -> AbstractContextManager[None]:
        """Return the context in which a batch of this many rows runs."""
        return nullcontext()

    def warm_up(self, batch: Batch) -> None:
        """Do nothing."""


class CompiledModel:
    """The compiled model of a sharded task; its lookups run as they are, and so does what reads all vectors of CUDA
    graphs, in a kernel of its own.

    Inductor keeps the compiled code in TORCHINDUCTOR_CACHE_DIR, or in the system's folder of temporary files, so that a
    second run of the same model and batch size takes seconds.

    Args:
        task: the task, sharded.
        batch_size: rows of the batches that are compiled for; others run eagerly, see `context`.
        graphs: whether a GPU launches the kernels of the compiled code as CUDA graphs.
    """

    def __init__(self, task: Task | RetrievalTask, batch_size: int, graphs: bool = False) -> None:
        from torch._dynamo import config

        config.error_on_nested_fx_trace = False  # with torch 2.11, TorchRec's pipeline traces what is compiled
        self.seconds = 0.0  # that `warm_up` took
        self._ragged = reads_lists(task)
        if isinstance(task, RetrievalTask):
            task.rows_of_graphs = batch_size  # whose lists are filled up to few sizes, with a graph for each
        elif self._ragged and graphs:
            does = f"{type(task.model).__name__} reads lists, which have other lengths in each batch"
            say(f"trainer.cuda_graphs=true: {does}, and a graph has one size; the run goes on without")
            graphs = False
        self._graphs = graphs
        self._task, self._batch_size, self._dry = task, batch_size, False
        for module in list(task.model.modules()):
            if any(isinstance(child, ShardedModule) for child in module.children()):  # tables, and how they are pooled
                module.forward = torch.compiler.disable(self._lookup(module.forward))  # type: ignore[method-assign]
            elif self._graphs and getattr(module, "reads_all_vectors", False):
                # graphs copy their inputs: here all vectors, and in the backward pass once more
                module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]

    def _lookup(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a lookup that lets no gradient reach the tables while the model warms up."""

        def lookup(*args: Any) -> Any:
            result = forward(*args)
            dry = self._dry and isinstance(result, Tensor)
            return result.detach().requires_grad_(result.requires_grad) if dry else result

        return lookup

    def context(self, rows: int, training: bool = True) -> AbstractContextManager[None]:
        """Return the context in which a batch of this many rows runs: evaluation and other sizes run eagerly."""
        compiled = training and rows == self._batch_size
        if compiled and self._graphs:
            torch.compiler.cudagraph_mark_step_begin()  # results of the last step may be overwritten
        return torch.compiler.set_stance("default" if compiled else "force_eager")  # type: ignore[no-any-return]

    @property
    def facts(self) -> dict[str, Any]:
        """What metrics.json says of the compilation."""
        return {"compile_seconds": self.seconds}

    @property
    def is_warm(self) -> bool:
        return self.seconds > 0

    def warm_up(self, batch: Batch) -> None:
        """Compile forward and backward for batches like this one, without a change of the model. Collective."""
        torch.compiler.reset()  # of a function, PyTorch keeps eight versions: those of earlier trainings count
        compiled = self._task if isinstance(self._task, RetrievalTask) else self._task.model
        compiled.compile(dynamic=self._ragged, mode="reduce-overhead" if self._graphs else None)
        say("compiling the model: a minute, or some seconds if this model and batch size were compiled before")
        start = time.monotonic()
        kept = {name: buffer.clone() for name, buffer in self._task.named_buffers() if not buffer.is_meta}
        dense = [p for p in self._task.parameters() if p.requires_grad and type(p) is nn.Parameter]
        devices = sorted({p.device.index for p in dense if p.device.type == "cuda"})
        self._dry = True
        try:
            for _ in range(GRAPH_STEPS if self._graphs else 1):
                with torch.random.fork_rng(devices=devices), self.context(batch.rows):
                    loss, _ = self._task(batch)
                    torch.autograd.grad(loss, dense, allow_unused=True)
        finally:
            self._dry = False
        for name, buffer in self._task.named_buffers():
            if name in kept:
                buffer.copy_(kept[name])
        self.seconds = time.monotonic() - start
        say(f"compiled in {self.seconds:.0f} s")


def compiled_model(
    task: Task | RetrievalTask, updates: Updates, device: torch.device, batch_size: int
) -> CompiledModel | Eager:
    """Return the compiled model where trainer.compile asks for one or, if it is null, where one is known to pay.

    It pays on one GPU since Ampere, with recsys's own ranking models without lists, in trainings of
    MIN_COMPILED_STEPS steps or more.
    """
    on_gpu, graphs = device.type == "cuda", updates.cuda_graphs
    if updates.compile is None and not graphs:
        possible = on_gpu and dist.get_world_size() == 1 and graphs is None and has_graphs(task, updates.accumulate)
        possible &= isinstance(task, Task) and type(task.model).__module__.startswith("recsys.models.")
        if not possible or updates.steps < MIN_COMPILED_STEPS or updates.precision == "32-true":
            return Eager()
    elif updates.compile is False:
        return Eager()
    if isinstance(task, RetrievalTask) and (why := _no_effect(task, on_gpu)) is not None:
        say_once(f"trainer.compile=true: has no effect {why}")
        return Eager()
    if (why := cannot_compile(device.type)) is not None:
        say_once(why)
        return Eager()
    if graphs and not on_gpu:
        say_once("trainer.cuda_graphs=true: has no effect on CPUs")
    graphs = has_graphs(task, updates.accumulate) if graphs is None else graphs
    return CompiledModel(task, batch_size, graphs and on_gpu)


def _no_effect(task: RetrievalTask, on_gpu: bool) -> str | None:
    """Return where compiling has no effect, since lists cannot or need not be filled up, or None."""
    if not on_gpu:
        return "on retrieval models on CPUs, where compiled code is slower"
    model, loss = type(task.model), type(task.loss)
    if task.model.reads_rows or not isinstance(task.model, QueriesAhead) or not says(model, "reads_rows", "encode"):
        return f"on {model.__name__}, which reads more than lists of items here, or does not say so (reads_rows)"
    if not getattr(loss, "reads_filled", False) or not says(loss, "reads_filled", "forward"):
        return f"with the loss {loss.__name__}, which counts all targets of a batch, or does not say (reads_filled)"
    return None


def has_graphs(task: Task | RetrievalTask, accumulate: int) -> bool:
    """Return whether CUDA graphs launch the compiled code of a task on a GPU unless trainer.cuda_graphs is typed."""
    return accumulate == 1 and (isinstance(task, RetrievalTask) or not reads_lists(task))


def reads_lists(task: Task | RetrievalTask) -> bool:
    """Return whether a model reads rows of lists, whose lengths differ; pooled ones are vectors of one shape."""
    return any(isinstance(m, SequenceEmbeddings) for m in task.model.modules())


def cannot_compile(device: str) -> str | None:
    """Return the line that says why Inductor cannot compile for the device, cpu or cuda, or None if it can."""
    from torch.utils._triton import has_triton

    on_gpu = device != "cpu"
    if on_gpu and not has_triton():
        return "Triton is missing or does not know this GPU: eager mode; run uv sync --no-group cpu --group cuda"
    return (no_compiler(gpu=True) if on_gpu else None) or no_compiler(gpu=False)


def recompute_blocks(model: nn.Module) -> int:
    """Let each block keep its input alone for the backward pass, and return the number of blocks.

    Blocks are the children of a module's `blocks`: those of attention or of mixing. A block with batch normalisation
    keeps its activations, since a second forward pass would count a batch twice.
    """
    lists = [getattr(m, "blocks", None) for m in model.modules()]
    blocks = [b for of in lists if isinstance(of, nn.ModuleList | nn.Sequential) for b in of if not has_batch_norm(b)]
    for block in blocks:
        block.forward = _recomputed(block.forward)
    return len(blocks)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        again = torch.is_grad_enabled()
        longest = known_longest()

        def known(*args: Tensor) -> object:
            with at_most(longest):  # in the backward pass, too
                return forward(*args, **kwargs)

        block = partial(forward, **kwargs) if torch.compiler.is_compiling() else known
        return checkpoint(block, *args, use_reentrant=False) if again else forward(*args, **kwargs)

    return run
