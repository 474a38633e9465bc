"""Write the graph and the tables of a model that predicts the labels of rows, and measure the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from recsys.base.console import bar
from recsys.data.features.arrays import Arrays, single_valued
from recsys.data.prepare.prepared import Prepared
from recsys.evaluation.evaluators import LabelsEvaluator
from recsys.export.artefact import folder as files
from recsys.export.artefact.inputs import feature_inputs, graph_inputs, output_specs, raw_inputs, signature_json
from recsys.export.artefact.session import Session
from recsys.export.forms import Written
from recsys.export.fused_tables import fuse, layout_of, write_tables
from recsys.export.graphs import RankingGraph, example_inputs, to_onnx, trace
from recsys.export.lookup_stand_ins import Tables, replace_lookups
from recsys.export.restored import StoredTask
from recsys.features import FeatureSpec
from recsys.job.run_config import RunConfig
from recsys.labels import Label
from recsys.online.raw_rows import RawRows
from recsys.schema.command_schemas import TableType
from recsys.training.trainer import loader_on_cpu

# of products and sums; bfloat16 weights are converted, because ONNX Runtime has no kernels for them on CPUs
TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.float32}


def write_ranking(
    task: StoredTask, labels: tuple[Label, ...], table_type: TableType, precision: str, folder: Path
) -> Written:
    """Write tables/, with numbers of `table_type`, and model.onnx. Replaces the lookups of the task's model.

    precision: type of the dense weights and of the looked-up rows: fp32, fp16 or bf16
    """
    features, model = task.features, task.task.model
    fused = fuse(task.infos.values(), table_type)
    write_tables(task.stored, task.infos, fused.values(), folder)
    tables = Tables(fused, TORCH_TYPES[precision])
    halved = precision == "bf16"
    if halved:
        model.bfloat16().float()  # rounds the weights
    replace_lookups(model, features, tables)
    parts = [p for table in fused.values() for p in table.parts]
    sizes = {p.name: table.rows for table in fused.values() for p in table.parts}
    graph, layout = RankingGraph(model, features, labels, tables), layout_of(fused.values(), task.infos)
    written = Written(graph, parts, sizes, example_inputs(features), folder, layout)
    program = trace(written.graph, parts, written.inputs)
    outputs = written.graph.outputs
    to_onnx(program, parts, list(written.inputs), outputs, folder / files.GRAPH, sizes, halved=halved)
    return written


def signature_of(rows: RawRows, features: FeatureSpec, outputs: list[str]) -> dict[str, Any]:
    """Return the signature: raw columns, features and predictions."""
    return signature_json(
        {
            "inputs": raw_inputs(rows.types, rows.fitted.data),
            "tensors": feature_inputs(features),
            "outputs": output_specs(outputs),
        }
    )


def measure(session: Session, cfg: RunConfig, prepared: Prepared, labels: tuple[Label, ...]) -> dict[str, float]:
    """Return the metrics of the graph's predictions for all rows of the test split.

    labels: the labels with their calibration, which the graph applies
    """
    plain = tuple(label.uncalibrated() for label in labels)
    evaluator = LabelsEvaluator(plain, cfg.metrics.exact_rows, cfg.metrics.bins)
    loader = loader_on_cpu(cfg, prepared, "test")
    features = prepared.fitted.features
    names = [o.name for o in session.get_outputs()]
    singles, lists = single_valued(features), [f.name for f in features.sparse if f.multi_valued]
    with bar("measuring the graph", loader.rows, "samples") as shown:
        for batch in loader:
            columns = batch.sparse.to_dict()
            ids = np.zeros((batch.rows, 0), np.int32)
            if singles:
                ids = np.stack([columns[n].values().int().numpy() for n in singles], axis=1)
            values = {n: columns[n].values().int().numpy() for n in lists}
            lengths = {n: columns[n].lengths().int().numpy() for n in lists}
            inputs = graph_inputs(Arrays(batch.dense.numpy(), ids, values, lengths), features)
            predictions = np.stack(session.run(names, inputs.feed), axis=1)
            evaluator.add(torch.from_numpy(predictions), batch)
            shown.advance(batch.rows)
    return evaluator.compute()
