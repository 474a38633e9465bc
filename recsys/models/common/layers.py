"""Layers shared by several models."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.fx
from torch import Tensor, nn

from recsys.interface.features import FeatureSpec

ALIGNED = 8  # 16-bit numbers of the 16 bytes that Tensor Cores' kernels load at once
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Dice(nn.Module):
    """PReLU whose rectified point adapts to the data: Zhou et al., Deep Interest Network, 2018, section 5.3.

    In training, fewer than two values have no variance and are scaled by the running statistics.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.slope = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Scale negative values down, those near the mean in part: (N, width) -> (N, width)."""
        if self.training and len(x) < 2:
            assert self.norm.running_mean is not None and self.norm.running_var is not None
            z = (x - self.norm.running_mean) / (self.norm.running_var + self.norm.eps).sqrt()
        else:
            z = self.norm(x)
        share = torch.sigmoid(z)
        return x * (share + (1 - share) * self.slope)


class PReLU(nn.PReLU):
    """nn.PReLU of one slope, with a backward pass for CPUs that takes a quarter to a third of the time."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale negative values by the slope: (...) -> (...)."""
        return _prelu(x, self.weight)


@torch.fx.wrap  # type: ignore[misc]  # keep TorchRec's train pipeline from tracing into it
def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    trains = torch.is_grad_enabled() and x.dtype == slope.dtype == torch.float32
    if not trains or x.device.type != "cpu" or torch.compiler.is_compiling():
        return nn.functional.prelu(x, slope)
    return cast(Tensor, _OneSlope.apply(x, slope))


class _OneSlope(torch.autograd.Function):
    """PReLU by the kernels of LeakyReLU, which are vectorised: PyTorch's kernel for the backward pass is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope.item()
        return nn.functional.leaky_relu(x, ctx.slope)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        of_slope = torch.dot(gradient.reshape(-1), x.clamp(max=0).reshape(-1)).reshape(1)
        return torch.ops.aten.leaky_relu_backward(gradient, x, ctx.slope, False), of_slope


# modules by name, made for a width
_ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda _: nn.ReLU(),
    "gelu": lambda _: nn.GELU(),
    "silu": lambda _: nn.SiLU(),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
    "prelu": lambda _: PReLU(),
    "dice": Dice,
}


class Dropout(nn.Dropout):
    """nn.Dropout with cheaper masks on CPUs: 16 random bits for each element, instead of a random number.

    The share of values that are dropped is rounded to a multiple of 2**-16, and values are scaled by the rounded one.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop values in training: (...) -> (...)."""
        return _drop(x, self.p) if self.training and self.p else x


@torch.fx.wrap  # type: ignore[misc]  # keep TorchRec's train pipeline from tracing into it
def _drop(x: Tensor, share: float) -> Tensor:
    if share == 1 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return nn.functional.dropout(x, share)
    kept = min(max(round((1 - share) * 2**16), 1), 2**16 - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    mask = torch.lt(bits, kept - 2**15, out=torch.empty_like(x))
    return x * mask.mul_(2**16 / kept)


class Linear(nn.Linear):
    """nn.Linear whose 16-bit products on GPUs have a multiple of 8 columns, without which Tensor Cores read slowly.

    The columns that are missing are zeros of a step; the weights and checkpoints have in_features.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Transform vectors: (..., in_features) -> (..., out_features)."""
        missing = -self.in_features % ALIGNED
        if missing and x.is_cuda and torch.is_autocast_enabled("cuda"):
            pad = nn.functional.pad
            return nn.functional.linear(pad(x, (0, missing)), pad(self.weight, (0, missing)), self.bias)
        return super().forward(x)


class MLP(nn.Sequential):
    """Linear [, BatchNorm1d], activation [, Dropout] for each width in `hidden`: (B, in_features) -> (B, out_features).

    The last layer has an activation too. With an empty `hidden` it returns its input.

    linear: the class of the linear layers

    >>> MLP(8, [16, 4])(torch.zeros(3, 8)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        *,
        batch_norm: bool = False,
        dropout: float = 0.0,
        activation: str = "relu",
        linear: type[nn.Linear] = Linear,
    ) -> None:
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation={activation!r}: must be one of {', '.join(_ACTIVATIONS)}")
        layers: list[nn.Module] = []
        width = in_features
        for out in hidden:
            layers.append(linear(width, out))
            if batch_norm:
                layers.append(nn.BatchNorm1d(out))
            layers.append(_ACTIVATIONS[activation](out))
            if dropout > 0:
                layers.append(Dropout(dropout))
            width = out
        super().__init__(*layers)
        self.out_features = width


class SwiGLU(nn.Module):
    """Feed-forward network SiLU(x W) * (x V), followed by a linear layer: Shazeer, GLU Variants Improve Transformer,
    2020, https://arxiv.org/abs/2002.05202.

    Args:
        dim: width of the input and the output.
        hidden: width of W and V, which have no biases.
        dropout: share of the hidden values that are dropped in training.

    >>> SwiGLU(8, hidden=16, dropout=0.0)(torch.zeros(3, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.gate_value = nn.Linear(dim, 2 * hidden, bias=False)
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform states: (P, dim) -> (P, dim)."""
        gate, value = self.gate_value(x).chunk(2, dim=1)
        return self.out(self.dropout(nn.functional.silu(gate) * value))


class FirstOrder(nn.Module):
    """Linear part of a model: one weight for each id of each sparse feature and for each dense feature.

    A weight is the mean of 4 columns of an embedding table, since FBGEMM has no kernel for 1 column. The columns start
    at zero, have equal gradients and so stay equal. Adagrad and Adam, whose steps do not depend on a gradient's scale,
    train them as they would a single column (up to their epsilon); SGD steps are a quarter as long. There is no bias:
    the deep part has one.

    logits: T, the number of logits that have weights of their own
    """

    def __init__(self, features: FeatureSpec, logits: int = 1) -> None:
        super().__init__()
        self.dense = nn.Linear(features.dense_width, logits, bias=False) if features.dense else None

    def forward(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """Return the linear part of the logits: dense (B, D), vectors of the wide tables (B, F, 4 T) -> (B, T)."""
        total = vectors.unflatten(2, (-1, 4)).mean(dim=3).sum(dim=1)
        return total if self.dense is None else total + self.dense(dense)


class NumericFields(nn.Module):
    """A vector for each dense feature, as sparse ones have: its number times a trained vector.

    For a feature of several numbers, the products are added up.
    """

    def __init__(self, features: FeatureSpec, dim: int) -> None:
        super().__init__()
        self.widths = [f.width for f in features.dense]
        self.vectors = nn.Parameter(torch.empty(features.dense_width, dim).uniform_(-(dim**-0.5), dim**-0.5))

    def forward(self, dense: Tensor) -> Tensor:
        """Return (B, D) -> (B, features, dim)."""
        products = dense[:, :, None] * self.vectors
        if all(width == 1 for width in self.widths):
            return products
        return torch.stack([part.sum(dim=1) for part in products.split(self.widths, dim=1)], dim=1)


def numeric_fields(features: FeatureSpec, dim: int) -> NumericFields | None:
    """Return the module that makes vectors of the dense features, or None without dense features."""
    return NumericFields(features, dim) if features.dense else None


def all_fields(vectors: Tensor, numeric: NumericFields | None, dense: Tensor) -> Tensor:
    """Append vectors of dense features to vectors of sparse ones: (B, F, dim), (B, D) -> (B, F + features, dim)."""
    return vectors if numeric is None else torch.cat([vectors, numeric(dense)], dim=1)


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a part of the module normalises over the batch, which takes two rows or more in training."""
    return any(isinstance(m, BATCH_NORMS) for m in module.modules())


def require_sparse(features: FeatureSpec, model: str) -> None:
    """Raise ValueError if the data has no feature to embed."""
    if not features.sparse:
        raise ValueError(f"{model} needs at least one sparse feature; add one to data.sparse")


def flat_width(features: FeatureSpec, dim: int) -> int:
    """Return the width of `flatten`, D + F * dim."""
    return features.dense_width + len(features.sparse) * dim


def flatten(dense: Tensor, vectors: Tensor) -> Tensor:
    """Concatenate dense features and all embeddings: (B, D), (B, F, dim) -> (B, D + F * dim)."""
    return torch.cat([dense, vectors.flatten(1)], dim=1)
