"""Boosted trees as a graph: ONNX's operator TreeEnsemble between the features and the predictions.

Treelite reads what the libraries wrote. C columns of the trees, B rows, L scores of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from recsys.base.errors import UserError
from recsys.base.packages import check_extra
from recsys.data.features.arrays import single_valued
from recsys.export.artefact import folder as files
from recsys.export.exported import Examples, logits_of, scored
from recsys.export.fused_tables import PaddedFeatures, Tables
from recsys.export.graphs import (
    EXAMPLE_ROWS,
    ML,
    ML_OPSET,
    example_inputs,
    features_of,
    to_onnx,
    trace,
)
from recsys.export.ranking_graph import ExportedRanking, RankingGraph, Written
from recsys.interface.features import FeatureSpec
from recsys.interface.labels import Label, columns, predict
from recsys.models.gbm import GBM
from recsys.training.fitted_ranking import load as load_fitted

if TYPE_CHECKING:
    import onnx
    import treelite

LEAF, NUMBER = 0, 1  # Treelite's kinds of nodes; the third one tests whether a category is in a list
MODES, MEMBER = {2: 1, 3: 0}, 6  # ONNX's kinds of nodes for Treelite's < and <=, and for a member of a list
FIELDS = (
    *("node_type", "cleft", "cright", "split_index", "default_left", "threshold", "cmp", "leaf_value"),
    *("category_list", "category_list_begin", "category_list_end", "category_list_right_child"),
)
COLUMNS, OUTPUTS = "columns.onnx", "outputs.onnx"  # Triton's steps before and after FIL


def _forest_of(model: GBM, label: int) -> treelite.Model:
    """Return the trees of a label as a Treelite model. Raises UserError if it cannot be made."""
    check_extra("export", "a model of boosted trees", "treelite")
    try:
        return model.booster.forest(model.fitted[label])
    except NotImplementedError as e:
        raise UserError(f"model: {e}") from e


def _ensemble_of(forest: treelite.Model, rows: Sequence[int | None]) -> tuple[dict[str, Any], np.ndarray]:
    """Return the attributes of a TreeEnsemble, and what it leaves out: numbers (L,) to add to its sums.

    https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html

    Args:
        forest: a Treelite model.
        rows: of each column, the number of rows of its table if it holds ids of categories.
    """
    from onnx import numpy_helper

    header = forest.get_header_accessor()
    classes = header.get_field("class_id")
    nodes = _Nodes(rows)
    for i in range(forest.num_tree):
        accessor = forest.get_tree_accessor(i)
        nodes.add({name: accessor.get_field(name) for name in FIELDS}, int(classes[i]))
    base = np.array(header.get_field("base_scores"), np.float64).reshape(-1)  # copied: the field is the forest's memory
    attributes = {
        **{"aggregate_function": 1, "post_transform": 0, "n_targets": len(base), "tree_roots": nodes.roots},
        **{name: values for name, values in nodes.numbers.items() if name != "nodes_modes"},
        "nodes_modes": numpy_helper.from_array(np.array(nodes.numbers["nodes_modes"], np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array(nodes.splits, np.float64)),
        "leaf_targetids": nodes.targets,
        "leaf_weights": numpy_helper.from_array(np.array(nodes.weights, np.float64)),
    }
    if nodes.members:
        attributes["membership_values"] = numpy_helper.from_array(np.array(nodes.members, np.float64))
    return attributes, base


class _Nodes:
    """The nodes of all trees, in ONNX's order: inner nodes and leaves are numbered each by themselves."""

    def __init__(self, rows: Sequence[int | None]) -> None:
        self._rows = rows
        names = ("featureids", "modes", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")
        self.numbers: dict[str, list[int]] = {f"nodes_{n}": [] for n in (*names, "missing_value_tracks_true")}
        self.splits: list[float] = []
        self.members: list[float] = []
        self.targets: list[int] = []
        self.weights: list[float] = []
        self.roots: list[int] = []

    def add(self, tree: dict[str, np.ndarray], target: int) -> None:
        """Add a tree, whose leaves count for the score `target`."""
        is_leaf = tree["node_type"] == LEAF
        if is_leaf[0]:  # ONNX has no tree of a leaf alone: both ways of a node lead to it
            tree = {name: np.append(x, x) if name in FIELDS[:8] else x for name, x in tree.items()}
            tree["node_type"] = np.array([NUMBER, LEAF], np.int8)
            tree["cleft"], tree["cright"] = np.array([1, -1]), np.array([1, -1])
            tree["split_index"], tree["cmp"] = np.zeros(2, int), np.full(2, 2)
            is_leaf = tree["node_type"] == LEAF
        number = np.where(is_leaf, len(self.weights) + np.cumsum(is_leaf), len(self.splits) + np.cumsum(~is_leaf)) - 1
        self.roots.append(int(number[0]))
        for node in np.flatnonzero(~is_leaf):
            column = int(tree["split_index"][node])
            mode, split, yes, no = self._test(tree, node, column)
            missing = tree["cleft" if tree["default_left"][node] else "cright"][node]
            row = (column, mode, number[yes], is_leaf[yes], number[no], is_leaf[no], missing == yes)
            for values, value in zip(self.numbers.values(), row, strict=True):
                values.append(int(value))
            self.splits.append(split)
        leaves = np.flatnonzero(is_leaf)
        self.weights += tree["leaf_value"][leaves].tolist()
        self.targets += [target] * len(leaves)

    def _test(self, tree: dict[str, np.ndarray], node: int | np.integer, column: int) -> tuple[int, float, int, int]:
        """Return a node's mode and threshold, and the nodes that follow if its test is true and if it is false."""
        left, right = int(tree["cleft"][node]), int(tree["cright"][node])
        if tree["node_type"][node] == NUMBER:
            return MODES[int(tree["cmp"][node])], float(tree["threshold"][node]), left, right
        rows = self._rows[column]
        assert rows is not None
        inside = tree["category_list"][int(tree["category_list_begin"][node]) : int(tree["category_list_end"][node])]
        yes, no = (right, left) if tree["category_list_right_child"][node] else (left, right)
        if len(inside) > rows / 2:  # a test takes time in proportion to its list
            inside, yes, no = np.setdiff1d(np.arange(rows), inside), no, yes
        self.members += [*inside.astype(float).tolist(), float("nan")]
        return MEMBER, 0.0, yes, no


class Matrix(nn.Module):
    """The columns that trees read (GBM.matrix), from the inputs of a graph."""

    def __init__(self, features: FeatureSpec) -> None:
        super().__init__()
        self._features = features

    def forward(self, dense: Tensor, sparse: PaddedFeatures) -> Tensor:
        """Return the columns of B rows, (B, C) float32."""
        singles = single_valued(self._features)
        found = [dense, *([sparse.singles(singles)] if singles else [])]
        for f in self._features.sparse:
            if f.multi_valued:  # the number of ids, the first and the last one
                ids = sparse.padded(f.name)
                count = (ids >= 0).sum(1, keepdim=True)
                ends = ids[:, :1], ids.gather(1, (count - 1).clamp(min=0))
                found += [count, *(x.clamp(min=0) for x in ends)]
        return torch.cat([x.float() for x in found], dim=1)


class Forests(nn.Module):
    """The trees of all labels. A TreeEnsemble has no attributes before `_fill` gives it its own.

    bases: of each label, numbers (L,) that its trees leave out
    """

    def __init__(self, features: FeatureSpec, bases: Sequence[np.ndarray]) -> None:
        super().__init__()
        self.matrix, self._bases = Matrix(features), [torch.from_numpy(b) for b in bases]

    def forward(self, dense: Tensor, sparse: PaddedFeatures) -> Tensor:
        """Return logits of B rows, (B, L) float32."""
        matrix = self.matrix(dense, sparse).double()  # thresholds are doubles
        scores = []
        for label, base in enumerate(self._bases):
            shape, kind = (matrix.shape[0], len(base)), torch.float64
            sums = torch.onnx.ops.symbolic(
                f"{ML}::TreeEnsemble", (matrix,), {"label": label}, dtype=kind, shape=shape, version=ML_OPSET
            )
            scores.append(sums + base)
        return torch.cat(scores, dim=1).float()


class ExportedTrees(ExportedRanking):
    """Boosted trees: a graph without tables."""

    has_fil = True

    def check(self) -> None:
        for key, value in (("precision", self.form.precision), ("tables", self.form.tables)):
            if value != "fp32":
                raise UserError(f"{key}={value}: boosted trees have no weights and no tables; leave it out")
        if wrong := [f for f in self.form.formats if f != "single_graph"]:
            raise UserError(f"format={wrong[0]}: boosted trees have no such form; use single_graph or onnx")
        super().check()

    def write_graph(self, raw: pl.DataFrame, labels: tuple[Label, ...], folder: Path) -> tuple[Examples, Written]:
        fitted, triton = self.rows.fitted, self.form.triton
        model = load_fitted(self.source.cfg, fitted, self.source.checkpoint)
        examples = scored(self.rows, raw, lambda arrays: logits_of(model, arrays, fitted.features), labels)
        written = write_trees(model, labels, folder)
        if triton is not None and triton.dense_backend == "fil":
            written = replace(written, about={"fil": write_steps(model, labels, folder / files.FIL)})
        return examples, written


def write_trees(model: GBM, labels: tuple[Label, ...], folder: Path) -> Written:
    """Write model.onnx."""
    features = model.features
    found = [_ensemble_of(_forest_of(model, i), model.columns.rows) for i in range(len(labels))]
    graph = RankingGraph(Forests(features, [base for _, base in found]), features, labels, Tables({}))
    written = Written(graph, [], {}, example_inputs(features), folder)
    program, file = trace(graph, [], written.inputs), folder / files.GRAPH

    def fill(proto: onnx.ModelProto) -> None:
        """Give each TreeEnsemble its attributes."""
        from onnx import helper

        for node in proto.graph.node:
            if node.op_type == "TreeEnsemble":
                own, _ = found[node.attribute[0].i]
                del node.attribute[:]
                node.attribute.extend(helper.make_attribute(name, value) for name, value in own.items())

    to_onnx(program, [], list(written.inputs), graph.outputs, file, {}, change=fill)
    return written


class _Columns(nn.Module):
    def __init__(self, features: FeatureSpec) -> None:
        super().__init__()
        self._features, self._matrix = features, Matrix(features)

    def forward(self, parts: object, inputs: dict[str, Tensor]) -> Tensor:
        """Return the matrix of B rows and C columns, (B, C), of the graph's inputs."""
        return self._matrix(*features_of(self._features, inputs))


class _Outputs(nn.Module):
    def __init__(self, labels: tuple[Label, ...]) -> None:
        super().__init__()
        self._labels = labels

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the predictions, (B, 1) by name, from the scores of each label, (B, 1), or (B, C) of classes."""
        predictions = predict(torch.cat(list(inputs.values()), dim=1), self._labels)
        return {name: predictions[:, i : i + 1] for i, name in enumerate(columns(self._labels))}


def write_steps(model: GBM, labels: tuple[Label, ...], folder: Path) -> dict[str, Any]:
    """Write the steps of Triton's backend FIL to a new folder.

    columns.onnx takes the graph's inputs to the matrix (B, C), label_0.tl and so on the matrix to scores, and
    outputs.onnx the scores to predictions. Returns the number of columns, and of scores of each label.
    """
    folder.mkdir()
    inputs = example_inputs(model.features)
    to_onnx(trace(_Columns(model.features), [], inputs), [], list(inputs), ["matrix"], folder / COLUMNS, {})
    for i in range(len(labels)):
        forest = _forest_of(model, i)
        forest.get_header_accessor().set_field("postprocessor", "identity")
        forest.serialize(str(folder / f"label_{i}.tl"))
    scores = {f"scores_{i}": torch.zeros(EXAMPLE_ROWS, label.width) for i, label in enumerate(labels)}
    shapes = {name: {0: torch.export.Dim("batch")} for name in scores}
    program = torch.export.export(_Outputs(labels), (scores,), dynamic_shapes=(shapes,), strict=False)
    to_onnx(program, [], list(scores), columns(labels), folder / OUTPUTS, {})
    return {"columns": len(model.columns.names), "scores": [label.width for label in labels]}
