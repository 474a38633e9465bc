"""Export a model that predicts the labels of rows: its graph, its tables and what the graph measures.

Further forms of the graph lie beside model.onnx; each is compared with the run's outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.data.features.batch_tensors import arrays_of
from recsys.evaluation.calibration import load as load_calibration
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.export.artefact import folder as files
from recsys.export.artefact.graph_io import (
    SingleGraph,
    apart,
    feature_inputs,
    graph_inputs,
    open_session,
    output_specs,
    raw_inputs,
    signature_json,
)
from recsys.export.exported import Examples, Exported, StoredTask, scored
from recsys.export.fused_tables import RowLookup, TablePart, Tables, fuse, layout_of, replace_lookups, write_tables
from recsys.export.graphs import Inputs, dynamic_shapes, example_inputs, features_of, quiet_exporter, to_onnx, trace
from recsys.export.single_graph import write_single_graph
from recsys.interface.features import FeatureSpec
from recsys.interface.labels import Label, columns, predict
from recsys.online.raw_rows import RawRows
from recsys.online.row_transforms import RowTransforms
from recsys.training.loaders import loader_on_cpu
from recsys.training.run_data import prepare_to_measure

# of products and sums; bfloat16 weights are converted, because ONNX Runtime has no kernels for them on CPUs
TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.float32}


class RankingGraph(nn.Module):
    """A ranking model from features to predictions.

    Args:
        model: the model, with its lookups replaced.
        tables: its tables; their precision is that of all weights and products.
    """

    def __init__(
        self,
        model: nn.Module,
        features: FeatureSpec,
        labels: tuple[Label, ...],
        tables: Tables,
    ) -> None:
        super().__init__()
        self.model = model.to(tables.precision)
        self._features, self._labels, self._tables = features, labels, tables
        self._by_row = [name for m in model.modules() if isinstance(m, RowLookup) for name in m.names]
        self.outputs = columns(labels)

    def forward(self, parts: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the predictions, (B,) for each name of `outputs`."""
        self._tables.parts = dict(parts)
        dense, sparse = features_of(self._features, inputs)
        with sparse.one_length(self._by_row):
            predictions = predict(self.model(dense.to(self._tables.precision), sparse), self._labels)
        return {name: predictions[:, i] for i, name in enumerate(self.outputs)}


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


class ExportedRanking(Exported):
    """A ranking model that is trained step by step: a graph and its tables."""

    def write(self, raw: pl.DataFrame, folder: Path) -> tuple[dict[str, Any], Examples]:
        rows, features = self.rows, self.rows.fitted.features
        labels = load_calibration(self.source.run, rows.fitted.labels, self.source.checkpoint)
        examples, written = self.write_graph(raw, labels, folder)
        write_forms(self.form.formats, written, rows, examples.recorded, self.tolerance)
        inputs, outputs = raw_inputs(rows.types, rows.fitted.data), output_specs(written.graph.outputs)
        signature = signature_json({"inputs": inputs, "tensors": feature_inputs(features), "outputs": outputs})
        about = {"kind": "ranking", "signature": signature, **written.about}
        return about | {"metrics": {"artefact": self._measured(labels, folder)}}, examples

    def write_graph(self, raw: pl.DataFrame, labels: tuple[Label, ...], folder: Path) -> tuple[Examples, Written]:
        """Write tables/ and model.onnx; return rows to compare, and what was written."""
        task = StoredTask.load(self.source.cfg, self.rows.fitted.features, self.source.checkpoint)
        examples = scored(self.rows, raw, task.logits, labels)
        features, model = task.features, task.task.model
        fused = fuse(task.infos.values(), self.form.tables)
        write_tables(task.stored, task.infos, fused.values(), folder)
        tables = Tables(fused, TORCH_TYPES[self.form.precision])
        halved = self.form.precision == "bf16"
        if halved:
            model.bfloat16().float()  # rounds the weights
        replace_lookups(model, features, tables)
        parts = [p for table in fused.values() for p in table.parts]
        sizes = {p.name: table.rows for table in fused.values() for p in table.parts}
        graph, about = RankingGraph(model, features, labels, tables), {"layout": layout_of(fused.values(), task.infos)}
        written = Written(graph, parts, sizes, example_inputs(features), folder, about)
        program, inputs = trace(graph, parts, written.inputs), list(written.inputs)
        to_onnx(program, parts, inputs, graph.outputs, folder / files.GRAPH, sizes, halved=halved)
        return examples, written

    def _measured(self, labels: tuple[Label, ...], folder: Path) -> dict[str, float]:
        """Return the metrics of the graph's predictions for all rows of the test split; {} if it has none.

        labels: the labels with their calibration, which the graph applies
        """
        cfg = self.source.cfg
        prepared = prepare_to_measure(self.source.run, cfg.data)
        if not prepared.rows("test"):
            return {}
        session = open_session(folder / files.GRAPH, cfg.trainer.threads or torch.get_num_threads())
        plain = tuple(label.uncalibrated() for label in labels)
        evaluator = LabelsEvaluator(plain, cfg.metrics.exact_rows, cfg.metrics.bins)
        loader = loader_on_cpu(cfg, prepared, "test")
        features = prepared.fitted.features
        names = [o.name for o in session.get_outputs()]
        with bar("measuring the graph", loader.rows, "samples") as shown:
            for batch in loader:
                inputs = graph_inputs(arrays_of(batch, features), features)
                predictions = np.stack(session.run(names, inputs.feed), axis=1)
                evaluator.add(torch.from_numpy(predictions), batch)
                shown.advance(batch.rows)
        return evaluator.compute()
