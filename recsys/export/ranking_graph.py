"""Export a model that predicts the labels of rows: its graph and its tables, and what the graph measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from recsys.base.console import bar
from recsys.data.features.batch_tensors import arrays_of
from recsys.evaluation.calibration import load as load_calibration
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.export.artefact import folder as files
from recsys.export.artefact.inputs import feature_inputs, graph_inputs, output_specs, raw_inputs, signature_json
from recsys.export.artefact.session import open_session
from recsys.export.examples import Examples, scored
from recsys.export.exported import Exported
from recsys.export.forms import Written, write_forms
from recsys.export.fused_tables import fuse, layout_of, write_tables
from recsys.export.graphs import RankingGraph, example_inputs, to_onnx, trace
from recsys.export.lookup_stand_ins import Tables, replace_lookups
from recsys.export.restored import StoredTask
from recsys.interface.labels import Label
from recsys.training.loaders import loader_on_cpu
from recsys.training.run_data import prepare_to_measure

# of products and sums; bfloat16 weights are converted, because ONNX Runtime has no kernels for them on CPUs
TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.float32}


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
