"""Models of several tasks: parity with NumPy, gradients, learning by heart, and labels that do not fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference_models as reference
import torch
from model_inputs import BAGGED, SINGLE, draw, randomise, spec, to_kjt
from small_models import TASKS
from torch import nn

from recsys.interface.features import FeatureSpec, SparseFeature
from recsys.interface.labels import BinaryLabel, ClassLabel, Label, NumberLabel
from recsys.models.esmm import ESMM, logit_of_product
from recsys.models.mmoe import MMoE
from recsys.models.ple import PLE
from recsys.models.shared_bottom import SharedBottom
from recsys.models.stem import STEM

REFERENCES: dict[Any, Any] = {
    SharedBottom: reference.shared_bottom,
    MMoE: reference.mmoe,
    PLE: reference.ple,
    ESMM: reference.esmm,
    STEM: reference.stem,
}
OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *((model, {}) for model in REFERENCES),
    *((model, {"batch_norm": True, "dropout": 0.3}) for model in REFERENCES),
    (MMoE, {"experts": 1, "tower_mlp": []}),
    (PLE, {"layers": 1}),
    (STEM, {"task_experts": 1, "shared_experts": 2, "gate_mlp": []}),
    (PLE, {"layers": 3, "task_experts": 1, "shared_experts": 2}),
]
each_option = pytest.mark.parametrize(
    ("model", "options"), OPTIONS, ids=[f"{m.__name__}-{'-'.join(map(str, o.items()))}" for m, o in OPTIONS]
)


def labels_of(model: Any) -> tuple[Label, ...]:
    three = (BinaryLabel("click"), NumberLabel("stars"), ClassLabel("kind", ("a", "b", "c")))
    return (BinaryLabel("click"), BinaryLabel("bought")) if model is ESMM else three


@each_option
@pytest.mark.parametrize("dense", [0, 3])
def test_logits(model: Any, options: dict[str, Any], dense: int) -> None:
    features = replace(spec(dense=dense), labels=labels_of(model))
    module = randomise(model(features, **{**TASKS[model], **options}))
    values, bags = draw(features, rows=6)
    with torch.no_grad():
        logits = module(values, to_kjt(bags))
    weights = {name: value.double().numpy() for name, value in module.state_dict().items()}
    expected = REFERENCES[model](weights, features, values.double().numpy(), bags, **options)
    assert logits.shape == (6, features.logits)
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-5, atol=1e-5)


@each_option
def test_gradient_reaches_every_parameter(model: Any, options: dict[str, Any]) -> None:
    features = replace(spec(), labels=labels_of(model))
    module = randomise(model(features, **{**TASKS[model], **options})).train()
    values, bags = draw(features, rows=64)
    (module(values, to_kjt(bags)) * torch.randn(64, features.logits)).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.count_nonzero() > 0 or (options.get("experts") == 1 and "gates" in name), name


@pytest.mark.parametrize("model", [m if m is ESMM else pytest.param(m, marks=pytest.mark.slow) for m in REFERENCES])
def test_overfits_one_batch(model: Any) -> None:
    torch.manual_seed(0)
    own = SparseFeature("user", 40, "ids")
    features: FeatureSpec = spec(sparse=(own, *SINGLE[1:2], *BAGGED), labels=2)
    module = model(features, **TASKS[model])
    dense, bags = draw(features, rows=40)
    bags["user"] = [[i] for i in range(40)]
    labels = torch.randint(0, 2, (40, 2)).float()
    labels[:, 1] *= labels[:, 0]  # a conversion needs a click
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(module(dense, to_kjt(bags)), labels)
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.05


def test_a_label_of_stem_reads_all_embeddings_and_trains_its_own_and_the_shared_ones() -> None:
    features = replace(spec(), labels=labels_of(STEM))
    module = randomise(STEM(features, **TASKS[STEM]))
    values, bags = draw(features, rows=64)
    tables = [module.embeddings, *module.task_embeddings]
    parts = [
        next(iter(table.bags.embedding_bags.values())).weight for table in tables
    ]  # the shared one, then one a label
    before = module(values, to_kjt(bags))
    for task, logits in enumerate(before.split([label.width for label in features.labels], dim=1)):
        found = torch.autograd.grad(logits.sum(), parts, retain_graph=True, allow_unused=True)
        trained = [gradient is not None and bool(gradient.count_nonzero()) for gradient in found]
        assert trained == [True, *(other == task for other in range(3))]
    with torch.no_grad():
        for part in parts:
            part += 1
            assert (module(values, to_kjt(bags)) != before).all(dim=1).any()
            part -= 1


def test_the_logit_of_a_product_is_finite_everywhere() -> None:
    x = torch.tensor([-100.0, -20.0, 0.0, 3.0, 20.0, 100.0])
    first, second = torch.cartesian_prod(x, x).T.clone().requires_grad_()
    out = logit_of_product(first, second)
    out.sum().backward()
    p = torch.sigmoid(first.double()) * torch.sigmoid(second.double())
    torch.testing.assert_close(torch.sigmoid(out.double()), p, rtol=1e-5, atol=2e-7)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("model", [SharedBottom, MMoE, PLE, STEM])
def test_one_label_is_too_few(model: Any) -> None:
    with pytest.raises(ValueError, match=f"^{model.__name__} learns several labels and the data has one; add one to "):
        model(spec())


@pytest.mark.parametrize("labels", [spec().labels, labels_of(PLE)])
def test_esmm_needs_a_click_and_a_conversion(labels: tuple[Label, ...]) -> None:
    with pytest.raises(ValueError, match=r"^ESMM needs two binary labels, the click and the conversion; the data has "):
        ESMM(replace(spec(), labels=labels))
