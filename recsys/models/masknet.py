"""MaskNet: Wang et al., MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by Instance-Guided Mask,
2021, https://arxiv.org/abs/2102.07619.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, flat_width, flatten, require_sparse


class MaskBlock(nn.Module):
    """relu(LN(W (x * mask))), where the mask is made of all embeddings of the row by two layers (equations 6 to 11).

    (B, guide), (B, width) -> (B, out). reduction: the mask's hidden layer has reduction * width units
    """

    def __init__(self, guide: int, width: int, out: int, reduction: float) -> None:
        super().__init__()
        hidden = max(1, round(reduction * width))
        self.aggregate, self.project = nn.Linear(guide, hidden), nn.Linear(hidden, width)
        self.hidden, self.norm = nn.Linear(width, out, bias=False), nn.LayerNorm(out)

    def forward(self, guide: Tensor, x: Tensor) -> Tensor:
        """Multiply x by a mask made of the guide, and project it: guide (B, guide), x (B, width) -> (B, out)."""
        mask = self.project(torch.relu(self.aggregate(guide)))
        return torch.relu(self.norm(self.hidden(x * mask)))


class MaskNet(nn.Module):
    """Blocks that multiply features by masks made of the row's own embeddings.

    Args:
        dim: width of the embeddings.
        structure: "parallel" runs all blocks on the normalised features and an MLP on their outputs; "serial" runs each
            block on the output of the one before.
        blocks: output width of each block.
        reduction: ratio of the mask's hidden layer to its output.
        deep_mlp: parallel: hidden widths above the blocks.
        batch_norm: whether to normalise the hidden layers of the MLP above the blocks over the batch.
        dropout: share of the hidden units of the MLP above the blocks that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        structure: Literal["parallel", "serial"] = "parallel",
        blocks: Sequence[Width] = (64, 64, 64),
        reduction: float = 1.0,
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "MaskNet")
        if not blocks:
            raise ValueError("blocks=[]: needs at least one block; model=dnn has none")
        self.serial = structure == "serial"
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in features.sparse)  # one for each field
        guide = flat_width(features, dim)
        inputs = [guide, *blocks[:-1]] if self.serial else [guide] * len(blocks)
        self.blocks = nn.ModuleList(MaskBlock(guide, i, o, reduction) for i, o in zip(inputs, blocks, strict=True))
        width = blocks[-1] if self.serial else sum(blocks)
        self.deep = MLP(width, [] if self.serial else deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        guide = flatten(dense, vectors)
        normed = torch.stack([norm(vectors[:, i]) for i, norm in enumerate(self.norms)], dim=1)
        x = flatten(dense, normed)
        if not self.serial:
            return self.logits(self.deep(torch.cat([block(guide, x) for block in self.blocks], dim=1)))
        for block in self.blocks:
            x = block(guide, x)
        return self.logits(x)
