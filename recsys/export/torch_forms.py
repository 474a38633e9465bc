"""A ranking model's graph as TorchScript, or compiled ahead of time for the processor here (AOTInductor).

Both hold the tables themselves, and so need them in memory; both take the inputs of model.onnx, in its order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from recsys.base.errors import UserError
from recsys.export.graphs import Inputs, dynamic_shapes, quiet_exporter


class Standalone(nn.Module):
    """A graph that takes its arrays and its inputs by name, as one that holds the arrays and has positional inputs."""

    def __init__(self, graph: nn.Module, parts: Mapping[str, Tensor], inputs: Sequence[str], outputs: Sequence[str]):
        super().__init__()
        self.scorer, self._inputs, self._outputs, self._parts = graph, list(inputs), list(outputs), list(parts)
        for name, array in parts.items():
            self.register_buffer(f"table_{name}", array)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, (B,) each."""
        parts = {name: getattr(self, f"table_{name}") for name in self._parts}
        found = self.scorer(parts, dict(zip(self._inputs, inputs, strict=True)))
        return tuple(found[name] for name in self._outputs)


def write_torchscript(module: Standalone, inputs: Inputs, file: Path) -> None:
    """Write TorchScript, which torch.jit.load reads, also in C++ and in Triton's PyTorch backend."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, tuple(inputs.values()), check_trace=False)
        torch.jit.save(torch.jit.freeze(traced), str(file))


def write_aoti(module: Standalone, inputs: Inputs, file: Path) -> None:
    """Compile for the processor here. Takes a C++ compiler and a minute or two.

    Raises UserError if there is no compiler.
    """
    shapes = tuple(dynamic_shapes(inputs, min=1, max=1 << 20).values())
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    with quiet_exporter(), torch.no_grad():
        try:
            program = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=(shapes,), strict=False)
            # private: PyTorch documents AOTInductor's functions under this name
            torch._inductor.aoti_compile_and_package(program, package_path=str(file))
        except (InductorError, InvalidCxxCompiler) as e:
            why = str(e).strip().splitlines()[0]
            raise UserError(f"format=aoti: the graph cannot be compiled here: {why}") from e


@dataclass(frozen=True)
class TorchForm:
    """A form that PyTorch runs: the name of its file, and how it is written and loaded."""

    file: str
    write: Callable[[Standalone, Inputs, Path], None]
    load: Callable[[str], Callable[..., Sequence[Tensor]]]

    def outputs(self, folder: Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Load what was written and return its outputs."""
        with torch.no_grad():
            return [x.numpy() for x in self.load(str(folder / self.file))(*map(torch.from_numpy, feed.values()))]


TORCH_FORMS = {
    "torchscript": TorchForm("model.pt", write_torchscript, torch.jit.load),
    "aoti": TorchForm("model.pt2", write_aoti, lambda file: torch._inductor.aoti_load_package(file)),
}
