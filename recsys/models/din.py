"""DIN: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, 2018, https://arxiv.org/abs/1706.06978."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.behaviour import BehaviourEmbeddings
from recsys.models.common.layers import MLP
from recsys.models.common.lists import list_softmax, list_sums, repeat_rows


class AttentionUnit(nn.Module):
    """Sum of a history's vectors, each times the score that a network gives to it and the target.

    The scores are not normalised, so that the sum shows how strong an interest is; `softmax` normalises them.

    Args:
        width: width W of the vectors of the target and of each item of the history.
        mlp: hidden widths of the network; a linear layer to the score follows.
        activation: activation of the hidden layers, such as prelu or dice.
        softmax: whether the scores of a history sum to 1.
    """

    def __init__(self, width: int, mlp: Sequence[int], activation: str, *, softmax: bool) -> None:
        super().__init__()
        self.hidden = MLP(4 * width, mlp, activation=activation)
        self.score = nn.Linear(self.hidden.out_features, 1)
        self.softmax = softmax

    def forward(self, target: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        """Return each row's interest: target (B, W), history (P, W), lengths (B,) -> (B, W)."""
        t = repeat_rows(target, lengths, history.shape[0])
        scores = self.score(self.hidden(torch.cat([history, t, history - t, history * t], dim=1)))  # (P, 1)
        return list_sums((list_softmax(scores, lengths) if self.softmax else scores) * history, lengths)


class DIN(nn.Module):
    """Deep network over the target, the user's interest in it by an attention unit over the history, and all other
    features. The interest of an empty history is zero.

    Args:
        history: the history of each feature of the target, {item: item_history, category: category_history}; None for
            all lists whose order matters and that share the table of a single single-valued feature.
        dim: width of the embeddings.
        attention_mlp: hidden widths of the attention unit; a linear layer to the score follows.
        softmax: whether the scores of a history sum to 1. The paper does not normalise them.
        activation: of the attention unit and of the deep network, such as prelu or dice, the paper's own.
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
        attention_mlp: Sequence[Width] = (80, 40),
        softmax: bool = False,
        activation: str = "prelu",
        deep_mlp: Sequence[Width] = (200, 80),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = BehaviourEmbeddings(features, history, dim, model="DIN", init_std=init_std, device=device)
        width = self.embeddings.width
        self.attention = AttentionUnit(width, attention_mlp, activation, softmax=softmax)
        inputs = 2 * width + self.embeddings.other_width
        self.deep = MLP(inputs, deep_mlp, batch_norm=batch_norm, dropout=dropout, activation=activation)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        target, history, lengths, others = self.embeddings(dense, sparse)
        interest = self.attention(target, history, lengths)
        return self.logits(self.deep(torch.cat([others, target, interest], dim=1)))
