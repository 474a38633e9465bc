"""Work of a training step outside the tables: the kernels that PyTorch calls, their operations and their bytes.

The task runs forward and backward on the CPU with a few rows and with tables of a few rows, three times with different
numbers of rows. The operations and bytes of each kernel are polynomials of the number of rows, which are continued to
the batch of a plan. Lookups and their backward pass are left out: the plan counts them by table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec

FEW_ROWS = 8  # of a table; also the distance of the three numbers of rows that run
WITHOUT_WORK = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "_unsafe_view",
    "lift_fresh",
    "_local_scalar_dense",
}


@dataclass(frozen=True)
class KernelWork:
    """One kernel.

    flops: floating-point operations of a matrix product; 0 for any other kernel
    half: the product multiplies float16 or bfloat16 numbers
    bytes: read and written
    backward: it belongs to the backward pass
    """

    flops: float
    half: bool
    bytes: float
    backward: bool


@dataclass(frozen=True)
class DenseWork:
    """The kernels of a step, in order, and the number of dense weights."""

    kernels: Sequence[KernelWork]
    weights: int


def few_rows(features: FeatureSpec) -> FeatureSpec:
    """Return the features with tables of FEW_ROWS rows."""
    return replace(features, sparse=tuple(replace(f, cardinality=FEW_ROWS) for f in features.sparse))


def dense_work(
    task: nn.Module, features: FeatureSpec, lengths: Mapping[str, float], batch_size: int, *, half: bool, compiled: bool
) -> DenseWork | None:
    """Count the work of a training step of `batch_size` rows; None if it is not a polynomial of the number of rows.

    Args:
        task: the task for `few_rows(features)`, on the CPU.
        lengths: expected ids per row, by feature; 1 by default.
        batch_size: rows of a device and step.
        half: compute in 16 bits under autocast, as trainer.precision=bf16-mixed and 16-mixed do.
        compiled: the kernels between two matrix products are one, as trainer.compile=true nearly makes them.
    """
    runs = []
    for n in (1, 2, 3):
        rows, few = n * FEW_ROWS, few_rows(features)  # made-up rows, whose bags are as long as expected
        each = [max(1, round(lengths.get(f.name, 1.0))) if f.multi_valued else 1 for f in few.sparse]
        values = torch.arange(sum(each) * rows) % FEW_ROWS
        counts = torch.tensor(each, dtype=torch.int32).repeat_interleave(rows)
        batch = Batch(
            dense=torch.linspace(0, 1, rows * few.dense_width).view(rows, few.dense_width),
            sparse=KeyedJaggedTensor([f.name for f in few.sparse], values, lengths=counts),
            labels=(torch.arange(rows) % 2).float()[:, None].repeat(1, len(few.labels)),
            weight=torch.ones(rows) if few.weighted else None,
            group=torch.arange(rows) // 2 if few.grouped else None,
        )
        recorder = _Recorder()
        task.train()
        with torch.random.fork_rng(devices=[]), _left_out(task, recorder), recorder:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = task(batch)[0]
            recorder.backward = True
            loss.backward()
        task.zero_grad()
        runs.append([call.work() for call in (_fused(recorder.calls) if compiled else recorder.calls)])
    if len({len(kernels) for kernels in runs}) > 1:
        return None
    steps = batch_size / FEW_ROWS - 1
    work = [
        replace(
            a, flops=_continued(steps, a.flops, b.flops, c.flops), bytes=_continued(steps, a.bytes, b.bytes, c.bytes)
        )
        for a, b, c in zip(*runs, strict=True)
    ]
    return DenseWork(work, sum(p.numel() for p in task.parameters() if p.requires_grad))


def _continued(steps: float, a: float, b: float, c: float) -> float:
    """Continue a polynomial of degree two with values a, b and c at 0, 1 and 2 steps (Newton's differences)."""
    return a + steps * (b - a) + steps * (steps - 1) / 2 * (c - 2 * b + a)


@dataclass
class _Call:
    """A call of a kernel: the bytes that it reads and writes, by tensor's memory."""

    flops: float
    half: bool
    backward: bool
    reads: dict[int, int]
    writes: dict[int, int]

    def work(self) -> KernelWork:
        return KernelWork(self.flops, self.half, sum(self.reads.values()) + sum(self.writes.values()), self.backward)


def _fused(calls: Sequence[_Call]) -> list[_Call]:
    """Join the calls between two products: what they read is read once, and only what later calls read is written."""

    def kernel(numbered: tuple[int, _Call]) -> tuple[int, bool]:
        number, call = numbered  # a product is a kernel of its own, numbered from 1
        return number if call.flops else 0, call.backward

    groups = [list(group) for _, group in groupby(enumerate(calls, 1), kernel)]
    needed: set[int] = set()
    fused = []
    for group in reversed(groups):
        members = [call for _, call in group]
        written = _joined(call.writes for call in members)
        read = _joined(call.reads for call in members)
        outside = {memory: size for memory, size in read.items() if memory not in written}
        kept = {memory: size for memory, size in written.items() if memory in needed or members[0].flops}
        needed |= outside.keys()
        fused.append(_Call(members[0].flops, members[0].half, members[0].backward, outside, kept))
    return fused[::-1]


def _joined(sizes: Iterable[dict[int, int]]) -> dict[int, int]:
    """Return the largest size of each tensor's memory."""
    joined: dict[int, int] = {}
    for by_memory in sizes:
        for memory, size in by_memory.items():
            joined[memory] = max(size, joined.get(memory, 0))
    return joined


@contextmanager
def _left_out(task: nn.Module, recorder: "_Recorder") -> Iterator[None]:
    """Do not record lookups; their results get gradients, and the tables none."""

    def pause(*_: Any) -> None:
        recorder.paused = True

    def resume(_module: nn.Module, _inputs: object, output: Any) -> None:
        for looked_up in output.values() if isinstance(output, dict) else (output,):
            looked_up.values().requires_grad_()
        recorder.paused = False

    hooks = []
    for module in task.modules():
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            module.requires_grad_(False)
            hooks += [module.register_forward_pre_hook(pause), module.register_forward_hook(resume)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Recorder(TorchDispatchMode):
    """Records the kernels that PyTorch calls. Views call none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.paused = self.backward = False
        # Memory is not freed, so that no two tensors have the same. Tensors that are kept change autograd's calls.
        self._memory: list[Any] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if not self.paused and not func.is_view and packet.__name__ not in WITHOUT_WORK:
            inputs, outputs = (
                [t for t in tree_leaves(tree) if isinstance(t, Tensor)] for tree in ((args, kwargs), out)
            )
            count: Callable[..., int] | None = flop_registry.get(packet)
            flops = 0 if count is None else count(*args, **(kwargs or {}), out_val=out)
            half = any(t.dtype in (torch.bfloat16, torch.float16) for t in inputs)
            self.calls.append(_Call(flops, half, self.backward, _sizes(inputs), _sizes(outputs)))
            self._memory += [t.untyped_storage() for t in inputs + outputs]
        return out


def _sizes(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Return the bytes of each tensor by its memory. An expanded tensor counts once."""
    return _joined(
        {t.untyped_storage().data_ptr(): min(t.numel() * t.element_size(), t.untyped_storage().nbytes())}
        for t in tensors
    )
