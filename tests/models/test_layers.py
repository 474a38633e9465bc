"""Test layers that several models share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_inputs import draw, spec, to_kjt
from torch import nn

from recsys.interface.features import FeatureSpec
from recsys.models.common.attention import Attention, RelativeAttention
from recsys.models.common.crosses import CrossNet, LowRankCrossNet, LowRankMixtureCrossNet, WideLinear
from recsys.models.common.layers import Dropout, PReLU
from recsys.models.common.recurrent import gru_states
from recsys.models.dcn import VectorCross
from recsys.models.dcnv2 import DCNv2
from recsys.models.dcnv3 import MaskedCross
from recsys.models.dlrm import DLRM
from recsys.models.gdcn import GDCN, GatedCross


@pytest.mark.parametrize("shape", [(100_003,), (4, 50_001)])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.999, 1.0])
def test_dropout(shape: tuple[int, ...], share: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(shape, requires_grad=True)
    dropout = Dropout(share)
    y = dropout(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.detach())  # the same values are dropped from the gradient
    kept = y[y != 0]
    assert len(kept) / x.numel() == pytest.approx(1 - share, abs=4 * (share * (1 - share) / x.numel()) ** 0.5)
    if share < 1:
        torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - share)), rtol=0.01, atol=0)
    torch.testing.assert_close(dropout.eval()(x), x)
    torch.manual_seed(0)
    torch.testing.assert_close(dropout.train()(x), y)


@pytest.mark.parametrize("make", [Attention, RelativeAttention])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_under_autocast(make: Any, causal: bool) -> None:
    """The gradients are nearly the ones of float32."""
    torch.manual_seed(0)
    module, lengths = make(8, 2, causal=causal), torch.tensor([3, 0, 5])
    x, weights = torch.randn(8, 8), list(module.parameters())
    gradients = []
    for half in (False, True):
        with torch.autocast("cpu", enabled=half):
            y = module(x, x, lengths)
        assert y.dtype == (torch.bfloat16 if half else torch.float32)
        gradients.append(torch.autograd.grad(y.float().square().sum(), weights))
    torch.testing.assert_close(*gradients, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("half", [False, True])
def test_gru_states(half: bool) -> None:
    """Each list has the states, and the gradients, that nn.GRU gives it alone; under autocast nearly so."""
    torch.manual_seed(0)
    gru, lengths = torch.nn.GRU(4, 6, num_layers=2), torch.tensor([3, 0, 5, 1])
    x, weights = torch.randn(9, 4), list(gru.parameters())
    with torch.autocast("cpu", enabled=half):
        states = gru_states(gru, x, lengths)
    expected = torch.cat([gru(one)[0] for one in x.split(lengths.tolist()) if len(one)])
    gradients = [torch.autograd.grad(y.float().square().sum(), weights) for y in (states, expected)]
    tolerance = 0.05 if half else 1e-5
    torch.testing.assert_close(states, expected, check_dtype=False, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_by_groups_of_similar_lengths(causal: bool) -> None:
    """Among many lists, each has the states, and the gradients, that it has alone."""
    torch.manual_seed(0)
    lengths = torch.tensor([3, 0, 5, 1, 7, 2, 2, 9, 0, 4, 1, 6])
    module, x = Attention(8, 2, causal=causal), torch.randn(int(lengths.sum()), 8)
    weights = list(module.parameters())
    alone = [module(one, one, torch.tensor([len(one)])) for one in x.split(lengths.tolist())]
    together, expected = module(x, x, lengths), torch.cat(alone)
    torch.testing.assert_close(together, expected)
    gradients = [torch.autograd.grad(y.square().sum(), weights) for y in (together, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slope", [0.25, -0.5, 0.0])
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_prelu_equals_pytorchs(slope: float, rows: int) -> None:
    results = []
    for layer in (PReLU(init=slope), nn.PReLU(init=slope)):
        x = torch.randn(rows, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
        y = layer(x.t().mul(2))  # a gradient and an input that are not contiguous
        y.t().square().sum().backward()
        results.append((y.detach(), x.grad, layer.weight.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_prelu_in_half_precision_is_pytorchs() -> None:
    layer, x = PReLU(), torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x.bfloat16()), nn.functional.prelu(x.bfloat16(), layer.weight.bfloat16()))
    with torch.no_grad():
        assert torch.equal(layer(x), nn.functional.prelu(x, layer.weight))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "crosses",
    [
        *(CrossNet(8, 3), LowRankCrossNet(8, 3, 4), LowRankMixtureCrossNet(8, 3, 2, 4), VectorCross(8, 3)),
        *(GatedCross(8, 3), MaskedCross(8, 3, 0.0, exponential=True)),
    ],
    ids=lambda crosses: type(crosses).__name__,
)
def test_crosses_exceed_float16(crosses: nn.Module, half: torch.dtype) -> None:
    """They then compute in float32, and so does the layer that reads them; bfloat16 has the range of float32."""
    torch.manual_seed(0)
    crosses = nn.Sequential(crosses, WideLinear(8, 2))
    x = torch.randn(4, 8) * 1e4
    expected = crosses(x)
    assert expected.abs().max() > torch.finfo(torch.float16).max
    with torch.autocast("cpu", half):
        found = crosses(x)
    assert found.dtype == (torch.float32 if half == torch.float16 else torch.bfloat16)
    assert torch.isfinite(found).all()
    if half == torch.float16:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda f: DCNv2(f, dim=4, cross_layers=3),
        lambda f: DCNv2(f, dim=4, cross_layers=3, rank=4, structure="parallel"),
        lambda f: GDCN(f, dim=4, cross_layers=3, structure="stacked"),
        lambda f: DLRM(f, dim=4, bottom_mlp=(8, 4), top_mlp=(16, 16), interaction="cross", cross_rank=4),
    ],
    ids=["dcnv2", "dcnv2 parallel", "gdcn", "dlrm"],
)
def test_models_with_crosses_exceed_float16(make: Callable[[FeatureSpec], nn.Module]) -> None:
    """All layers behind the crosses compute in float32: in MLPerf's model each passes 65,504 within 20 steps."""
    torch.manual_seed(0)
    model: Any = make(spec())
    dense, bags = draw(spec(), rows=6)
    sparse = to_kjt(bags)
    largest = 0.0

    def see(module: nn.Module, _: Any, output: torch.Tensor) -> None:
        nonlocal largest
        largest = max(largest, float(output.detach().abs().max()))

    for parameter in model.embeddings.parameters():
        parameter.data.uniform_(-100, 100)
    for parameter in model.cross.parameters():
        parameter.data.mul_(3)
    deep = model.top if isinstance(model, DLRM) else model.deep
    for layer in deep:
        layer.register_forward_hook(see)
    expected = model(dense, sparse)
    if getattr(model, "structure", "") != "parallel":
        assert largest > torch.finfo(torch.float16).max
    with torch.autocast("cpu", torch.float16):
        found = model(dense, sparse)
        loss = nn.functional.binary_cross_entropy_with_logits(found, torch.zeros_like(found))
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))
    (loss * 2.0**-20).backward()  # a scale that halvings come to
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
