"""Models of a user's behaviour against NumPy loops over rows that read only their raw weights, and what they share."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_inputs import to_kjt
from reference_models import Array, Bags, Weights, sigmoid, softmax
from torch import Tensor, nn

from recsys.interface.batch import Batch
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel
from recsys.losses.task import Task
from recsys.models.bst import BST
from recsys.models.common.behaviour import history_pairs
from recsys.models.common.layers import Dice
from recsys.models.common.lists import list_softmax, list_sums, padded_to, to_pieces, without_repeated
from recsys.models.dien import DIEN, _next_item_loss
from recsys.models.din import DIN
from recsys.models.hstu_rank import HSTURank
from recsys.models.sdim import SDIM, HashAttention
from recsys.models.sim import SIM
from recsys.models.target_attention import TargetAttention


def history(name: str, cardinality: int, table: str) -> SparseFeature:
    return SparseFeature(name, cardinality, table, multi_valued=True, sequence=True)


USER, ITEM, KIND = SparseFeature("user", 11, "user"), SparseFeature("item", 9, "item"), SparseFeature("kind", 4, "kind")
ITEMS, KINDS = history("items", 9, "item"), history("kinds", 4, "kind")
PAUSES = history("pauses", 5, "pause")  # of no feature of the target
TAGS = SparseFeature("tags", 5, "tags", multi_valued=True, pooling="mean")
PAIRS = {"item": "items", "kind": "kinds"}


def spec(*sparse: SparseFeature, dense: int = 2, labels: int = 1) -> FeatureSpec:
    return FeatureSpec(
        dense=tuple(DenseFeature(f"d{i}") for i in range(dense)),
        sparse=sparse or (USER, ITEM, KIND, TAGS, ITEMS, KINDS, PAUSES),
        labels=tuple(BinaryLabel(f"label{i}") for i in range(labels)),
    )


def draw(features: FeatureSpec, rows: int, seed: int = 0, past: Array | None = None) -> tuple[Tensor, Bags]:
    """Dense values, and the bags of ids by feature. The first row's lists are empty, histories have equal lengths,
    those of `past` if given.
    """
    rng = np.random.default_rng(seed)
    dense = torch.tensor(rng.normal(size=(rows, len(features.dense))), dtype=torch.float32)
    past = rng.integers(0, 7, rows) if past is None else past
    bags: Bags = {}
    for f in features.sparse:
        lengths = past.copy() if f.sequence else rng.integers(0, 4, rows)
        lengths[0] = 0
        lengths = lengths if f.multi_valued else np.ones(rows, dtype=int)
        bags[f.name] = [rng.integers(0, f.cardinality, n).tolist() for n in lengths]
    return dense, bags


def randomise(model: nn.Module) -> nn.Module:
    """Random parameters and batch statistics, so that no zero or one hides a mistake."""
    torch.manual_seed(0)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5 if "running_var" in name else torch.randn_like(value) / 2)
    return model.eval()


# The reference: NumPy in double precision, one row at a time.


def linear(w: Weights, name: str, x: Array) -> Array:
    bias = w.get(f"{name}.bias", np.zeros(1))
    return x @ w[f"{name}.weight"].T + bias


def mlp(w: Weights, name: str, x: Array, activation: str = "prelu") -> Array:
    """Linear layers, each followed by its activation, whose weights follow the layer's."""
    for i in sorted({int(key[len(name) + 1 :].split(".")[0]) for key in w if key.startswith(f"{name}.")}):
        at = f"{name}.{i}"
        if f"{at}.bias" in w:
            x = linear(w, at, x)
            x = np.maximum(x, 0) if activation == "relu" else x
        elif f"{at}.slope" in w:
            share = sigmoid((x - w[f"{at}.norm.running_mean"]) / np.sqrt(w[f"{at}.norm.running_var"] + 1e-5))
            x = share * x + (1 - share) * w[f"{at}.slope"] * x
        else:
            x = np.where(x > 0, x, w[f"{at}.weight"] * x)
    return x


def rows_of(w: Weights, features: FeatureSpec, bags: Bags, names: list[str], row: int) -> Array:
    """The vectors of the features, side by side, for each id of their lists: (n, W)."""
    tables = [w[f"embeddings.rows.rows.embeddings.s_{features.feature(n).table}.weight"] for n in names]
    return np.concatenate([t[bags[n][row]].reshape(-1, t.shape[1]) for t, n in zip(tables, names, strict=True)], axis=1)


def others_of(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, pairs: dict[str, str], row: int) -> Array:
    parts = [dense[row]]
    for f in features.sparse:
        if f.name not in [*pairs, *pairs.values()]:
            found = w[f"embeddings.pooled.bags.embedding_bags.t_{f.table}.weight"][bags[f.name][row]]
            pooled = found.sum(axis=0)
            parts.append(pooled / max(len(found), 1) if f.pooling == "mean" else pooled)
    return np.concatenate(parts)


def reference_din(w: Weights, t: Array, past: Array, **options: Any) -> list[Array]:
    scores = [mlp(w, "attention.hidden", np.concatenate([h, t, h - t, h * t])) for h in past]
    scores = [linear(w, "attention.score", s)[0] for s in scores]
    if options.get("softmax") and scores:
        scores = list(softmax(np.array(scores)))
    return [t, sum((s * h for s, h in zip(scores, past, strict=True)), np.zeros_like(t))]


def attend(w: Weights, name: str, query: Array, keys: Array, values: Array, heads: int = 2) -> Array:
    """The heads' softmax attention, and the map of its results."""
    found = []
    for q, k, v in zip(*(np.split(x, heads, axis=-1) for x in (query, keys, values)), strict=True):
        found.append(softmax(k @ q / np.sqrt(len(q))) @ v)
    return linear(w, f"{name}.out.0", np.concatenate(found))


def with_places(w: Weights, name: str, past: Array, first: int = 0) -> Array:
    """Add the vector of each item's distance from the end."""
    places = w[f"{name}.weight"]
    return past + np.stack([places[min(first + len(past) - 1 - i, len(places) - 1)] for i in range(len(past))])


def reference_target_attention(w: Weights, t: Array, past: Array, **options: Any) -> list[Array]:
    if not len(past):
        return [t, np.zeros_like(t)]
    keys, values = np.split(linear(w, "attention.key_value", with_places(w, "places", past)), 2, axis=1)
    return [t, attend(w, "attention", linear(w, "attention.query", t), keys, values)]


def reference_sim(w: Weights, t: Array, past: Array, **options: Any) -> list[Array]:
    bags, row = options["bags"], options["row"]
    category = options.get("category", "kind" if "history" not in options else "item")
    [own] = bags[category][row]
    same = [i for i, c in enumerate(bags[PAIRS[category]][row]) if c == own][-options.get("k", 2) :]
    if not same:
        return [t, np.zeros_like(t)]
    values = with_places(w, "places", past)[same]
    keys, values = np.split(linear(w, "attention.key_value", values), 2, axis=1)
    return [t, attend(w, "attention", linear(w, "attention.query", t), keys, values)]


def reference_sdim(w: Weights, t: Array, past: Array, **options: Any) -> list[Array]:
    groups = options.get("groups", 16)
    interest = np.zeros_like(t)
    for planes in np.split(w["attention.hyperplanes"].T, groups):
        total = np.zeros_like(t)
        for item in past:
            if all((plane @ item > 0) == (plane @ t > 0) for plane in planes):
                total += item
        interest += total / (np.sqrt((total**2).sum()) or 1.0) / groups
    return [t, interest]


def layer_norm(w: Weights, name: str, x: Array) -> Array:
    x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def reference_bst(w: Weights, t: Array, past: Array, **options: Any) -> list[Array]:
    past = with_places(w, "transformer.places", past, first=1) if len(past) else past
    x = np.concatenate([past, (t + w["transformer.places.weight"][0])[None]])
    for b in range(options.get("blocks", 1)):
        at = f"transformer.blocks.{b}"
        queries = linear(w, f"{at}.attention.query", x)
        keys, values = np.split(linear(w, f"{at}.attention.key_value", x), 2, axis=1)
        x = layer_norm(
            w, f"{at}.between", x + np.stack([attend(w, f"{at}.attention", q, keys, values) for q in queries])
        )
        hidden = linear(w, f"{at}.feed_forward.0", x)
        hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
        x = layer_norm(w, f"{at}.after", x + linear(w, f"{at}.feed_forward.2", hidden))
    return [t, x[-1]]


def reference_hstu_rank(w: Weights, t: Array, past: Array, **options: Any) -> list[Array]:
    def silu(x: Array) -> Array:
        return x * sigmoid(x)

    heads, length, x = 2, 4, np.concatenate([past, t[None]])
    blocks = options.get("blocks", 2)
    times = np.zeros((len(x), blocks, heads))
    if "times" in options:
        rows = w["time_bias.rows.embeddings.time_pause.weight"][options["bags"]["pauses"][options["row"]]]
        times[:-1] = rows.reshape(-1, blocks, heads)
    for b in range(blocks):
        at = f"transducer.blocks.{b}"
        u, *vqk = np.split(silu(linear(w, f"{at}.uvqk.0", layer_norm(w, f"{at}.before", x))), 4, axis=1)
        found = []
        for h, (v, q, k) in enumerate(zip(*(np.split(part, heads, axis=1) for part in vqk), strict=True)):
            out = np.zeros_like(v)
            for i in range(len(x)):
                for j in range(i + 1):
                    distance = w[f"{at}.distances"][h, min(i - j, length - 1)]
                    out[i] += silu(q[i] @ k[j] + distance + times[j, b, h]) / length * v[j]
            found.append(out)
        x = x + linear(w, f"{at}.out.1", layer_norm(w, f"{at}.between", np.concatenate(found, axis=1)) * u)
    return [t, layer_norm(w, "transducer.norm", x[-1])]


def gates(w: Weights, inputs: tuple[str, str], state: tuple[str, str], x: Array, h: Array) -> tuple[Array, Array]:
    """A GRU's update gate and new state, of the matrices and biases for its input and its state."""
    (xr, xu, xn), (hr, hu, hn) = (np.split(w[m] @ v + w[b], 3) for (m, b), v in ((inputs, x), (state, h)))
    return sigmoid(xu + hu), np.tanh(xn + sigmoid(xr + hr) * hn)


def reference_dien(w: Weights, t: Array, past: Array, **options: Any) -> list[Array]:
    interests, h = [], np.zeros(w["match.weight"].shape[0])
    for x in past:
        keep, new = gates(w, ("gru.weight_ih_l0", "gru.bias_ih_l0"), ("gru.weight_hh_l0", "gru.bias_hh_l0"), x, h)
        h = keep * h + (1 - keep) * new
        interests.append(h)
    evolved = np.zeros_like(h)
    scores = softmax(np.array([x @ w["match.weight"] @ t for x in interests])) if interests else []
    inputs, state = (tuple(f"evolution.{part}.{kind}" for kind in ("weight", "bias")) for part in ("inputs", "state"))
    for x, score in zip(interests, scores, strict=True):
        update, new = gates(w, inputs, state, x, evolved)  # type: ignore[arg-type]
        evolved = (1 - score * update) * evolved + score * update * new
    return [t, evolved]


REFERENCES: dict[type[nn.Module], Callable[..., list[Array]]] = {
    DIN: reference_din,
    TargetAttention: reference_target_attention,
    BST: reference_bst,
    SIM: reference_sim,
    SDIM: reference_sdim,
    DIEN: reference_dien,
    HSTURank: reference_hstu_rank,
}
ONE_PAIR = {"history": {"item": "items"}}
SMALL: dict[Any, dict[str, Any]] = {
    DIN: {"dim": 6, "attention_mlp": [7, 5], "deep_mlp": [8, 5]},
    **{model: {"dim": 6, "max_length": 4, "deep_mlp": [8, 5]} for model in (TargetAttention, BST, HSTURank)},
    SIM: {"dim": 6, "max_length": 4, "k": 2, "deep_mlp": [8, 5]},
    SDIM: {"dim": 6, "deep_mlp": [8, 5]},
    DIEN: {"dim": 6, "hidden": 5, "deep_mlp": [8, 5], "auxiliary": 0.0},
}
OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *((model, {}) for model in REFERENCES),
    *((model, ONE_PAIR) for model in (DIN, TargetAttention, BST, DIEN, HSTURank, SDIM)),
    (DIN, {"softmax": True}),
    (DIN, {"activation": "dice"}),
    (BST, {"blocks": 2}),
    (HSTURank, {"blocks": 1}),
    (HSTURank, {"times": "pauses"}),
    (SIM, {"category": "item", "k": 3}),
    (SIM, {"category": "item", **ONE_PAIR}),
    (SDIM, {"groups": 3, "hyperplanes": 1}),
]
each_option = pytest.mark.parametrize(
    ("model", "options"), OPTIONS, ids=[f"{m.__name__}-{'-'.join(map(str, o.items()))}" for m, o in OPTIONS]
)
each_model = pytest.mark.parametrize("model", list(REFERENCES))


def build(model: Any, features: FeatureSpec, **options: Any) -> nn.Module:
    return randomise(model(features, **{**SMALL[model], **options}))


@each_option
@pytest.mark.parametrize(("dense", "labels"), [(0, 1), (2, 3)])
def test_logits(model: Any, options: dict[str, Any], dense: int, labels: int) -> None:
    features = spec(dense=dense, labels=labels)
    module = build(model, features, **options)
    values, bags = draw(features, rows=12)
    with torch.no_grad():
        logits = module(values, to_kjt(bags)).numpy()
    w = {name: value.double().numpy() for name, value in module.state_dict().items()}
    pairs = options.get("history", PAIRS)
    for row in range(12):
        target = rows_of(w, features, bags, list(pairs), row)[0]
        past = rows_of(w, features, bags, list(pairs.values()), row)
        inputs = REFERENCES[model](w, target, past, bags=bags, row=row, **options)
        x = np.concatenate([others_of(w, features, values.double().numpy(), bags, pairs, row), *inputs])
        expected = linear(w, "logits", mlp(w, "deep", x, "prelu" if model in (DIN, DIEN) else "relu"))
        np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-5)
    assert logits.shape == (12, labels) and logits.std(axis=0).min() > 0.01


@each_model
def test_batches_without_any_history(model: Any) -> None:
    """All lists are empty: the result is finite, and that of the same rows in other batches. All parameters have a
    gradient, without which the other ranks would wait.
    """
    features = spec()
    module = build(model, features)
    values, bags = draw(features, rows=5)
    without = bags | {name: [[] for _ in range(5)] for name in ("items", "kinds")}
    with torch.no_grad():
        found = module(values, to_kjt(without))
        mixed = module(values, to_kjt(without | {n: [without[n][0], *bags[n][1:]] for n in ("items", "kinds")}))
    torch.testing.assert_close(found[0], mixed[0])
    module.train()(values, to_kjt(without)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@each_model
def test_items_after_each_other_do_not_mix(model: Any) -> None:
    """A row's logits do not depend on the other rows of its batch."""
    features = spec()
    module = build(model, features)
    values, bags = draw(features, rows=6)
    with torch.no_grad():
        whole = module(values, to_kjt(bags))
        alone = [module(values[i : i + 1], to_kjt({n: [b[i]] for n, b in bags.items()})) for i in range(6)]
    torch.testing.assert_close(whole, torch.cat(alone), rtol=1e-5, atol=1e-5)


@each_model
@pytest.mark.parametrize("longest", [50, 1000])
def test_long_histories(model: Any, longest: int) -> None:
    """Logits and gradients are finite, and a long history changes nothing in the rows beside it."""
    features = spec()
    module = build(model, features)
    values, bags = draw(features, rows=5, past=np.array([0, longest, 1, longest - 1, 6]))
    whole = module(values, to_kjt(bags))
    for rows in ([0], [1], [0, 2, 4]):  # short lists and long ones apart
        apart = module(values[rows], to_kjt({n: [b[i] for i in rows] for n, b in bags.items()}))
        torch.testing.assert_close(apart, whole[rows], rtol=1e-4, atol=1e-5)
    module.train()(values, to_kjt(bags)).sum().backward()
    assert whole.isfinite().all() and whole.std() > 1e-3
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@each_option
def test_gradient_reaches_every_parameter(model: Any, options: dict[str, Any]) -> None:
    features = spec()
    module = build(model, features, **options).train()
    values, bags = draw(features, rows=64)
    (module(values, to_kjt(bags)) * torch.randn(64, 1)).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.count_nonzero() > 0, name


@pytest.mark.slow
@each_option
def test_one_batch_is_overfitted(model: Any, options: dict[str, Any]) -> None:
    """The labels follow from the target and its history alone, so that a model must compare them."""
    torch.manual_seed(0)
    features = spec(ITEM, KIND, ITEMS, KINDS, *([PAUSES] if "times" in options else []), dense=0)
    wide = {"deep_mlp": [32, 16], "init_std": 0.3} | ({"k": 7} if model is SIM else {})
    module = model(features, **{**SMALL[model], **options, **wide}).train()
    values, bags = draw(features, rows=48)
    for items, kinds in (("item", "kind"), ("items", "kinds")):  # the kind follows from the item
        bags[kinds] = [[i % 4 for i in bag] for bag in bags[items]]
    seen = [item in past for [item], past in zip(bags["item"], bags["items"], strict=True)]
    labels = torch.tensor(seen, dtype=torch.float32)[:, None]
    assert 5 < labels.sum() < 43
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(module(values, to_kjt(bags)), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


@each_model
def test_tables_on_meta_are_not_allocated(model: Any) -> None:
    item, past = (SparseFeature(n, 10**12, "item", multi_valued=n == "past", sequence=True) for n in ("item", "past"))
    module = model(spec(USER, item, KIND, past, KINDS), **SMALL[model], device=torch.device("meta"))
    for name, parameter in module.named_parameters():
        assert parameter.device.type == ("meta" if name.startswith("embeddings.") else "cpu"), name


SECOND = history("bought", 9, "item")


@pytest.mark.parametrize(
    ("features", "pairs"),
    [
        (spec(), PAIRS),
        (spec(USER, ITEM, ITEMS, TAGS), {"item": "items"}),
        (spec(USER, ITEM, SparseFeature("last_item", 9, "item"), KIND, ITEMS, KINDS), {"kind": "kinds"}),
        (spec(ITEM, KIND, ITEMS, SparseFeature("kinds", 4, "kind", multi_valued=True)), {"item": "items"}),
    ],
)
def test_pairs_are_found(features: FeatureSpec, pairs: dict[str, str]) -> None:
    assert history_pairs(features, None, "DIN") == pairs


@pytest.mark.parametrize(
    ("features", "given", "message"),
    [
        (spec(USER, ITEM, TAGS), None, "DIN needs the history of a feature: a list that shares"),
        (spec(ITEM, ITEMS, SECOND), None, "DIN reads one history, and items and bought are .* of item; choose with"),
        (spec(), {"itme": "items"}, "history: no sparse feature is named itme; did you mean item"),
        (spec(), {"tags": "items"}, "history: tags has a list of values in each row"),
        (spec(), {"item": "kind"}, "history: kind has one value in each row, so it is not a history"),
        (spec(), {"item": "kinds"}, "history: kinds and item do not share .*; set data.sparse.kinds.table=item$"),
    ],
)
def test_wrong_histories(features: FeatureSpec, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        DIN(features, history=given)


def test_times_have_the_lengths_of_the_history() -> None:
    features = spec()
    module = build(HSTURank, features, times="pauses")
    values, bags = draw(features, rows=3)
    with pytest.raises(ValueError, match=r"^features items and pauses are the history of one target, but their lists"):
        module(values, to_kjt(bags | {"pauses": [*bags["pauses"][:2], [*bags["pauses"][2], 1]]}))


@pytest.mark.parametrize("more", [[1], []])
def test_a_history_s_features_must_have_equal_lengths(more: list[int]) -> None:
    """Lists of other lengths are refused, also if their sums are equal."""
    features = spec(ITEM, KIND, ITEMS, KINDS, dense=0)
    bags: Bags = {"item": [[1], [2]], "kind": [[1], [2]], "items": [[1, 2], [3]], "kinds": [[1], [2, 3, *more]]}
    with pytest.raises(ValueError, match=r"^features items and kinds are the history of one target, but their lists"):
        build(DIN, features)(torch.zeros(2, 0), to_kjt(bags))


def test_lists_in_both_layouts() -> None:
    """Sums and softmaxes of lists, where what lies after a list's end is arbitrary."""
    lengths = torch.tensor([2, 0, 3])
    x = torch.randn(5, 2)
    block = torch.full((3, 3, 2), 1e9)
    block[0, :2], block[2] = x[:2], x[2:]
    sums = torch.stack([x[:2].sum(0), torch.zeros(2), x[2:].sum(0)])
    weights = torch.cat([x[:2].softmax(0), x[2:].softmax(0)])
    torch.testing.assert_close(list_sums(x, lengths), sums)
    torch.testing.assert_close(list_softmax(x, lengths), weights)
    with padded_to(3):
        torch.testing.assert_close(list_sums(block.flatten(0, 1), lengths), sums)
        padded = list_softmax(block.flatten(0, 1), lengths).view(3, 3, 2)
        torch.testing.assert_close(torch.cat([padded[0, :2], padded[2]]), weights)
        torch.testing.assert_close(list_sums((padded * block).flatten(0, 1), lengths)[1], torch.zeros(2))


@given(st.lists(st.lists(st.integers(0, 1), max_size=3), max_size=9))
def test_repeated_lists_are_left_out(lists: list[list[int]]) -> None:
    """In both layouts, where what lies after a list's end is arbitrary."""
    left = [one for one, _ in itertools.groupby(lists)]
    x = torch.tensor([i for one in lists for i in one], dtype=torch.float32)[:, None].repeat(1, 2)
    lengths = torch.tensor([len(one) for one in lists], dtype=torch.long)
    values, new_lengths, list_of = without_repeated(x, lengths)
    parts = [part[:, 0].tolist() for part in values.split(new_lengths.tolist())]
    assert parts == left and [left[i] for i in list_of.tolist()] == lists
    block = torch.randn(len(lists), 3, 2)
    block[torch.arange(3) < lengths[:, None]] = x
    with padded_to(3):
        values, new_lengths, again = without_repeated(block.flatten(0, 1), lengths)
    parts = [part[:n, 0].tolist() for part, n in zip(values.view(-1, 3, 2), new_lengths.tolist(), strict=True)]
    assert parts == left and torch.equal(again, list_of)


@given(st.lists(st.lists(st.integers(1, 9), max_size=7), max_size=6), st.integers(1, 5))
def test_lists_are_cut_into_pieces(lists: list[list[int]], size: int) -> None:
    """In both layouts, where what lies after a list's end is arbitrary in the padded one."""
    values = torch.tensor([v for one in lists for v in one], dtype=torch.float32)[:, None]
    lengths = torch.tensor([len(one) for one in lists], dtype=torch.long)
    pieces, row = to_pieces(values, lengths, size)
    assert pieces.shape == (len(values) // size + len(lists), size, 1) and row.tolist() == sorted(row.tolist())
    assert [[int(v) for v in pieces[row == i].flatten() if v] for i in range(len(lists))] == lists
    block = torch.full((len(lists), 7, 1), torch.nan)
    block[torch.arange(7) < lengths[:, None]] = values
    with padded_to(7):
        pieces, row = to_pieces(block.flatten(0, 1), lengths, size)
    assert row.tolist() == list(range(len(lists)))
    assert [[int(v) for v in piece.flatten() if v] for piece in pieces] == lists


def angled(target: Array, angle: float, rng: np.random.Generator) -> Array:
    """A vector of norm 1 at an angle to the target."""
    other = rng.normal(size=target.shape)
    unit = target / np.linalg.norm(target)
    other -= (other @ unit) * unit
    return np.cos(angle) * unit + np.sin(angle) * other / np.linalg.norm(other)


@pytest.mark.parametrize("hyperplanes", [1, 3, 5])
def test_hash_attention_approximates_a_softened_target_attention(hyperplanes: int) -> None:
    """The expected weight of an item is (1 - angle / pi) ** hyperplanes: of one alone as it is, within six standard
    deviations; of several, since each group's sum is normalised, the direction is that of the weighted sum, from which
    a few groups are further away.
    """
    rng = np.random.default_rng(0)
    angles, groups = np.linspace(0, np.pi, 9), 20_000
    target = rng.normal(size=16)
    items = np.stack([angled(target, a, rng) for a in angles])
    weights = (1 - angles / np.pi) ** hyperplanes
    t, past = (torch.tensor(x, dtype=torch.float32) for x in (target[None], items))
    attention = HashAttention(16, groups, hyperplanes, seed=0)
    alone = attention(t.repeat(9, 1), past, torch.ones(9, dtype=torch.long)).numpy()
    errors = np.abs(alone - weights[:, None] * items).max(axis=1)
    assert (errors <= 6 * np.sqrt(weights * (1 - weights) / groups) + 1e-5).all()

    def cosine(interest: Tensor) -> float:
        a, b = interest[0].numpy(), weights @ items
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    of_all = torch.tensor([9])
    few = [cosine(HashAttention(16, 2, hyperplanes, seed)(t, past, of_all)) for seed in range(20)]
    assert cosine(attention(t, past, of_all)) > max(0.998, *few)


def test_gradient_of_hash_attention() -> None:
    """Against the derivative of each normalised sum, row by row and group by group; none passes through the hashes."""
    rng = np.random.default_rng(0)
    attention = HashAttention(6, 4, 2, seed=1)
    lengths = torch.tensor([3, 0, 70])
    target = torch.tensor(rng.normal(size=(3, 6)), dtype=torch.float32, requires_grad=True)
    past = torch.tensor(rng.normal(size=(73, 6)), dtype=torch.float32, requires_grad=True)
    given = rng.normal(size=(3, 6))
    (attention(target, past, lengths) * torch.tensor(given, dtype=torch.float32)).sum().backward()
    expected = np.zeros((73, 6))
    x, t = past.detach().double().numpy(), target.detach().double().numpy()
    for row, at in ((0, range(3)), (2, range(3, 73))):
        for planes in np.split(attention.hyperplanes.double().numpy().T, 4):
            same = [i for i in at if ((planes @ x[i] > 0) == (planes @ t[row] > 0)).all()]
            total = x[same].sum(axis=0)
            norm = np.linalg.norm(total) or 1.0
            for i in same:
                expected[i] += (given[row] - given[row] @ total * total / norm**2) / norm / 4
    assert past.grad is not None and target.grad is None
    np.testing.assert_allclose(past.grad.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_hash_attention_to_10_000_items() -> None:
    """Beside short lists and empty ones, and in half precision: hashes and sums are computed in float32."""
    torch.manual_seed(0)
    attention, lengths = HashAttention(8, 16, 3, seed=0), torch.tensor([0, 10_000, 3, 0])
    target, past = torch.randn(4, 8), torch.randn(10_003, 8)
    interest = attention(target, past, lengths)
    alone = [
        attention(t[None], x, torch.tensor([len(x)])) for t, x in zip(target, past.split(lengths.tolist()), strict=True)
    ]
    torch.testing.assert_close(interest, torch.cat(alone))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(attention(target, past, lengths), interest)
    for seed, equal in ((0, True), (1, False)):
        assert torch.equal(HashAttention(8, 16, 3, seed).hyperplanes, attention.hyperplanes) == equal
    assert "hyperplanes" in attention.state_dict() and not list(attention.parameters())


def test_candidates_of_hstu_rank_are_scored_alone() -> None:
    """A candidate's score depends on no other candidate, and the user's part is computed once for all of them."""
    features = spec()
    module = build(HSTURank, features, times="pauses", actions=["kinds"]).eval()
    values, bags = draw(features, rows=8)
    of_user = {name: [bags[name][i] for i in (4, 4, 4, 4, 4, 5, 5, 4)] for name in ("items", "kinds", "pauses")}
    bags |= of_user
    block = module.transducer.blocks[0]
    seen: list[int] = []
    block.register_forward_pre_hook(lambda _, given: seen.append(len(given[1])))
    with torch.no_grad():
        together = module(values, to_kjt(bags))
        assert seen == [3]  # users; the last row's is not beside the first ones
        for i in range(8):
            alone = module(values[i : i + 1], to_kjt({name: [of[i]] for name, of in bags.items()}))
            torch.testing.assert_close(alone[0], together[i], rtol=1e-5, atol=1e-6)
        others = {name: list(reversed(of)) for name, of in bags.items()}
        torch.testing.assert_close(module(values.flip(0), to_kjt(others)).flip(0), together, rtol=1e-5, atol=1e-6)
        module.train()
        torch.testing.assert_close(module(values, to_kjt(bags)), together, rtol=1e-5, atol=1e-6)
    assert seen[-1] == 8  # training does not look for equal histories


def test_actions_of_hstu_rank() -> None:
    """The vector of an action is added to that of its item."""
    features = spec()
    values, bags = draw(features, rows=4)
    module = build(HSTURank, features, actions=["kinds"])
    table = module.actions.rows.embeddings.action_kind.weight  # type: ignore[union-attr]
    plain = build(HSTURank, features)
    plain.load_state_dict(module.state_dict(), strict=False)
    with torch.no_grad():
        assert not torch.allclose(module(values, to_kjt(bags)), plain(values, to_kjt(bags)))
        table.zero_()
        torch.testing.assert_close(module(values, to_kjt(bags)), plain(values, to_kjt(bags)))
        table.fill_(0.5)  # equal to a shift of the vectors of items in histories
        shifted = module(values, to_kjt(bags))
        plain.embeddings.register_forward_hook(lambda _, __, out: out._replace(history=out.history + 0.5))
        torch.testing.assert_close(shifted, plain(values, to_kjt(bags)))
    with pytest.raises(ValueError, match=r"^actions: no sparse feature is named kinds_; did you mean kinds"):
        HSTURank(features, actions=["kinds_"])


def test_dice() -> None:
    """Dice is x where x lies far above the mean, slope * x far below, and takes a batch of one value."""
    dice = Dice(1)
    dice.slope.data.fill_(0.25)
    x = torch.cat([torch.full((50, 1), 20.0), torch.full((50, 1), -20.0), torch.full((1, 1), 500.0)])
    assert dice(x)[-1].item() == pytest.approx(500, rel=1e-3)
    assert dice.train()(torch.ones(1, 1)).isfinite().all() and dice(torch.ones(0, 1)).shape == (0, 1)
    assert dice.eval()(torch.full((1, 1), -1e4)).item() == pytest.approx(-2500, rel=1e-3)


def test_interests_of_dien_predict_next_items() -> None:
    """The auxiliary loss against loops over lists, with the draws replayed; none in evaluation, or with weight 0."""
    lengths = torch.tensor([3, 0, 1, 2])
    predicted, items = torch.randn(6, 4), torch.randn(6, 4)
    torch.manual_seed(5)
    found = _next_item_loss(predicted, items, lengths)
    torch.manual_seed(5)
    drawn = items[torch.randperm(6)]
    losses = []
    for at in (0, 1, 4):  # the items that another one of the same list follows
        yes, no = predicted[at] @ items[at + 1], predicted[at] @ drawn[at + 1]
        losses.append(-torch.log(torch.sigmoid(yes)) - torch.log(1 - torch.sigmoid(no)))
    torch.testing.assert_close(found, torch.stack(losses).mean())
    assert _next_item_loss(predicted[:0], items[:0], lengths * 0) == 0
    assert _next_item_loss(predicted[:2], items[:2], torch.tensor([1, 1])) == 0

    features = spec(USER, ITEM, history("items", 9, "item"))
    dense, bags = draw(features, rows=12)
    batch = Batch(dense, to_kjt(bags), torch.ones(12, 1))
    totals = {}
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        task = Task(DIEN(features, dim=8, auxiliary=weight)).eval()
        totals[weight, "eval"] = task(batch)[0].item()
        totals[weight, "train"] = task.train()(batch)[0].item()
    assert totals[1.0, "train"] > totals[1.0, "eval"] + 0.5 and totals[0.0, "train"] == totals[0.0, "eval"]
