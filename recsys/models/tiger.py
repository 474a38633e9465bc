"""TIGER: Rajput et al., Recommender Systems with Generative Retrieval, 2023, https://arxiv.org/abs/2305.05065."""

from typing import Any

import torch
from torch import Tensor, nn

from recsys.base.ranges import Depth, Deviation, Length, Share, Width
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import PlacesFromStart
from recsys.models.common.decoder import BeamScorer, CodedItems, DecoderLayer, EncoderLayer, tokens_of_items
from recsys.models.common.items import QueryBatch, next_items
from recsys.models.common.layers import Dropout
from recsys.models.common.lists import filled_or_empty, to_block
from recsys.models.protocols import RetrievalModel


class TIGER(nn.Module, RetrievalModel):
    """Encoder-decoder transformer that writes the semantic id of the next item, code by code.

    The encoder reads the L codes of each item so far, and the decoder predicts the L codes of the next one. A beam
    search follows the trie of the items that exist, so that each result is an item; a score is the logarithm of the
    item's probability, and minus infinity for items that the beam did not reach.

    Unlike the paper's T5, the encoder is causal, so that one pass trains on all prefixes of a list; a softmax is over
    the codes that items have after the same codes, not over all codes, so that the probabilities of all items add up
    to 1 and nothing is spent on learning which items exist; places are learnt vectors instead of relative biases, and
    users have no token.

    Args:
        dim: width of states and embeddings.
        encoder_layers: number of layers of the encoder.
        decoder_layers: number of layers of the decoder.
        heads: number of heads of the attention; it must divide `dim`.
        hidden: width of the feed-forward networks.
        dropout: share of values that are dropped in training, after the input, the attention and in the feed-forward
            networks.
        beam: number of items that a search finds.
        max_length: number of learnt position vectors of items, counted from the start of a list.
        init_std: standard deviation of the initial vectors of codes and places.
    """

    generates = True

    def __init__(
        self,
        features: FeatureSpec,
        *,
        dim: Width = 128,
        encoder_layers: Depth = 3,
        decoder_layers: Depth = 3,
        heads: Depth = 4,
        hidden: Width = 512,
        dropout: Share = 0.1,
        beam: Depth = 50,
        max_length: Length = 20,
        init_std: Deviation = 0.02,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.items = CodedItems(features, dim, init_std=init_std)
        self._coded = [self.items]  # not a submodule twice; the export replaces `items`
        self.beam, self.levels = beam, len(self.items.levels)
        self.places = PlacesFromStart(max_length, dim, init_std=init_std)
        self.level_places = nn.Parameter(torch.randn(2, self.levels, dim) * init_std)  # of the encoder and the decoder
        self.begin = nn.Parameter(torch.randn(dim) * init_std)
        self.dropout = Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderLayer(dim, heads, hidden, dropout) for _ in range(encoder_layers))
        self.decoder: Any = nn.ModuleList(DecoderLayer(dim, heads, hidden, dropout) for _ in range(decoder_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(dim, self.items.size) for _ in range(self.levels))
        self._scorer = BeamScorer(self.levels)

    @property
    def scorer(self) -> BeamScorer:
        return self._scorer

    @property
    def ranks_new_items(self) -> bool:
        """Return True: the trie has the codes of all candidates, also of those without training rows."""
        return True

    def make_queries(self, batch: Batch) -> QueryBatch:
        lists = batch.sparse[self._coded[0].name]
        return next_items(lists.values().long(), lists.lengths().long(), every=self.training)

    def encode(self, batch: Batch, query_batch: QueryBatch, vectors: Tensor) -> Tensor:
        """Return the search's results for each list, (Q, 2 beam): ids of items, then logarithms of probabilities.

        In training, return the logarithms of the probabilities of the codes of each query's target, (Q, L).

        Args:
            vectors: (P, d) item vectors of query_batch.inputs.
        """
        states, lengths = self._states(self._coded[0].codes_of(vectors), query_batch.lengths)
        if not self.training:
            return self.search(states, lengths)
        targets = query_batch.targets.new_zeros(len(query_batch.inputs))
        targets = targets.index_copy(0, query_batch.at, query_batch.targets)
        return self.log_probabilities(states, lengths, targets)[query_batch.at]

    def _states(self, codes: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoder's states of B lists: codes (P, L) -> (P * L, dim), and the tokens of each list."""
        x = self._coded[0].embed(codes) + self.level_places[0]
        x = x + self.places(lengths, codes.shape[0])[:, None]
        x, lengths = self.dropout(x.flatten(0, 1)), lengths * self.levels
        with tokens_of_items(self.levels):
            for layer in self.encoder:
                x = layer(x, lengths)
        return self.norms[0](x), lengths

    def log_probabilities(self, states: Tensor, lengths: Tensor, items: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of items' codes, given the codes before them and the slots so far.

        Args:
            states: (P * L, dim), the encoder's.
            lengths: (B,) tokens of each list.
            items: (P,), for each item of the lists the one that follows; 0 for none.

        Returns:
            (P, L); of the codes that items have after the same codes. 0 for items without codes.
        """
        coded = self._coded[0]
        assert coded.codes is not None and coded.trie is not None
        codes = coded.codes[items]
        before = coded.embed(codes)[:, :-1]
        x = torch.cat([self.begin.expand(len(codes), 1, -1), before], dim=1) + self.level_places[1]
        x = self.dropout(x)
        for layer in self.decoder:
            x = layer(x, states, lengths)
        x = self.norms[1](x)
        nodes, found = coded.trie.paths[items], []
        for level, children in enumerate(coded.trie.children):
            logits = self._logits(x[:, level], level, children[nodes[:, level]])
            found.append(logits.gather(1, codes[:, level, None])[:, 0])
        return torch.where(codes.any(dim=1, keepdim=True), torch.stack(found, dim=1), 0.0)

    def _logits(self, x: Tensor, level: int, children: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of codes: (..., dim) -> (..., C), of the children (..., C)."""
        logits = self.heads[level](x).float()[..., : children.shape[-1]]
        return logits.masked_fill(children < 0, -torch.inf).log_softmax(dim=-1)

    def search(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Search the trie for the most probable items of each list, with a beam.

        Args:
            states: (P * L, dim), the encoder's.
            lengths: (B,) tokens of each list.

        Returns:
            (B, 2 W): ids of items, the most probable first, then the logarithms of their probabilities; W is `beam`, or
            less if there are fewer sequences of codes. Where fewer items were found, id 0 and minus infinity.
        """
        trie = self._coded[0].trie
        assert trie is not None
        with tokens_of_items(self.levels):
            block, _ = to_block(states, lengths)
        mask = filled_or_empty(lengths, block.shape[1])[:, None, None, :]
        memory = [layer.cross.keys_values(block) for layer in self.decoder]
        own: list[tuple[Tensor, Tensor] | None] = [None] * len(self.decoder)
        x = self.begin.expand(block.shape[0], 1, -1)
        scores = block.new_zeros(block.shape[0], 1, dtype=torch.float32)
        nodes = torch.zeros_like(scores, dtype=torch.long)
        for level, children in enumerate(trie.children):
            x = x + self.level_places[1, level]
            for i, layer in enumerate(self.decoder):
                x, own[i] = layer.step(x, own[i], memory[i], mask)
            nexts = children.to(block.device)[nodes]  # (B, W, C)
            totals = (scores[:, :, None] + self._logits(self.norms[1](x), level, nexts)).flatten(1)
            scores, best = totals.topk(min(self.beam, totals.shape[1]), dim=1)
            nodes = nexts.flatten(1).gather(1, best).clamp(min=0).long()
            if level < self.levels - 1:
                parents, codes = best // children.shape[1], best % children.shape[1]
                x = self._coded[0].embed(codes, level)
                own = [None if c is None else (_of_parents(c[0], parents), _of_parents(c[1], parents)) for c in own]
        return torch.cat([torch.where(scores > -torch.inf, nodes, 0).float(), scores], dim=1)


def _of_parents(cache: Tensor, parents: Tensor) -> Tensor:
    """Return the cached tokens (B, W', H, n, d) of each beam's parent (B, W') from (B, W, H, n, d)."""
    index = parents[:, :, None, None, None].expand(-1, -1, *cache.shape[2:])
    return cache.gather(1, index)
