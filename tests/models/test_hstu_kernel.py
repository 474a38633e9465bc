"""The Triton kernels of HSTU's attention: interpreted on the CPU, compiled for an H100, and where they are chosen."""

from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import kernel_cases
import pytest
import torch
from built_kernels import assert_fits, build
from forks import fork
from stand_in_gpu import OnGpu, stand_in_gpu, to_gpu

from recsys.models import hstu
from recsys.models.common import hstu_kernel
from recsys.models.common.attention import span_starts, time_buckets
from recsys.models.common.lists import padded_to

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="this PyTorch comes without Triton")


@pytest.mark.few(1)
@pytest.mark.parametrize("cases", ["attention_of_any_lists", "attention_of_half_precision"])
def test_kernels_equal_the_models_code(cases: str) -> None:
    assert fork(kernel_cases.interpret, cases).wait(200) == 0


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("width", [64, 32, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16", "tf32"])
def test_no_kernel_spills(
    width: int, dtype: str, timed: bool, biased: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(hstu_kernel, "dot_precision", lambda: "tf32" if dtype == "tf32" else "ieee")
    of = getattr(torch, dtype.replace("tf32", "float32"))
    hstu_kernel.register()
    heads, absent = 2, torch.empty(0)
    bias, spans = (
        torch.empty(1, heads) if biased else absent,
        torch.empty(heads, hstu.TIME_BUCKETS) if timed else absent,
    )
    values = hstu_kernel.constants(torch.empty(1, 3 * heads * width, dtype=of), torch.empty(heads, 200), bias, spans)
    assert (values["timed"], values["biased"]) == (timed, biased)
    single, whole = torch.float32, torch.int64
    inputs = {"vqk": of, "ends": whole, "distances": single, "value_bias": single, "times": whole, "spans": single}
    inputs |= {"span_starts": single, "stride": int, "bias_stride": int}
    given = inputs | {"gradient": of, "of_vqk": of}
    warps, more = hstu_kernel.warps(values["block"]), hstu_kernel.warps(values["block"], of_queries=True)
    assert_fits(build(hstu_kernel.attend_forward, inputs | {"out": of}, values, warps))
    biases = {"of_distances": single, "of_spans": single}
    assert_fits(build(hstu_kernel.attend_backward_queries, given | biases, values, more))
    assert_fits(build(hstu_kernel.attend_backward_keys, given | {"of_value_bias": single}, values, warps))


def test_starts_of_time_buckets() -> None:
    starts = span_starts(hstu.TIME_BUCKETS)
    near = torch.cat([starts[1:-1].double().mul(1 + x).long() for x in (-1e-3, -2e-7, 0, 2e-7, 1e-3)])
    times = torch.cat([torch.arange(5000), near, torch.randint(0, 2**62, (1000,))])
    found = torch.searchsorted(starts, times.float(), right=True) - 1
    buckets = time_buckets(torch.stack([times, torch.zeros_like(times)], dim=1), hstu.TIME_BUCKETS)[:, 0, 1]
    assert torch.equal(found, buckets)


def test_a_cpu_and_a_stand_in_run_the_models_code() -> None:
    x, lengths = torch.randn(6, 8), torch.tensor([4, 2])
    block = hstu.HSTUBlock(8, 2, 0.0, 5)
    with mock.patch.object(hstu, "hstu_attention") as kernel, torch.no_grad():
        expected = block(x, lengths)
        with stand_in_gpu():
            found = to_gpu(block)(OnGpu(x), OnGpu(lengths))
        torch.testing.assert_close(found.host, expected)
        kernel.assert_not_called()


def test_a_gpu_runs_the_kernels() -> None:
    """Unless lists are padded for an export, or times are no integers."""
    x, lengths, times = torch.randn(6, 8), torch.tensor([4, 2]), torch.arange(6)
    block = hstu.HSTUBlock(8, 2, 0.0, 5, timed=True)
    with mock.patch.object(hstu, "runs_triton", return_value=True), mock.patch.object(hstu, "hstu_attention") as kernel:
        kernel.return_value = torch.zeros(6, 8)
        block(x, lengths, times=times)
        assert kernel.call_count == 1 and kernel.call_args.args[2] == 4
        block(x, lengths, times=times.float())
        with padded_to(3):
            block(x, lengths, times=times)
        assert kernel.call_count == 1


def test_a_compiler_sees_the_kernels() -> None:
    """The graph has no break, and the kernels write nothing but their results."""
    assert fork(kernel_cases.trace_attention).wait(100) == 0
