"""Recurrent networks over lists of different lengths."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from recsys.models.common.lists import (
    from_block,
    from_start,
    is_filled,
    known_longest,
    list_of_each,
    on_host,
    padded_length,
    to_block,
)


def gru_states(gru: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    """Run a GRU over each list: values (P, d), lengths (B,) -> the states of its last layer (P, hidden)."""
    if padded_length() is not None:
        block, _ = to_block(x, lengths)
        return gru(block.transpose(0, 1))[0].transpose(0, 1).flatten(0, 1)
    if known_longest() is not None:  # packed lists have steps of other sizes in each batch
        block, at = to_block(x, lengths)
        return from_block(gru(block.transpose(0, 1))[0].transpose(0, 1).flatten(0, 1), at)
    if not x.shape[0]:  # nn.GRU takes no empty sequence, and its weights need a gradient on every rank
        return gru(x.new_zeros(1, x.shape[1]))[0][:0]
    steps, order = packed(x, lengths)
    if x.is_cuda or torch.compiler.is_compiling():  # which cannot follow steps whose sizes are data
        values = gru(steps)[0].data
        return torch.empty_like(values).index_copy(0, order, values)
    # PyTorch's GRU for CPUs takes each step as a slice of all values. The gradient of a slice has zeros for the other
    # values, so that its backward pass grows with the square of the lists' lengths.
    sizes, values = steps.batch_sizes.tolist(), steps.data
    for layer, weights in enumerate(gru.all_weights):
        if layer:
            values = nn.functional.dropout(values, gru.dropout, gru.training)
        state, states = values.new_zeros(sizes[0], gru.hidden_size), []
        for step in values.split(sizes):
            state = torch.gru_cell(step, state[: len(step)], *weights)
            states.append(state)
        values = torch.cat(states)
    return torch.empty_like(values).index_copy(0, order, values)


def packed(x: Tensor, lengths: Tensor) -> tuple[PackedSequence, Tensor]:
    """Pack concatenated lists for nn.GRU, step by step and the longest list first, without padding.

    Args:
        x: (P, d) values of the lists, one list after another.
        lengths: (B,).

    Returns:
        The packed sequence of P rows, and (P,) the index in x of each of them.
    """
    rank = torch.empty_like(lengths)
    rank[lengths.argsort(descending=True, stable=True)] = torch.arange(len(lengths), device=lengths.device)
    step = from_start(lengths, x.shape[0])
    order = (step * len(lengths) + rank.index_select(0, list_of_each(lengths, x.shape[0]))).argsort()
    sorted_lengths = on_host(lengths).sort().values  # nn.GRU takes the sizes of steps from the CPU
    steps = torch.arange(int(sorted_lengths[-1]))
    sizes = len(lengths) - torch.searchsorted(sorted_lengths, steps, right=True)
    return PackedSequence(x[order], sizes), order


class AUGRU(nn.Module):
    """GRU with an attentional update gate: each value moves the state by its update gate times its attention score.

    Zhou et al., Deep Interest Evolution Network for Click-Through Rate Prediction, 2019,
    https://arxiv.org/abs/1809.03672, section 4.3.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.inputs = nn.Linear(dim, 3 * hidden)  # of the reset gate, the update gate and the new state
        self.state = nn.Linear(hidden, 3 * hidden)

    def forward(self, x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the last state of each list, zeros for an empty one.

        Args:
            x: (P, dim) values of the lists.
            scores: (P, 1) attention scores.
            lengths: (B,).
        """
        block, _ = to_block(torch.cat([self.inputs(x), scores], dim=1), lengths)
        if padded_length() is not None:
            block = torch.where(is_filled(lengths, block.shape[1])[:, :, None], block, 0.0)
        steps = block.transpose(0, 1)  # a score of 0, as in the padding, keeps the state
        state = x.new_zeros(lengths.shape[0], self.hidden)
        if torch.compiler.is_exporting():  # a loop would have as many steps as the example has
            from torch._higher_order_ops.scan import scan  # private: PyTorch has no other name for it

            return scan(self._carry, state, steps)[0]
        for step in steps.unbind(0):
            state = self._next(state, step)
        return state

    def _carry(self, state: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        state = self._next(state, step)
        return state, state.clone()

    def _next(self, state: Tensor, step: Tensor) -> Tensor:
        """Return the next states: states (B, hidden), mapped inputs and scores (B, 3 * hidden + 1) -> (B, hidden)."""
        score = step[:, -1:]
        reset_x, update_x, new_x = step[:, :-1].chunk(3, dim=1)
        reset_h, update_h, new_h = self.state(state).chunk(3, dim=1)
        update = score * torch.sigmoid(update_x + update_h)
        new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
        return (1 - update) * state + update * new
