"""Find the k best candidates of each query, tile by tile, and merge the candidates of several tiles and processes.

A candidate and its score are one integer, a *key*: the bits of the score as float32, in an order-preserving form, above
the bits of MAX_ID - id. Keys are therefore distinct, and equal scores are ordered by ascending id, however the
candidates are divided among tiles and processes. recsys.predict orders its lists in the same way.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from recsys.batch import JaggedIds
from recsys.evaluation.collected_rows import is_distributed, world_size

MAX_ID = 2**32 - 1
GROUP = 64  # number of neighbouring candidates whose highest score is computed first
SCORES_SEARCHED = 2**22  # number of scores searched together, which limits the memory of intermediate results


def best_keys(scores: Tensor, first: int, left_out: JaggedIds, k: int) -> Tensor:
    """Return the keys (b, k) of the k best candidates of each row, in no order.

    Rows with fewer candidates end with keys of id -1. Candidates of score -inf or NaN do not count.

    Args:
        scores: (b, n) scores of the candidates first ... first + n - 1. They are changed and changed back.
        first: id of the first candidate.
        left_out: b lists of columns that do not count.
        k: number of keys per row.
    """
    if 0 in scores.stride():
        scores = scores.contiguous()  # an expanded tensor cannot be written to
    places = left_out.segment_ids, left_out.values
    kept = scores[places]
    scores[places] = -torch.inf
    step = max(1, SCORES_SEARCHED // max(1, scores.shape[1]))
    keys = torch.cat([left_out.values.new_empty(0, k), *(_best(part, first, k) for part in scores.split(step))])
    scores[places] = kept
    return keys


def merged(keys: list[Tensor], k: int) -> Tensor:
    """Return the k greatest of (b, any) keys of several tiles or processes: (b, k), in descending order."""
    return torch.cat(keys, 1).topk(k, 1).values


def merged_over_processes(keys: Tensor) -> Tensor:
    """Return the ids (b, k) of the best candidates over the keys (b, k) of all processes, -1 for none. Collective."""
    parts = [keys]
    if is_distributed():
        parts = [torch.empty_like(keys) for _ in range(world_size())]
        dist.all_gather(parts, keys.contiguous())
    best = merged(parts, keys.shape[1])
    lowest = _keys(best.new_tensor([-torch.inf], dtype=torch.float32), best.new_tensor([0]))
    return torch.where(best > lowest, MAX_ID - (best & MAX_ID), -1)


def _keys(scores: Tensor, ids: Tensor) -> Tensor:
    """Return the keys of candidates, int64. NaN counts as -inf."""
    bits = torch.nan_to_num(scores.float() + 0.0, -torch.inf, torch.inf, -torch.inf).view(torch.int32)  # + 0.0: no -0.0
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32) | (MAX_ID - ids)


def _best(scores: Tensor, first: int, k: int) -> Tensor:
    """Return the keys (b, k) of the best of the candidates first ... first + n - 1 by their scores (b, n).

    If there are many, the k groups of GROUP neighbours with the highest maxima are found first: they contain the k best
    candidates, because each of these groups has a candidate that is at least as good as any candidate outside of them.
    """
    n = scores.shape[1]
    if 2 * k * GROUP >= n:
        keys = _keys(scores, torch.arange(first, first + n, device=scores.device))
        missing = keys.new_full((len(keys), max(k - n, 0)), torch.iinfo(torch.int64).min)
        return torch.cat([keys, missing], 1).topk(k, 1, sorted=False).values
    whole = n // GROUP
    maxima = scores[:, : whole * GROUP].unflatten(1, (whole, GROUP)).amax(2)
    if whole * GROUP < n:
        maxima = torch.cat([maxima, scores[:, whole * GROUP :].amax(1, keepdim=True)], 1)
    groups = torch.arange(maxima.shape[1], device=scores.device)
    chosen = MAX_ID - (_keys(maxima, groups).topk(k, 1, sorted=False).values & MAX_ID)
    places = (chosen[:, :, None] * GROUP + groups.new_tensor(range(GROUP))).flatten(1)
    inside = places < n
    places = places.clamp(max=n - 1)
    block_keys = _keys(torch.where(inside, scores.gather(1, places), -torch.inf), first + places)
    return block_keys.topk(k, 1, sorted=False).values
