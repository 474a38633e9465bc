"""HSTU for ranking: Zhai et al., Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for
Generative Recommendations, 2024, https://arxiv.org/abs/2402.17152, section 2.2.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recsys.base.ranges import Depth, Deviation, Length, Share, Width
from recsys.interface.features import FeatureSpec
from recsys.models.common.behaviour import BehaviourEmbeddings, check_lengths
from recsys.models.common.embeddings import SequenceEmbeddings
from recsys.models.common.layers import MLP, Dropout
from recsys.models.common.lists import without_repeated
from recsys.models.hstu import HSTUBlock, list_beside


class HSTURank(nn.Module):
    """Causal HSTU blocks over the history and then the target, whose final state enters a deep network with the target
    itself and all other features. The target attends to itself alone if the history is empty.

    The paper puts the user's action after each item. Here, the vectors of the actions are added to that of the item,
    which halves the length of the lists. Several labels, such as click and purchase, are predicted at once. The paper's
    bias of times depends on the bucket of the time between two items. Here it depends on the bucket of the item that is
    attended to. For the queries of the target, both are the same if `times` lists the items' ages.

    Args:
        history: the history of each feature of the target, see DIN.
        times: a list with a time bucket for each item of the history, such as its age (`age: true` in the data's
            YAML), from which the attention gets a bias for each block, head and bucket; None for none. The list is
            pooled too, as all lists that are not in `history`.
        actions: lists with what the user did with each item of the history, such as whether he clicked on it or how he
            rated it. Each value has a vector; the lists are pooled too.
        dim: width of the embeddings.
        blocks: number of HSTU blocks.
        heads: of the attention; each has an equal part of the width, the pairs of `history` times `dim`.
        max_length: number of distances that have a learnt bias (larger ones share the last one); N in the paper, by
            which the attention is divided.
        deep_mlp: hidden widths of the deep network; a linear layer to the T logits follows.
        batch_norm: whether to normalise the hidden layers of the deep network over the batch.
        dropout: share of values that are dropped in training, in the HSTU blocks and in the deep network.
        init_std: standard deviation of the initial embeddings; None for a uniform distribution in +-1/sqrt(rows).
    """

    def __init__(
        self,
        features: FeatureSpec,
        *,
        history: Mapping[str, str] | None = None,
        times: str | None = None,
        actions: Sequence[str] = (),
        dim: Width = 16,
        blocks: Depth = 2,
        heads: Depth = 2,
        max_length: Length = 200,
        deep_mlp: Sequence[Width] = (128, 64),
        batch_norm: bool = False,
        dropout: Share = 0.0,
        init_std: Deviation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = BehaviourEmbeddings(
            features, history, dim, model="HSTURank", init_std=init_std, device=device
        )
        self.past = next(iter(self.embeddings.pairs.values()))
        width = self.embeddings.width
        self.time_bias: SequenceEmbeddings | None = None
        if times is not None:
            names = [list_beside(features, times, "times")]
            self.time_bias = SequenceEmbeddings(
                features, blocks * heads, names, prefix="time_", init_std=0.02, device=device
            )
        self.actions: SequenceEmbeddings | None = None
        if actions:
            names = [list_beside(features, name, "actions") for name in actions]
            self.actions = SequenceEmbeddings(
                features, width, names, prefix="action_", init_std=init_std, device=device
            )
        self.transducer = Transducer(width, blocks, heads, max_length, dropout)
        self.deep = MLP(2 * width + self.embeddings.other_width, deep_mlp, batch_norm=batch_norm, dropout=dropout)
        self.logits = nn.Linear(self.deep.out_features, features.logits)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Return logits: dense (B, D), sparse with F keys of B bags -> (B, T)."""
        target, history, lengths, others = self.embeddings(dense, sparse)
        bias = None
        if self.time_bias is not None:  # (P, blocks * heads)
            bias = _values_of(self.time_bias(sparse), self.time_bias.names[0], sparse, self.past)
        if self.actions is not None:
            rows = self.actions(sparse)
            history = history + sum(_values_of(rows, name, sparse, self.past) for name in self.actions.names)
        state = self.transducer(target, history, lengths, bias)  # (B, W)
        return self.logits(self.deep(torch.cat([others, target, state], dim=1)))


class Transducer(nn.Module):
    """HSTU blocks over the history, and over the target after it, whose state is the result.

    The states of a history do not depend on the target. In evaluation, neighbouring rows with equal histories, such as
    the candidates of a request, share them, so that the history's part is computed once; each target attends to the
    history and to itself, and to no other target (M-FALCON, section 3.4 of the paper; xAI's x-algorithm calls it
    candidate isolation).

    Args:
        width: width W of the states.
        blocks: number of HSTU blocks.
        heads: number of heads of the attention; it must divide `width`.
        max_length: number of distances that have a learnt bias; N in the paper.
        dropout: share of values that are dropped in training, of the input and in each block.
    """

    def __init__(self, width: int, blocks: int, heads: int, max_length: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(HSTUBlock(width, heads, dropout, max_length) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def forward(self, target: Tensor, history: Tensor, lengths: Tensor, bias: Tensor | None) -> Tensor:
        """Return the state of each target (B, W).

        Args:
            target, history, lengths: (B, W), (P, W) and (B,).
            bias: (P, blocks * heads) added to the scores of each item of the history, None for none.
        """
        x = history if bias is None else torch.cat([history, bias], dim=1)
        list_of = None
        if not self.training:
            x, lengths, list_of = without_repeated(x, lengths)
        width = target.shape[1]
        x, biases = self.dropout(x[:, :width]), x[:, width:]
        last = self.dropout(target)
        by_block = biases.split(self.heads, dim=1) if bias is not None else [None] * len(self.blocks)
        for i, (block, block_bias) in enumerate(zip(self.blocks, by_block, strict=True), start=1):
            assert isinstance(block, HSTUBlock)
            last = block.after(last, x, lengths, list_of, block_bias)
            if i < len(self.blocks):
                x = block(x, lengths, block_bias)
        return self.norm(last)


def _values_of(rows: dict[str, JaggedTensor], name: str, sparse: KeyedJaggedTensor, past: str) -> Tensor:
    """Return a feature's rows (P, dim). Raises UserError if its lists and the history's differ in length."""
    check_lengths(sparse[past], rows[name], past, name)
    return rows[name].values()
