"""AutoInt: Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks, 2019,
https://arxiv.org/abs/1810.11921.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, Dropout, all_fields, flat_width, flatten, numeric_fields, require_sparse


class Interacting(nn.Module):
    """Attention of each field to all fields, with a residual: (B, fields, width) -> (B, fields, heads * head_dim).

    The weights are softmax(q k) without a scale (equations 5 to 8).
    """

    def __init__(self, width: int, heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values, self.residual = (
            nn.Linear(width, heads * head_dim, bias=False) for _ in range(4)
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from each field to all fields: (B, fields, width) -> (B, fields, heads * head_dim)."""
        q, k, v = (
            f(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.queries, self.keys, self.values)
        )  # (B, heads, fields, head_dim)
        weights = self.dropout(torch.softmax(q @ k.transpose(2, 3), dim=3))
        return torch.relu((weights @ v).transpose(1, 2).flatten(2) + self.residual(x))


class AutoInt(nn.Module):
    """Layers of attention between fields; with `deep_mlp`, a deep network beside them (AutoInt+).

    A dense feature is a field whose vector is multiplied by its value.

    Args:
        dim: width of the embeddings.
        attention_layers: number of layers of attention.
        heads: number of heads of each layer.
        head_dim: width of each head, d' in the paper.
        deep_mlp: hidden widths of the deep network; [] for none.
        attention_dropout: share of the attention's weights that are dropped.
        batch_norm: whether to normalise the hidden layers of the deep network over the batch.
        dropout: share of the hidden units of the deep network that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        attention_layers: Depth = 3,
        heads: Depth = 2,
        head_dim: Width = 32,
        attention_dropout: Share = 0.0,
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "AutoInt")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.numeric = numeric_fields(features, dim)
        widths = [dim] + [heads * head_dim] * (attention_layers - 1)
        self.attention = nn.Sequential(*(Interacting(w, heads, head_dim, attention_dropout) for w in widths))
        width = heads * head_dim * (len(features.sparse) + len(features.dense))
        self.deep = MLP(flat_width(features, dim), deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.with_deep = bool(deep_mlp)
        self.logits = nn.Linear(width + (self.deep.out_features if deep_mlp else 0), features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        x = self.attention(all_fields(vectors, self.numeric, dense)).flatten(1)
        if self.with_deep:
            x = torch.cat([x, self.deep(flatten(dense, vectors))], dim=1)
        return self.logits(x)
