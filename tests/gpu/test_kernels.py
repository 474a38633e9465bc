"""The Triton kernels on a GPU, against the models' own code in float64."""

import pytest
import torch
from kernel_cases import assert_near, backward, compare_attention, compare_dots
from torch import Tensor

from recsys.models.common.kernels import has_triton
from recsys.models.dlrm import DotInteraction
from recsys.models.hstu import HSTUBlock

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_triton(), reason="no CUDA device that Triton compiles for")]


@pytest.fixture(autouse=True)
def products_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other tests in this process leave PyTorch with TensorFloat-32, as which the kernels multiply then."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("rows", "vectors", "dim"), [(1000, 27, 128), (3, 2, 1), (70, 33, 50), (5, 64, 200), (0, 3, 4)]
)
def test_dots(rows: int, vectors: int, dim: int, apart: bool, cast: bool, dtype: torch.dtype) -> None:
    compare_dots(rows, vectors, dim, apart, dtype, torch.float32 if cast else dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("width", [3, 32, 50, 64, 128])
def test_attention(width: int, timed: bool, biased: bool, dtype: torch.dtype) -> None:
    lengths = [0, 1, 300, 31, 32, 33, 64, 0, 7]
    compare_attention(lengths, 2, width, 100, timed, biased, dtype, "cuda")
    compare_attention(lengths, 3, width, 400, timed, biased, dtype, "cuda", ascending=False)
    compare_attention([0, 0], 3, width, 400, timed, biased, dtype, "cuda")


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_dots_in_cuda_graphs(autocast: torch.dtype | None) -> None:
    """Compiled without a break and recorded; each replay reads new inputs."""
    dot = DotInteraction(27).cuda()
    dtype = autocast or torch.float32

    def interact(embeddings: Tensor, bottom: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype, enabled=autocast is not None):
            return dot(embeddings, bottom * 1.0) * 1.0

    compiled = torch.compile(interact, mode="reduce-overhead", fullgraph=True)
    for step in range(5):
        torch.manual_seed(step)
        inputs = [torch.randn(257, 26, 128), torch.randn(257, 128)]
        singles = [x.cuda().requires_grad_() for x in inputs]
        doubles = [x.cuda().to(dtype).double().requires_grad_() for x in inputs]
        torch.compiler.cudagraph_mark_step_begin()
        found = compiled(*singles)
        expected = dot(*doubles)
        assert found.dtype == dtype
        assert_near(found, expected, dtype)
        for x, y in zip(backward(found, singles), backward(expected, doubles), strict=True):
            assert_near(x, y, dtype)


def test_a_block_equals_its_own_code_on_the_cpu() -> None:
    block, lengths = HSTUBlock(32, 2, 0.0, 50, timed=True), torch.tensor([3, 70, 0, 40])
    x, times = torch.randn(113, 32), torch.randint(0, 10**9, (113,)).sort()[0]
    expected = block(x, lengths, times=times)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    block.cuda().zero_grad()
    found = block(x.cuda(), lengths.cuda(), times=times.cuda())
    found.square().sum().backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    for p, expected in zip(block.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad.cpu(), expected, rtol=1e-3, atol=1e-3)  # type: ignore[union-attr]
