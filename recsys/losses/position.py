"""The bias of the position at which an item was shown: learned beside the model, and left out of its answers."""

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.features import FeatureSpec

BESIDE = 1000  # places before the first position, and behind it, that have terms; those beyond share the outermost
POSITIONS = 2 * BESIDE + 1
MAX_VALUES = 100_000  # of a feature with which the bias differs
WIDTH = 8  # of the vectors of positions and of values of such a feature
SCALE = 10.0  # terms are this many times their weights, so that they are learned as quickly as a model
MAX_LOG = -1e-6  # logarithm of the largest probability of a click


class PositionTower(nn.Module):
    """The logits of clicks at their positions, from the logits of a model, which are those at `first`.

    With d = b_p - b_first + (u_p - u_first) v, where v is the sum of the vectors of the row's features, the logit z
    becomes z + d (additive: the shallow tower of Zhao et al., Recommending What Video to Watch Next, RecSys 2019), or
    that of the probability 2 sigmoid(d) sigmoid(z) (examination: Guo et al., PAL: A Position-bias Aware Learning
    Framework for CTR Prediction in Live Recommender Systems, RecSys 2019). At `first`, d is 0.

    Raises:
        ValueError: a feature has too many values.
    """

    def __init__(self, features: FeatureSpec) -> None:
        super().__init__()
        assert features.position is not None
        self.bias, self._keys = features.position, [f.name for f in features.sparse]
        self.terms = nn.Parameter(torch.zeros(POSITIONS, features.logits))
        self.vectors = nn.Parameter(torch.zeros(POSITIONS, features.logits, WIDTH))
        rows = {name: features.feature(name).cardinality for name in self.bias.features}
        if many := next((name for name, n in rows.items() if n > MAX_VALUES), None):
            raise ValueError(
                f"data.position.features: {many} has more than {MAX_VALUES:,} values; name coarse features"
            )
        self.values = nn.ParameterDict({n: nn.Parameter(torch.randn(size, WIDTH) / 4) for n, size in rows.items()})

    def places(self, position: Tensor) -> Tensor:
        """Return the row of the terms of each position, int64: (B,) -> (B,); that of `first` is BESIDE."""
        return (position.long() - self.bias.first).clamp(-BESIDE, BESIDE) + BESIDE

    def shift(self, position: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return d, (B, L). position: (B,)"""
        at = self.places(position)
        d = self.terms[at] - self.terms[BESIDE]
        if self.values:
            jagged = sparse.to_dict()
            v = torch.stack([table[jagged[name].values().long()] for name, table in self.values.items()]).sum(0)
            d = d + torch.einsum("bld,bd->bl", self.vectors[at] - self.vectors[BESIDE], v)
        return SCALE * d

    def forward(self, logits: Tensor, position: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return the logits of clicks at the positions: logits (B, L), position (B,) -> (B, L)."""
        return self.shifted(logits, self.shift(position, sparse))

    def shifted(self, logits: Tensor, d: Tensor) -> Tensor:
        """Return the logits of clicks at positions of which `shift` is d: logits (B, L), d (B, L) -> (B, L)."""
        if self.bias.bias == "additive":
            return logits + d
        log_seen = nn.functional.logsigmoid(d) + torch.log(torch.tensor(2.0, device=d.device))
        log_click = (log_seen + nn.functional.logsigmoid(logits.float())).clamp(max=MAX_LOG)
        return log_click - torch.log(-torch.expm1(log_click))
