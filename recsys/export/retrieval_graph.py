"""Write the graph of a retrieval model's queries and the vectors of its items, or the arrays of a closed-form model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from recsys.base.errors import UserError
from recsys.batch import Batch
from recsys.data.features import GROUP
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.features.blocks import LINE
from recsys.export.artefact import folder as files
from recsys.export.artefact.inputs import feature_inputs, raw_inputs, signature_json
from recsys.export.artefact.scorers import METHODS, STATE
from recsys.export.artefact.session import open_session
from recsys.export.examples import RECORDED, Examples
from recsys.export.fused_tables import TablePart, fuse, layout_of, write_tables
from recsys.export.graphs import example_inputs, features_of, to_onnx, trace
from recsys.export.lookup_stand_ins import ItemVectors, Tables, replace_lookups
from recsys.export.restored import StoredTask
from recsys.features import FeatureSpec
from recsys.models.common.items import Scorer
from recsys.models.common.lists import padded_to
from recsys.online.raw_rows import RawRows
from recsys.online.recommender import Recommender
from recsys.online.servable import TensorSpec
from recsys.schema.command_schemas import TableType
from recsys.sharding.tables import tables as table_infos

ITEMS = "items"  # the part of the item vectors
PRODUCTS = 10**9  # of queries and items, that are compared when a model is exported


class QueryGraph(nn.Module):
    """A retrieval model from features to query vectors."""

    def __init__(self, model: Any, features: FeatureSpec, tables: Tables) -> None:
        super().__init__()
        self.model = model
        self._features, self._tables = features, tables

    def forward(self, parts: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the queries (B, d)."""
        self._tables.parts = dict(parts)
        lists = [inputs[f.name] for f in self._features.sparse if f.multi_valued]
        length = lists[0].shape[1] if lists else 1
        dense, sparse = features_of(self._features, inputs)
        batch = Batch(dense, sparse, torch.zeros(dense.shape[0], 0))  # type: ignore[arg-type]
        with padded_to(length):
            query_batch = self.model.make_queries(batch)
            vectors = self.model.items(query_batch.inputs)
            return {"query": self.model.encode(batch, query_batch, vectors)}


class PairGraph(nn.Module):
    """A scorer that is not a dot product, from one query and M items to their scores."""

    def __init__(self, scorer: Any) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, parts: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the scores: query (1, d), items (M, d) -> (1, M)."""
        return {"scores": self.scorer.score_pairs(inputs["query"], inputs["items"])[None]}


def write_retrieval(recommender: Recommender, task: StoredTask, table_type: TableType, folder: Path) -> dict[str, Any]:
    """Write the graph, tables and item vectors of a model that is trained step by step; return a description.

    recommender: the run, with the vectors of all candidates
    task: the same run, with its stored tables
    """
    features = recommender.fitted.features
    vectors = recommender.items
    assert vectors is not None
    part = TablePart(ITEMS, torch.float32, vectors.shape[1])
    (folder / part.file).parent.mkdir(parents=True, exist_ok=True)
    vectors.numpy().tofile(folder / part.file)
    tables = Tables({})
    task.task.set_candidates(candidates_of(recommender.fitted))  # a generative model's graph holds their codes
    model = task.task.model
    scorer = model.scorer
    model.items = ItemVectors(model.items, tables, ITEMS)
    infos = {n: task.infos[n] for n in table_infos(model)}
    fused = fuse(infos.values(), table_type)
    write_tables(task.stored, infos, fused.values(), folder)
    tables.by_dim = fused
    replace_lookups(model, features, tables)
    parts = [part, *(p for t in fused.values() for p in t.parts)]
    sizes = {ITEMS: len(vectors)} | {p.name: t.rows for t in fused.values() for p in t.parts}
    graph, inputs = QueryGraph(model, features, tables), example_inputs(features)
    program = trace(graph, parts, inputs, one_length=True)
    to_onnx(program, parts, list(inputs), ["query"], folder / files.GRAPH, sizes)
    if type(scorer) is not Scorer:
        [width] = [i.shape[1] for i in open_session(folder / files.GRAPH).get_outputs()]
        pair = {"query": torch.zeros(1, width), "items": torch.zeros(5, vectors.shape[1])}
        shapes = {"query": {}, "items": {0: torch.export.Dim("items")}}
        module = PairGraph(scorer).eval()
        program = torch.export.export(module, ({}, pair), dynamic_shapes=({}, shapes), strict=False)
        to_onnx(program, [], list(pair), ["scores"], folder / files.SCORER, {})
    items = {part.file: {"row_bytes": 4 * vectors.shape[1], "starts": {ITEMS: [0, len(vectors)]}}}
    layout = layout_of(fused.values(), infos) | items
    return {"width": vectors.shape[1], "candidates": len(vectors), "layout": layout}


def write_closed_form(model: nn.Module, candidates: int, folder: Path) -> dict[str, Any]:
    """Write the arrays that a closed-form model was fitted to; return a description."""
    name = type(model).__name__
    if name not in METHODS:
        raise UserError(f"model: {name} has no form without torch; those that have are {', '.join(METHODS)}")
    (folder / STATE).mkdir()
    for key, value in model.state_dict().items():
        np.save(folder / STATE / f"{key}.npy", value.numpy())
    options = {n: x for n, x in vars(model).items() if isinstance(x, bool | int | float) and n != "training"}
    return {"method": name, "state": options, "candidates": candidates}


def recommended(recommender: Recommender, raw: pl.DataFrame) -> Examples:
    """Return the rows of each group of raw rows and the items that the run recommends for it.

    Of many items, the first groups only, so that comparing them takes seconds.
    """
    rows = recommender.rows
    complete = rows.keep_history(rows.from_frame(raw))
    parsed, _ = rows.parse(complete)
    groups = parsed.select(GROUP, LINE).group_by(GROUP, maintain_order=True).agg(LINE)
    groups = groups.head(max(RECORDED, PRODUCTS // max(1, len(rows.fitted.candidates))))
    parsed = parsed.join(groups.select(GROUP), on=GROUP, how="semi", maintain_order="left")
    values = raw.to_dicts()
    histories = [[values[line] for line in lines] for lines in groups[LINE]]
    k = recommender.k
    lists = pl.concat(frame for frame, _ in recommender.answers(parsed, k))
    return Examples(histories, lists.select("items", "scores").to_dicts(), {"k": k})


def signature_of(rows: RawRows, features: FeatureSpec, read: Sequence[str]) -> dict[str, Any]:
    """Return the signature: rows of one history in, items and scores out. read: the graph's inputs"""
    columns = raw_inputs(rows.types, rows.fitted.data)
    inputs = tuple(TensorSpec(s.name, s.datatype, (-1,), optional=True) for s in columns)
    tensors = tuple(s for s in feature_inputs(features) if s.name in read)
    outputs = (TensorSpec("items", "BYTES", (-1,)), TensorSpec("scores", "FP32", (-1,)))
    return signature_json({"inputs": inputs, "tensors": tensors, "outputs": outputs})
