"""The logits of ranking models in NumPy and double precision, from their raw weights alone."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.interface.features import FeatureSpec

Array = NDArray[np.float64]
Weights = dict[str, Array]
Bags = dict[str, list[list[int]]]


def embed(w: Weights, features: FeatureSpec, bags: Bags, name: str = "embeddings", prefix: str = "t_") -> Array:
    """(B, F, dim)"""
    fields = []
    for f in features.sparse:
        table = w[f"{name}.bags.embedding_bags.{prefix}{f.table}.weight"]
        rows = []
        for bag in bags[f.name]:
            total = sum((table[i] for i in bag), np.zeros(table.shape[1]))
            rows.append(total / max(len(bag), 1) if f.pooling == "mean" else total)
        fields.append(np.stack(rows))
    return np.stack(fields, axis=1)


def linear(w: Weights, name: str, x: Array) -> Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def mlp(w: Weights, name: str, x: Array) -> Array:
    """Follows the layers' numbers: a matrix is a linear layer, statistics a batch norm that ends a layer."""
    numbers = {int(key.removeprefix(f"{name}.").split(".")[0]) for key in w if key.startswith(f"{name}.")}
    for i in sorted(numbers):
        at = f"{name}.{i}"
        if f"{at}.running_mean" in w:
            x = (x - w[f"{at}.running_mean"]) / np.sqrt(w[f"{at}.running_var"] + 1e-5)
            x = x * w[f"{at}.weight"] + w[f"{at}.bias"]
        else:
            x = linear(w, at, x)
        if f"{name}.{i + 1}.running_mean" not in w:
            x = np.maximum(x, 0)
    return x


def first_order(w: Weights, features: FeatureSpec, dense: Array, bags: Bags) -> Array:
    total = embed(w, features, bags, "wide", "wide_").mean(axis=2).sum(axis=1)
    for d in range(len(features.dense)):
        total = total + w["first_order.dense.weight"][0, d] * dense[:, d]
    return total[:, None]


def dlrm(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    embeddings = embed(w, features, bags)
    vectors = [embeddings[:, i] for i in range(embeddings.shape[1])]
    bottom = [mlp(w, "bottom", dense)] if features.dense else []
    vectors = bottom + vectors
    if options.get("interaction") in ("cat", "cross"):
        x = x0 = np.concatenate(vectors, axis=1)
        for layer in range(options.get("cross_layers", 3) if options["interaction"] == "cross" else 0):
            matrix = w[f"cross.W_kernels.{layer}"] @ w[f"cross.V_kernels.{layer}"]
            x = x0 * (x @ matrix.T + w[f"cross.bias.{layer}"].reshape(-1)) + x
    else:
        pairs = [(i, j) for i in range(len(vectors)) for j in range(i)]
        dots = [(vectors[i] * vectors[j]).sum(axis=1, keepdims=True) for i, j in pairs]
        kept = vectors if options.get("keep_embeddings") else bottom
        x = np.concatenate(kept + dots, axis=1)
    return linear(w, "logits", mlp(w, "top", x))


def dcn(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x0 = np.concatenate([dense, embed(w, features, bags).reshape(len(dense), -1)], axis=1)
    x = x0
    for layer in range(options.get("cross_layers", 3)):
        weight = w[f"cross.weights.{layer}.weight"][0]
        outer = np.einsum("bi,bj->bij", x0, x)  # x_0 x_l^T, as the paper writes it
        x = outer @ weight + w[f"cross.biases.{layer}"] + x
    return linear(w, "logits", np.concatenate([x, mlp(w, "deep", x0)], axis=1))


def dcnv2(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x0 = np.concatenate([dense, embed(w, features, bags).reshape(len(dense), -1)], axis=1)
    x = x0
    if options.get("experts", 1) > 1:
        return dcnv2_moe(w, features, dense, bags, **options)
    for layer in range(options.get("cross_layers", 3)):
        if options.get("rank"):
            matrix = w[f"cross.W_kernels.{layer}"] @ w[f"cross.V_kernels.{layer}"]
            assert np.linalg.matrix_rank(matrix) == options["rank"]
        else:
            matrix = w[f"cross.kernels.{layer}"]
        x = x0 * (x @ matrix.T + w[f"cross.bias.{layer}"].reshape(-1)) + x
    if options.get("structure") == "parallel":
        return linear(w, "logits", np.concatenate([x, mlp(w, "deep", x0)], axis=1))
    return linear(w, "logits", mlp(w, "deep", x))


def wide_deep(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x0 = np.concatenate([dense, embed(w, features, bags).reshape(len(dense), -1)], axis=1)
    return first_order(w, features, dense, bags) + linear(w, "logits", mlp(w, "deep", x0))


def deepfm(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    vectors = embed(w, features, bags)
    pairs = combinations(range(vectors.shape[1]), 2)
    second = sum(((vectors[:, i] * vectors[:, j]).sum(axis=1) for i, j in pairs), np.zeros(len(dense)))
    return second[:, None] + wide_deep(w, features, dense, bags, **options)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def norm(w: Weights, name: str, x: Array) -> Array:
    """Layer norm over the last dimension."""
    x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def fields(w: Weights, features: FeatureSpec, dense: Array, bags: Bags) -> list[Array]:
    """One (B, dim) for each field: sparse features, then dense ones."""
    vectors = embed(w, features, bags)
    found = [vectors[:, i] for i in range(vectors.shape[1])]
    at = 0
    for f in features.dense:
        own = w["numeric.vectors"][at : at + f.width]
        found.append(dense[:, at : at + f.width] @ own)
        at += f.width
    return found


def flat(w: Weights, features: FeatureSpec, dense: Array, bags: Bags) -> Array:
    return np.concatenate([dense, embed(w, features, bags).reshape(len(dense), -1)], axis=1)


def first_orders(w: Weights, features: FeatureSpec, dense: Array, bags: Bags) -> Array:
    """(B, T): four columns for each logit."""
    total = embed(w, features, bags, "wide", "wide_").sum(axis=1)
    total = total.reshape(len(dense), -1, 4).mean(axis=2)
    return total + dense @ w["first_order.dense.weight"].T if features.dense else total


def lr(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    return first_orders(w, features, dense, bags) + w["bias"]


def fm(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    pairs = combinations(fields(w, features, dense, bags), 2)
    dots = sum(((a * b).sum(axis=1) for a, b in pairs), np.zeros(len(dense)))
    return lr(w, features, dense, bags) + dots[:, None]


def fwfm(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    out = first_orders(w, features, dense, bags) + w["pairs.bias"]
    vectors = fields(w, features, dense, bags)
    pairs = [(i, j) for i in range(len(vectors)) for j in range(i)]
    for p, (i, j) in enumerate(pairs):
        out = out + (vectors[i] * vectors[j]).sum(axis=1)[:, None] * w["pairs.weight"][:, p]
    return out


def dnn(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    return linear(w, "logits", mlp(w, "deep", flat(w, features, dense, bags)))


def xdeepfm(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    first = fields(w, features, dense, bags)
    below, sums = first, []
    for k in range(len(options.get("cin_layers", (3, 2)))):
        products = [a * b for a in below for b in first]
        weight, bias = w[f"cin.weights.{k}"].transpose(1, 0, 2), w[f"cin.biases.{k}"]
        weight = weight.reshape(len(bias), -1)
        below = [
            sum(c * x for c, x in zip(row, products, strict=True)) + b for row, b in zip(weight, bias, strict=True)
        ]
        sums += [x.sum(axis=1) for x in below]
    both = np.concatenate([np.stack(sums, axis=1), mlp(w, "deep", flat(w, features, dense, bags))], axis=1)
    return first_orders(w, features, dense, bags) + linear(w, "logits", both)


def autoint(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x = np.stack(fields(w, features, dense, bags), axis=1)
    heads = options.get("heads", 2)
    for layer in range(options.get("attention_layers", 2)):
        at = f"attention.{layer}"
        q, k, v = (np.split(x @ w[f"{at}.{n}.weight"].T, heads, axis=2) for n in ("queries", "keys", "values"))
        attended = [softmax(a @ b.transpose(0, 2, 1)) @ c for a, b, c in zip(q, k, v, strict=True)]
        x = relu(np.concatenate(attended, axis=2) + x @ w[f"{at}.residual.weight"].T)
    out = x.reshape(len(dense), -1)
    if options.get("deep_mlp") != []:
        out = np.concatenate([out, mlp(w, "deep", flat(w, features, dense, bags))], axis=1)
    return linear(w, "logits", out)


def fibinet(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    vectors = embed(w, features, bags)
    means = vectors.mean(axis=2)
    weights = relu(relu(means @ w["senet.squeeze.weight"].T) @ w["senet.excite.weight"].T)
    parts = [dense]
    for name, x in (("pairs", vectors), ("weighted_pairs", vectors * weights[:, :, None])):
        for p, (i, j) in enumerate(combinations(range(x.shape[1]), 2)):
            number = {"all": 0, "each": i, "interaction": p}[options.get("bilinear", "all")]
            parts.append((x[:, i] @ w[f"{name}.weight"][number]) * x[:, j])
    deep = linear(w, "logits", mlp(w, "deep", np.concatenate(parts, axis=1)))
    return first_orders(w, features, dense, bags) + deep


def masknet(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    vectors = embed(w, features, bags)
    guide = flat(w, features, dense, bags)
    normed = [norm(w, f"norms.{i}", vectors[:, i]) for i in range(vectors.shape[1])]
    x = np.concatenate([dense, *normed], axis=1)

    def block(i: int, x: Array) -> Array:
        mask = linear(w, f"blocks.{i}.project", relu(linear(w, f"blocks.{i}.aggregate", guide)))
        return relu(norm(w, f"blocks.{i}.norm", (x * mask) @ w[f"blocks.{i}.hidden.weight"].T))

    number = len(options.get("blocks", (6, 5)))
    if options.get("structure") != "serial":
        return linear(w, "logits", mlp(w, "deep", np.concatenate([block(i, x) for i in range(number)], axis=1)))
    for i in range(number):
        x = block(i, x)
    return linear(w, "logits", x)


def gdcn(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    c = c0 = flat(w, features, dense, bags)
    for layer in range(options.get("cross_layers", 3)):
        c = c0 * linear(w, f"cross.crosses.{layer}", c) * sigmoid(c @ w[f"cross.gates.{layer}.weight"].T) + c
    if options.get("structure") == "stacked":
        return linear(w, "logits", mlp(w, "deep", c))
    return linear(w, "logits", np.concatenate([c, mlp(w, "deep", c0)], axis=1))


def finalmlp(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    vectors = embed(w, features, bags)
    x = flat(w, features, dense, bags)
    streams = []
    for name in ("first", "second"):
        context = options.get(f"{name}_context", [])
        at = [f.name for f in features.sparse]
        if context:
            given = np.concatenate([vectors[:, at.index(n)] for n in context], axis=1)
        else:
            given = np.tile(w[f"{name}_gate.context"], (len(x), 1))
        gate = 2 * sigmoid(linear(w, f"{name}_gate.weights", mlp(w, f"{name}_gate.mlp", given)))
        streams.append(mlp(w, name, x * gate))
    a, b = streams
    out = linear(w, "fusion.first", a) + b @ w["fusion.second.weight"].T
    heads = options.get("heads", 2)
    for t in range(out.shape[1]):
        for h, (p, q) in enumerate(zip(np.split(a, heads, axis=1), np.split(b, heads, axis=1), strict=True)):
            out[:, t] += ((p @ w["fusion.weight"][t, h]) * q).sum(axis=1)
    return out


def eulernet(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    """With complex numbers, whose powers are the interactions."""
    e = np.stack(fields(w, features, dense, bags), axis=1)
    z = np.empty(e.shape, np.complex128)
    z.real, z.imag = w["modulus"] * np.cos(e), w["modulus"] * np.sin(e)  # keeps the sign of a zero
    for layer in range(len(options.get("layers", (4, 3)))):
        at = f"layers.{layer}"
        orders = w[f"{at}.orders"]
        bias = np.exp(w[f"{at}.log_modulus"] + 1j * w[f"{at}.phase"])
        principal = np.exp(np.log(np.abs(z) ** 2 + 1e-8) / 2 + 1j * np.angle(z))
        powers = [[np.exp(o * np.log(x)) for o, x in zip(of, principal.swapaxes(0, 1), strict=True)] for of in orders.T]
        explicit = np.stack([np.prod(p, axis=0) * b for p, b in zip(powers, bias, strict=True)], axis=1)
        parts = []
        for name, x, own in (("real", z.real, explicit.real), ("imaginary", z.imag, explicit.imag)):
            implicit = relu(linear(w, f"{at}.implicit", x.reshape(len(x), -1))).reshape(own.shape)
            parts.append(norm(w, f"{at}.norm_{name}", implicit + own))
        z = np.empty(parts[0].shape, np.complex128)
        z.real, z.imag = parts
    return linear(w, "logits", z.real.reshape(len(e), -1)) + linear(w, "logits", z.imag.reshape(len(e), -1))


def dcnv3(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x0 = flat(w, features, dense, bags)
    found = []
    for name in ("linear", "exponential"):
        x = x0
        for layer in range(options.get(f"{name}_layers", 2)):
            half = x @ w[f"{name}.halves.{layer}.weight"].T
            masked = half * relu(norm(w, f"{name}.norms.{layer}", half))
            crossed = np.concatenate([half, masked], axis=1)[:, : x.shape[1]] + w[f"{name}.biases.{layer}"]
            x = (x if name == "exponential" else x0) * crossed + x
        found.append(linear(w, f"{name}_logits", x))
    return (found[0] + found[1]) / 2


def dcnv2_moe(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x = x0 = flat(w, features, dense, bags)
    experts = range(options["experts"])
    for layer in range(options.get("cross_layers", 3)):
        gates = softmax(np.stack([x @ w[f"cross.gates.{i}.weight"][0] for i in experts], axis=1))
        total = np.zeros_like(x)
        for i in experts:
            inner = np.tanh(x @ w[f"cross.V_kernels.{layer}"][i].T)
            inner = np.tanh(inner @ w[f"cross.C_kernels.{layer}"][i].T)
            total += gates[:, [i]] * x0 * (inner @ w[f"cross.U_kernels.{layer}"][i].T + w[f"cross.bias.{layer}"][:, 0])
        x = total + x
    return linear(w, "logits", np.concatenate([x, mlp(w, "deep", x0)], axis=1))


def wukong(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x = embed(w, features, bags)
    if features.dense:
        x = np.concatenate([linear(w, "bottom.1", mlp(w, "bottom.0", dense))[:, None], x], axis=1)
    for layer in range(options.get("layers", 2)):
        at = f"layers.{layer}"
        rows = []
        for one in x:  # (n, dim)
            dots = one @ (one.T @ w[f"{at}.rank.weight"].T)
            hidden = mlp(w, f"{at}.mlp", norm(w, f"{at}.norm_dots", dots.reshape(1, -1)))
            machine = linear(w, f"{at}.to_vectors", hidden).reshape(-1, one.shape[1])
            mixed = np.concatenate([machine, w[f"{at}.linear.weight"] @ one])
            rows.append(mixed + (w[f"{at}.residual.weight"] @ one if f"{at}.residual.weight" in w else one))
        x = norm(w, f"{at}.norm", np.stack(rows))
    return linear(w, "logits", mlp(w, "top", x.reshape(len(x), -1)))


def rankmixer(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    from math import erf

    gelu = np.vectorize(lambda x: 0.5 * x * (1 + erf(x / 2**0.5)))
    x = flat(w, features, dense, bags)
    weight = w["to_tokens.weight"]
    tokens, part, _ = weight.shape
    x = np.pad(x, ((0, 0), (0, tokens * part - x.shape[1])))
    x = np.stack([x[:, t * part : (t + 1) * part] @ weight[t] for t in range(tokens)], axis=1) + w["to_tokens.bias"]
    for block in range(options.get("blocks", 2)):
        at = f"blocks.{block}"
        parts = [np.split(x[:, t], tokens, axis=1) for t in range(tokens)]
        mixed = np.stack([np.concatenate([p[h] for p in parts], axis=1) for h in range(tokens)], axis=1)
        x = norm(w, f"{at}.norm_mixed", mixed + x)
        for_each = []
        for t in range(tokens):
            up = gelu(x[:, t] @ w[f"{at}.up.weight"][t] + w[f"{at}.up.bias"][t])
            for_each.append(up @ w[f"{at}.down.weight"][t] + w[f"{at}.down.bias"][t])
        x = norm(w, f"{at}.norm", np.stack(for_each, axis=1) + x)
    return linear(w, "logits", x.mean(axis=1))


def tower(w: Weights, name: str, x: Array) -> Array:
    return linear(w, f"{name}.logits", mlp(w, f"{name}.mlp", x))


def gate(w: Weights, name: str, x: Array, experts: list[Array]) -> Array:
    weights = softmax(mlp(w, f"{name}.mlp", x) @ w[f"{name}.weights.weight"].T)
    return sum((weights[:, [i]] * e for i, e in enumerate(experts)), np.zeros_like(experts[0]))


def shared_bottom(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x = mlp(w, "bottom", flat(w, features, dense, bags))
    return np.concatenate([tower(w, f"towers.{t}", x) for t in range(len(features.labels))], axis=1)


def mmoe(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x = flat(w, features, dense, bags)
    experts = [mlp(w, f"experts.{i}", x) for i in range(options.get("experts", 3))]
    tasks = range(len(features.labels))
    return np.concatenate([tower(w, f"towers.{t}", gate(w, f"gates.{t}", x, experts)) for t in tasks], axis=1)


def ple(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    tasks, layers = len(features.labels), options.get("layers", 2)
    x = [flat(w, features, dense, bags)] * (tasks + 1)
    for layer in range(layers):
        at = f"layers.{layer}"
        numbers = [options.get("task_experts", 2)] * tasks + [options.get("shared_experts", 1)]
        experts = [[mlp(w, f"{at}.experts.{t}.{i}", x[t]) for i in range(n)] for t, n in enumerate(numbers)]
        new = [gate(w, f"{at}.gates.{t}", x[t], experts[t] + experts[-1]) for t in range(tasks)]
        if layer < layers - 1:
            new.append(gate(w, f"{at}.shared_gate", x[-1], [e for own in experts for e in own]))
        x = new
    return np.concatenate([tower(w, f"towers.{t}", x[t]) for t in range(tasks)], axis=1)


def esmm(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    x = flat(w, features, dense, bags)
    click = tower(w, "click", x)
    p = sigmoid(click) * sigmoid(tower(w, "conversion", x))
    return np.concatenate([click, np.log(p / (1 - p))], axis=1)


def stem(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    tasks = range(len(features.labels))
    shared = flat(w, features, dense, bags)
    tables = [embed(w, features, bags, f"task_embeddings.{t}", f"task{t}_").reshape(len(dense), -1) for t in tasks]
    inputs = [np.concatenate([dense, table], axis=1) for table in tables]
    experts = [mlp(w, f"task_experts.{t}.{i}", inputs[t]) for t in tasks for i in range(options.get("task_experts", 2))]
    experts += [mlp(w, f"experts.{i}", shared) for i in range(options.get("shared_experts", 1))]
    sums = [np.concatenate([dense, shared[:, dense.shape[1] :] + table], axis=1) for table in tables]
    return np.concatenate([tower(w, f"towers.{t}", gate(w, f"gates.{t}", sums[t], experts)) for t in tasks], axis=1)


def pepnet(w: Weights, features: FeatureSpec, dense: Array, bags: Bags, **options: Any) -> Array:
    vectors, names = embed(w, features, bags), [f.name for f in features.sparse]
    x = np.concatenate([dense, vectors.reshape(len(dense), -1)], axis=1)

    def factors(name: str, prior: list[str], x: Array) -> Array:
        given = np.concatenate([*(vectors[:, names.index(n)] for n in prior), x], axis=1)
        return 2 * sigmoid(linear(w, f"{name}.out", relu(linear(w, f"{name}.hidden.0", given))))

    if scenario := options.get("scenario", ["item"]):
        x = x * factors("epnet", scenario, x)
    personal = options.get("personal", ["user", "item"])
    found = []
    for task in range(len(features.labels)):
        state = x
        for layer in range(len(options.get("tower_mlp", [7, 5]))):
            state = mlp(w, f"towers.{task}.hidden.{layer}", state)
            if personal:
                both = factors(f"ppnet.{layer}", personal, x)
                state = state * both[:, task * state.shape[1] : (task + 1) * state.shape[1]]
        found.append(linear(w, f"towers.{task}.logits", state))
    return np.concatenate(found, axis=1)
