"""The Triton kernels of the dot interaction: interpreted on the CPU, compiled for an H100, and where they are chosen."""

from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import kernel_cases
import pytest
import torch
from built_kernels import assert_fits, build
from forks import fork
from stand_in_gpu import OnGpu, stand_in_gpu

from recsys.models import dlrm
from recsys.models.common import dot_kernel, kernels
from recsys.models.dlrm import DotInteraction

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="this PyTorch comes without Triton")


def test_kernels_equal_the_models_code() -> None:
    assert fork(kernel_cases.interpret, "dots_of_any_size").wait(100) == 0


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("vectors", "dim"), [(27, 128), (9, 16), (64, 64), (5, 200), (128, 128)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "tf32"])
@pytest.mark.parametrize("cast", [False, True])
def test_no_kernel_spills(
    vectors: int, dim: int, dtype: str, cast: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """cast: the embeddings are float32"""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(dot_kernel, "dot_precision", lambda: "tf32" if dtype == "tf32" else "ieee")
    of = getattr(torch, dtype.replace("tf32", "float32"))
    if vectors > dot_kernel.MAX_VECTORS[of]:
        pytest.skip("PyTorch's operators multiply so many")
    dot_kernel.register()
    values = dot_kernel.constants(vectors, dim, True, of)
    warps = values.pop("num_warps")
    of_embeddings = torch.float32 if cast else of
    inputs = {"embeddings": of_embeddings, "bottom": of, "embeddings_stride": int, "bottom_stride": int}
    assert_fits(build(dot_kernel.dots_forward, {**inputs, "out": of}, values, warps))
    given = {"gradient": of, "embeddings_gradient": of_embeddings, "bottom_gradient": of}
    assert_fits(build(dot_kernel.dots_backward, inputs | given, values, warps))


def test_a_cpu_and_a_stand_in_run_the_models_code() -> None:
    vectors = torch.randn(3, 4, 8)
    with mock.patch.object(dlrm, "dot_interaction") as kernel:
        expected = DotInteraction(4)(vectors)
        with stand_in_gpu():
            dot = DotInteraction(4)
            dot.pairs = OnGpu(dot.pairs)
            assert torch.equal(dot(OnGpu(vectors)).host, expected)
        with mock.patch.object(kernels, "has_triton", return_value=True):
            DotInteraction(4)(vectors)
        kernel.assert_not_called()


def test_a_first_vector_is_kept_before_the_dots() -> None:
    vectors = torch.randn(3, 4, 8)
    dot = DotInteraction(4)
    assert torch.equal(dot(vectors[:, 1:], vectors[:, 0]), torch.cat([vectors[:, 0], dot(vectors)], dim=1))


def test_only_sizes_and_types_of_the_kernels() -> None:
    assert dot_kernel.has_dot_kernel(128, torch.float32, torch.bfloat16)
    assert not dot_kernel.has_dot_kernel(65, torch.float32, torch.float32)
    assert not dot_kernel.has_dot_kernel(3, torch.float64, torch.float32)


def test_a_compiler_sees_the_kernels() -> None:
    """The graph has no break, and the kernels write nothing but their results."""
    assert fork(kernel_cases.trace_dots).wait(100) == 0
