"""DLRM: Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019,
https://arxiv.org/abs/1906.00091.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.crosses import LowRankCrossNet, WideLinear
from recsys.models.common.dot_kernel import dot_interaction, has_dot_kernel
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.kernels import runs_triton
from recsys.models.common.layers import MLP, Linear, require_sparse


class _Dots(torch.autograd.Function):
    """Dot products of pairs of vectors, whose gradient takes one product of matrices instead of autograd's two.

    The gradient of the dots is a symmetric matrix S (B, n, n), and that of the vectors is S @ vectors.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, pairs: Tensor, pair_of: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, pair_of)
        return _dots(vectors, pairs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        vectors, pair_of = ctx.saved_tensors
        symmetric = gradient.index_select(1, pair_of).unflatten(1, vectors.shape[1:2] * 2)
        symmetric.diagonal(dim1=1, dim2=2).zero_()
        return torch.bmm(symmetric, vectors), None, None


def _dots(vectors: Tensor, pairs: Tensor) -> Tensor:
    dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)  # (B, n * n)
    # Measured forward and backward on 2 CPU cores with B 8192, n 27, dim 16: index_select, gather and split + cat
    # take equally long (12 to 26 ms); advanced indexing takes 1.4 to 1.8 times as long, a mask 4 times.
    return dots.index_select(1, pairs)


class DotInteraction(nn.Module):
    """Dot products of all pairs of n vectors.

    reads_all_vectors: whether nothing else reads the vectors, so that they need not be copied into a CUDA graph
    """

    reads_all_vectors = False

    def __init__(self, n: int) -> None:
        super().__init__()
        row, column = torch.tril_indices(n, n, offset=-1)
        self.n, self.out_features = n, len(row)
        pair_of = torch.zeros(n, n, dtype=torch.int64)  # the number of each pair; any on the diagonal
        pair_of[row, column] = pair_of[column, row] = torch.arange(self.out_features)
        self.register_buffer("pairs", row * n + column, persistent=False)
        self.register_buffer("pair_of", pair_of.flatten(), persistent=False)
        self.pairs: Tensor
        self.pair_of: Tensor

    def forward(self, vectors: Tensor, first: Tensor | None = None) -> Tensor:
        """Return the dot product of each pair: (B, n, dim) -> (B, n * (n - 1) / 2).

        first: (B, dim), a vector before the others, which are (B, n - 1, dim). The result begins with it, (B, dim +
            n * (n - 1) / 2).
        """
        device = vectors.device.type
        autocast = torch.is_autocast_enabled(device)
        if runs_triton(vectors):
            of_first = vectors.dtype if first is None else first.dtype
            dtype = torch.get_autocast_dtype(device) if autocast else torch.promote_types(vectors.dtype, of_first)
            if has_dot_kernel(self.n, vectors.dtype, of_first, dtype):
                return dot_interaction(vectors, first, dtype)
        if first is not None:
            return torch.cat([first, self(torch.cat([first[:, None], vectors], dim=1))], dim=1)
        if autocast:
            vectors = vectors.to(torch.get_autocast_dtype(device))
        if torch.is_grad_enabled():
            return _Dots.apply(vectors, self.pairs, self.pair_of)  # type: ignore[no-any-return]
        return _dots(vectors, self.pairs)


class DLRM(nn.Module):
    """Bottom MLP over dense features, pairwise interaction with the embeddings, top MLP.

    Args:
        dim: width of the embeddings.
        bottom_mlp: widths; the last one must be `dim`. Unused if there are no dense features.
        top_mlp: hidden widths; a linear layer to the T logits follows.
        interaction: "dot" passes the bottom MLP's output and the dot products of all pairs of (that output, F
            embeddings) to the top MLP; "cat" passes the vectors themselves; "cross" passes them through a low-rank
            cross network (DCN V2, https://arxiv.org/abs/2008.13535), as MLPerf's DLRM-DCNv2 does.
        cross_layers, cross_rank: layers of the cross network, and the rank of their matrices.
        keep_embeddings: with "dot", also pass the F embeddings to the top MLP.
        batch_norm: whether to normalise the hidden layers of both MLPs over the batch.
        dropout: share of the hidden units of both MLPs that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).

    Raises:
        ValueError: the bottom MLP does not end at `dim`, or there is no pair of vectors to interact.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        bottom_mlp: Sequence[Width] = (64, 32, 16),
        top_mlp: Sequence[Width] = (64, 32),
        interaction: Literal["dot", "cat", "cross"] = "dot",
        cross_layers: Depth = 3,
        cross_rank: Width = 64,
        keep_embeddings: bool = False,
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "DLRM")
        if keep_embeddings and interaction != "dot":
            raise ValueError(
                f"keep_embeddings=true: only with interaction=dot; interaction={interaction} always keeps them"
            )
        self.keep_embeddings = keep_embeddings
        rounded = interaction != "cross"  # whose residuals stay in float32
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, rounded=rounded)
        self.bottom = None
        vectors = len(features.sparse)
        if features.dense:
            self.bottom = MLP(features.dense_width, bottom_mlp, batch_norm=batch_norm, dropout=dropout)
            if self.bottom.out_features != dim:
                raise ValueError(
                    f"bottom_mlp ends at width {self.bottom.out_features}, but its output interacts with "
                    f"embeddings of dim={dim}: they must be equal"
                )
            vectors += 1
        if interaction == "dot" and vectors == 1 and not keep_embeddings:
            raise ValueError(
                "interaction=dot needs a pair of vectors, but data has one sparse feature and no dense one"
            )
        self.dot = DotInteraction(vectors) if interaction == "dot" else None
        if self.dot is None:
            width = vectors * dim
        else:
            self.dot.reads_all_vectors = not keep_embeddings
            kept = vectors if keep_embeddings else len(features.dense[:1])
            width = self.dot.out_features + kept * dim
        self.cross = LowRankCrossNet(width, cross_layers, cross_rank) if interaction == "cross" else None
        linear = Linear if self.cross is None else WideLinear
        self.top = MLP(width, top_mlp, batch_norm=batch_norm, dropout=dropout, linear=linear)
        self.logits = (nn.Linear if self.cross is None else WideLinear)(self.top.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        bottom = None if self.bottom is None else self.bottom(dense)  # (B, dim)
        if self.dot is not None and not self.keep_embeddings:
            return self.logits(self.top(self.dot(vectors, bottom)))
        if bottom is not None:
            vectors = torch.cat([bottom[:, None], vectors], dim=1)  # (B, 1 + F, dim)
        x = vectors.flatten(1)
        if self.cross is not None:
            x = self.cross(x)
        elif self.dot is not None:
            x = torch.cat([x, self.dot(vectors)], dim=1)
        return self.logits(self.top(x))
