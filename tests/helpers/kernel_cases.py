"""Triton kernels and the models' own PyTorch code in float64, forward and backward, with the same inputs.

On a CPU, kernels run if TRITON_INTERPRET=1 is set before Triton is imported: in a process of its own.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys.models import dlrm, hstu
from recsys.models.common.dot_kernel import dot_interaction
from recsys.models.common.hstu_kernel import hstu_attention
from recsys.models.dlrm import DotInteraction
from recsys.models.hstu import HSTUBlock

TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}  # of the greatest number
REPEATABLE = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCES[dtype] * max(1.0, float(expected.detach().abs().max()) if expected.numel() else 0.0)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=tolerance)


def backward(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.arange(out.numel(), device=out.device, dtype=torch.float64).reshape(out.shape)
    gradient = (weights * 0.7).sin().to(out.dtype)
    return list(torch.autograd.grad(out, inputs, gradient, allow_unused=True, materialize_grads=True))


def compare_dots(
    rows: int, vectors: int, dim: int, apart: bool, dtype: torch.dtype, of_embeddings: torch.dtype, device: str = "cpu"
) -> None:
    """apart: the first vector is given beside the others; of_embeddings: their type, which the kernel casts to dtype"""
    generator = torch.Generator().manual_seed(rows + vectors)
    wide = torch.randn(rows, vectors, dim + 1, generator=generator).to(device)
    first = wide[:, 0, 1:].to(dtype).requires_grad_() if apart else None  # rows that are not next to each other
    embeddings = wide[:, int(apart) :, 1:].to(of_embeddings).contiguous().requires_grad_()
    inputs = [embeddings] if first is None else [embeddings, first]
    found = dot_interaction(embeddings, first, dtype)
    doubles = [x.detach().to(dtype).double().requires_grad_() for x in inputs]
    expected = DotInteraction(vectors).to(device)(*doubles)
    assert found.dtype == dtype
    assert_near(found, expected, dtype)
    for x, y, z in zip(backward(found, inputs), backward(expected, doubles), inputs, strict=True):
        assert x.dtype == z.dtype and x.shape == z.shape
        assert_near(x, y, dtype)


def compare_attention(
    lengths: list[int],
    heads: int,
    width: int,
    length: int,
    timed: bool,
    biased: bool,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    ascending: bool = True,
) -> None:
    """width: of a head; ascending: the order of the times of all lists"""
    torch.manual_seed(sum(lengths) + width)
    dim, values = heads * width, sum(lengths)
    block = HSTUBlock(dim, heads, 0.0, length, timed=timed).to(device)
    for p in (block.distances, block.spans):
        if p is not None:
            nn.init.normal_(p, std=0.5)
    vqk = torch.randn(values, 4 * dim).to(device, dtype)[:, dim:].requires_grad_()  # as HSTUBlock splits it
    bias = torch.randn(values, 3 * heads).to(device, dtype)[:, heads : 2 * heads].requires_grad_() if biased else None
    times = (torch.rand(values) * 16).exp().long().mul(torch.randint(0, 2, (values,))) if timed else None
    if times is not None:
        times = (times.sort()[0] if ascending else times).to(device)
    counts = torch.tensor(lengths, device=device)
    inputs = [x for x in (vqk, block.distances, block.spans, bias) if x is not None]
    longest = max(lengths, default=0)
    found = hstu_attention(vqk, counts, longest, block.distances, bias, times, block.spans, block.span_starts)
    given = backward(found, inputs)
    plain = HSTUBlock(dim, heads, 0.0, length, timed=timed).to(device).double()
    plain.load_state_dict(block.state_dict())
    wide = vqk.detach().double().requires_grad_()
    column = None if bias is None else bias.detach().double().requires_grad_()
    more = [x for x in (column, None if times is None else times[:, None]) if x is not None]
    lists = zip(*(x.split(lengths) for x in (wide, *more)), strict=True)
    expected = torch.cat(  # list by list, so that none is padded
        [plain._mixed(*(x[None] for x in of), counts[:1], has_value_bias=biased) for of in lists if len(of[0])]
        or [wide[:, :dim]]
    )
    assert found.dtype == dtype
    assert_near(found, expected, dtype)
    doubles = [x for x in (wide, plain.distances, plain.spans, column) if x is not None]
    for x, y, z in zip(given, backward(expected, doubles), inputs, strict=True):
        assert x.dtype == z.dtype and x.shape == z.shape
        assert_near(x, y, dtype)


@settings(REPEATABLE, max_examples=8)
@given(
    st.integers(1, 3),
    st.integers(2, 40),
    st.integers(1, 150),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float16]),
)
@example(2, 27, 128, True, torch.float32)
@example(1, 64, 16, False, torch.float32)
@example(1, 2, 1, True, torch.float32)
@example(0, 3, 4, True, torch.float32)
def dots_of_any_size(rows: int, vectors: int, dim: int, apart: bool, dtype: torch.dtype) -> None:
    compare_dots(rows, vectors, dim, apart, dtype, torch.float32)


@settings(REPEATABLE, max_examples=4)
@given(
    st.lists(st.sampled_from([0, 1, 2, 5, 15, 16, 17, 33]), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from([1, 3, 16, 20]),
    st.sampled_from([1, 7, 20, 200]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@example([0, 0], 2, 4, 5, True, True, True)
@example([1], 1, 4, 1, True, True, True)
@example([3, 50, 0], 2, 5, 7, True, True, False)
def attention_of_any_lists(
    lengths: list[int], heads: int, width: int, length: int, timed: bool, biased: bool, ascending: bool
) -> None:
    compare_attention(lengths, heads, width, length, timed, biased, ascending=ascending)


def attention_of_half_precision() -> None:
    """Blocks are larger than of float32."""
    compare_attention([70, 3, 0, 32], 2, 12, 50, True, True, torch.float16)
    compare_attention([33], 1, 16, 20, False, False, torch.float16)


def interpret(cases: str) -> None:
    """Run cases of this module in a forked process, whose parent may have imported Triton without the interpreter."""
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [m for m in sys.modules if m.split(".")[0] == "triton" and not m.startswith("triton._C")]:
        del sys.modules[name]
    globals()[cases]()


class Sm90:
    """A driver of Triton that knows its GPU, and launches nothing."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def traced(function: Callable[..., Tensor], *inputs: Tensor) -> list[list[str]]:
    """Compile forward and backward without a break. Returns what each of their Triton kernels writes."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
    from triton.runtime import driver

    driver.set_active(Sm90())
    written = []

    def compiled(graph: Any, _: Any) -> Callable[..., list[Any]]:
        kernels = [n for n in graph.graph.nodes if n.target is triton_kernel_wrapper_functional]
        written.extend(sorted(n.kwargs["tensors_to_clone"]) for n in kernels)
        results = [getattr(n, "meta", {}).get("val") for n in graph.graph.output_node().args[0]]
        return make_boxed_func(
            lambda *_: [torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, Tensor) else x for x in results]
        )

    backend = aot_autograd(fw_compiler=compiled, bw_compiler=compiled)
    torch.compile(function, backend=backend, fullgraph=True)(*inputs).sum().backward()
    return written


def trace_dots() -> None:
    dlrm.runs_triton = lambda _: True
    dot, embeddings, bottom = DotInteraction(5), torch.randn(7, 4, 16), torch.randn(7, 16)
    found = traced(lambda x, y: dot(x, y).relu(), embeddings.requires_grad_(), bottom.requires_grad_())
    assert found == [["out"], ["bottom_gradient", "embeddings_gradient"]], found
    with torch.autocast("cpu", torch.bfloat16):
        found = traced(lambda x: dot(x) + 0.0, torch.randn(7, 5, 16).requires_grad_())
    assert found == [["out"], ["embeddings_gradient"]], found


def trace_attention() -> None:
    hstu.runs_triton = lambda _: True
    block = HSTUBlock(32, 2, 0.0, 9, timed=True)
    lengths, x = torch.tensor([3, 4]), torch.randn(7, 32).requires_grad_()
    times, bias = torch.arange(7), torch.randn(7, 2).requires_grad_()

    def attend(x: Tensor, bias: Tensor) -> Tensor:
        vqk = block.uvqk(x)[:, 32:]
        given = (block.distances, bias, times, block.spans, block.span_starts)
        return hstu.hstu_attention(vqk, lengths, 4, *given)

    found = traced(attend, x, bias)
    assert found == [["out"], ["of_distances", "of_spans", "of_vqk"], ["of_value_bias", "of_vqk"]], found
