"""TIGER: the trie, the beam search and the decoder against independent implementations."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.losses import Likelihood
from recsys.losses.task import RetrievalTask
from recsys.models.common.decoder import UNIT, BeamScorer, CodeTrie, DecoderLayer, EncoderLayer
from recsys.models.tiger import TIGER

SIZE, LEVELS = 5, 3  # codes are 1 ... 4; 0 is for items without codes


def codes_of(items: int, seed: int) -> Tensor:
    """Return distinct codes of items, (1 + items, LEVELS); row 0 has none."""
    every = list(itertools.product(range(1, SIZE), repeat=LEVELS))
    chosen = np.random.default_rng(seed).choice(len(every), items, replace=False)
    return torch.tensor([(0,) * LEVELS, *(every[i] for i in chosen)])


def tiger(codes: Tensor, beam: int, *, known: int | None = None, seed: int = 0) -> tuple[TIGER, RetrievalTask]:
    names = [f"semantic_{i + 1}" for i in range(LEVELS)]
    about = FeatureSpec(dense=(), sparse=tuple(SparseFeature(n, SIZE, n) for n in names), labels=())
    item = SparseFeature("item", 1 + (known or len(codes) - 1), "item", multi_valued=True, sequence=True)
    features = FeatureSpec(dense=(), sparse=(item,), labels=(), item="item", items=about)
    torch.manual_seed(seed)
    small = {"dim": 16, "heads": 2, "hidden": 32, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    model = TIGER(features, **small, beam=beam, init_std=1.0)  # type: ignore[arg-type]
    offsets = {n: torch.arange(len(codes) + 1) for n in names}
    values = {n: codes[:, i].int() for i, n in enumerate(names)}
    candidates = Candidates(torch.ones(len(codes)), torch.zeros(len(codes), 0), values, offsets)
    return model, RetrievalTask(model, Likelihood(), candidates)


def lists_of(*lists: list[int]) -> Batch:
    lengths = torch.tensor([len(x) for x in lists], dtype=torch.int32)
    values = torch.tensor([i for x in lists for i in x], dtype=torch.int32)
    return Batch(torch.zeros(len(lists), 0), KeyedJaggedTensor(["item"], values, lengths=lengths), torch.zeros(0))


def log_probabilities(model: TIGER, history: list[int], targets: list[int]) -> Tensor:
    """Return the logarithm of the probability of each target (M,) after a history: all at once, by force."""
    codes = model.items.codes
    assert codes is not None
    states, lengths = model._states(codes[history], torch.tensor([len(history)]))
    slots = torch.tensor([[*[0] * (len(history) - 1), target] for target in targets])
    return torch.stack([model.log_probabilities(states, lengths, x)[-1].sum() for x in slots])


@pytest.mark.parametrize("history", [[1], [3, 1, 2], [5, 5, 2, 7, 1]])
def test_a_beam_as_wide_as_the_items_is_an_exhaustive_search(history: list[int]) -> None:
    codes = codes_of(40, seed=1)
    model, task = tiger(codes, beam=4**LEVELS)
    task.eval()
    with torch.no_grad():
        _, queries = task(lists_of([*history, 9], [2, 3]))  # evaluation reads all but the last item
        scores = task.scorer.score_all(queries, task.item_vectors(range(41), 41))
        expected = log_probabilities(model, history, list(range(1, 41)))
    torch.testing.assert_close(scores[0, 1:], expected, atol=1e-4, rtol=1e-4)
    assert scores[0, 0] == -math.inf
    ids, found = queries[0].chunk(2)
    assert (found[:40].diff() <= 0).all() and (found[40:] == -math.inf).all()  # the best first, then nothing
    assert sorted(ids[:40].tolist()) == list(range(1, 41))
    torch.testing.assert_close(found[:40].exp().sum(), torch.tensor(1.0))  # no probability goes to codes of no item


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**31))
def test_every_result_is_an_item_and_is_found_once(items: int, beam: int, seed: int) -> None:
    codes = codes_of(items, seed)
    _, task = tiger(codes, beam, seed=seed)
    task.eval()
    with torch.no_grad():
        _, queries = task(lists_of([1, 1], [1, 1, 1]))
    ids, scores = queries.chunk(2, dim=1)
    for row, found in zip(ids, scores, strict=True):
        real = row[found > -math.inf].tolist()
        assert 1 <= len(real) <= min(beam, items) and len(set(real)) == len(real)
        assert set(real) <= set(range(1, items + 1))
        assert (row[found == -math.inf] == 0).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(0, 2**31))
def test_the_trie_has_the_items_and_no_other(items: int, seed: int) -> None:
    codes = codes_of(items, seed)
    trie, found = CodeTrie.from_codes(codes), {}
    for sequence in itertools.product(range(SIZE), repeat=LEVELS):
        node = 0
        for children, code in zip(trie.children, sequence, strict=True):
            node = int(children[node, code]) if code < children.shape[1] else -1
            if node < 0:
                break
        else:
            found[sequence] = node
    assert found == {tuple(c): i for i, c in enumerate(codes.tolist()) if i}


def test_equal_codes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 of 2 items have the codes of another item; set data.semantic_ids.unique"):
        CodeTrie.from_codes(torch.tensor([[0, 0], [1, 2], [1, 2]]))


def test_training_equals_the_search() -> None:
    """The loss of a list is that of each of its prefixes on its own."""
    codes = codes_of(30, seed=3)
    model, task = tiger(codes, beam=4)
    lists = [[1, 2, 3, 4], [7, 8], [9, 10, 11, 12, 13, 14], *([i, i + 1, i + 2] for i in range(1, 12))]
    expected = [log_probabilities(model, x[:n], [x[n]]) for x in lists for n in range(1, len(x))]
    task.train()
    loss, _ = task(lists_of(*lists))
    torch.testing.assert_close(loss, -torch.cat(expected).mean(), atol=1e-5, rtol=1e-5)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_targets_without_codes_add_nothing() -> None:
    model, task = tiger(torch.cat([codes_of(10, seed=5), torch.zeros(1, LEVELS, dtype=torch.long)]), beam=4)
    task.train()
    loss, _ = task(lists_of([1, 2, 11, 3]))  # item 11 has no codes
    expected = [log_probabilities(model, x, [y]) for x, y in (([1], 2), ([1, 2, 11], 3))]
    torch.testing.assert_close(loss, -torch.cat(expected).sum() / 3)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def _copy_attention(to: nn.MultiheadAttention, query: nn.Linear, key_value: nn.Linear, out: nn.Linear) -> None:
    to.in_proj_weight.data = torch.cat([query.weight, key_value.weight]).detach()
    to.in_proj_bias.data = torch.cat([query.bias, key_value.bias]).detach()
    to.out_proj.load_state_dict(out.state_dict())


def _halves(layer: nn.Linear, dim: int) -> tuple[nn.Linear, nn.Linear]:
    """Divide a layer of queries, keys and values into one of queries and one of keys and values."""
    parts = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
    for part, rows in zip(parts, (slice(dim), slice(dim, None)), strict=True):
        part.load_state_dict({"weight": layer.weight[rows], "bias": layer.bias[rows]})
    return parts


def test_layers_are_pytorch_s() -> None:
    """An encoder layer and a decoder layer equal nn.TransformerEncoderLayer and DecoderLayer with the same weights."""
    torch.manual_seed(0)
    dim, heads, hidden, items, levels = 16, 2, 32, 5, 3
    encoder, decoder = EncoderLayer(dim, heads, hidden, 0.0), DecoderLayer(dim, heads, hidden, 0.0)
    options = {"dim_feedforward": hidden, "dropout": 0.0, "batch_first": True, "norm_first": True}
    theirs = nn.TransformerEncoderLayer(dim, heads, **options).train()
    _copy_attention(theirs.self_attn, encoder.attention.query, encoder.attention.key_value, encoder.attention.out[0])
    other = nn.TransformerDecoderLayer(dim, heads, **options).train()
    _copy_attention(other.self_attn, *_halves(decoder.own.query_key_value, dim), decoder.own.out[0])
    _copy_attention(other.multihead_attn, decoder.cross.query, decoder.cross.key_value, decoder.cross.out[0])
    for mine, own in ((encoder, theirs), (decoder, other)):
        own.linear1.load_state_dict(mine.feed_forward[0].state_dict())
        own.linear2.load_state_dict(mine.feed_forward[3].state_dict())
        for i, norm in enumerate(mine.norms):
            getattr(own, f"norm{i + 1}").load_state_dict(norm.state_dict())
    x, tokens = torch.randn(1, items * levels, dim), torch.tensor([items * levels])
    causal = nn.Transformer.generate_square_subsequent_mask(items * levels)
    states = encoder(x[0], tokens)
    torch.testing.assert_close(states, theirs(x, causal)[0], atol=1e-5, rtol=1e-5)
    y = torch.randn(items, levels, dim)
    found = decoder(y, states, tokens)
    small = nn.Transformer.generate_square_subsequent_mask(levels)
    for n in range(items):  # a slot reads the states up to its own
        expected = other(y[n][None], states[None, : (n + 1) * levels], small)[0]
        torch.testing.assert_close(found[n], expected, atol=1e-5, rtol=1e-5)


def test_scores_of_pairs_are_those_of_all() -> None:
    items = torch.cat([torch.randn(6, 4), torch.arange(6)[:, None] * UNIT, torch.zeros(6, LEVELS)], dim=1)
    queries = torch.tensor([[4.0, 2.0, 0.0, -1.0, -2.0, -math.inf], [5.0, 1.0, 3.0, -0.5, -0.6, -0.7]])
    scorer = BeamScorer(LEVELS)
    expected = torch.full((2, 6), -math.inf)
    expected[0, 4], expected[0, 2], expected[1, 5], expected[1, 1], expected[1, 3] = -1.0, -2.0, -0.5, -0.6, -0.7
    torch.testing.assert_close(scorer.score_all(queries, items), expected)
    torch.testing.assert_close(scorer.score_all(queries, items[3:]), expected[:, 3:])
    torch.testing.assert_close(scorer.score_pairs(queries[:, None], items), expected)
