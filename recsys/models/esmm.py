"""ESMM: Ma et al., Entire Space Multi-Task Model: An Effective Approach for Estimating Post-Click Conversion Rate,
2018, https://arxiv.org/abs/1804.07931.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.interface.labels import BinaryLabel
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import flatten, require_sparse
from recsys.models.common.towers import Tower

MIN_PROBABILITY = 1e-7  # keeps the logit of a probability of 1 finite


def logit_of_product(first: Tensor, second: Tensor) -> Tensor:
    """Return the logit of sigmoid(first) * sigmoid(second), computed from logarithms."""
    log_p = nn.functional.logsigmoid(first) + nn.functional.logsigmoid(second)
    return log_p - torch.log(-torch.expm1(log_p.clamp(max=-MIN_PROBABILITY)))


class ESMM(nn.Module):
    """A click and a conversion that needs the click: P(conversion) = P(click) P(conversion | click), for all rows.

    The first label of the data is the click, the second the conversion, 0 where there was no click
    (`only_if: click, otherwise: 0`). The outputs are the logits of P(click) and P(click and conversion); the
    conversion's tower is trained only through the product.

    Args:
        dim: width of the embeddings.
        tower_mlp: hidden widths of both towers.
        batch_norm: whether to normalise the hidden layers of both towers over the batch.
        dropout: share of the hidden units of both towers that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    labels_all_rows = True

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        tower_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "ESMM")
        if [*map(type, features.labels)] != [BinaryLabel, BinaryLabel]:
            shown = ", ".join(f"{label.name} ({label.kind})" for label in features.labels)
            raise ValueError(f"ESMM needs two binary labels, the click and the conversion; the data has {shown}")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device, flat=True)
        width = features.dense_width + self.embeddings.width
        self.click, self.conversion = (Tower(width, tower_mlp, 1, batch_norm, dropout) for _ in range(2))

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits of click and conversion: dense (B, D), sparse with F keys of B bags -> (B, 2)."""
        x = flatten(dense, self.embeddings(sparse))
        click = self.click(x)
        return torch.cat([click, logit_of_product(click, self.conversion(x))], dim=1)
