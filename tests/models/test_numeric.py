"""Embeddings of numbers: the formulas of the paper in NumPy, any ranking model behind them, and what they refuse."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from model_inputs import BAGGED, SINGLE, draw, randomise, spec, to_kjt
from small_models import SMALL

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.interface.features import DenseFeature, FeatureSpec
from recsys.job.build import build_model
from recsys.job.check_config import check_config
from recsys.job.run_config import RunConfig
from recsys.models.common.numeric import NumericEmbedding, Periodic, Piecewise, WithNumericEmbedding

DENSE = (DenseFeature("age", unit=True), DenseFeature("v", width=2), DenseFeature("price", unit=True))
FEATURES = FeatureSpec(dense=DENSE, sparse=SINGLE + BAGGED)
EMBEDDINGS: dict[str, Any] = {
    "piecewise": lambda f: Piecewise(f, dim=5, bins=4),
    "periodic": lambda f: Periodic(f, dim=5, frequencies=3),
}


def encoded(embedding: NumericEmbedding, x: np.ndarray) -> np.ndarray:
    """The encodings by the paper's equations: (B, N) -> (B, N, encoded)."""
    if isinstance(embedding, Piecewise):
        knots = np.linspace(0, 1, 5)
        pieces = [(x - low) / (high - low) for low, high in pairwise(knots)]
        return np.stack([np.where(p < 0, 0, np.where(p > 1, 1, p)) for p in pieces], axis=2)
    assert isinstance(embedding, Periodic)
    v = 2 * np.pi * embedding.frequencies.detach().double().numpy() * x[:, :, None]
    return np.concatenate([np.sin(v), np.cos(v)], axis=2)


@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_vectors_replace_numbers_and_leave_vectors(kind: str) -> None:
    embedding = randomise(EMBEDDINGS[kind](FEATURES))
    assert isinstance(embedding, NumericEmbedding)
    dense = torch.rand(6, 4)
    with torch.no_grad():
        found = embedding(dense).numpy()
    x = dense.double().numpy()
    w, b = (p.detach().double().numpy() for p in (embedding.weight, embedding.bias))
    codes = encoded(embedding, x[:, [0, 3]])
    first, second = (np.maximum(codes[:, n] @ w[n] + b[n], 0) for n in (0, 1))
    np.testing.assert_allclose(found, np.concatenate([first, x[:, 1:3], second], axis=1), rtol=1e-4, atol=1e-5)
    assert embedding.features.dense_width == 12 and found.max() > 0


@pytest.mark.parametrize("kind", EMBEDDINGS)
@pytest.mark.parametrize("model", SMALL, ids=lambda m: m.__name__)
def test_every_ranking_model_reads_them(model: Any, kind: str) -> None:
    features = replace(spec(), dense=tuple(replace(f, unit=True) for f in spec().dense))
    embedding = EMBEDDINGS[kind](features)
    whole = randomise(WithNumericEmbedding(embedding, model(embedding.features, **SMALL[model]))).train()
    values, bags = draw(features, rows=8)
    logits = whole(values.sigmoid(), to_kjt(bags))
    assert logits.shape == (8, 1)
    logits.square().sum().backward()
    assert embedding.weight.grad is not None and embedding.weight.grad.abs().sum() > 0


def test_steps_that_a_number_itself_does_not_give() -> None:
    """A label that depends on narrow ranges of a number is learnt from its pieces."""
    torch.manual_seed(0)
    features = FeatureSpec(dense=(DenseFeature("x", unit=True),), sparse=SINGLE)
    x = torch.rand(4000, 1)
    label = ((x * 16).long() % 2).float()
    losses = {}
    for name, embedding in {"none": None, "piecewise": Piecewise(features, dim=8, bins=16)}.items():
        body = torch.nn.Sequential(
            torch.nn.Linear(1 if embedding is None else 8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
        modules = torch.nn.Sequential(*([] if embedding is None else [embedding]), body)
        optimizer = torch.optim.Adam(modules.parameters(), lr=0.01)
        for _ in range(200):
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(modules(x), label)
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    assert losses["piecewise"] < 0.5 * losses["none"]


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        (
            (DenseFeature("age"),),
            r"numeric: dense feature age is not scaled to 0 to 1: end data.dense.age.transform with",
        ),
        ((DenseFeature("v", width=2),), r"numeric: the data has no dense feature of one number; leave numeric= out"),
    ],
)
def test_data_that_does_not_fit(dense: tuple[DenseFeature, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_model(
            RunConfig.of(compose("train", ["model=dnn", "numeric=piecewise"])),
            FeatureSpec(dense, SINGLE),
            torch.device("cpu"),
        )


@pytest.mark.parametrize("model", ["sasrec", "gbm", "ease"])
def test_models_that_read_no_embedded_numbers(model: str) -> None:
    data = "sample_sequences" if model != "gbm" else "criteo"
    cfg = compose("train", [f"model={model}", f"data={data}", "numeric=periodic"])
    with pytest.raises(UserError, match=r"numeric=.*: embeds the numbers of a ranking model .*; leave numeric= out"):
        check_config(cfg)
