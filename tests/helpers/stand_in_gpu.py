"""A stand-in for a GPU: tensors whose device is cuda:0, and whose numbers are on the CPU.

It finds what a GPU would refuse, operators over tensors of two devices, and what it would wait for: each number that
the host reads, each copy that is not asynchronous, and each operator whose result has a size that depends on values.
"""

import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

GPU = torch.device("cuda", 0)
TABLES = "tables"
PACKAGE = str(Path(__file__).parents[2] / "recsys")
aten = torch.ops.aten
_tolist = Tensor.tolist
# CUDA's kernels of these read sizes or bounds on the host
WAITING = {
    *(aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.equal),
    *(aten.unique_consecutive, aten.bincount, aten.is_nonzero),
}


class OnGpu(Tensor):
    """A tensor on the stand-in. host: its numbers"""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "OnGpu":
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            *(cls, host.size(), host.stride(), host.storage_offset()), dtype=host.dtype, layout=host.layout, device=GPU
        )
        made.host = host
        return made  # type: ignore[no-any-return]

    def __init__(self, host: Tensor) -> None: ...

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.host!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, [])


class StandInGpu(TorchDispatchMode):
    """Runs operators as a GPU would.

    waits: the line of recsys that each wait of the host came from
    launches: the same of each operator that writes numbers of a GPU, outside of graphs
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.launches: list[str] = []
        self._in_graph = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "recsys":  # what it runs
            with self:
                return OPDEFS[func.name().partition(".")[0]]._init_fn(*args)
        out = _run(func, args, kwargs or {}, self.waits)
        writes = [t for t in tree_leaves(out) if isinstance(t, OnGpu) and t.numel()]
        if writes and not self._in_graph and not _is_free(func):
            self.launches.append(f"{_line()}: {func}")
        return out

    @contextmanager
    def graph(self) -> Iterator[None]:
        """Count no launches within the block."""
        before, self._in_graph = self._in_graph, True
        try:
            yield
        finally:
            self._in_graph = before


def _run(func: Any, args: Any, kwargs: Any, waits: list[str]) -> Any:
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    gpu = [t for t in tensors if isinstance(t, OnGpu)]
    packet, device = func.overloadpacket, kwargs.get("device")
    if why := _waits_for(func, packet, args, kwargs, tensors, gpu):
        waits.append(f"{_line()}: {why}")
    copies = packet in (aten._to_copy, aten.copy_, aten._foreach_copy_)
    if gpu and not copies:
        host = [t for t in tensors if not isinstance(t, OnGpu) and t.dim() and not _is_index(packet, t)]
        if host:
            raise RuntimeError(f"{func}: tensors are on cuda:0 and on the CPU, of shape {tuple(host[0].shape)}")
    to_gpu = torch.device(device).type == "cuda" if device is not None else bool(gpu)
    inner = dict(kwargs) | ({"device": torch.device("cpu")} if device is not None and to_gpu else {})
    inner.pop("pin_memory", None)
    out = func(*tree_map_only(OnGpu, _host, args), **tree_map_only(OnGpu, _host, inner))
    if not to_gpu or (packet in (aten._local_scalar_dense, aten.copy_) and not gpu):
        return out
    if packet is aten.copy_:
        return args[0]
    return return_and_correct_aliasing(func, args, kwargs, tree_map_only(Tensor, OnGpu, out))


def _is_free(func: Any) -> bool:
    """Return whether an operator launches nothing: a view, or memory that is not written."""
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return is_view or func.overloadpacket.__name__ in ("empty", "new_empty", "empty_like", "empty_strided", "detach")


def as_graph(gpu: StandInGpu, function: Any, weights: list[nn.Parameter]) -> Any:
    """Return a function whose forward and backward pass are a graph each, as those of compiled code."""

    class Graph(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Tensor:
            with gpu.graph(), torch.enable_grad():
                ctx.inputs = [x.detach().requires_grad_() if _has_gradient(x) else x for x in args[-1]]
                ctx.result = function(*ctx.inputs)
            return ctx.result.detach()  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            inputs = [x for x in ctx.inputs if _has_gradient(x)]
            with gpu.graph():
                found = torch.autograd.grad(ctx.result, [*inputs, *weights], gradient, allow_unused=True)
            return *found, None

    return lambda *given: Graph.apply(*(x for x in given if _has_gradient(x)), *weights, given)


def _has_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _host(x: OnGpu) -> Tensor:
    return x.host


def _is_index(packet: Any, t: Tensor) -> bool:
    """Return whether CUDA takes a tensor of the CPU here: it copies indices."""
    return packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_) and t.dtype != torch.float32


def _waits_for(func: Any, packet: Any, args: Any, kwargs: Any, tensors: list[Tensor], gpu: list[Any]) -> str | None:
    """Return what the host waits for in an operator, or None."""
    if packet in (aten._to_copy, aten.copy_):
        source = args[1] if packet is aten.copy_ else args[0]
        device = args[0].device if packet is aten.copy_ else torch.device(kwargs.get("device") or source.device)
        crosses = device.type != source.device.type and "meta" not in (device.type, source.device.type)
        asynchronous = kwargs.get("non_blocking") or (packet is aten.copy_ and len(args) > 2 and args[2])
        return f"copies to the {device.type}" if crosses and not asynchronous else None
    if not gpu:
        return None
    if packet in WAITING:
        return f"aten.{packet.__name__}"
    if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
        indices = [i for i in args[1] if i is not None]
        if any(i.dtype == torch.bool for i in indices):
            return "index by a mask"
        return "index by a tensor of the CPU" if any(not isinstance(i, OnGpu) and i.dim() for i in indices) else None
    if packet is aten.repeat_interleave and func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
        return "repeat_interleave without output_size"
    return "segment_reduce checks its lengths" if packet is aten.segment_reduce and not kwargs.get("unsafe") else None


def _line() -> str:
    """Return the function of recsys that waits; tables if TorchRec's modules look up, which sharding replaces."""
    frames = traceback.extract_stack()
    if any(f.filename.endswith("torchrec/modules/embedding_modules.py") for f in frames):
        return TABLES
    ours = [f for f in frames if f.filename.startswith(PACKAGE) and f.name != "decorated"]
    return f"{Path(ours[-1].filename).relative_to(PACKAGE)}:{ours[-1].name}" if ours else "backward"


@contextmanager
def stand_in_gpu() -> Iterator[StandInGpu]:
    """Make cuda:0 the stand-in, and yield what it waits for."""
    torch._C._ensureCUDADeviceGuardSet()  # without a driver, no device is switched
    mode = StandInGpu()
    with ExitStack() as stack:
        for target, value in (
            ("torch.cuda._lazy_init", lambda: None),
            ("recsys.models.common.kernels.has_triton", lambda: False),  # kernels read a GPU's memory
            ("torch.nn.RNNBase.flatten_parameters", lambda _: None),
            ("torch.nn.modules.rnn._VF.gru", _gru),
            ("torch.autograd.grad", gradients),
            ("torch.Tensor.backward", backward),
            ("torchrec.sparse.jagged_tensor._cuda_to_cpu_safe", Tensor.cpu),  # without a stream
            ("torch.Tensor.pin_memory", lambda self: self),
            ("torch.Tensor.tolist", lambda self: _tolist(self.cpu())),  # of no subclass
        ):
            stack.enter_context(mock.patch(target, value))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda:0") copies where it is seen
        stack.enter_context(mode)
        yield mode


def to_gpu(module: nn.Module) -> nn.Module:
    """Move a module's weights and buffers to the stand-in."""
    for m in module.modules():
        for name, weight in m._parameters.items():
            if weight is not None:
                m._parameters[name] = nn.Parameter(OnGpu(weight.detach()), weight.requires_grad)
        for name, buffer in m._buffers.items():
            if buffer is not None:
                m._buffers[name] = OnGpu(buffer)
    return module


def backward(loss: Tensor, gradient: Tensor | None = None, retain_graph: Any = None, **_: Any) -> None:
    """Compute gradients as Tensor.backward does, without PyTorch's engine, which needs a driver."""
    for leaf, found in _walk([loss], [gradient]).items():
        if leaf.grad is None:
            leaf.grad = found.detach()
        else:
            leaf.grad += found


def gradients(outputs: Any, inputs: Any, grad_outputs: Any = None, allow_unused: bool = False, **_: Any) -> Any:
    """Compute gradients as torch.autograd.grad does."""
    many = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = [grad_outputs] if isinstance(grad_outputs, Tensor) else grad_outputs
    found = _walk(many, list(given or [None] * len(many)), wanted)
    if not allow_unused and any(x not in found for x in wanted):
        raise RuntimeError("one of the tensors was not used in the graph")
    return tuple(found.get(x) for x in wanted)


def _walk(outputs: list[Tensor], given: list[Tensor | None], wanted: list[Tensor] | None = None) -> dict[Any, Tensor]:
    """Return the gradients of leaves, or of the wanted tensors."""
    roots = [(*_edge(x), torch.ones_like(x) if g is None else g) for x, g in zip(outputs, given, strict=True)]
    edges = {_edge(x): x for x in wanted or ()}
    order, found = _sorted([node for node, _, _ in roots]), {}
    arrived: dict[Any, dict[int, Tensor]] = {}
    with torch.no_grad():
        for node, place, gradient in roots:
            _add(arrived, node, place, gradient)
        for node in order:
            got = arrived.pop(node, {})
            for place, gradient in got.items():
                if (node, place) in edges:
                    found[edges[node, place]] = gradient
            if not got:
                continue
            if hasattr(node, "variable"):
                if wanted is None:
                    found[node.variable] = got[0]
                continue
            for (after, place), gradient in zip(node.next_functions, _call(node, got), strict=False):
                if after is not None and gradient is not None:
                    _add(arrived, after, place, gradient)
    return found


def _edge(x: Tensor) -> tuple[Any, int]:
    edge = torch.autograd.graph.get_gradient_edge(x)
    return edge.node, edge.output_nr


def _sorted(roots: list[Any]) -> list[Any]:
    """Return the nodes of a graph, each before those that it passes gradients to."""
    order: list[Any] = []
    seen: set[Any] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(after, False) for after, _ in node.next_functions if after is not None]
    return order[::-1]


def _add(arrived: dict[Any, dict[int, Tensor]], node: Any, place: int, gradient: Tensor) -> None:
    expected = node._input_metadata[place]
    if gradient.shape != expected.shape:
        gradient = gradient.sum_to_size(expected.shape)  # as PyTorch's engine does for operands that it broadcast
    gradient = gradient.to(expected.dtype)
    of = arrived.setdefault(node, {})
    of[place] = of[place] + gradient if place in of else gradient


def _call(node: Any, got: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    metadata = node._input_metadata
    given = [got.get(i) for i in range(len(metadata))]
    if isinstance(node, torch.autograd.function.BackwardCFunction):  # one of Python's
        zeros = [torch.zeros(m.shape, dtype=m.dtype, device=m.device) for m in metadata]
        out = node.apply(*(z if g is None else g for g, z in zip(given, zeros, strict=True)))
    else:
        out = node(*given)
    return out if isinstance(out, tuple) else (out,)


def _gru(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """Run a GRU of one layer over packed lists, (P, d), or padded ones, (L, B, d), without cuDNN."""
    (first, weights), sizes = (args[1:3], _tolist(args[0])) if x.dim() == 2 else (args[:2], None)
    w, u, b, c = weights
    state, states = first[0], []
    for step in x.unbind(0) if sizes is None else x.split(sizes):
        before = state[: len(step)]
        reset_x, update_x, new_x = (step @ w.T + b).chunk(3, dim=1)
        reset_h, update_h, new_h = (before @ u.T + c).chunk(3, dim=1)
        update = torch.sigmoid(update_x + update_h)
        state = (1 - update) * torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h) + update * before
        states.append(state)
    return (torch.stack(states) if sizes is None else torch.cat(states)), state[None]
