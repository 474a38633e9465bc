"""Wukong: Zhang et al., Wukong: Towards a Scaling Law for Large-Scale Recommendation, 2024,
https://arxiv.org/abs/2403.02545.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, require_sparse


class WukongLayer(nn.Module):
    """LN([FMB(X), LCB(X)] + X), section 3: (B, n, dim) -> (B, fm + linear, dim).

    The factorization machine block projects all dot products of the n vectors, X (X^T Y) with a trained Y (n, rank),
    through an MLP to `fm` vectors; the linear block mixes the n vectors to `linear` ones. If the number of vectors
    changes, the residual is projected to the new number.
    """

    def __init__(self, n: int, dim: int, fm: int, linear: int, rank: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.fm, self.dim = fm, dim
        self.rank = nn.Linear(n, rank, bias=False)  # Y
        self.norm_dots = nn.LayerNorm(n * rank)
        self.mlp = MLP(n * rank, hidden)
        self.to_vectors = nn.Linear(self.mlp.out_features, fm * dim)
        self.linear = nn.Linear(n, linear, bias=False)
        self.residual = nn.Identity() if n == fm + linear else nn.Linear(n, fm + linear, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors of both blocks: (B, n, dim) -> (B, fm + linear, dim)."""
        across = x.transpose(1, 2)  # (B, dim, n)
        dots = x @ self.rank(across)  # (B, n, rank)
        machine = self.to_vectors(self.mlp(self.norm_dots(dots.flatten(1)))).view(-1, self.fm, self.dim)
        mixed = torch.cat([machine, self.linear(across).transpose(1, 2)], dim=1)
        return self.norm(mixed + self.residual(across).transpose(1, 2))


class Wukong(nn.Module):
    """Stacked factorization machines: the order of interactions doubles with each layer.

    All dense features together make one vector, by an MLP, as DLRM's do.

    Args:
        dim: width of the embeddings.
        layers: number of layers.
        fm_vectors, linear_vectors: vectors that each layer's two blocks return.
        rank: columns of the dot products' projection.
        fm_mlp: hidden widths of the MLP over the dot products.
        bottom_mlp: hidden widths of the MLP over dense features; a linear layer to `dim` follows.
        top_mlp: hidden widths above the last layer.
        batch_norm: whether to normalise the hidden layers of the MLP above the last layer over the batch.
        dropout: share of the hidden units of the MLP above the last layer that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        layers: Depth = 2,
        fm_vectors: Width = 16,
        linear_vectors: Width = 16,
        rank: Width = 8,
        fm_mlp: Sequence[Width] = (128,),
        bottom_mlp: Sequence[Width] = (64,),
        top_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "Wukong")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.bottom: nn.Module | None = None
        if features.dense:
            bottom = MLP(features.dense_width, bottom_mlp)
            self.bottom = nn.Sequential(bottom, nn.Linear(bottom.out_features, dim))
        n, out = len(features.sparse) + (1 if features.dense else 0), fm_vectors + linear_vectors
        sizes = [n] + [out] * (layers - 1)
        self.layers = nn.Sequential(*(WukongLayer(s, dim, fm_vectors, linear_vectors, rank, fm_mlp) for s in sizes))
        self.top = MLP(out * dim, top_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.top.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        x = self.embeddings(sparse)  # (B, F, dim)
        if self.bottom is not None:
            x = torch.cat([self.bottom(dense)[:, None], x], dim=1)
        return self.logits(self.top(self.layers(x).flatten(1)))
