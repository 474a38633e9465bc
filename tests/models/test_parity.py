"""Each model against a NumPy re-implementation that reads only its raw weights."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import reference_models as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_inputs import BAGGED, SINGLE, draw, randomise, spec, to_kjt
from omegaconf import OmegaConf
from reference_models import Array
from small_models import SMALL
from torch import Tensor, nn
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recsys.config.compose import compose
from recsys.interface.features import DenseFeature, FeatureSpec, SparseFeature
from recsys.models.autoint import AutoInt
from recsys.models.common.layers import MLP
from recsys.models.dcn import DCN
from recsys.models.dcnv2 import DCNv2
from recsys.models.dcnv3 import DCNv3
from recsys.models.deepfm import DeepFM, second_order
from recsys.models.dlrm import DLRM
from recsys.models.dnn import DNN
from recsys.models.eulernet import EulerNet
from recsys.models.fibinet import FiBiNET
from recsys.models.finalmlp import FinalMLP
from recsys.models.fm import FM
from recsys.models.fwfm import FwFM
from recsys.models.gdcn import GDCN
from recsys.models.lr import LogisticRegression
from recsys.models.masknet import MaskNet
from recsys.models.pepnet import PEPNet
from recsys.models.rankmixer import RankMixer
from recsys.models.wide_deep import WideDeep
from recsys.models.wukong import Wukong
from recsys.models.xdeepfm import XDeepFM

REFERENCES: dict[type[nn.Module], Callable[..., Array]] = {
    DLRM: reference.dlrm,
    DCN: reference.dcn,
    DCNv2: reference.dcnv2,
    WideDeep: reference.wide_deep,
    DeepFM: reference.deepfm,
    LogisticRegression: reference.lr,
    FM: reference.fm,
    FwFM: reference.fwfm,
    DNN: reference.dnn,
    XDeepFM: reference.xdeepfm,
    AutoInt: reference.autoint,
    FiBiNET: reference.fibinet,
    MaskNet: reference.masknet,
    GDCN: reference.gdcn,
    FinalMLP: reference.finalmlp,
    EulerNet: reference.eulernet,
    DCNv3: reference.dcnv3,
    Wukong: reference.wukong,
    RankMixer: reference.rankmixer,
    PEPNet: reference.pepnet,
}
MODELS: list[Any] = list(REFERENCES)
NORM = {"batch_norm": True, "dropout": 0.3}
FIELD_MODELS = (LogisticRegression, FM, FwFM)  # without a deep network
UNNORMED = (EulerNet, DCNv3, RankMixer)  # without batch norm
OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *((model, {}) for model in MODELS),
    *((model, NORM) for model in MODELS if model not in (*FIELD_MODELS, *UNNORMED)),
    *((model, {"dropout": 0.3}) for model in UNNORMED),
    (AutoInt, {"deep_mlp": [], "heads": 3}),
    (DCNv2, {"structure": "parallel", "rank": 3, "experts": 2}),
    (FiBiNET, {"bilinear": "each"}),
    (FiBiNET, {"bilinear": "interaction", "reduction": 1}),
    (FinalMLP, {"first_context": ["user"], "second_context": ["item", "user"], "heads": 1}),
    (GDCN, {"structure": "stacked"}),
    (MaskNet, {"structure": "serial"}),
    (PEPNet, {"scenario": [], "personal": ["tags", "user"]}),
    (PEPNet, {"scenario": ["shared", "history"], "personal": []}),
    (PEPNet, {"personal": [], "tower_mlp": []}),
    (Wukong, {"layers": 3}),
    (XDeepFM, {"cin_layers": [4]}),
    (DLRM, {"interaction": "cat"}),
    (DLRM, {"keep_embeddings": True}),
    (DLRM, {"interaction": "cross", "cross_layers": 2, "cross_rank": 3}),
    (DLRM, {"top_mlp": []}),
    (DCN, {"cross_layers": 1}),
    (DCN, {"deep_mlp": []}),
    (DCNv2, {"structure": "parallel"}),
    (DCNv2, {"rank": 2}),
    (DCNv2, {"rank": 3, "structure": "parallel", "cross_layers": 2}),
]
each_option = pytest.mark.parametrize(
    ("model", "options"), OPTIONS, ids=[f"{m.__name__}-{'-'.join(map(str, o.items()))}" for m, o in OPTIONS]
)
each_model = pytest.mark.parametrize("model", MODELS)


def build(model: Any, features: FeatureSpec, **options: Any) -> nn.Module:
    return randomise(model(features, **{**SMALL[model], **options}))


def assert_parity(model: Any, features: FeatureSpec, rows: int, **options: Any) -> None:
    module = build(model, features, **options)
    dense, bags = draw(features, rows)
    with torch.no_grad():
        logits = module(dense, to_kjt(bags))
    weights = {name: value.double().numpy() for name, value in module.state_dict().items()}
    expected = REFERENCES[model](weights, features, dense.double().numpy(), bags, **options)
    assert logits.shape == (rows, features.logits)
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-5, atol=1e-5)


@each_option
@pytest.mark.parametrize("dense", [0, 3])
@pytest.mark.parametrize("labels", [1, 2])
def test_logits(model: Any, options: dict[str, Any], dense: int, labels: int) -> None:
    assert_parity(model, spec(dense=dense, labels=labels), rows=6, **options)


@settings(max_examples=25, deadline=None)
@given(
    case=st.sampled_from(OPTIONS),
    rows=st.integers(1, 5),
    dense=st.integers(0, 3),
    single=st.integers(1, 3),
    bagged=st.integers(0, 2),
    dim=st.sampled_from([4, 8, 12]),
)
def test_logits_of_any_shape(
    case: tuple[Any, dict[str, Any]], rows: int, dense: int, single: int, bagged: int, dim: int
) -> None:
    model, options = case
    options = {**options, "dim": dim} if model is not LogisticRegression else options
    if model is DLRM:
        options["bottom_mlp"] = [5, dim]
        if dense + single + bagged == 1:
            options["interaction"] = "cat"  # a single vector has no pairs to dot
            options["keep_embeddings"] = False
    if model is FiBiNET:
        single = max(single, 2)  # it multiplies pairs
    if model is FinalMLP:
        single = 3  # its contexts name features
    if model is PEPNet:
        single, bagged = 3, 2  # its gates name features
    assert_parity(model, spec(dense, SINGLE[:single] + BAGGED[:bagged]), rows, **options)


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 6), fields=st.integers(1, 6), dim=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_second_order_is_the_sum_over_pairs(rows: int, fields: int, dim: int, seed: int) -> None:
    v = torch.randn(rows, fields, dim, generator=torch.manual_seed(seed), dtype=torch.float64)
    pairs = [(v[:, i] * v[:, j]).sum(1) for i, j in combinations(range(fields), 2)]
    expected = torch.stack(pairs).sum(0) if pairs else torch.zeros(rows, dtype=torch.float64)
    torch.testing.assert_close(second_order(v), expected[:, None])


@each_model
def test_order_of_keys_does_not_matter(model: Any) -> None:
    features = spec()
    module = build(model, features)
    dense, bags = draw(features, rows=5)
    shuffled = to_kjt(bags, keys=["history", "shared", "tags", "user", "item"])
    torch.testing.assert_close(module(dense, to_kjt(bags)), module(dense, shuffled))


@each_option
@pytest.mark.parametrize("dense", [0, 3])
def test_gradient_reaches_every_parameter(model: Any, options: dict[str, Any], dense: int) -> None:
    features = spec(dense=dense)
    module = build(model, features, **options).train()
    values, bags = draw(features, rows=64)
    (module(values, to_kjt(bags)) * torch.randn(64, 1)).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.count_nonzero() > 0, name


@pytest.mark.parametrize("model", [m if m is XDeepFM else pytest.param(m, marks=pytest.mark.slow) for m in MODELS])
def test_overfits_one_batch(model: Any) -> None:
    """Random labels of rows that differ can only be learnt by heart."""
    torch.manual_seed(0)
    own = SparseFeature("user", 40, "ids")
    features = spec(sparse=(own, *SINGLE[1:2], *BAGGED))
    module = model(features, **SMALL[model])
    dense, bags = draw(features, rows=40)
    bags["user"] = [[i] for i in range(40)]
    labels, kjt = torch.randint(0, 2, (40, 1)).float(), to_kjt(bags)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(module(dense, kjt), labels)
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.05


@pytest.mark.parametrize("model", [WideDeep, DeepFM])
@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, torch.optim.Adam])
def test_first_order_trains_as_one_column(model: Any, optimizer: Any) -> None:
    """The 4 columns of a wide table stay equal, and equal to a scalar that gets the whole gradient."""
    torch.manual_seed(0)
    features = spec()
    module = model(features, **SMALL[model])
    columns = [bag.weight for bag in module.wide.bags.embedding_bags.values()]
    scalars = [nn.Parameter(torch.zeros(len(c))) for c in columns]
    # eps breaks scale invariance: keep it far below the gradients
    steppers = [optimizer(columns, lr=0.1, eps=1e-20), optimizer(scalars, lr=0.1, eps=1e-20)]
    for step in range(5):
        dense, bags = draw(features, rows=16, seed=step)
        module.zero_grad()
        target = torch.arange(16.0).remainder(2)[:, None]
        nn.functional.binary_cross_entropy_with_logits(module(dense, to_kjt(bags)), target).backward()
        for scalar, column in zip(scalars, columns, strict=True):
            assert column.grad is not None
            scalar.grad = column.grad.sum(dim=1)
        for stepper in steppers:
            stepper.step()
    for scalar, column in zip(scalars, columns, strict=True):
        assert column.count_nonzero() > 0
        assert (column == column[:, :1]).all()
        torch.testing.assert_close(column.mean(dim=1), scalar, rtol=1e-4, atol=1e-6)


@each_model
def test_tables_on_meta_are_not_allocated(model: Any) -> None:
    huge = SparseFeature("user", 10**12, "ids")
    module = model(spec(sparse=(huge, *SINGLE[1:2])), **SMALL[model], device=torch.device("meta"))
    for name, parameter in module.named_parameters():
        is_table = name.startswith(("embeddings.", "wide."))
        assert parameter.device.type == ("meta" if is_table else "cpu"), name


@each_model
def test_no_sparse_features(model: Any) -> None:
    with pytest.raises(ValueError, match=f"{model.__name__} needs at least one sparse feature"):
        model(spec(sparse=()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DLRM(spec(), dim=16, bottom_mlp=[64, 32]), "bottom_mlp ends at width 32.* of dim=16"),
        (lambda: DLRM(spec(), interaction="cat", keep_embeddings=True), "keep_embeddings=true: only with"),
        (lambda: DLRM(spec(dense=0, sparse=SINGLE[:1])), "interaction=dot needs a pair of vectors"),
        (lambda: DCN(spec(), dim=0), "dim=0: must be at least 1"),
        (lambda: DCNv2(spec(), experts=4), "experts=4: experts are low-rank crosses; set rank"),
        (lambda: XDeepFM(spec(), cin_layers=[]), "needs at least one layer; model=wide_deep has none"),
        (lambda: FiBiNET(spec(sparse=SINGLE[:1])), "FiBiNET needs two sparse features or more"),
        (lambda: MaskNet(spec(), blocks=[]), "needs at least one block; model=dnn has none"),
        (lambda: FinalMLP(spec(), first_context=["usr"]), "first_context: usr is not a sparse feature; there are user"),
        (lambda: FinalMLP(spec(), heads=3), "heads=3: does not divide the last widths of both MLPs, 64 and 64"),
        (
            lambda: PEPNet(spec()),
            "^PEPNet needs the features of its gates: set model.scenario, .*; there are user, item,",
        ),
        (lambda: PEPNet(spec(), scenario=["itme"]), "^scenario: no sparse feature is named itme; did you mean item"),
        (lambda: PEPNet(spec(), personal=["author"]), "^personal: no sparse feature is named author; valid: history, "),
        (lambda: PEPNet(spec(), personal=["user", "user"]), r"^personal=\[user,user\]: names a feature twice"),
        (lambda: PEPNet(spec(), personal=["user"], tower_mlp=[]), r"^tower_mlp=\[\]: needs at least one width"),
        (lambda: EulerNet(spec(), layers=[]), "needs at least one layer"),
        (lambda: RankMixer(spec(), tokens=5), "tokens=5: does not divide width=64"),
        (lambda: MLP(3, [2], activation="rulu"), "activation='rulu': must be one of relu, gelu"),
    ],
)
def test_errors(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_gates_of_pepnet_train_no_inputs_but_those_that_they_name() -> None:
    features = spec()
    module = build(PEPNet, features, personal=["user"])
    dense, bags = draw(features, rows=64)
    found: list[Tensor] = []
    for gate in (module.epnet, *module.ppnet):
        gate.register_forward_hook(lambda _, __, out: found.append(out))
    module(dense, to_kjt(bags))
    tables = {name: bag.weight for name, bag in module.embeddings.bags.embedding_bags.items()}
    for factors, own in zip(found, ("t_goods", "t_ids", "t_ids"), strict=True):
        assert factors.min() > 0 and factors.max() < 2 and factors.std() > 0.01
        gradients = torch.autograd.grad(factors.sum(), list(tables.values()), retain_graph=True, allow_unused=True)
        assert [name for name, g in zip(tables, gradients, strict=True) if g is not None and g.count_nonzero()] == [own]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh", "sigmoid"])
def test_mlp_activation(activation: str) -> None:
    layer = MLP(4, [3], activation=activation)
    x = torch.randn(5, 4)
    expected = getattr(torch.nn.functional, activation)(layer[0](x))
    torch.testing.assert_close(layer(x), expected)
    assert layer.out_features == 3
    assert MLP(4, []).out_features == 4


def test_mlperfs_dlrm_dcnv2_is_that_of_torchrec() -> None:
    """experiment=mlperf_dcnv2 on smaller tables: the same weights by shape and, copied, the same logits."""
    cfg = compose("train", ["experiment=mlperf_dcnv2"])
    names = [f"cat_{i}" for i in range(1, 27)]
    features = FeatureSpec(
        dense=tuple(DenseFeature(f"int_{i}") for i in range(1, 14)),
        sparse=tuple(SparseFeature(n, 10 + i, n) for i, n in enumerate(names)),
    )
    options = {k: v for k, v in OmegaConf.to_container(cfg.model, resolve=True).items() if k != "_target_"}  # type: ignore[union-attr]
    mine = randomise(DLRM(features, **options))
    tables = [
        EmbeddingBagConfig(name=n, embedding_dim=128, num_embeddings=10 + i, feature_names=[n])
        for i, n in enumerate(names)
    ]
    theirs = DLRM_DCN(EmbeddingBagCollection(tables=tables), 13, [512, 256, 128], [1024, 1024, 512, 256, 1], 3, 512)
    own, other = list(mine.state_dict().values()), list(theirs.state_dict().values())
    assert sorted(tuple(x.shape) for x in own) == sorted(tuple(x.shape) for x in other)
    rename = {
        "embeddings.bags.": "sparse_arch.embedding_bag_collection.",
        "t_cat": "cat",
        "cross.": "inter_arch.crossnet.",
    }
    copied = {}
    for name, value in mine.state_dict().items():
        for old, new in rename.items():
            name = name.replace(old, new)
        for part, arch, stride in (("bottom", "dense_arch.model._mlp", 2), ("top", "over_arch.model.0._mlp", 2)):
            if name.startswith(part):
                at, kind = name.split(".")[1:]
                name = f"{arch}.{int(at) // stride}._linear.{kind}"
        copied[name.replace("logits.", "over_arch.model.1.")] = value
    theirs.load_state_dict(copied)
    dense, bags = draw(features, rows=5)
    with torch.no_grad():
        torch.testing.assert_close(mine(dense, to_kjt(bags)), theirs(dense, to_kjt(bags)), rtol=1e-5, atol=1e-5)
    assert (cfg.trainer.batch_size, cfg.optim.sparse.lr, cfg.optim.dense.lr) == (65536, 0.005, 0.005)


def test_logistic_regression_of_some_features() -> None:
    """With the item alone, the logit is the item's weight and the bias."""
    features = spec()
    model = randomise(LogisticRegression(features, only=["item"]))
    dense, bags = draw(features, rows=6)
    with torch.no_grad():
        logits = model(dense, to_kjt(bags))
    weights = dict(model.named_parameters())
    assert set(weights) == {"wide.bags.embedding_bags.wide_goods.weight", "bias"}
    items = torch.cat([torch.as_tensor(x) for x in bags["item"]])
    wanted = weights["wide.bags.embedding_bags.wide_goods.weight"][items].mean(1, keepdim=True) + weights["bias"]
    torch.testing.assert_close(logits, wanted.detach())
    with pytest.raises(ValueError, match="only: no sparse feature is named itme; did you mean item"):
        LogisticRegression(features, only=["itme"])
