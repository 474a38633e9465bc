"""The layout of lists of different lengths: one after another, or all padded to one length.

Models work on the values of B lists, (P, ...), with their lengths (B,). In training the lists follow one another, and P
is the sum of the lengths. An exported graph needs shapes that depend on the sizes of its inputs alone: within
`padded_to(L)`, each list has L places of its own, P = B * L, and the places after its end hold arbitrary values, which
must not reach any list. Models that use the functions of this module, of attention.py and of items.py support both, if
they write x.shape[0] instead of len(x), which PyTorch's tracer would make a constant.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from recsys.interface.batch import segment_ids_of

T = TypeVar("T")
GROUPS = 4  # of lists that are padded together
_length: int | None = None
_longest: int | None = None


@contextmanager
def padded_to(length: int) -> Iterator[None]:
    """Pad lists to this length within the block."""
    global _length
    before, _length = _length, length
    try:
        yield
    finally:
        _length = before


def padded_length() -> int | None:
    """Return L if lists are padded, None if they follow one another."""
    return _length


@contextmanager
def at_most(longest: int | None) -> Iterator[None]:
    """Pad no list of a block to more or less than this number of values within the block, so that its shape is known.

    longest: at least the length of the longest list; None: the lengths say it, for which the host waits for a GPU
    """
    global _longest
    before, _longest = _longest, longest
    try:
        yield
    finally:
        _longest = before


def known_longest() -> int | None:
    """Return the length that `at_most` declares, or None outside of it."""
    return _longest


def longest_of(lengths: Tensor) -> int:
    """Return the number of values that lists are padded to: lengths (B,)."""
    if _longest is not None:
        return _longest
    return int(on_host(lengths).max()) if len(lengths) else 0


class _Layout:
    """What follows from the lengths (B,) of lists that follow one another, computed once for all layers over them.

    The lengths must not be changed afterwards.
    """

    def __init__(self, lengths: Tensor) -> None:
        self._lengths = lengths.detach()  # not the key of _layouts itself, which would never be freed
        self._kept: dict[str, Any] = {}

    def _once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def ends(self) -> Tensor:
        """Return the index of the value after the end of each list, (B,)."""
        return self._once("ends", lambda: self._lengths.cumsum(0))

    def starts(self) -> Tensor:
        """Return the index of the first value of each list, (B,)."""
        return self._once("starts", lambda: self.ends() - self._lengths)

    def offsets(self) -> Tensor:
        """Return the start of each list and the end of the last one, (B + 1,)."""
        return self._once("offsets", lambda: torch.cat([self._lengths.new_zeros(1), self.ends()]))

    def on_host(self, read: Tensor | None = None) -> Tensor:
        """Return the lengths on the CPU, for which the host waits for a GPU.

        read: the lengths on the CPU, if they have been copied with something else
        """
        return self._once("on_host", lambda: self._lengths.cpu() if read is None else read)

    def segment_ids(self, total: int) -> Tensor:
        """Return the index of the list of each of P values, (P,). total: P"""
        return self._once("segment_ids", lambda: segment_ids_of(self._lengths, total))

    def from_start(self, total: int) -> Tensor:
        """Return the position of each of P values in its list, (P,). total: P"""

        def make() -> Tensor:
            starts = self.starts().index_select(0, self.segment_ids(total))
            return torch.arange(total, device=starts.device) - starts

        return self._once("from_start", make)

    def places(self, total: int, longest: int) -> Tensor:
        """Return the index of each of P values among the B * L places of a block, (P,). total: P, longest: L"""
        return self._once("places", lambda: self.segment_ids(total) * longest + self.from_start(total))

    def groups(self) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """See `groups_by_length`."""

        def make() -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
            lengths = self._lengths
            order = lengths.argsort()
            groups = lengths[order].chunk(GROUPS)
            sizes = torch.tensor([len(of) for of in groups], device=lengths.device)
            longest = torch.repeat_interleave(torch.stack([of[-1].clamp(min=1) for of in groups]), sizes)
            first_places = longest.cumsum(0) - longest  # of each list in the blocks
            starts = torch.repeat_interleave(self.starts()[order], longest)
            padded = starts + from_start(longest, len(starts))
            at = first_places[order.argsort()].index_select(0, self.segment_ids(total := int(lengths.sum())))
            return groups, padded.clamp(max=total - 1), at + self.from_start(total)

        return self._once("groups", make)


_layouts = WeakTensorKeyDictionary()


def _layout(lengths: Tensor) -> _Layout:
    # what inference mode computes cannot be used in training
    if torch.compiler.is_compiling() or (torch.is_inference_mode_enabled() and not lengths.is_inference()):
        return _Layout(lengths)
    layout = _layouts.get(lengths)
    if layout is None:
        layout = _layouts[lengths] = _Layout(lengths)
    return layout


def list_of_each(lengths: Tensor, total: int) -> Tensor:
    """Return the index of the list that contains each value: lengths (B,) -> (P,). total: P"""
    return _layout(lengths).segment_ids(total)


def ends_of(lengths: Tensor) -> Tensor:
    """Return the index of the value after the end of each list: lengths (B,) -> (B,)."""
    return _layout(lengths).ends()


def from_start(lengths: Tensor, total: int) -> Tensor:
    """Return the position of each value, counted from the start of its list: lengths (B,) -> (P,). total: P"""
    if _length is not None:
        return torch.arange(_length, device=lengths.device).repeat(lengths.shape[0])
    return _layout(lengths).from_start(total)


def from_end(lengths: Tensor, total: int) -> Tensor:
    """Return the number of values that follow each value within its list: lengths (B,) -> (P,). total: P"""
    if _length is not None:
        return (lengths[:, None] - 1 - torch.arange(_length, device=lengths.device)).clamp(min=0).flatten()
    layout = _layout(lengths)
    return (lengths - 1).index_select(0, layout.segment_ids(total)) - layout.from_start(total)


def on_host(lengths: Tensor) -> Tensor:
    """Return the lengths (B,) on the CPU. The host waits for a GPU once for all layers over the same lists."""
    return _layout(lengths).on_host() if lengths.is_cuda else lengths


def keep_on_host(lengths: Tensor, read: Tensor) -> None:
    """Keep lengths (B,) that the host has, `read`, so that nothing waits for those on a GPU."""
    if lengths.is_cuda:
        _layout(lengths).on_host(read)


def true_places(*masks: Tensor, lengths: Tensor) -> list[Tensor]:
    """Return the indices of the true elements of each mask (P,).

    The host waits for a GPU once: for their numbers, and for the lengths (B,) of lists that are padded later.
    """
    if not masks[0].is_cuda:
        return [mask.nonzero()[:, 0] for mask in masks]
    read = torch.cat([torch.stack([mask.sum() for mask in masks]), lengths]).cpu()
    keep_on_host(lengths, read[len(masks) :])
    counts = read[: len(masks)].tolist()
    return [torch.nonzero_static(mask, size=n)[:, 0] for mask, n in zip(masks, counts, strict=True)]


def to_block(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | slice]:
    """Pad lists on the right: values (P, d) of B lists with lengths (B,).

    Returns:
        The block (B, L, d), L being the longest list's length and at least 1, and the index of each value among the
        block's B * L rows. The places after a list's end are zero, or arbitrary within `padded_to`.
    """
    if _length is not None:
        return x.reshape(lengths.shape[0], _length, x.shape[1]), slice(None)
    longest = max(longest_of(lengths), 1)
    layout = _layout(lengths)
    block = torch.ops.fbgemm.jagged_to_padded_dense(x, [layout.offsets()], [longest], 0.0)
    return block, layout.places(x.shape[0], longest)


def from_block(rows: Tensor, at: Tensor | slice) -> Tensor:
    """Return the values (P, d) of lists from the rows (B * L, d) of their block. at: as `to_block` returns it"""
    return rows if isinstance(at, slice) else rows.index_select(0, at)  # rows[at] has a slow backward pass on CPUs


def to_pieces(x: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cut lists into pieces of one size, padded with zeros: values (P, d) of B lists with lengths (B,).

    The padding is at most `size` values a list, however long another one is, and the host waits for no GPU. Within
    `padded_to`, each list is one piece.

    Returns:
        The pieces, (N, size, d) with N = P // size + B, and the index of the list of each, (N,), ascending. Pieces that
        are left over are zeros of the last list.
    """
    if _length is not None:
        block = x.reshape(lengths.shape[0], _length, x.shape[1])
        filled = is_filled(lengths, _length)[:, :, None]
        return torch.where(filled, block, 0.0), torch.arange(lengths.shape[0], device=x.device)
    counts = (lengths + size - 1) // size
    ends = counts.cumsum(0)
    number = torch.arange(x.shape[0] // size + lengths.shape[0], device=x.device)
    row = torch.searchsorted(ends, number, right=True).clamp(max=lengths.shape[0] - 1)
    within = number - (ends - counts).index_select(0, row)
    starts = (_layout(lengths).starts().index_select(0, row) + within * size).clamp(max=x.shape[0])
    offsets = nn.functional.pad(starts, (0, 1), value=x.shape[0])
    return torch.ops.fbgemm.jagged_to_padded_dense(x, [offsets], [size], 0.0), row


def groups_by_length(lengths: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Divide lists (B,) into GROUPS of similar lengths, whose blocks need less padding than one block of all.

    Returns:
        The lengths of each group's lists, in ascending order. A group's block is as long as its longest list, and at
        least 1.
        The index of the value (P values in all) at each place of the blocks, one block after another; after the end of
        a list, that of any value.
        The index among these places of each of the P values, (P,).
    """
    return _layout(lengths).groups()


def repeat_rows(x: Tensor, lengths: Tensor, total: int) -> Tensor:
    """Repeat the row of each list for each of its values: (B, d), lengths (B,) -> (P, d). total: P"""
    if _length is not None:
        return x[:, None].expand(-1, _length, -1).reshape(-1, x.shape[1])
    return x.index_select(0, list_of_each(lengths, total))


@contextmanager
def with_first(first: Tensor, x: Tensor, lengths: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Put a value before the others of each list: first (B, d), values (P, d), lengths (B,).

    Yields the values (P + B, d) and the lengths (B,) of the longer lists; padded lists are longer within the block.
    """
    longer = lengths + 1
    if _length is not None:
        block = torch.cat([first[:, None], x.reshape(lengths.shape[0], _length, x.shape[1])], dim=1)
        with padded_to(_length + 1):
            yield block.flatten(0, 1), longer
        return
    grown = None if _longest is None else _longest + 1
    values = x.new_zeros(len(x) + len(first), x.shape[1]).index_copy(0, longer.cumsum(0) - longer, first)
    after = torch.arange(len(x), device=x.device) + list_of_each(lengths, x.shape[0]) + 1
    with at_most(grown):
        yield values.index_copy(0, after, x), longer


def without_repeated(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Leave out lists that equal the list before them: values (P, d), lengths (B,).

    Returns:
        The values (P', d) and the lengths (U,) of the U lists that are left, and the index of each of the B lists among
        them, (B,).
    """
    row = torch.arange(lengths.shape[0], device=lengths.device)
    one_before = (row - 1).clamp(min=0)
    same = (lengths == lengths.index_select(0, one_before)) & (row > 0)
    if _length is not None:
        block = x.reshape(lengths.shape[0], _length, x.shape[1])
        equal = (block == block.index_select(0, one_before)).all(2) | ~is_filled(lengths, _length)
        new = ~(same & equal.all(1))
        at = new.nonzero()[:, 0]
        return block.index_select(0, at).flatten(0, 1), lengths.index_select(0, at), new.cumsum(0) - 1
    of = list_of_each(lengths, x.shape[0])
    before = (torch.arange(x.shape[0], device=x.device) - lengths[of]).clamp(min=0)
    differs = (x != x.index_select(0, before)).any(1)
    different = torch.zeros_like(lengths).index_add_(0, of, differs.to(lengths.dtype))
    new = ~(same & (different == 0))
    return x[new[of]], lengths[new], new.cumsum(0) - 1


def first_values(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the first value of each list, none of which is empty: values (P, d), lengths (B,) -> (B, d)."""
    if _length is not None:
        return x.reshape(lengths.shape[0], _length, x.shape[1])[:, 0]
    return x[_layout(lengths).starts()]


def is_filled(lengths: Tensor, longest: int) -> Tensor:
    """Return whether each place of a block holds a value: lengths (B,) -> (B, longest) bool."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def filled_or_empty(lengths: Tensor, longest: int) -> Tensor:
    """Return what `is_filled` does, but True for all places of an empty list: a softmax of nothing is NaN."""
    return is_filled(lengths, longest) | (lengths == 0)[:, None]


def list_sums(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum of each list, zeros for an empty one: values (P, d), lengths (B,) -> (B, d)."""
    if _length is not None:
        block = x.reshape(lengths.shape[0], _length, x.shape[1])
        return torch.where(is_filled(lengths, _length)[:, :, None], block, 0.0).sum(1)
    return torch.segment_reduce(x, "sum", lengths=lengths, initial=0.0, unsafe=True)  # a check would wait for a GPU


def list_softmax(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the softmax of each list's scores: (P, H), lengths (B,) -> (P, H)."""
    block, at = to_block(scores, lengths)
    shares = block.masked_fill(~filled_or_empty(lengths, block.shape[1])[:, :, None], -math.inf).softmax(1)
    return from_block(shares.flatten(0, 1), at)


def list_means(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean of each list, zeros for an empty one: values (P, d), lengths (B,) -> (B, d)."""
    if _length is not None:
        return list_sums(x, lengths) / lengths.clamp(min=1)[:, None]
    return torch.segment_reduce(x, "mean", lengths=lengths, initial=0.0, unsafe=True)


def as_lists(values: Tensor) -> Tensor:
    """Return single values (B,) as the values (P,) of B lists of one value each."""
    if _length is None:
        return values
    first = torch.arange(_length, device=values.device) == 0
    return torch.where(first, values[:, None], 0).flatten()


def first_kept(values: Tensor, keep: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Drop values from lists: values (P,), keep (P,) bool, lengths (B,) -> the values that are kept, new lengths (B,).

    Their order within a list stays the same.
    """
    if _length is None:
        counts = torch.zeros_like(lengths, dtype=torch.long)
        counts = counts.index_add_(0, list_of_each(lengths, values.shape[0]), keep.long())
        [at] = true_places(keep, lengths=counts)
        return values[at], counts
    place = torch.arange(_length, device=values.device)
    keep = keep.view(-1, _length) & (place < lengths[:, None])
    order = torch.argsort(keep.long() * _length - place, dim=1, descending=True)  # ONNX has no stable sort
    return values.view(-1, _length).gather(1, order).flatten(), keep.sum(1)
