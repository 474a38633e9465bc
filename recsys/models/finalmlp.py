"""FinalMLP: Mao et al., FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction, 2023,
https://arxiv.org/abs/2304.00902.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, flat_width, flatten, require_sparse


class FeatureGate(nn.Module):
    """Weights between 0 and 2 for all inputs of a stream, made of the context: 2 sigmoid(MLP(context)).

    Without features for its context, the context is a trained vector: the weights are then the same for all rows.

    Args:
        places: indices of the features of the context; empty for a trained vector.
        dim: width of the embeddings.
        hidden: hidden widths of the MLP.
        width: number of inputs to weight.
    """

    def __init__(self, places: Sequence[int], dim: int, hidden: Sequence[int], width: int) -> None:
        super().__init__()
        self.places = list(places)
        self.context = None if places else nn.Parameter(torch.zeros(dim))
        self.mlp = MLP(dim * max(1, len(places)), hidden)
        self.weights = nn.Linear(self.mlp.out_features, width)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the weights of all inputs of a stream: (B, F, dim) -> (B, width)."""
        if self.context is None:
            context = vectors[:, self.places].flatten(1)
        else:
            context = self.context.expand(vectors.shape[0], -1)
        return 2 * torch.sigmoid(self.weights(self.mlp(context)))


class Fusion(nn.Module):
    """Bilinear fusion of two vectors, in `heads` parts: b + w_1 o_1 + w_2 o_2 + sum_h o_1h W_h o_2h -> (B, T).

    Args:
        first, second: widths o_1 and o_2 of the two vectors; both must be multiples of `heads`.
        heads: number of parts.
        logits: number T of logits.
    """

    def __init__(self, first: int, second: int, heads: int, logits: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.Linear(first, logits), nn.Linear(second, logits, bias=False)
        self.weight = nn.Parameter(torch.empty(logits, heads, first // heads, second // heads))
        nn.init.xavier_normal_(self.weight)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the logits: first (B, o_1), second (B, o_2) -> (B, T)."""
        a, b = (x.unflatten(1, (self.heads, -1)) for x in (first, second))
        return self.first(first) + self.second(second) + torch.einsum("bhi,thij,bhj->bt", a, self.weight, b)


class FinalMLP(nn.Module):
    """Two MLPs over differently weighted inputs, fused bilinearly.

    Args:
        dim: width of the embeddings.
        first_mlp, second_mlp: hidden widths of the streams; the last ones must be multiples of `heads`.
        first_context, second_context: the sparse features from which a stream's input weights are made, such as
            features of the user and of the item; [] for weights that are the same for all rows.
        gate_mlp: hidden widths of the weights' networks.
        heads: number of parts of the bilinear fusion.
        batch_norm: whether to normalise the hidden layers of both streams over the batch.
        dropout: share of the hidden units of both streams that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        first_mlp: Sequence[Width] = (128, 64),
        second_mlp: Sequence[Width] = (128, 64),
        first_context: Sequence[str] = (),
        second_context: Sequence[str] = (),
        gate_mlp: Sequence[Width] = (64,),
        heads: Depth = 2,
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "FinalMLP")
        names = [f.name for f in features.sparse]
        for key, given in (("first_context", first_context), ("second_context", second_context)):
            if unknown := [n for n in given if n not in names]:
                raise ValueError(f"{key}: {unknown[0]} is not a sparse feature; there are {', '.join(names)}")
        width = flat_width(features, dim)
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.first_gate, self.second_gate = (
            FeatureGate([names.index(n) for n in context], dim, gate_mlp, width)
            for context in (first_context, second_context)
        )
        self.first, self.second = (
            MLP(width, hidden, batch_norm=batch_norm, dropout=dropout) for hidden in (first_mlp, second_mlp)
        )
        outs = (self.first.out_features, self.second.out_features)
        if any(out % heads for out in outs):
            raise ValueError(f"heads={heads}: does not divide the last widths of both MLPs, {outs[0]} and {outs[1]}")
        self.fusion = Fusion(*outs, heads, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        x = flatten(dense, vectors)
        first, second = self.first_gate(vectors), self.second_gate(vectors)
        return self.fusion(self.first(x * first), self.second(x * second))
