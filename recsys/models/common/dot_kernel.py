"""Triton kernels of DLRM's dot interaction: Naumov et al., Deep Learning Recommendation Model for Personalization and
Recommendation Systems, 2019, https://arxiv.org/abs/1906.00091.

A program reads the vectors of a row once and writes the row that the top MLP reads. PyTorch's operators also write the
concatenated vectors, their cast and all n x n products to the GPU's memory, whose traffic is the interaction's time.
Triton is imported by `register`: it is not installed with every PyTorch, and its import takes half a second.
"""

from __future__ import annotations  # of the kernels: triton.language is not imported yet

from typing import Any, no_type_check

import torch
from torch import Tensor

from recsys.models.common.kernels import DTYPES, dot_precision

# Sizes with which no kernel spills registers, as ptxas reports for sm_90 (tests/models/test_dot_kernel.py). Without
# Tensor Cores, Triton unrolls a product of tiles into scalar ones, whose operands all lie in registers.
MAX_VECTORS = {torch.float32: 64, torch.float16: 128, torch.bfloat16: 128}
MAX_WIDTH = 128  # of the part of the vectors that a program holds at once
tl: Any = None  # triton.language, once `register` has imported it


def has_dot_kernel(vectors: int, *dtypes: torch.dtype) -> bool:
    """Return whether the kernels multiply this number of vectors, of these types and as the last one."""
    return all(dtype in DTYPES for dtype in dtypes) and vectors <= MAX_VECTORS[dtypes[-1]]


def dot_interaction(embeddings: Tensor, bottom: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the dot products of all pairs of n vectors, after the first vector if it is given apart.

    The vectors are cast to `dtype` and the products summed in float32. Gradients cannot be differentiated again.

    Args:
        embeddings: (B, F, D), of DTYPES.
        bottom: (B, D), the first of n = F + 1 vectors; None for n = F.
        dtype: type of the result, one of DTYPES.

    Returns:
        (B, n * (n - 1) / 2), the products below the diagonal, row by row; with `bottom`, (B, D + n * (n - 1) / 2).
    """
    register()
    return torch.ops.recsys.dot_interaction(embeddings, bottom, dtype)  # type: ignore[no-any-return]


@no_type_check
def load_vectors(
    embeddings, bottom, i, d, n: tl.constexpr, width: tl.constexpr, apart: tl.constexpr, dtype: tl.constexpr
):
    """Load elements d of the vectors i of a row, zeros beyond n and width."""
    rows = i[:, None] - apart
    filled = (rows >= 0) & (i[:, None] < n) & (d[None, :] < width)
    x = tl.load(embeddings + rows * width + d[None, :], mask=filled, other=0.0).to(dtype)
    if apart:
        first = tl.load(bottom + d, mask=d < width, other=0.0).to(dtype)
        x = tl.where(i[:, None] == 0, first[None, :], x)
    return x


@no_type_check
def dots_forward(
    embeddings,
    bottom,
    out,
    embeddings_stride,
    bottom_stride,
    n: tl.constexpr,
    width: tl.constexpr,
    apart: tl.constexpr,  # 1 if the first vector is `bottom`, else 0
    padded: tl.constexpr,
    part: tl.constexpr,
    precision: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = out.dtype.element_ty
    embeddings += row * embeddings_stride
    bottom += row * bottom_stride
    out += row * (apart * width + n * (n - 1) // 2)
    i = tl.arange(0, padded)
    dots = tl.zeros((padded, padded), tl.float32)
    for begin in range(0, width, part):
        d = begin + tl.arange(0, part)
        x = load_vectors(embeddings, bottom, i, d, n, width, apart, dtype)
        dots = tl.dot(x, tl.trans(x), dots, input_precision=precision)
        if apart:
            first = tl.load(bottom + d, mask=d < width, other=0.0)  # from the cache
            tl.store(out + d, first.to(dtype), mask=d < width)
    pair = i[:, None] * (i[:, None] - 1) // 2 + i[None, :]
    below = (i[None, :] < i[:, None]) & (i[:, None] < n)
    tl.store(out + apart * width + pair, dots.to(dtype), mask=below)


@no_type_check
def dots_backward(
    gradient,
    embeddings,
    bottom,
    embeddings_gradient,
    bottom_gradient,
    embeddings_stride,
    bottom_stride,
    n: tl.constexpr,
    width: tl.constexpr,
    apart: tl.constexpr,
    padded: tl.constexpr,
    part: tl.constexpr,
    precision: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = gradient.dtype.element_ty
    embeddings += row * embeddings_stride
    bottom += row * bottom_stride
    gradient += row * (apart * width + n * (n - 1) // 2)
    embeddings_gradient += row * ((n - apart) * width)
    bottom_gradient += row * width
    i = tl.arange(0, padded)
    pair = i[:, None] * (i[:, None] - 1) // 2 + i[None, :]
    below = (i[None, :] < i[:, None]) & (i[:, None] < n)
    lower = tl.load(gradient + apart * width + pair, mask=below, other=0.0)
    symmetric = lower + tl.trans(lower)
    for begin in range(0, width, part):
        d = begin + tl.arange(0, part)
        x = load_vectors(embeddings, bottom, i, d, n, width, apart, dtype)
        found = tl.dot(symmetric, x, input_precision=precision)
        rows = i[:, None] - apart
        inside = (i[:, None] < n) & (d[None, :] < width)
        tl.store(embeddings_gradient + rows * width + d[None, :], found, mask=inside & (rows >= 0))
        if apart:
            found += tl.load(gradient + d, mask=d < width, other=0.0).to(tl.float32)[None, :]
            tl.store(bottom_gradient + i[:, None] * width + d[None, :], found, mask=inside & (i[:, None] == 0))


def constants(vectors: int, width: int, apart: bool, dtype: torch.dtype) -> dict[str, Any]:
    """Return the compile-time arguments of both kernels, for n vectors of this width that are multiplied as `dtype`."""
    precision = dot_precision() if dtype == torch.float32 else "ieee"
    by_tensor_cores = dtype != torch.float32 or precision == "tf32"
    padded = max(16, 1 << (vectors - 1).bit_length())  # a power of two; Tensor Cores multiply 16 x 16
    part = min(MAX_WIDTH if by_tensor_cores else 16, max(16, 1 << (width - 1).bit_length()))
    elements = padded * max(padded, part)  # of the largest tile
    warps = min(8, max(1, elements // (1024 if by_tensor_cores else 256)))  # 32 or 8 registers of a thread
    values = {"n": vectors, "width": width, "apart": int(apart), "padded": padded, "part": part}
    return {**values, "precision": precision, "num_warps": warps}


def register() -> bool:
    """Import Triton and define the operators, once; a kernel is compiled when it is first launched."""
    global tl, load_vectors, dots_forward, dots_backward
    if tl is not None:
        return True
    import triton
    import triton.language

    tl = triton.language
    jit: Any = triton.jit  # type: ignore[attr-defined]
    load_vectors, dots_forward, dots_backward = map(jit, (load_vectors, dots_forward, dots_backward))
    forward: Any = torch.library.triton_op("recsys::dot_interaction", _forward, mutates_args=())
    torch.library.triton_op("recsys::dot_interaction_backward", _backward, mutates_args=())
    forward.register_autograd(_gradients, setup_context=_save)
    return True


# Set by torch.compiler.assume_constant_result, whose import takes seconds: Dynamo calls the function while it traces.
register._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _forward(embeddings: Tensor, bottom: Tensor | None, dtype: torch.dtype) -> Tensor:
    embeddings, first = _with_dense_rows(embeddings, bottom)
    rows, vectors, width = embeddings.shape
    n = vectors + (bottom is not None)
    out = embeddings.new_empty((rows, (n - vectors) * width + n * (n - 1) // 2), dtype=dtype)
    if rows:
        torch.library.wrap_triton(dots_forward)[(rows,)](
            *(embeddings, first, out, embeddings.stride(0), first.stride(0)),
            **constants(n, width, bottom is not None, dtype),
        )
    return out


def _backward(gradient: Tensor, embeddings: Tensor, bottom: Tensor | None) -> tuple[Tensor, Tensor]:
    embeddings, first = _with_dense_rows(embeddings, bottom)
    rows, vectors, width = embeddings.shape
    of_embeddings = torch.empty_like(embeddings, memory_format=torch.contiguous_format)
    of_bottom = first.new_empty((0 if bottom is None else rows, width))
    if rows:
        torch.library.wrap_triton(dots_backward)[(rows,)](
            *(gradient.contiguous(), embeddings, first, of_embeddings, of_bottom),
            *(embeddings.stride(0), first.stride(0)),
            **constants(vectors + (bottom is not None), width, bottom is not None, gradient.dtype),
        )
    return of_embeddings, of_bottom


def _with_dense_rows(embeddings: Tensor, bottom: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return both with the numbers of each row one after another; without `bottom`, the embeddings stand for it."""
    if embeddings.stride()[1:] != (embeddings.shape[2], 1):
        embeddings = embeddings.contiguous()
    if bottom is None:
        return embeddings, embeddings
    return embeddings, bottom if bottom.stride(1) == 1 else bottom.contiguous()


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, torch.dtype], **_: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
    embeddings, bottom = ctx.saved_tensors
    of_embeddings, of_bottom = torch.ops.recsys.dot_interaction_backward(gradient, embeddings, bottom)
    return of_embeddings, None if bottom is None else of_bottom, None
