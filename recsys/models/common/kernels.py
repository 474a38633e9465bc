"""Whether Triton kernels run, and how they multiply. Triton is imported by the kernels that run: not every PyTorch has
it, and its import takes half a second.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from recsys.base.console import say_once
from recsys.base.packages import no_compiler

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def has_triton() -> bool:
    """Return whether Triton compiles for this machine's GPUs: NVIDIA's since Ampere, which multiply bfloat16."""
    return _has_triton()  # a plain function, which Dynamo calls while it traces


@cache
def _has_triton() -> bool:
    has_gpu = torch.version.hip is None and torch.cuda.is_available()
    if not has_gpu or torch.cuda.get_device_capability() < (8, 0) or find_spec("triton") is None:
        return False
    if (why := no_compiler(gpu=True)) is not None:
        say_once(why)
    return why is None


# Set by torch.compiler.assume_constant_result, whose import takes seconds: Dynamo calls the function while it traces.
has_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]


def runs_triton(x: Tensor) -> bool:
    """Return whether Triton kernels run where the tensor is."""
    return x.is_cuda and has_triton()


def dot_precision() -> str:
    """Return how kernels multiply float32: as PyTorch multiplies matrices."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
