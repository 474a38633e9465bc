"""Feature specs, random rows and random weights for tests of ranking models."""

import numpy as np
import torch
from reference_models import Bags
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recsys.data.features.arrays import Arrays
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel

# "shared" uses the first table again, so that a collection's order of features is not the spec's
SINGLE = (SparseFeature("user", 11, "ids"), SparseFeature("item", 7, "goods"), SparseFeature("shared", 11, "ids"))
BAGGED = (
    SparseFeature("tags", 5, "tags", pooling="sum", multi_valued=True),
    SparseFeature("history", 9, "history", pooling="mean", multi_valued=True),
)


def spec(dense: int = 3, sparse: tuple[SparseFeature, ...] = SINGLE + BAGGED, labels: int = 1) -> FeatureSpec:
    return FeatureSpec(
        dense=tuple(DenseFeature(f"d{i}") for i in range(dense)),
        sparse=sparse,
        labels=tuple(BinaryLabel(f"label{i}") for i in range(labels)),
    )


def draw(features: FeatureSpec, rows: int, seed: int = 0) -> tuple[Tensor, Bags]:
    """Dense values, and the bags of ids by feature; the first row's multi-valued bags are empty."""
    rng = np.random.default_rng(seed)
    dense = torch.tensor(rng.normal(size=(rows, len(features.dense))), dtype=torch.float32)
    bags: Bags = {}
    for f in features.sparse:
        lengths = rng.integers(0, 4, rows) if f.multi_valued else np.ones(rows, dtype=int)
        if f.multi_valued:
            lengths[0] = 0
        bags[f.name] = [rng.integers(0, f.cardinality, n).tolist() for n in lengths]
    return dense, bags


def to_kjt(bags: Bags, keys: list[str] | None = None) -> KeyedJaggedTensor:
    keys = keys or list(bags)
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.tensor([i for key in keys for bag in bags[key] for i in bag], dtype=torch.int64),
        lengths=torch.tensor([len(bag) for key in keys for bag in bags[key]], dtype=torch.int32),
    )


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random parameters and batch statistics, so that no zero or one hides a mistake."""
    torch.manual_seed(seed)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            positive = "running_var" in name
            value.copy_(torch.rand_like(value) + 0.5 if positive else torch.randn_like(value) / 3)
    return model.eval()


def random_arrays(features: FeatureSpec, rows: int, seed: int = 0, longest: int = 5) -> Arrays:
    """Arrays of random ids; lists are empty now and then, and have unknown ids."""
    rng = np.random.default_rng(seed)
    singles = [f for f in features.sparse if not f.multi_valued]
    lists = [f for f in features.sparse if f.multi_valued]
    shared = rng.integers(0, longest + 1, rows).astype(np.int32)
    lengths = {f.name: shared if f.sequence else rng.integers(0, longest + 1, rows).astype(np.int32) for f in lists}
    return Arrays(
        rng.normal(size=(rows, features.dense_width)).astype(np.float32),
        np.array([rng.integers(0, f.cardinality, rows) for f in singles], np.int32).reshape(-1, rows).T.copy(),
        {f.name: rng.integers(0, f.cardinality, lengths[f.name].sum()).astype(np.int32) for f in lists},
        lengths,
    )
