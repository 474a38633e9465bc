"""Triton kernels of HSTU's attention over lists that are not padded: Zhai et al., Actions Speak Louder than Words:
Trillion-Parameter Sequential Transducers for Generative Recommendations, 2024, https://arxiv.org/abs/2402.17152.

No score is written to the GPU's memory: a program computes those of a block of queries, or of keys, of one list and
head, so that the memory is linear in the number of values. Triton is imported by `register`: it is not installed with
every PyTorch, and its import takes half a second.
"""

from __future__ import annotations  # of the kernels: triton.language is not imported yet

from typing import Any, no_type_check

import torch
from torch import Tensor

from recsys.models.common.kernels import DTYPES, dot_precision
from recsys.models.common.lists import ends_of

MAX_HEAD_DIM = 128
# Queries and keys of a block. In lists of 200 values, blocks of 32 compute 1.4 times the pairs that are seen, blocks of
# 64 twice as many. Float32 without Tensor Cores needs smaller ones: Triton unrolls its products into scalar ones.
BLOCK, BLOCK_OF_FLOAT32 = 32, 16
tl: Any = None  # triton.language, once `register` has imported it


def has_hstu_kernel(vqk: Tensor, heads: int, times: Tensor | None) -> bool:
    """Return whether the kernels attend to these values, whose times must be integers."""
    is_whole = times is None or not times.is_floating_point()
    return vqk.dtype in DTYPES and vqk.shape[1] // (3 * heads) <= MAX_HEAD_DIM and is_whole


def hstu_attention(
    vqk: Tensor,
    lengths: Tensor,
    longest: int,
    distances: Tensor,
    value_bias: Tensor | None = None,
    times: Tensor | None = None,
    spans: Tensor | None = None,
    span_starts: Tensor | None = None,
) -> Tensor:
    """Return, for each value i of B lists, the sum of SiLU(q_i k_j + bias_ij) v_j / length over j <= i of its list.

    The bias is distances[min(i - j, length - 1)] + spans[bucket of the time between i and j] + value_bias[j], of each
    head. Products are summed in float32. Gradients cannot be differentiated again.

    Args:
        vqk: values, queries and keys, (P, 3 * dim), of DTYPES.
        lengths: (B,), whose sum is P.
        longest: the greatest of them, or more.
        distances: (heads, length).
        value_bias: (P, heads).
        times: (P,), integers.
        spans: (heads, number of buckets, a power of two), for times.
        span_starts: as attention.span_starts returns it, for times.

    Returns:
        (P, dim), of the type of `vqk`.
    """
    register()
    absent = vqk.new_empty(0)
    value_bias = absent if value_bias is None else value_bias if value_bias.stride(1) == 1 else value_bias.contiguous()
    timed = (absent,) * 3 if times is None else (times.contiguous(), spans, span_starts)
    vqk = vqk if vqk.stride(1) == 1 else vqk.contiguous()
    return torch.ops.recsys.hstu_attention(  # type: ignore[no-any-return]
        vqk, ends_of(lengths), longest, distances, value_bias, *timed
    )


@no_type_check
def load_block(x, rows, stride, columns, n, width: tl.constexpr):
    """Load rows of a list of n values, zeros beyond n and width."""
    filled = (rows[:, None] < n) & (columns[None, :] < width)
    return tl.load(x + rows[:, None] * stride + columns[None, :], mask=filled, other=0.0)


@no_type_check
def load_bias(
    i, j, n, head, distances, value_bias, bias_stride, times, spans, span_starts,
    length: tl.constexpr, buckets: tl.constexpr, biased: tl.constexpr, timed: tl.constexpr,
):  # fmt: skip
    """Return the distances of queries i and keys j, one a row and the other a column, the biases, and time buckets."""
    back = i - j
    bias = tl.load(distances + head * length + tl.minimum(tl.maximum(back, 0), length - 1)).to(tl.float32)
    bucket = back
    if timed:
        time = tl.abs(tl.load(times + i, mask=i < n, other=0) - tl.load(times + j, mask=j < n, other=0)).to(tl.float32)
        # The GPU's logarithm is approximate: the bucket that it yields may be one off.
        bucket = tl.minimum((tl.log(tl.maximum(time, 1.0)) / 0.301).to(tl.int32), buckets - 1)
        bucket += (time >= tl.load(span_starts + bucket + 1)).to(tl.int32)
        bucket -= (time < tl.load(span_starts + bucket)).to(tl.int32)
        bias += tl.load(spans + head * buckets + bucket).to(tl.float32)
    if biased:
        bias += tl.load(value_bias + j * bias_stride, mask=j < n, other=0.0).to(tl.float32)
    return back, bias, bucket


@no_type_check
def attend_forward(
    vqk, ends, distances, value_bias, times, spans, span_starts, out, stride, bias_stride,
    heads: tl.constexpr, width: tl.constexpr, length: tl.constexpr, buckets: tl.constexpr, biased: tl.constexpr,
    timed: tl.constexpr, padded: tl.constexpr, block: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    of_list, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = tl.load(ends + of_list - 1, mask=of_list > 0, other=0)
    n = (tl.load(ends + of_list) - start).to(tl.int32)
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * block  # queries with the most keys start first
    if first >= n:
        return
    vqk += start * stride + head * width
    value_bias += start * bias_stride + head
    times += start
    i = first + tl.arange(0, block)
    columns = tl.arange(0, padded)
    q = load_block(vqk + heads * width, i, stride, columns, n, width)
    mixed = tl.zeros((block, padded), tl.float32)
    for begin in range(0, first + block, block):
        j = begin + tl.arange(0, block)
        k = load_block(vqk + 2 * heads * width, j, stride, columns, n, width)
        v = load_block(vqk, j, stride, columns, n, width)
        back, bias, _ = load_bias(
            i[:, None], j[None, :], n, head, distances, value_bias, bias_stride, times, spans, span_starts,
            length, buckets, biased, timed,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(k), input_precision=precision) + bias
        weights = tl.where(back >= 0, scores * tl.sigmoid(scores), 0.0)
        mixed = tl.dot(weights.to(v.dtype), v, mixed, input_precision=precision)
    out += start * (heads * width) + head * width
    filled = (i[:, None] < n) & (columns[None, :] < width)
    tl.store(out + i[:, None] * (heads * width) + columns[None, :], mixed * (1.0 / length), mask=filled)


@no_type_check
def attend_backward_queries(
    gradient, vqk, ends, distances, value_bias, times, spans, span_starts, of_vqk, of_distances, of_spans,
    stride, bias_stride,
    heads: tl.constexpr, width: tl.constexpr, length: tl.constexpr, buckets: tl.constexpr, biased: tl.constexpr,
    timed: tl.constexpr, padded: tl.constexpr, block: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of queries, and add its part to those of the biases that all lists share."""
    of_list, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = tl.load(ends + of_list - 1, mask=of_list > 0, other=0)
    n = (tl.load(ends + of_list) - start).to(tl.int32)
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * block
    if first >= n:
        return
    vqk += start * stride + head * width
    value_bias += start * bias_stride + head
    times += start
    place = tl.arange(0, block)
    i = first + place
    columns = tl.arange(0, padded)
    q = load_block(vqk + heads * width, i, stride, columns, n, width)
    g = load_block(gradient + start * (heads * width) + head * width, i, heads * width, columns, n, width)
    of_q = tl.zeros((block, padded), tl.float32)
    carried = tl.zeros((block,), tl.float32)
    by_bucket = tl.zeros((buckets,), tl.float32)
    for begin in range(0, first + block, block):
        j = begin + place
        k = load_block(vqk + 2 * heads * width, j, stride, columns, n, width)
        v = load_block(vqk, j, stride, columns, n, width)
        back, bias, bucket = load_bias(
            i[:, None], j[None, :], n, head, distances, value_bias, bias_stride, times, spans, span_starts,
            length, buckets, biased, timed,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(k), input_precision=precision) + bias
        share = tl.sigmoid(scores)
        of_scores = tl.dot(g, tl.trans(v), input_precision=precision) * share * (1.0 + scores * (1.0 - share))
        of_scores = tl.where(back >= 0, of_scores * (1.0 / length), 0.0)
        of_q = tl.dot(of_scores.to(k.dtype), k, of_q, input_precision=precision)
        # All pairs of all lists add to `length` numbers: in turn, if each pair did so by itself. The block's diagonals
        # are summed first: column c of the turned block has those of the distances c and c - block, counted from its
        # corner's. The next block of keys has the latter, too, so that one atomic addition of a row's width is left.
        turned = tl.gather(of_scores, (place[:, None] - place[None, :]) & (block - 1), axis=1)
        is_near = place[:, None] >= place[None, :]
        distance = first - begin + place
        summed = carried + tl.sum(tl.where(is_near, turned, 0.0), axis=0)
        carried = tl.sum(tl.where(is_near, 0.0, turned), axis=0)
        of_head = of_distances + head * length
        tl.atomic_add(of_head + distance, summed, mask=distance < length - 1, sem="relaxed")
        if first - begin + block >= length:
            far = tl.sum(tl.where(distance >= length - 1, summed, 0.0), axis=0)
            tl.atomic_add(of_head + length - 1, far, sem="relaxed")
        if timed:  # times ascend as a rule, and then the pairs of a block are in a few neighbouring buckets
            seen = (back >= 0) & (i[:, None] < n)
            least = tl.min(tl.min(tl.where(seen, bucket, buckets), axis=1), axis=0)
            greatest = tl.max(tl.max(tl.where(seen, bucket, -1), axis=1), axis=0)
            for b in range(least, greatest + 1):
                total = tl.sum(tl.sum(tl.where(bucket == b, of_scores, 0.0), axis=1), axis=0)
                by_bucket += tl.where(tl.arange(0, buckets) == b, total, 0.0)
    of_vqk += start * (3 * heads * width) + (heads + head) * width
    filled = (i[:, None] < n) & (columns[None, :] < width)
    tl.store(of_vqk + i[:, None] * (3 * heads * width) + columns[None, :], of_q, mask=filled)
    if timed:
        to = of_spans + head * buckets + tl.arange(0, buckets)
        tl.atomic_add(to, by_bucket, mask=by_bucket != 0.0, sem="relaxed")


@no_type_check
def attend_backward_keys(
    gradient, vqk, ends, distances, value_bias, times, spans, span_starts, of_vqk, of_value_bias, stride, bias_stride,
    heads: tl.constexpr, width: tl.constexpr, length: tl.constexpr, buckets: tl.constexpr, biased: tl.constexpr,
    timed: tl.constexpr, padded: tl.constexpr, block: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of keys and of their values and biases."""
    of_list, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    start = tl.load(ends + of_list - 1, mask=of_list > 0, other=0)
    n = (tl.load(ends + of_list) - start).to(tl.int32)
    first = tl.program_id(1) * block
    if first >= n:
        return
    vqk += start * stride + head * width
    value_bias += start * bias_stride + head
    times += start
    gradient += start * (heads * width) + head * width
    j = first + tl.arange(0, block)
    columns = tl.arange(0, padded)
    k = load_block(vqk + 2 * heads * width, j, stride, columns, n, width)
    v = load_block(vqk, j, stride, columns, n, width)
    of_k = tl.zeros((block, padded), tl.float32)
    of_v = tl.zeros((block, padded), tl.float32)
    of_bias = tl.zeros((block,), tl.float32)
    for begin in range(first, n, block):
        i = begin + tl.arange(0, block)
        q = load_block(vqk + heads * width, i, stride, columns, n, width)
        g = load_block(gradient, i, heads * width, columns, n, width)
        back, bias, _ = load_bias(
            i[None, :], j[:, None], n, head, distances, value_bias, bias_stride, times, spans, span_starts,
            length, buckets, biased, timed,
        )  # fmt: skip
        scores = tl.dot(k, tl.trans(q), input_precision=precision) + bias
        share = tl.sigmoid(scores)
        weights = tl.where(back >= 0, scores * share, 0.0)
        of_v = tl.dot(weights.to(g.dtype), g, of_v, input_precision=precision)
        of_scores = tl.dot(v, tl.trans(g), input_precision=precision) * share * (1.0 + scores * (1.0 - share))
        of_scores = tl.where(back >= 0, of_scores * (1.0 / length), 0.0)
        of_k = tl.dot(of_scores.to(q.dtype), q, of_k, input_precision=precision)
        of_bias += tl.sum(of_scores, axis=1)
    of_vqk += start * (3 * heads * width) + head * width
    filled = (j[:, None] < n) & (columns[None, :] < width)
    to = of_vqk + j[:, None] * (3 * heads * width) + columns[None, :]
    tl.store(to, of_v * (1.0 / length), mask=filled)
    tl.store(to + 2 * heads * width, of_k, mask=filled)
    if biased:
        tl.store(of_value_bias + (start + j) * heads + head, of_bias, mask=j < n)


def constants(vqk: Tensor, distances: Tensor, value_bias: Tensor, spans: Tensor) -> dict[str, Any]:
    """Return the compile-time arguments of the kernels."""
    heads, length = distances.shape
    width = vqk.shape[1] // (3 * heads)
    padded = max(16, 1 << (width - 1).bit_length())  # a power of two; Tensor Cores multiply 16 x 16
    precision = dot_precision() if vqk.dtype == torch.float32 else "ieee"
    is_scalar = vqk.dtype == torch.float32 and precision == "ieee"
    return {
        **{"heads": heads, "width": width, "length": length, "buckets": spans.shape[-1] or 1},
        **{"biased": value_bias.dim() == 2, "timed": spans.dim() == 2, "padded": padded},
        **{"block": BLOCK_OF_FLOAT32 if is_scalar else BLOCK, "precision": precision},
    }


def warps(block: int, of_queries: bool = False) -> int:
    """Return the number of warps of a program, with which it spills no registers, as ptxas reports for sm_90.

    of_queries: whether it is attend_backward_queries, which holds the most tiles
    """
    return 8 if of_queries or block == BLOCK_OF_FLOAT32 else 4


def register() -> bool:
    """Import Triton and define the operators, once; a kernel is compiled when it is first launched."""
    global tl, load_block, load_bias, attend_forward, attend_backward_queries, attend_backward_keys
    if tl is not None:
        return True
    import triton
    import triton.language

    tl = triton.language
    jit: Any = triton.jit  # type: ignore[attr-defined]
    load_block, load_bias, attend_forward = map(jit, (load_block, load_bias, attend_forward))
    attend_backward_queries, attend_backward_keys = map(jit, (attend_backward_queries, attend_backward_keys))
    forward: Any = torch.library.triton_op("recsys::hstu_attention", _forward, mutates_args=())
    torch.library.triton_op("recsys::hstu_attention_backward", _backward, mutates_args=())
    forward.register_autograd(_gradients, setup_context=_save)
    return True


# Set by torch.compiler.assume_constant_result, whose import takes seconds: Dynamo calls the function while it traces.
register._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _forward(
    vqk: Tensor, ends: Tensor, longest: int, distances: Tensor, value_bias: Tensor, times: Tensor, spans: Tensor,
    span_starts: Tensor,
) -> Tensor:  # fmt: skip
    out = vqk.new_empty((vqk.shape[0], vqk.shape[1] // 3))
    if longest:
        values = constants(vqk, distances, value_bias, spans)
        grid = (ends.shape[0] * values["heads"], -(-longest // values["block"]))
        torch.library.wrap_triton(attend_forward)[grid](
            *(vqk, ends, distances.contiguous(), value_bias, times, spans.contiguous(), span_starts, out),
            *(vqk.stride(0), value_bias.stride(0)),
            **values,
            num_warps=warps(values["block"]),
        )
    return out


def _backward(
    gradient: Tensor, vqk: Tensor, ends: Tensor, longest: int, distances: Tensor, value_bias: Tensor, times: Tensor,
    spans: Tensor, span_starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    of_vqk = torch.empty_like(vqk, memory_format=torch.contiguous_format)
    of_distances, of_spans = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (distances, spans))
    of_value_bias = torch.empty_like(value_bias, memory_format=torch.contiguous_format)
    if longest:
        values = constants(vqk, distances, value_bias, spans)
        grid = (ends.shape[0] * values["heads"], -(-longest // values["block"]))
        inputs = (gradient.contiguous(), vqk, ends, distances.contiguous(), value_bias, times, spans.contiguous())
        strides = (vqk.stride(0), value_bias.stride(0))
        torch.library.wrap_triton(attend_backward_queries)[grid](
            *(*inputs, span_starts, of_vqk, of_distances, of_spans, *strides),
            **values,
            num_warps=warps(values["block"], of_queries=True),
        )
        torch.library.wrap_triton(attend_backward_keys)[grid](
            *(*inputs, span_starts, of_vqk, of_value_bias, *strides), **values, num_warps=warps(values["block"])
        )
    return of_vqk, of_distances.to(distances.dtype), of_spans.to(spans.dtype), of_value_bias


def _save(ctx: Any, inputs: tuple[Any, ...], **_: Any) -> None:
    vqk, ends, ctx.longest, *biases = inputs
    ctx.save_for_backward(vqk, ends, *biases)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    vqk, ends, *biases = ctx.saved_tensors
    found = torch.ops.recsys.hstu_attention_backward(gradient, vqk, ends, ctx.longest, *biases)
    of_vqk, of_distances, of_spans, of_value_bias = found
    return of_vqk, None, None, of_distances, of_value_bias, None, of_spans, None
