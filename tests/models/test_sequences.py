"""Models of lists of items: closed forms, what each query may depend on, and that they learn."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sequence_models import ALL, ALONE, CAUSAL, ITEM, LISTS, MASKED, MORE, JaggedIds, Make, N, batch, jagged
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.interface.batch import Batch, segment_ids_of
from recsys.interface.candidates import Candidates
from recsys.interface.features import FeatureSpec
from recsys.losses import BCE, FullSoftmax, Popularity
from recsys.losses.task import RetrievalTask
from recsys.models import hstu
from recsys.models.bert4rec import BERT4Rec
from recsys.models.common.attention import Attention, RelativeAttention, sinusoids
from recsys.models.common.items import InterestScorer, NextItems, masked_items
from recsys.models.common.recurrent import packed
from recsys.models.fuxi_alpha import FuXiBlock
from recsys.models.hstu import HSTU
from recsys.models.sasrec import SASRec
from recsys.models.transformer import Transformer, TransformerBlock

causal = pytest.mark.parametrize("make", CAUSAL.values(), ids=CAUSAL)
masked = pytest.mark.parametrize("make", MASKED.values(), ids=MASKED)
every = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


def built(make: Make, features: FeatureSpec = ALONE, **options: object) -> nn.Module:
    """In evaluation, with parameters large enough that no dependence hides."""
    torch.manual_seed(0)
    model = make(features, **options)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) / 3)
    return model.eval()


def query_batch(model: nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        found = model.make_queries(batch)  # type: ignore[operator]
        return model.encode(batch, found, model.items(found.inputs))  # type: ignore[operator]


def states(model: nn.Module, lists: JaggedIds, features: FeatureSpec) -> Tensor:
    """As in training, without dropout: the query of each item but a list's last."""
    model.train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
        if isinstance(part, nn.GRU):
            part.dropout = 0.0
    return query_batch(model, batch(features, lists))


def test_the_interests_of_comirec_are_sums_of_the_items_before() -> None:
    """Item by item, and interest by interest; distances beyond the fifth share a bias."""
    model = built(CAUSAL["comirec"], interests=3, dim=4)
    items, lengths = jagged([one for one in LISTS if len(one) > 1])
    with torch.no_grad():
        vectors = model.items(items)
        inner, _, outer = model.weigh
        score = torch.tanh(vectors @ inner.weight.T + inner.bias) @ outer.weight.T
        expected, start = [], 0
        for length in lengths.tolist():
            for t in range(length - 1):
                interests = []
                for k in range(3):
                    logits = [score[start + i, k] + model.distances[k, min(t - i, 4)] for i in range(t + 1)]
                    weights = torch.stack(logits).exp() / sum(torch.stack(logits).exp())
                    interests.append(sum(w * vectors[start + i] for i, w in enumerate(weights)))
                expected.append(torch.cat(interests))
            start += length
    torch.testing.assert_close(states(model, LISTS, ALONE), torch.stack(expected))


def test_a_score_of_interests_is_the_largest_of_their_products() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, items = torch.randn(5, 12, generator=generator), torch.randn(7, 4, generator=generator)
    scorer = InterestScorer(3)
    expected = torch.stack([(queries[:, i : i + 4] @ items.T) for i in (0, 4, 8)]).amax(0)
    torch.testing.assert_close(scorer.score_all(queries, items), expected)
    pairs = scorer.score_pairs(queries[:, None].expand(-1, 7, -1), items.expand(5, -1, -1))
    torch.testing.assert_close(pairs, expected)


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_is_pytorchs(is_causal: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = Attention(8, 2, causal=is_causal), nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
        theirs.out_proj.weight.copy_(ours.out[0].weight)  # type: ignore[arg-type]
        theirs.out_proj.bias.copy_(ours.out[0].bias)  # type: ignore[arg-type]
    lengths = torch.tensor([4, 1, 6])
    queries, values = torch.randn(2, 3, 6, 8)
    real = torch.arange(6) < lengths[:, None]
    future = torch.ones(6, 6).triu(1).bool() if is_causal else None
    expected, _ = theirs(queries, values, values, key_padding_mask=~real, attn_mask=future)
    torch.testing.assert_close(ours(queries[real], values[real], lengths), expected[real])


@pytest.mark.parametrize("is_causal", [True, False])
def test_dropout_of_attention_weights(is_causal: bool) -> None:
    """With values that are all 1, an output is the sum of the weights that remain, each divided by 1 - p."""
    torch.manual_seed(0)
    attention = Attention(8, 2, causal=is_causal, weight_dropout=0.25, projection=False)
    nn.init.zeros_(attention.key_value.weight)
    nn.init.ones_(attention.key_value.bias)
    x, lengths = torch.zeros(2000, 8), torch.full((500,), 4)  # zero queries: equal weights
    out = attention(x, x, lengths)[3::4]  # the last value of each list sees all four
    kept = out * 4 * 0.75
    torch.testing.assert_close(kept, kept.round())
    assert set(kept.round().unique().tolist()) == {0, 1, 2, 3, 4}
    assert out.mean().item() == pytest.approx(1, abs=0.03)
    torch.testing.assert_close(attention.eval()(x, x, lengths), torch.ones(2000, 8))


def attended(a: Attention, queries: Tensor, values: Tensor, heads: int, causal: bool) -> Tensor:
    """Attention within one list, (n, dim), head by head and without PyTorch's kernel."""
    n, dim = queries.shape
    d = dim // heads
    keys, contents = (values @ a.key_value.weight.T + a.key_value.bias).split(dim, dim=1)
    q = queries @ a.query.weight.T + a.query.bias
    parts = []
    for h in range(heads):
        part = slice(h * d, (h + 1) * d)
        scores = q[:, part] @ keys[:, part].T / math.sqrt(d)
        if causal:
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        parts.append(scores.softmax(dim=1) @ contents[:, part])
    return a.out(torch.cat(parts, dim=1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("norm", ["queries", "before", "after"])
@pytest.mark.parametrize("projection", [True, False])
def test_sasrec_list_by_list(norm: str, projection: bool) -> None:
    """The original's blocks (norm=queries, projection=False), and those with the usual norms."""
    model: SASRec = built(CAUSAL["sasrec"], norm=norm, projection=projection)  # type: ignore[assignment]
    found = query_batch(model, batch(ALONE, LISTS))
    table = model.items.ids.rows.embeddings["item_item"].weight
    for query, one in zip(found, LISTS, strict=True):
        if len(one) < 2:
            assert not query.any()
            continue
        inputs = torch.tensor(one[:-1])
        places = torch.arange(len(inputs) - 1, -1, -1)
        x = table[inputs] * 8 + model.places.weight[places]
        for block in model.blocks:
            if norm == "after":
                x = block.before(x + attended(block.attention, x, x, 2, True))
                x = block.between(x + block.feed_forward(x))
                continue
            y = block.before(x)
            if norm == "before":
                x = x + attended(block.attention, y, y, 2, True)
                x = x + block.feed_forward(block.between(x))
            else:
                y = block.between(y + attended(block.attention, y, x, 2, True))
                x = y + block.feed_forward(y)
        torch.testing.assert_close(query, model.norm(x)[-1], rtol=1e-4, atol=1e-4)


def test_sasrec_glorot() -> None:
    """Glorot's uniform distribution has the standard deviation sqrt(2 / (inputs + outputs))."""
    torch.manual_seed(0)
    model = SASRec(replace(ALONE, sparse=(replace(ITEM, cardinality=5000),)), dim=64, max_length=500, init="glorot")
    attention = model.blocks[0].attention
    for weight, inputs, outputs in (
        (model.items.ids.rows.embeddings["item_item"].weight, 5000, 64),
        (model.places.weight, 500, 64),
        (attention.query.weight, 64, 64),
        (attention.key_value.weight, 64, 64),  # two layers of 64 outputs
        (model.blocks[1].feed_forward[3].weight, 64, 64),
    ):
        assert weight.std().item() == pytest.approx(math.sqrt(2 / (inputs + outputs)), rel=0.03)
    assert not attention.key_value.bias.any() and not model.blocks[1].feed_forward[0].bias.any()


@pytest.mark.parametrize("positions", ["start", "end"])
@pytest.mark.parametrize("bias", [True, False])
def test_bert4rec_list_by_list(positions: str, bias: bool) -> None:
    model: BERT4Rec = built(MASKED["bert4rec"], positions=positions, output_bias=bias)  # type: ignore[assignment]
    found = query_batch(model, batch(ALONE, LISTS))
    table = model.items.ids.rows.embeddings["item_item"].weight
    for query, one in zip(found, LISTS, strict=True):
        if not one:
            continue
        places = torch.arange(len(one)) if positions == "start" else torch.arange(len(one) - 1, -1, -1)
        x = torch.cat([table[torch.tensor(one)][:-1, :64], model.hidden[None]])
        x = model.before(x + model.places.weight[places])
        for block in model.blocks:
            x = block.between(x + attended(block.attention, x, x, 2, False))
            x = block.after(x + block.feed_forward(x))
        expected = model.head(x)[-1]
        scores = table[:, :64] @ expected + (table[:, 64] if bias else 0)
        torch.testing.assert_close(table @ query, scores, rtol=1e-4, atol=1e-4)


def test_bert4rec_normal() -> None:
    """A normal distribution that is cut at two deviations has 0.88 of its deviation."""
    torch.manual_seed(0)
    model = BERT4Rec(ALONE, init="normal", init_std=0.02)
    for layer in (model.blocks[0].attention.query, model.blocks[1].feed_forward[0], model.head[0]):
        assert layer.weight.abs().max() <= 0.04 and not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx(0.88 * 0.02, rel=0.03)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_exact_masks(share: float) -> None:
    lengths = torch.tensor([5, 0, 1, 12, 40, 2])
    items = torch.arange(1, 61)
    seen = torch.zeros(61)
    for seed in range(300):
        torch.manual_seed(seed)
        found = masked_items(items, lengths, share=share, only_last=0.0, exact=True)
        per_list = torch.bincount(segment_ids_of(lengths)[found.at], minlength=6).tolist()
        assert per_list == [max(1, round(n * share)) if n else 0 for n in lengths.tolist()]
        seen[found.targets] += 1
    assert (seen[19:59] / 300 - share).abs().max() < 0.12  # each item of the longest list as often
    last = masked_items(items, lengths, share=share, only_last=1.0, exact=True)
    assert last.targets.tolist() == [5, 6, 18, 58, 60]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("lengths", [[4, 0, 1, 6], [1, 1], [0]])
def test_relative_attention_by_loops(is_causal: bool, lengths: list[int]) -> None:
    torch.manual_seed(0)
    dim, heads = 6, 2
    d = dim // heads
    a = RelativeAttention(dim, heads, causal=is_causal)
    nn.init.normal_(a.u)
    nn.init.normal_(a.v)
    queries, values = torch.randn(2, sum(lengths), dim)
    expected = torch.zeros(sum(lengths), dim)
    start = 0
    for n in lengths:
        q = a.query(queries[start : start + n])
        k, v = a.key_value(values[start : start + n]).split(dim, dim=1)
        for h in range(heads):
            part = slice(h * d, (h + 1) * d)
            for i in range(n):
                seen = range(i + 1 if is_causal else n)
                scores = []
                for j in seen:
                    r = a.distance(sinusoids(torch.tensor([i - j]), dim))[0, part]
                    scores.append((q[i, part] + a.u[h, 0]) @ k[j, part] + (q[i, part] + a.v[h, 0]) @ r)
                weights = (torch.stack(scores) / math.sqrt(d)).softmax(dim=0)
                expected[start + i, part] = sum(w * v[j, part] for w, j in zip(weights, seen, strict=True))
        start += n
    torch.testing.assert_close(a(queries, values, torch.tensor(lengths)), a.out(expected))


def test_sinusoids() -> None:
    found = sinusoids(torch.tensor([-3, 0, 5]), 4)
    for row, x in zip(found, (-3.0, 0.0, 5.0), strict=True):
        expected = [math.sin(x), math.sin(x / 100), math.cos(x), math.cos(x / 100)]
        torch.testing.assert_close(row, torch.tensor(expected))


LENGTHS = [[4, 0, 1, 9], [2], [0], [3, 7, 1, 0, 2, 5, 9, 4, 4]]  # the last ones are padded in groups
DAY = 86_400


def bucket(times: Tensor, i: int, j: int) -> int:
    """The bucket of the time between two values, as the authors of HSTU compute it."""
    return min(int(math.log(max(abs(int(times[i] - times[j])), 1)) / 0.301), hstu.TIME_BUCKETS - 1)


def some_times(lengths: list[int]) -> Tensor:
    return 978_300_760 + torch.randint(0, 300 * DAY, (sum(lengths),)) * torch.randint(0, 2, (sum(lengths),))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_hstu_by_loops(lengths: list[int], timed: bool) -> None:
    torch.manual_seed(0)
    dim, heads, length = 6, 2, 5  # a list longer than the distances that are told apart
    d = dim // heads
    block = hstu.HSTUBlock(dim, heads, 0.0, length, timed=timed)
    nn.init.normal_(block.distances)
    times = some_times(lengths) if timed else None
    if block.spans is not None:
        nn.init.normal_(block.spans)
    x = torch.randn(sum(lengths), dim)
    u, v, q, k = nn.functional.silu(block.uvqk[0](block.before(x))).chunk(4, dim=1)
    mixed = torch.zeros_like(x)
    start = 0
    for n in lengths:
        for h in range(heads):
            part = slice(h * d, (h + 1) * d)
            for i in range(start, start + n):
                for j in range(start, i + 1):
                    score = q[i, part] @ k[j, part] + block.distances[h, min(i - j, length - 1)]
                    if times is not None:
                        assert block.spans is not None
                        score = score + block.spans[h, bucket(times, i, j)]
                    mixed[i, part] += nn.functional.silu(score) / length * v[j, part]
        start += n
    expected = x + block.out[1](block.between(mixed) * u)
    torch.testing.assert_close(block(x, torch.tensor(lengths), times=times), expected)
    filled = torch.tensor([n for n in lengths if n])
    if not timed and len(filled):  # the last value of each list, after the others
        is_last = torch.zeros(len(x), dtype=torch.bool)
        is_last[filled.cumsum(0) - 1] = True
        last = block.after(x[is_last], x[~is_last], filled - 1)
        torch.testing.assert_close(last, expected[is_last])


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_fuxi_by_loops(lengths: list[int], timed: bool) -> None:
    """Against the paper's equations, value by value."""
    torch.manual_seed(0)
    dim, heads, length = 6, 2, 5
    d, channels = dim // heads, 3 if timed else 2
    block = FuXiBlock(dim, heads, 0.0, length, timed=timed)
    nn.init.normal_(block.distances)
    times = some_times(lengths) if timed else None
    if block.spans is not None:
        nn.init.normal_(block.spans)
    x = torch.randn(sum(lengths), dim)

    def rms(y: Tensor) -> Tensor:
        return y / (y.pow(2).mean(dim=1, keepdim=True) + 1e-6).sqrt()

    wide = channels * dim
    u, v, q, k = nn.functional.silu(rms(x) @ block.uvqk.weight.T).split([wide, dim, dim, dim], dim=1)
    mixed = torch.zeros(len(x), heads, channels, d)
    start = 0
    for n in lengths:
        for i in range(start, start + n):
            for j in range(start, i + 1):
                for h in range(heads):
                    part = slice(h * d, (h + 1) * d)
                    weights = [block.distances[min(i - j, length - 1)]]
                    if times is not None:
                        assert block.spans is not None
                        weights.append(block.spans[bucket(times, i, j)])
                    weights.append(nn.functional.silu(q[i, part] @ k[j, part]) / length)
                    mixed[i, h] += torch.stack(weights)[:, None] * v[j, part]
        start += n
    state = x + block.merge[1](u * rms(mixed.flatten(1)))
    network = block.feed_forward[2]
    gate, value = (rms(state) @ network.gate_value.weight.T).chunk(2, dim=1)
    expected = state + (nn.functional.silu(gate) * value) @ network.out.weight.T
    torch.testing.assert_close(block(x, torch.tensor(lengths), times), expected)


@pytest.mark.parametrize("feed_forward", ["gelu", "swiglu"])
@pytest.mark.parametrize("gated", [False, True])
def test_transformer_blocks_list_by_list(feed_forward: str, gated: bool) -> None:
    """Against PyTorch's attention and the equations of LiGR's blocks."""
    torch.manual_seed(0)
    dim, heads, lengths = 8, 2, [4, 0, 1, 6]
    block = TransformerBlock(
        Attention(dim, heads, causal=True), dim, 0.0, feed_forward=feed_forward, gated=gated
    ).requires_grad_(False)
    x = torch.randn(sum(lengths), dim)
    theirs = nn.MultiheadAttention(dim, heads, batch_first=True).requires_grad_(False)
    attention = block.attention
    theirs.in_proj_weight.copy_(torch.cat([attention.query.weight, attention.key_value.weight]))  # type: ignore[union-attr]
    theirs.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.key_value.bias]))  # type: ignore[union-attr]
    theirs.out_proj.load_state_dict(attention.out[0].state_dict())  # type: ignore[index,union-attr]
    expected = []
    for one in x.split(lengths):
        if not len(one):
            continue
        y = nn.functional.layer_norm(one, (dim,))
        unseen = torch.ones(len(one), len(one), dtype=torch.bool).triu(1)
        change = theirs(y, y, y, attn_mask=unseen)[0]
        if block.gates is not None:
            change = change / (1 + torch.exp(-(one @ block.gates[0].weight.T + block.gates[0].bias)))
        state = one + change
        y = nn.functional.layer_norm(state, (dim,))
        if feed_forward == "swiglu":
            network = block.feed_forward[0]
            gate, value = (y @ network.gate_value.weight.T).chunk(2, dim=1)
            change = (gate * torch.sigmoid(gate) * value) @ network.out.weight.T
        else:
            change = block.feed_forward[2](nn.functional.gelu(block.feed_forward[0](y)))
        if block.gates is not None:
            change = change / (1 + torch.exp(-(state @ block.gates[1].weight.T + block.gates[1].bias)))
        expected.append(state + change)
    torch.testing.assert_close(block(x, torch.tensor(lengths)), torch.cat(expected))


@pytest.mark.parametrize("lengths", [[3, 0, 1, 5, 5], [1], [2, 2]])
def test_packed_is_pytorchs(lengths: list[int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(sum(lengths), 3)
    found, order = packed(x, torch.tensor(lengths))
    lists = [one for one in x.split(lengths) if len(one)]
    expected = nn.utils.rnn.pack_sequence(lists, enforce_sorted=False)
    assert torch.equal(found.data, expected.data) and torch.equal(found.data, x[order])
    assert torch.equal(found.batch_sizes, expected.batch_sizes)


def test_gru_list_by_list() -> None:
    model = built(CAUSAL["gru4rec"])
    found = query_batch(model, batch(ALONE, LISTS))
    table = model.items.ids.rows.embeddings["item_item"].weight  # type: ignore[union-attr]
    for query, one in zip(found, LISTS, strict=True):
        expected = torch.zeros(64)
        if len(one) > 1:
            expected = model.out(model.gru(table[torch.tensor(one[:-1])])[0][-1])  # type: ignore[operator]
        torch.testing.assert_close(query, expected)


@causal
@pytest.mark.parametrize("features", [ALONE, MORE], ids=["alone", "more"])
def test_no_query_sees_later_items(make: Make, features: FeatureSpec) -> None:
    model = built(make, features)
    one = [1, 2, 3, 4, 5, 6, 7]
    before = states(model, [one], features)
    assert len(before) == len(one) - 1
    for t in range(len(one) - 1):
        after = states(model, [[*one[:t], 11, *one[t + 1 :]]], features)
        torch.testing.assert_close(after[:t], before[:t])
        assert (after[t:] - before[t:]).abs().amax(dim=1).min() > 1e-4  # and all that may see it do
    torch.testing.assert_close(states(model, [[*one[:-1], 11]], features), before)


@every
@pytest.mark.parametrize("features", [ALONE, MORE], ids=["alone", "more"])
def test_lists_do_not_meet(make: Make, features: FeatureSpec) -> None:
    model = built(make, features)
    whole = batch(features, LISTS)
    found = query_batch(model, whole)
    assert len(found) == len(LISTS)  # an empty list has a query too, though none that tells anything
    alone = []
    for b, one in enumerate(LISTS):
        row = batch(features, [one])
        bags = whole.sparse.to_dict()
        if "user" in bags:  # row b's own
            values = row.sparse.values().clone()
            values[0] = b
            row.sparse = KeyedJaggedTensor(row.sparse.keys(), values, lengths=row.sparse.lengths())
            row.dense = row.dense + b
        alone.append(query_batch(model, row))
    torch.testing.assert_close(found, torch.cat(alone), rtol=1e-4, atol=1e-5)


@every
@pytest.mark.parametrize("features", [ALONE, MORE], ids=["alone", "more"])
def test_what_is_asked_for_is_not_read(make: Make, features: FeatureSpec) -> None:
    model = built(make, features)
    kinds = [[1, 2, 3, 4], [], [2], [0, 1, 2, 3, 4, 1, 2], [3, 1]]
    before = query_batch(model, batch(features, LISTS, kinds))
    other = [[*one[:-1], 10] if one else [] for one in LISTS]
    other_kinds = [[*one[:-1], 0] if one else [] for one in kinds]
    torch.testing.assert_close(query_batch(model, batch(features, other, other_kinds)), before, rtol=0, atol=0)
    first = [[10, *one[1:]] if len(one) > 1 else one for one in LISTS]
    assert not torch.allclose(query_batch(model, batch(features, first, kinds)), before)


@masked
@pytest.mark.parametrize("features", [ALONE, MORE], ids=["alone", "more"])
def test_what_is_hidden_is_not_read(make: Make, features: FeatureSpec) -> None:
    model = built(make, features)
    lists = [[1, 2, 3, 4, 5, 6], [7, 8]]
    asks = model.make_queries(batch(features, lists))  # type: ignore[operator]
    asks.at = torch.tensor([1, 3, 7])

    def encode(lists: JaggedIds) -> Tensor:
        with torch.no_grad():
            rows = batch(features, lists)
            return model.encode(rows, asks, model.items(jagged(lists)[0]))  # type: ignore[operator]

    before = encode(lists)
    torch.testing.assert_close(encode([[1, 9, 3, 10, 5, 6], [7, 11]]), before, rtol=0, atol=0)
    changed = encode([[1, 2, 3, 4, 5, 11], [7, 8]])
    assert (changed[:2] - before[:2]).abs().amax(dim=1).min() > 1e-4  # both sides are read
    torch.testing.assert_close(changed[2], before[2])


@pytest.mark.parametrize("make", [CAUSAL["sasrec"], MASKED["bert4rec"]], ids=["causal", "masked"])
def test_negatives_outside_the_history(make: Make) -> None:
    """Lists of half of the items leave the other half. Without redraws, half of the negatives would be chosen items."""
    torch.manual_seed(0)
    task = RetrievalTask(make(ALONE), BCE(outside_history=True, count=3), Candidates(popularity=torch.ones(N)))
    lists = [[1, 2, 3, 4, 5, 6], [], [7, 8, 9, 10, 11], [12, 1]] * 20
    found = task.model.make_queries(batch(ALONE, lists))
    negatives = task.loss.sample(found.targets, task.popularity, found).ids
    _, rows = found.chosen_keys(N)
    own = torch.tensor([[i in lists[r] for i in ids] for r, ids in zip(rows.tolist(), negatives.tolist(), strict=True)])
    assert own.float().mean() < 0.05
    plain = BCE(count=3).sample(found.targets, Popularity(torch.ones(N))).ids
    assert negatives.shape == plain.shape and set(negatives.flatten().tolist()) == set(range(1, N))
    task(batch(ALONE, lists))[0].backward()


@pytest.mark.parametrize("name", ["sasrec", "gru4rec", "hstu", "fuxi_alpha"])
def test_queries_that_a_loader_makes(name: str) -> None:
    """A loader of a GPU makes those of training batches, also while the model is evaluated."""
    task = RetrievalTask(CAUSAL[name](ALONE, dropout=0.0), FullSoftmax(), Candidates(popularity=torch.ones(N)))
    model, rows = task.model, batch(ALONE, LISTS)
    assert isinstance(model, NextItems)
    ahead = replace(rows, queries=model.eval().queries_ahead(rows, 0)).to(torch.device("cpu"))
    losses = []
    for given in (ahead, rows):
        torch.manual_seed(0)
        losses.append(task.train()(given)[0])
    torch.testing.assert_close(*losses)


@every
@pytest.mark.parametrize("features", [ALONE, MORE], ids=["alone", "more"])
def test_gradient_reaches_all(make: Make, features: FeatureSpec) -> None:
    torch.manual_seed(0)
    model = make(features, dropout=0.0)
    task = RetrievalTask(model, FullSoftmax(), Candidates(popularity=torch.ones(N)))
    loss, _ = task(batch(features, LISTS * 3))
    loss.backward()
    for name, p in task.named_parameters():
        assert p.grad is not None and p.grad.abs().sum() > 0, name


@every
def test_all_empty_lists(make: Make) -> None:
    model = built(make)
    found = query_batch(model, batch(ALONE, [[], []]))
    assert len(found) == 2 and torch.equal(found[0], found[1])


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [m for name, m in ALL.items() if name != "comirec"])  # whose queries lie among items
def test_learns_what_follows(make: Make) -> None:
    """Lists of 3 to 8 items that go round: after i comes i + 1, after 12 comes 1."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    model = make(ALONE, dim=32, dropout=0.0)
    task = RetrievalTask(model, FullSoftmax(), Candidates(popularity=torch.ones(N)))
    optimizer = torch.optim.Adam(task.parameters(), lr=0.005)

    def lists(rows: int) -> JaggedIds:
        starts = torch.randint(12, (rows,), generator=draw).tolist()
        sizes = torch.randint(3, 9, (rows,), generator=draw).tolist()
        return [[(s + i) % 12 + 1 for i in range(n)] for s, n in zip(starts, sizes, strict=True)]

    for _ in range(150):
        optimizer.zero_grad()
        task(batch(ALONE, lists(32)))[0].backward()
        optimizer.step()
    task.eval()
    held_out = lists(200)
    with torch.no_grad():
        scores = task.scorer.score_all(task(batch(ALONE, held_out))[1], task.item_vectors(range(N), N))
    best = scores[:, 1:].argmax(dim=1) + 1
    assert (best == torch.tensor([one[-1] for one in held_out])).float().mean() > 0.9


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: SASRec(ALONE, dim=50, heads=3), "dim=50 is not divisible by heads=3"),
        (lambda: HSTU(ALONE, heads=3), "dim=64 is not divisible by heads=3"),
        (lambda: Transformer(ALONE, block="relative", heads=0), "dim=64 is not divisible by heads=0"),
        (lambda: Transformer(ALONE, context=True), "context=true: data has only features of items"),
    ],
)
def test_one_line_says_what_is_wrong(make: Callable[[], nn.Module], told: str) -> None:
    with pytest.raises(ValueError, match=told) as error:
        make()
    assert "\n" not in str(error.value)
