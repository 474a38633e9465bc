"""DIEN: Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, 2019,
https://arxiv.org/abs/1809.03672.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.fx
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.behaviour import BehaviourEmbeddings
from recsys.models.common.layers import MLP
from recsys.models.common.lists import from_start, list_softmax, repeat_rows
from recsys.models.common.recurrent import AUGRU, gru_states
from recsys.models.protocols import AuxiliaryLoss


class DIEN(nn.Module, AuxiliaryLoss):
    """Deep network over the target, the user's evolved interest in it, and all other features.

    A GRU over the history extracts interests. A second one, whose updates are scaled by the attention of the target to
    each interest, follows how the interest in the target evolves; its last state is the result, zero for an empty
    history. In training, each interest also predicts the next item of its list against another one of the batch, which
    is drawn uniformly (section 4.2).

    Args:
        history: the history of each feature of the target, see DIN.
        dim: width of the embeddings.
        hidden: width of the states of both networks.
        auxiliary: factor of the loss of next items; 0 for none.
        activation: of the deep network, such as prelu or dice.
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
        hidden: Width = 32,
        auxiliary: NonNegativeFloat = 1.0,
        activation: str = "prelu",
        deep_mlp: Sequence[Width] = (200, 80),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = BehaviourEmbeddings(features, history, dim, model="DIEN", init_std=init_std, device=device)
        width = self.embeddings.width
        self.gru = nn.GRU(width, hidden)
        self.predict = nn.Linear(hidden, width, bias=False) if auxiliary else None
        self._auxiliary, self._loss = auxiliary, torch.zeros(())
        self.match = nn.Linear(width, hidden, bias=False)
        self.evolution = AUGRU(hidden, hidden)
        inputs = width + hidden + self.embeddings.other_width
        self.deep = MLP(inputs, deep_mlp, batch_norm=batch_norm, dropout=dropout, activation=activation)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        target, history, lengths, others = self.embeddings(dense, sparse)
        interests = gru_states(self.gru, history, lengths)  # (P, hidden)
        if self.predict is not None and self.training:
            self._loss = self._auxiliary * _next_item_loss(self.predict(interests), history, lengths)
        scores = (interests * repeat_rows(self.match(target), lengths, history.shape[0])).sum(dim=1, keepdim=True)
        interest = self.evolution(interests, list_softmax(scores, lengths), lengths)  # (B, hidden)
        return self.logits(self.deep(torch.cat([others, target, interest], dim=1)))

    def auxiliary_loss(self) -> Tensor:
        return self._loss


for name in ("gru_states", "list_softmax", "repeat_rows"):  # TorchRec's pipelines trace `forward`
    torch.fx.wrap(name)


@torch.fx.wrap  # type: ignore[misc]
def _next_item_loss(predicted: Tensor, items: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean logistic loss of next items and of drawn ones: predictions and items (P, W) of B lists."""
    if not len(items):
        return predicted.sum()  # 0, with a gradient on every rank
    has_before = from_start(lengths, len(items))[1:] > 0
    predicted, others = predicted[:-1], items[torch.randperm(len(items), device=items.device)][1:]
    losses = nn.functional.softplus(-(predicted * items[1:]).sum(1)) + nn.functional.softplus(
        (predicted * others).sum(1)
    )
    return (losses * has_before).sum() / has_before.sum().clamp(min=1)
