"""SDIM: Cao et al., Sampling Is All You Need on Modeling Long-Term User Behaviors for CTR Prediction, 2022,
https://arxiv.org/abs/2205.10249.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.behaviour import BehaviourEmbeddings
from recsys.models.common.layers import MLP
from recsys.models.common.lists import to_pieces

PIECE = 32  # items of one history that a matrix product adds up


class HashAttention(nn.Module):
    """Attention of a target to the items of a history that collide with it in random hashes.

    Each group of random hyperplanes gives a vector a signature (SimHash): the sides on which it lies. The items with
    the target's signature are added up, and their sum is divided by its Euclidean norm, or is zero if there are none.
    The result is the mean over the groups. An item at angle a to the target has the same signature with probability
    (1 - a / pi) ** hyperplanes, so that many groups approximate a target attention with these weights.

    For P items in B histories, padded to P + B * PIECE places at most, a step keeps W + groups numbers a place. For a
    moment it holds groups * hyperplanes more, then groups * W / PIECE; never a vector for each item and group.

    Args:
        width: width W of the vectors of the target and of each item of the history.
        groups: number of groups; m / tau in the paper.
        hyperplanes: number of hyperplanes of a group; tau in the paper.
        seed: of the normal vectors of the hyperplanes, which are not trained and are stored in checkpoints.
    """

    hyperplanes: Tensor  # (W, groups * hyperplanes)

    def __init__(self, width: int, groups: int, hyperplanes: int, seed: int) -> None:
        super().__init__()
        self.groups = groups
        generator = torch.Generator().manual_seed(seed)  # on every rank the same: buffers are not synchronised
        normals = torch.randn(width, groups * hyperplanes, generator=generator, device="cpu")
        self.register_buffer("hyperplanes", normals.to(torch.get_default_device()))

    def forward(self, target: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        """Return each row's interest: target (B, W), history (P, W), lengths (B,) -> (B, W)."""
        with torch.autocast(target.device.type, enabled=False):  # rounded vectors may lie on other sides
            pieces, row = to_pieces(history.float(), lengths, PIECE)  # (N, PIECE, W), (N,)
            sides = (target.detach().float() @ self.hyperplanes.float() > 0).index_select(0, row)
            same = (pieces.detach() @ self.hyperplanes.float() > 0) == sides[:, None]
            collide = same.unflatten(2, (self.groups, -1)).all(3)  # (N, PIECE, G)
            of_pieces = collide.to(pieces.dtype).transpose(1, 2) @ pieces  # (N, G, W)
            sums = of_pieces.new_zeros(lengths.shape[0], *of_pieces.shape[1:]).index_add(0, row, of_pieces)
            norms = torch.linalg.vector_norm(sums, dim=2, keepdim=True)
            return (sums / torch.where(norms > 0, norms, 1.0)).mean(1).to(target.dtype)


class SDIM(nn.Module):
    """Deep network over the target, its hash attention to the history, and all other features. The attention to an
    empty history is zero.

    Time and memory are linear in the number of items, whose places in the history do not count. The paper's model reads
    the last few items by another module, too; for those, add a feature with a small `last`, which is pooled.

    Args:
        history: the history of each feature of the target, see DIN.
        dim: width of the embeddings.
        groups: number of groups of hyperplanes, over which the attention is averaged; m / tau in the paper.
        hyperplanes: number of hyperplanes of a group, tau in the paper: the more there are, the more alike the target
            and an item must be.
        deep_mlp: hidden widths of the deep network; a linear layer to the T logits follows.
        batch_norm: whether to normalise the hidden layers of the deep network over the batch.
        dropout: share of the hidden units of the deep network that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        history: Mapping[str, str] | None = None,
        dim: Width = 16,
        groups: Depth = 16,
        hyperplanes: Depth = 3,
        deep_mlp: Sequence[Width] = (200, 80),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = BehaviourEmbeddings(features, history, dim, model="SDIM", init_std=init_std, device=device)
        width = self.embeddings.width
        self.attention = HashAttention(width, groups, hyperplanes, seed=0)
        self.deep = MLP(2 * width + self.embeddings.other_width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        target, history, lengths, others = self.embeddings(dense, sparse)
        interest = self.attention(target, history, lengths)
        return self.logits(self.deep(torch.cat([others, target, interest], dim=1)))
