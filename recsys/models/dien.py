"""DIEN: Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, 2019,
https://arxiv.org/abs/1809.03672.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.features import FeatureSpec
from recsys.models.common.behaviour import BehaviourEmbeddings
from recsys.models.common.layers import MLP
from recsys.models.common.lists import list_softmax, repeat_rows
from recsys.models.common.recurrent import AUGRU, gru_states
from recsys.ranges import Deviation, Share, Width


class DIEN(nn.Module):
    """Deep network over the target, the user's evolved interest in it, and all other features.

    A GRU over the history extracts interests. A second one, whose updates are scaled by the attention of the target to
    each interest, follows how the interest in the target evolves; its last state is the result, zero for an empty
    history. The paper's auxiliary loss, in which each interest predicts the next item, is left out: a ranking model
    returns logits only.

    Args:
        history: the history of each feature of the target, see DIN.
        hidden: width of the states of both networks.
        activation: of the deep network, such as prelu or dice.
        deep_mlp: hidden widths of the deep network; a linear layer to the T logits follows.
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        history: Mapping[str, str] | None = None,
        dim: Width = 16,
        hidden: Width = 32,
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
        self.match = nn.Linear(width, hidden, bias=False)
        self.evolution = AUGRU(hidden, hidden)
        inputs = width + hidden + self.embeddings.other_width
        self.deep = MLP(inputs, deep_mlp, batch_norm=batch_norm, dropout=dropout, activation=activation)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        target, history, lengths, others = self.embeddings(dense, sparse)
        interests = gru_states(self.gru, history, lengths)  # (P, hidden)
        scores = (interests * repeat_rows(self.match(target), lengths)).sum(dim=1, keepdim=True)
        interest = self.evolution(interests, list_softmax(scores, lengths), lengths)  # (B, hidden)
        return self.logits(self.deep(torch.cat([others, target, interest], dim=1)))
