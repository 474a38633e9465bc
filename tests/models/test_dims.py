"""Tables with dims of their own: concatenated or projected, the formulas in NumPy, and the config key `dims`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from data_configs import data_config
from model_inputs import draw, randomise, spec, to_kjt
from small_models import SMALL, TASKS

from recsys.base.errors import UserError
from recsys.config.compose import compose
from recsys.data.features.resolved_data import resolve
from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel
from recsys.job.build import with_dims
from recsys.job.check_config import check_config
from recsys.job.run_config import RunConfig
from recsys.models.common.embeddings import PooledEmbeddings
from recsys.models.din import DIN
from recsys.models.lr import LogisticRegression
from recsys.sharding.tables import lay_out_tables, tables

DIMS = {"ids": 4, "tags": 12, "history": 4}
LABELS = (BinaryLabel("click"), BinaryLabel("bought"))


def own_dims(features: FeatureSpec) -> FeatureSpec:
    return replace(features, sparse=tuple(replace(f, dim=DIMS.get(f.table)) for f in features.sparse))


FEATURES = own_dims(spec())


@pytest.mark.parametrize("flat", [False, True])
def test_rows_are_pooled_then_projected_or_concatenated(flat: bool) -> None:
    module = randomise(PooledEmbeddings(FEATURES, 8, flat=flat))
    assert isinstance(module, PooledEmbeddings)
    _, bags = draw(FEATURES, rows=6)
    with torch.no_grad():
        found = module(to_kjt(bags)).numpy()
    state = {n: p.double().numpy() for n, p in module.state_dict().items()}
    vectors = []
    for f in FEATURES.sparse:
        table = state[f"bags.embedding_bags.t_{f.table}.weight"]
        assert table.shape == (f.cardinality, DIMS.get(f.table, 8))
        rows = np.stack([table[ids].sum(0) / (max(len(ids), 1) if f.pooling == "mean" else 1) for ids in bags[f.name]])
        if not flat and table.shape[1] != 8:
            same_dim = [t for t in FEATURES.tables if DIMS.get(t) == table.shape[1]]
            rows = rows @ state[f"own_dims.projections.{table.shape[1]}"][same_dim.index(f.table)]
        vectors.append(rows)
    wanted = np.concatenate(vectors, axis=1) if flat else np.stack(vectors, axis=1)
    assert module.width == wanted[0].size
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [*SMALL, *TASKS], ids=lambda m: m.__name__)
def test_every_ranking_model_takes_them(model: Any) -> None:
    features = replace(FEATURES, labels=LABELS) if model in TASKS else FEATURES
    module = randomise(model(features, **(SMALL | TASKS)[model])).train()
    values, bags = draw(features, rows=8)
    logits = module(values, to_kjt(bags))
    assert logits.shape == (8, len(features.labels))
    logits.square().sum().backward()
    found = {i.vocabulary: i.dim for i in tables(module).values() if not i.name.startswith("wide_")}
    assert found == ({} if model is LogisticRegression else {t: DIMS.get(t, 8) for t in features.tables})
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in module.named_parameters() if "projections" in n
    )


def test_tables_of_a_history_have_the_dim_of_the_model() -> None:
    items = SparseFeature("items", 9, "item", multi_valued=True, sequence=True)
    features = FeatureSpec((), (SparseFeature("item", 9, "item"), SparseFeature("user", 99, "user"), items))
    cfg = compose("train", ["model=din", "dims=auto"])
    assert [f.dim for f in with_dims(RunConfig.of(cfg), features).sparse] == [None, 16, None]
    mixed = replace(features, sparse=tuple(replace(f, dim=4) for f in features.sparse))
    with pytest.raises(ValueError, match=r"the table item has 4 columns, and histories need tables of dim=8; leave it"):
        DIN(mixed, dim=8)


def test_padded_tables_keep_their_dims() -> None:
    with torch.device("meta"):
        module = PooledEmbeddings(FEATURES, 8, device=torch.device("meta"))
        lay_out_tables(module, "64")
    padded = {("ids", 4, 16), ("goods", 8, 16), ("tags", 12, 16), ("history", 4, 16)}
    assert {(i.vocabulary, i.dim, i.width) for i in tables(module).values()} == padded


@pytest.mark.parametrize(
    ("dims", "wanted"),
    [
        ("auto", {"ids": 12, "goods": 12, "tags": 12, "history": 12}),
        (8, {"ids": 8, "goods": 8, "tags": 8, "history": 8}),
        ({"[ig]*": 4, "tags": 32}, {"ids": 4, "goods": 4, "tags": 32, "history": None}),
        ({"history": "auto"}, {"ids": None, "goods": None, "tags": None, "history": 12}),
    ],
)
def test_the_key_dims(dims: Any, wanted: dict[str, int | None]) -> None:
    cfg = compose("train", ["model=dnn"])
    cfg.dims = dims  # on the command line, Hydra's keys have no wildcards
    assert {f.table: f.dim for f in with_dims(RunConfig.of(cfg), spec()).sparse} == wanted


def test_auto_grows_with_the_fourth_root_of_the_rows() -> None:
    sparse = tuple(SparseFeature(f"n{n}", n, f"n{n}") for n in (3, 100, 10_000, 1_000_000, 10**9))
    cfg = compose("train", ["model=dnn", "model.dim=128", "dims=auto"])
    assert [f.dim for f in with_dims(RunConfig.of(cfg), FeatureSpec((), sparse)).sparse] == [8, 20, 60, 128, 128]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dims={cat_99: 4}"], r"dims.cat_99: matches no table; did you mean cat_9\?"),
        (["dims={cat_1: 6}"], r"dims.cat_1=6: must be auto or a multiple of 4"),
        (["dims=small"], r"^dims=small: must be auto or a multiple of 4"),
        (["dims=auto", "model=lr"], r"dims: this model has no tables of model.dim columns; leave dims= out"),
        (["dims=auto", "model=gbm"], r"dims=auto: sets the tables of ranking models only; leave dims= out"),
    ],
)
def test_mistakes_are_one_line(overrides: list[str], message: str) -> None:
    cfg = compose("train", ["data=criteo", *overrides])
    data = resolve(data_config(cfg))
    features = FeatureSpec((), tuple(SparseFeature(n, 9, n) for n in data.sparse_columns))
    with pytest.raises(UserError, match=message):
        _ = check_config(cfg), with_dims(RunConfig.of(cfg), features)
