"""Write the graph and the tables of a model that predicts the labels of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from recsys.export.artefact import folder as files
from recsys.export.artefact import signature
from recsys.export.choices import TableType
from recsys.export.forms import Written
from recsys.export.fused_tables import fuse, write_tables
from recsys.export.graphs import RankingGraph, example_inputs, to_onnx, trace
from recsys.export.lookup_stand_ins import Tables, replace_lookups
from recsys.export.restored import StoredTask
from recsys.features import FeatureSpec, Label
from recsys.online.raw_rows import RawRows

# of products and sums; bfloat16 weights are converted, because ONNX Runtime has no kernels for them on CPUs
TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.float32}


def write_ranking(
    task: StoredTask, labels: tuple[Label, ...], table_type: TableType, precision: str, folder: Path
) -> Written:
    """Write tables/ and model.onnx. Replaces the lookups of the task's model.

    Args:
        labels: the labels, which name the outputs.
        table_type: type of the numbers in tables/.
        precision: type of the dense weights and of the looked-up rows: fp32, fp16 or bf16.
        folder: folder of the artefact.
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
    written = Written(RankingGraph(model, features, labels, tables), parts, sizes, example_inputs(features), folder)
    program = trace(written.graph, parts, written.inputs)
    outputs = written.graph.outputs
    to_onnx(program, parts, list(written.inputs), outputs, folder / files.GRAPH, sizes, halved=halved)
    return written


def signature_of(rows: RawRows, features: FeatureSpec, outputs: list[str]) -> dict[str, Any]:
    """Return the signature: raw columns, features and predictions."""
    return signature.to_json(
        {
            "inputs": signature.raw_inputs(rows.types),
            "tensors": signature.feature_inputs(features),
            "outputs": signature.outputs(outputs),
        }
    )
