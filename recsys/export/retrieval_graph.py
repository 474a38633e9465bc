"""Export a retrieval model: the graph of its queries and the vectors of its items, or the arrays of a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from recsys.base.console import say
from recsys.base.errors import UserError
from recsys.data.features import GROUP
from recsys.data.features.batch_tensors import candidates_of
from recsys.data.features.blocks import LINE
from recsys.export.artefact import folder as files
from recsys.export.artefact.folder import Artefact
from recsys.export.artefact.graph_io import feature_inputs, open_session, raw_inputs, signature_json
from recsys.export.artefact.scorers import SCORER_STATE, SCORERS, VectorScorer
from recsys.export.exported import RECORDED, Examples, Exported, StoredTask
from recsys.export.fused_tables import ItemVectors, TablePart, Tables, fuse, layout_of, replace_lookups, write_tables
from recsys.export.graphs import example_inputs, features_of, to_onnx, trace
from recsys.index import build
from recsys.interface.batch import Batch
from recsys.interface.features import FeatureSpec
from recsys.models.common.items import InterestScorer, Scorer
from recsys.models.common.lists import padded_to
from recsys.online.queries import in_batches
from recsys.online.recommender import Recommender
from recsys.online.servable import TensorSpec
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


class ExportedRetrieval(Exported):
    """A retrieval model that is trained step by step: the graph of its queries, and vectors of items."""

    exact = 1e-4
    outputs_of = "lists of items"

    def check(self) -> None:
        given = [*(f"format={f}" for f in self.form.formats), f"precision={self.form.precision}"]
        if given[0] != "precision=fp32":
            raise UserError(f"{given[0]}: applies to models that score rows; leave it out")
        super().check()

    def write(self, raw: pl.DataFrame, folder: Path) -> tuple[dict[str, Any], Examples]:
        rows, recommender = self.rows, Recommender.load(str(self.source.run), self.source.checkpoint.name)
        k, parsed = recommender.k, rows.parse_frame(raw, past=True)[0]
        if parsed.is_empty():
            where = rows.fitted.data.where
            why = "no row can be read" if where is None else f"data.where={where}: keeps no row to compare"
            raise UserError(f"{why}; name files with rows=FILES")
        groups = parsed.select(GROUP, LINE).group_by(GROUP, maintain_order=True).agg(LINE)
        # of many items, the first groups only, so that comparing them takes seconds
        groups = groups.head(max(RECORDED, PRODUCTS // max(1, len(rows.fitted.candidates))))
        compared = parsed.join(groups.select(GROUP), on=GROUP, how="semi", maintain_order="left")
        values = raw.to_dicts()
        histories = [[values[line] for line in lines] for lines in groups[LINE]]
        lists = pl.concat(frame for frame, _ in recommender.answers(compared, k)).select("items", "scores")
        examples = Examples(histories, lists.to_dicts(), {"k": k})
        described, read = self.write_parts(recommender, folder)
        inputs = tuple(replace(s, shape=(-1,)) for s in raw_inputs(rows.types, rows.fitted.data))
        tensors = tuple(s for s in feature_inputs(rows.fitted.features) if s.name in read)
        outputs = (TensorSpec("items", "BYTES", (-1,)), TensorSpec("scores", "FP32", (-1,)))
        signature = signature_json({"inputs": inputs, "tensors": tensors, "outputs": outputs})
        about: dict[str, Any] = {"kind": "retrieval", "k": k, "filter_history": recommender.filter_history}
        about |= {"items": recommender.nameable, "signature": signature, "metrics": {}, **described}
        if (kind := self.form.index) is None:
            return about, examples
        scorer = VectorScorer(Artefact(folder, about), torch.get_num_threads())
        if not scorer.multiplies:
            why = "this model's scores are not inner products of vectors; leave it out"
            raise UserError(f"index={kind}: {why}")
        parts = [scorer.vectors(part) for part in in_batches(rows.fitted, parsed, 1024)]
        queries = np.concatenate(parts).reshape(-1, scorer.items.shape[1])  # each interest is one
        index = build(
            scorer.items,
            kind=kind,
            queries=queries,
            k=max(k, 100),
            url=self.form.index_url,
            recall_target=self.form.recall_target,
            threads=torch.get_num_threads(),
        )
        index.save(folder / files.INDEX, vectors=False)
        tuned = index.about
        finds = f"a search finds {tuned.recall:.1%} of the best {tuned.recall_at} ({tuned.queries} queries)"
        say(f"index of {len(index):,} items ({tuned.kind}): {finds}")
        return about | {"index": asdict(tuned)}, examples

    def write_parts(self, recommender: Recommender, folder: Path) -> tuple[dict[str, Any], list[str]]:
        """Write the graph, tables and item vectors; return a description, and the names of the graph's inputs."""
        features = self.rows.fitted.features
        task = StoredTask.load(self.source.cfg, features, self.source.checkpoint)
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
        fused = fuse(infos.values(), self.form.tables)
        write_tables(task.stored, infos, fused.values(), folder)
        tables.by_dim = fused
        replace_lookups(model, features, tables)
        parts = [part, *(p for t in fused.values() for p in t.parts)]
        sizes = {ITEMS: len(vectors)} | {p.name: t.rows for t in fused.values() for p in t.parts}
        graph, inputs = QueryGraph(model, features, tables), example_inputs(features)
        program = trace(graph, parts, inputs, one_length=True)
        to_onnx(program, parts, list(inputs), ["query"], folder / files.GRAPH, sizes)
        if not isinstance(scorer, Scorer):
            [width] = [i.shape[1] for i in open_session(folder / files.GRAPH).get_outputs()]
            pair = {"query": torch.zeros(1, width), "items": torch.zeros(5, vectors.shape[1])}
            shapes = {"query": {}, "items": {0: torch.export.Dim("items")}}
            module = PairGraph(scorer).eval()
            program = torch.export.export(module, ({}, pair), dynamic_shapes=({}, shapes), strict=False)
            to_onnx(program, [], list(pair), ["scores"], folder / files.SCORER, {})
        items = {part.file: {"row_bytes": 4 * vectors.shape[1], "starts": {ITEMS: [0, len(vectors)]}}}
        layout = layout_of(fused.values(), infos) | items
        read = [i.name for i in open_session(folder / files.GRAPH).get_inputs()]
        about = {"width": vectors.shape[1], "candidates": len(vectors), "layout": layout}
        return about | ({"interests": scorer.count} if isinstance(scorer, InterestScorer) else {}), read


class ExportedClosedForm(ExportedRetrieval):
    """A retrieval model that is fitted in closed form: the arrays that it was fitted to."""

    def write_parts(self, recommender: Recommender, folder: Path) -> tuple[dict[str, Any], list[str]]:
        model = recommender.model
        name = type(model).__name__
        if name not in SCORERS:
            raise UserError(f"model: {name} has no form without torch; those that have are {', '.join(SCORERS)}")
        (folder / SCORER_STATE).mkdir()
        for key, value in model.state_dict().items():
            np.save(folder / SCORER_STATE / f"{key}.npy", value.numpy())
        return {"method": name, "state": options_of(model), "candidates": 1 + len(self.rows.fitted.candidates)}, []


def options_of(model: nn.Module) -> dict[str, bool | int | float]:
    """Return the numbers of a closed-form model, such as its number of neighbours, which its scores need."""
    return {n: x for n, x in vars(model).items() if isinstance(x, bool | int | float) and n != "training"}
