"""Further forms of a ranking model's graph beside model.onnx, each compared with the run's outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.export.artefact import folder as files
from recsys.export.artefact.apart import apart
from recsys.export.artefact.inputs import graph_inputs
from recsys.export.artefact.session import SingleGraph
from recsys.export.examples import Examples
from recsys.export.fused_tables import TablePart
from recsys.export.graphs import Inputs, RankingGraph, dynamic_shapes, quiet_exporter
from recsys.export.single_graph import write_single_graph
from recsys.online.raw_rows import RawRows
from recsys.online.row_transforms import RowTransforms


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


@dataclass(frozen=True)
class Written:
    """A ranking graph and the parts that were written for it.

    parts, sizes: the arrays of tables, and their numbers of rows
    inputs: example inputs
    about: what it adds to the description of the artefact
    """

    graph: RankingGraph
    parts: Sequence[TablePart]
    sizes: Mapping[str, int]
    inputs: Inputs
    folder: Path
    about: Mapping[str, Any] = field(default_factory=dict)


def write_forms(formats: Sequence[str], written: Written, rows: RawRows, recorded: Examples, tolerance: float) -> None:
    """Write the forms that `formats` names, and compare their outputs for raw rows with those that the run gave.

    Raises UserError if the graph has no such form, or an output differs by more than the tolerance.
    """
    folder, raw, expected = written.folder, recorded.rows, recorded.outputs
    if "single_graph" in formats:
        file = folder / files.SINGLE_GRAPH
        write_single_graph(rows.fitted, rows.meanings, folder / files.GRAPH, file)
        computed = SingleGraph(file)(raw)
        _compare("single_graph", [computed[n] for n in expected], expected, tolerance)
    chosen = {n: TORCH_FORMS[n] for n in formats if n in TORCH_FORMS}
    if not chosen:
        return
    arrays = {}
    for part in written.parts:
        raw_bytes = torch.from_numpy(np.fromfile(folder / part.file, np.uint8))
        arrays[part.name] = raw_bytes.view(part.dtype).view(written.sizes[part.name], part.columns)
    module = Standalone(written.graph, arrays, list(written.inputs), written.graph.outputs).eval()
    feed = graph_inputs(RowTransforms(rows).arrays(raw), rows.fitted.features).feed
    for name, form in chosen.items():
        form.write(module, written.inputs, folder / form.file)
        _compare(name, form.outputs(folder, feed), expected, tolerance)


def _compare(name: str, found: Sequence[np.ndarray], expected: Mapping[str, list[float]], tolerance: float) -> None:
    wanted = [np.asarray(x, np.float32) for x in expected.values()]
    largest = float(np.max([apart(f, w) for f, w in zip(found, wanted, strict=True)], initial=0.0))
    if not largest <= tolerance:
        raise UserError(f"format={name}: an output differs by {largest:.2g} from the run's, more than {tolerance:g}")
    say(f"{name}: {len(wanted[0]):,} raw rows agree with the run within {largest:.1e}")
