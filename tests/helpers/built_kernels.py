"""Triton kernels compiled for an H100 on a machine without a GPU, and what ptxas says of them."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int64: "*i64"}
SHARED_MEMORY = 227 * 1024  # of a program, bytes


class Built(NamedTuple):
    registers: int
    spilled: int  # bytes
    shared: int  # bytes


def build(
    kernel: Any, arguments: Mapping[str, torch.dtype | type[int]], constants: dict[str, Any], warps: int
) -> Built:
    """Compile a kernel for sm_90. arguments: those that are not constants, tensors' types or int"""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(kernel.arg_names)
    types = {n: "i32" if arguments.get(n) is int else POINTERS.get(arguments.get(n), "constexpr") for n in names}
    source = ASTSource(
        kernel,
        types,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in arguments},  # as PyTorch's allocator aligns
    )
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    command = [str(ptxas), "-v", "--gpu-name=sm_90a", "/dev/stdin", "-o", "/dev/null"]
    said = subprocess.run(command, input=built.asm["ptx"], capture_output=True, text=True, check=True).stderr
    [registers] = re.findall(r"Used (\d+) registers", said)
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    assert len(spilled) == 2, said
    return Built(int(registers), sum(map(int, spilled)), built.metadata.shared)


def assert_fits(built: Built) -> None:
    assert built.spilled == 0 and built.shared <= SHARED_MEMORY, built
