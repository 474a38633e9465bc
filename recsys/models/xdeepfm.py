"""xDeepFM: Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems, 2018,
https://arxiv.org/abs/1803.05170.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, FirstOrder, all_fields, flat_width, flatten, numeric_fields, require_sparse


class CIN(nn.Module):
    """Compressed interaction network: x^k_h = sum_ij W^k_hij (x^{k-1}_i * x^0_j), a vector for each h and layer k.

    The sums of the H_k vectors of each layer over their elements are the output (equations 6 to 8, without activation):
    (B, fields, dim) -> (B, H_1 + H_2 + ...).
    """

    def __init__(self, fields: int, layers: Sequence[int]) -> None:
        super().__init__()
        widths = [fields, *layers]
        self.weights = nn.ParameterList()  # W^k as (i, h, j)
        self.biases = nn.ParameterList()
        for below, h in zip(widths, layers, strict=False):
            bound = (below * fields) ** -0.5
            self.weights.append(torch.empty(below, h, fields).uniform_(-bound, bound))
            self.biases.append(torch.zeros(h))
        self.out_features = sum(layers)

    def forward(self, x0: Tensor) -> Tensor:
        """Return the sums of the vectors of all layers: (B, fields, dim) -> (B, H_1 + H_2 + ...)."""
        first = x0.transpose(1, 2)  # (B, dim, fields)
        x, sums = first, []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            left = (x @ weight.flatten(1)).unflatten(2, weight.shape[1:])  # (B, dim, H_k, fields): sum over i first
            x = (left @ first[:, :, :, None]).squeeze(3) + bias
            sums.append(x.sum(dim=1))
        return torch.cat(sums, dim=1)


class XDeepFM(nn.Module):
    """Linear part, compressed interaction network and deep network; their logits are summed.

    A dense feature is a field of the interaction network whose vector is multiplied by its value.

    Args:
        dim: width of the embeddings.
        cin_layers: the number of vectors of each layer of the interaction network.
        deep_mlp: hidden widths; a linear layer to the T logits follows.
        batch_norm: whether to normalise the hidden layers of the deep network over the batch.
        dropout: share of the hidden units of the deep network that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        cin_layers: Sequence[Width] = (16, 16),
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "XDeepFM")
        if not cin_layers:
            raise ValueError("cin_layers=[]: needs at least one layer; model=wide_deep has none")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.numeric = numeric_fields(features, dim)
        self.wide = PooledEmbeddings(features, 4 * features.logits, prefix="wide_", device=device, init_std=0.0)
        self.first_order = FirstOrder(features, features.logits)
        self.cin = CIN(len(features.sparse) + len(features.dense), cin_layers)
        self.deep = MLP(flat_width(features, dim), deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.cin.out_features + self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        crossed = self.cin(all_fields(vectors, self.numeric, dense))
        both = torch.cat([crossed, self.deep(flatten(dense, vectors))], dim=1)
        return self.first_order(dense, self.wide(sparse)) + self.logits(both)
