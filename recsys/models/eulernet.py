"""EulerNet: Tian et al., EulerNet: Adaptive Feature Interaction Learning via Euler's Formula for CTR Prediction, 2023,
https://arxiv.org/abs/2304.10711.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import Dropout, all_fields, numeric_fields, require_sparse

EPSILON = 1e-8  # keeps the logarithm of a modulus of 0 finite


class EulerLayer(nn.Module):
    """Interactions of trained order between complex fields, and a linear layer beside them.

    In polar form, a product of powers of the fields is a sum: ln(modulus) = sum_j a_jk ln|z_j| + b_k and phase =
    sum_j a_jk arg(z_j) + c_k; the orders a are trained. The real and the imaginary part of the result each get
    relu(W x + d), the implicit part, and are normalised: (B, fields, dim) twice -> (B, out, dim) twice.
    """

    def __init__(self, fields: int, out: int, dim: int, dropout: float) -> None:
        super().__init__()
        orders = torch.eye(fields) if fields == out else torch.softmax(torch.randn(fields, out) / 0.01, dim=0)
        self.orders = nn.Parameter(orders)
        self.log_modulus, self.phase = (nn.Parameter(torch.randn(out, dim) * 0.01) for _ in range(2))
        self.implicit = nn.Linear(fields * dim, out * dim)
        nn.init.normal_(self.implicit.weight, std=0.01)
        self.norm_real, self.norm_imaginary = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
        """Combine the fields: real (B, fields, dim), imaginary (B, fields, dim) -> both parts, each (B, out, dim)."""
        log_modulus = 0.5 * torch.log(real.square() + imaginary.square() + EPSILON)
        phase = torch.atan2(imaginary, real)
        modulus = torch.exp(torch.einsum("bfd,fo->bod", self.dropout(log_modulus), self.orders) + self.log_modulus)
        phase = torch.einsum("bfd,fo->bod", self.dropout(phase), self.orders) + self.phase
        linear = [torch.relu(self.implicit(self.dropout(x).flatten(1))).view_as(phase) for x in (real, imaginary)]
        return (
            self.norm_real(linear[0] + modulus * torch.cos(phase)),
            self.norm_imaginary(linear[1] + modulus * torch.sin(phase)),
        )


class EulerNet(nn.Module):
    """Each field is a complex vector, mu (cos e + i sin e), with a trained modulus mu; layers combine the fields.

    A dense feature is a field whose vector is multiplied by its value.

    Args:
        dim: width of the embeddings.
        layers: the number of fields that each layer returns.
        dropout: share of the inputs of each layer that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 16,
        layers: Sequence[Width] = (26,),
        dropout: Share = 0.0,
        init_std: Deviation | None = 0.1,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "EulerNet")
        if not layers:
            raise ValueError("layers=[]: needs at least one layer")
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.numeric = numeric_fields(features, dim)
        fields = len(features.sparse) + len(features.dense)
        self.modulus = nn.Parameter(torch.ones(fields, 1))
        widths = [fields, *layers]
        self.layers = nn.ModuleList(EulerLayer(f, o, dim, dropout) for f, o in zip(widths, layers, strict=False))
        self.logits = nn.Linear(layers[-1] * dim, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        phase = all_fields(self.embeddings(sparse), self.numeric, dense)
        real, imaginary = self.modulus * torch.cos(phase), self.modulus * torch.sin(phase)
        for layer in self.layers:
            real, imaginary = layer(real, imaginary)
        return self.logits(real.flatten(1)) + self.logits(imaginary.flatten(1))
