"""PEPNet: Chang et al., PEPNet: Parameter and Embedding Personalized Network for Infusing with Personalized Prior
Information, 2023, https://arxiv.org/abs/2302.01115.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.errors import did_you_mean
from recsys.base.ranges import Deviation, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.layers import MLP, flat_width, flatten, require_sparse


class GateNU(nn.Module):
    """Factors between 0 and 2 (the paper's Gate Neural Unit), made of a few features and of all inputs:
    2 sigmoid(W' relu(W [prior, x] + b) + b').

    The features alone (prior) are trained through the factors: no gradient reaches x.

    Args:
        prior: number of values of the features alone.
        width: number of all inputs.
        hidden: width of the hidden layer.
        out: number of factors.
    """

    def __init__(self, prior: int, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.hidden = MLP(prior + width, [hidden])
        self.out = nn.Linear(hidden, out)

    def forward(self, prior: Tensor, x: Tensor) -> Tensor:
        """Return the factors: prior (B, prior), x (B, width) -> (B, out)."""
        return 2 * torch.sigmoid(self.out(self.hidden(torch.cat([prior, x.detach()], dim=1))))


class ScaledTower(nn.Module):
    """MLP whose hidden layers are scaled, and a linear layer to the logits of one label.

    Args:
        width: number of inputs.
        hidden: hidden widths; a linear layer to the logits follows.
        logits: number of logits of the label.
        batch_norm: whether to normalise each hidden layer over the batch.
        dropout: share of hidden units that are dropped in training.
    """

    def __init__(self, width: int, hidden: Sequence[int], logits: int, batch_norm: bool, dropout: float) -> None:
        super().__init__()
        widths = [width, *hidden]
        self.hidden = nn.ModuleList(
            MLP(before, [out], batch_norm=batch_norm, dropout=dropout) for before, out in pairwise(widths)
        )
        self.logits = nn.Linear(widths[-1], logits)

    def forward(self, x: Tensor, factors: Sequence[Tensor]) -> Tensor:
        """Return the logits of one label: (B, width) -> (B, logits).

        factors: the factors (B, out) of each hidden layer; an empty sequence scales none
        """
        for i, layer in enumerate(self.hidden):
            x = layer(x) * factors[i] if factors else layer(x)
        return self.logits(x)


class PEPNet(nn.Module):
    """A tower for each label, with gates on the embeddings (EPNet) and on the hidden layers of all towers (PPNet).

    The features that feed a gate are also inputs of the towers, from the same tables. EPNet's factors apply to all
    inputs, dense features included, and PPNet's to the output of each hidden layer. One label is enough if the data has
    several scenarios.

    Args:
        scenario: sparse features that say where a row was shown, such as the page or the country, for the factors of
            the inputs; [] for none.
        personal: sparse features of whom and what a row is about, such as the ids of user, item and author, for the
            factors of the hidden layers; [] for none.
        dim: width of the embeddings.
        gate_width: hidden width of each gate.
        tower_mlp: hidden widths of each tower; a linear layer to the label's logits follows.
        batch_norm: whether to normalise the hidden layers of the towers over the batch.
        dropout: share of the hidden units of the towers that are dropped in training.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        scenario: Sequence[str] = (),
        personal: Sequence[str] = (),
        dim: Width = 16,
        gate_width: Width = 64,
        tower_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        require_sparse(features, "PEPNet")
        names = [f.name for f in features.sparse]
        for key, given in (("scenario", scenario), ("personal", personal)):
            if unknown := [n for n in given if n not in names]:
                raise ValueError(f"{key}: no sparse feature is named {unknown[0]}{did_you_mean(unknown[0], names)}")
            if len(set(given)) < len(given):
                raise ValueError(f"{key}=[{','.join(given)}]: names a feature twice")
            places = torch.tensor([names.index(n) for n in given], dtype=torch.long)
            self.register_buffer(key, places, persistent=False)
        if not scenario and not personal:
            raise ValueError(
                "PEPNet needs the features of its gates: set model.scenario, such as the page that shows a row, or "
                f"model.personal, such as the ids of user and item; there are {', '.join(names)}"
            )
        self.scenario: Tensor
        self.personal: Tensor
        if personal and not tower_mlp:
            raise ValueError("tower_mlp=[]: needs at least one width; model.personal scales hidden layers")
        width, tasks = flat_width(features, dim), len(features.labels)
        self.embeddings = PooledEmbeddings(features, dim, init_std=init_std, device=device)
        self.epnet = GateNU(len(scenario) * dim, width, gate_width, width) if scenario else None
        self.ppnet = nn.ModuleList(
            GateNU(len(personal) * dim, width, gate_width, tasks * out) for out in (tower_mlp if personal else ())
        )
        self.towers = nn.ModuleList(
            ScaledTower(width, tower_mlp, label.width, batch_norm, dropout) for label in features.labels
        )

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        vectors = self.embeddings(sparse)  # (B, F, dim)
        x = flatten(dense, vectors)
        if self.epnet is not None:
            x = x * self.epnet(vectors.index_select(1, self.scenario).flatten(1), x)
        personal = vectors.index_select(1, self.personal).flatten(1)
        factors = [gate(personal, x).chunk(len(self.towers), dim=1) for gate in self.ppnet]  # by layer, by label
        return torch.cat([tower(x, [f[t] for f in factors]) for t, tower in enumerate(self.towers)], dim=1)
