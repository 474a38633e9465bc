"""Mult-VAE: Liang et al., Variational Autoencoders for Collaborative Filtering, 2018, https://arxiv.org/abs/1802.05814."""

from dataclasses import replace

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.base.ranges import Deviation, Natural, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.common.items import Items, QueryBatch, next_items
from recsys.models.common.layers import MLP
from recsys.models.common.lists import first_kept
from recsys.models.common.pairs import chosen_items
from recsys.models.protocols import RetrievalModel


class MultVAE(nn.Module, RetrievalModel):
    """Variational autoencoder: set of items -> normal distribution -> multinomial over all items (loss=full_softmax).

    Args:
        hidden: width of the encoder's first layer and of the decoder's last.
        latent: width of the normal distribution.
        dropout: share of a set's items that the encoder does not see in training; the others count more there, so that
            the sum keeps its size.
        beta: weight of the KL term; 0.2 in the paper, whose data have more items a user.
        anneal: steps over which that weight grows from 0 to beta.
        init_std: standard deviation of the initial embeddings.
    """

    wider_than_dim = True

    def __init__(
        self,
        features: FeatureSpec,
        *,
        hidden: Width = 600,
        latent: Width = 200,
        dropout: Share = 0.5,
        beta: NonNegativeFloat = 1.0,
        anneal: Natural = 2000,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.items = Items(features, hidden + 1, about=False, init_std=init_std, device=device)
        feature = features.feature(self.items.name)
        if not feature.sequence:
            raise ValueError("MultVAE reads lists of items: set data.sequences.max_length")
        alone = FeatureSpec(dense=(), sparse=(replace(feature, pooling="sum"),), labels=())
        self.read = PooledEmbeddings(alone, hidden, prefix="read_", init_std=init_std, device=device)
        self.encoder = nn.Sequential(nn.Tanh(), nn.Linear(hidden, 2 * latent))
        self.decoder = MLP(latent, [hidden], activation="tanh")
        self.dropout, self.beta, self.anneal, self.latent = dropout, beta, anneal, latent
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.steps: Tensor
        self._penalty: Tensor | None = None

    def make_queries(self, batch: Batch) -> QueryBatch:
        return chosen_items(batch, self.items.name)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return queries (B, hidden + 1). In training they encode all items of a row, else all but the last."""
        lists = batch.sparse[self.items.name]
        items, lengths = lists.values().long(), lists.lengths().long()
        if not self.training:
            seen = next_items(items, lengths, every=False)
            items, lengths = seen.inputs, seen.lengths
        kept_items, sizes, share = items, lengths, 1.0
        if self.training and self.dropout:
            share = 1 - self.dropout
            kept = torch.rand(len(items), device=items.device) < share
            kept_items, sizes = first_kept(items, kept, lengths)
        sparse = KeyedJaggedTensor([self.items.name], kept_items.int(), lengths=sizes.int())
        # the rows of a set's items are summed, and divided by the square root of their number
        read = self.read(sparse)[:, 0] / (share * lengths.clamp(min=1).sqrt()[:, None])
        mean, log_variance = self.encoder(read).split(self.latent, dim=1)
        z = mean
        if self.training:
            z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
            kl = (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2
            self.steps += 1
            weight = self.beta * (self.steps.double() / max(self.anneal, 1)).clamp(max=1)
            targets = max(len(query_batch.targets), 1)  # the loss is a mean over targets
            self._penalty = weight.to(kl.dtype) * kl / targets
        decoded = self.decoder(z)
        return torch.cat([decoded, decoded.new_ones(decoded.shape[0], 1)], dim=1)

    def penalty(self) -> Tensor | None:
        """Return the KL term of the last batch."""
        return self._penalty
