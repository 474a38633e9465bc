"""Activations of a model's blocks, computed again in the backward pass instead of kept (Chen et al., Training Deep Nets
with Sublinear Memory Cost, 2016, https://arxiv.org/abs/1604.06174).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from recsys.models.common.layers import has_batch_norm


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
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
