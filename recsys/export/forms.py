"""Further forms of a ranking model's graph beside model.onnx, each compared with the run's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.export.artefact import folder as files
from recsys.export.artefact.compare_examples import apart
from recsys.export.artefact.inputs import graph_inputs
from recsys.export.artefact.run_single_graph import SingleGraph
from recsys.export.fused_tables import TablePart
from recsys.export.graphs import Inputs, RankingGraph
from recsys.export.single_graph import write_single_graph
from recsys.export.torch_forms import TORCH_FORMS, Standalone
from recsys.online.raw_rows import RawRows
from recsys.online.row_transforms import RowTransforms


@dataclass(frozen=True)
class Written:
    """A ranking graph and the parts that were written for it.

    parts, sizes: the arrays of tables, and their numbers of rows
    inputs: example inputs
    layout: where the rows of each table are
    """

    graph: RankingGraph
    parts: Sequence[TablePart]
    sizes: Mapping[str, int]
    inputs: Inputs
    folder: Path
    layout: Mapping[str, Any] = field(default_factory=dict)


def write_forms(
    formats: Sequence[str],
    written: Written,
    rows: RawRows,
    raw: list[Any],
    expected: Mapping[str, list[float]],
    tolerance: float,
) -> None:
    """Write the forms that `formats` names, and compare their outputs for raw rows with those that the run gave.

    Raises UserError if the graph has no such form, or an output differs by more than the tolerance.
    """
    folder = written.folder
    if "single_graph" in formats:
        file = folder / files.SINGLE_GRAPH
        write_single_graph(rows.fitted, folder / files.GRAPH, file)
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
