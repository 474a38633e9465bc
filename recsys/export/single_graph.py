"""One graph from raw values to predictions: text and numbers in, probabilities out, without a line of Python.

Numbers are DOUBLE (rows, 1), NaN if missing; categories are STRING (rows, 1), empty if missing. Whole numbers may be
written as 7 or 7.0, booleans as true, True, TRUE, 1 or 1.0. With `encode: id`, a number that is no row of the table,
such as 3.5, has a vector of zeros. Some transforms have no form in ONNX: hashes, times, lists, joins, derived columns
and features that read other rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys.base.errors import UserError
from recsys.base.ranges import FLOAT32_MAX
from recsys.data.features import Fitted
from recsys.data.features.arrays import single_valued
from recsys.data.features.dense_columns import DenseColumn
from recsys.data.features.raw_types import STYLES, RawBoolean, RawType, RawWhole
from recsys.data.features.steps import Clip, FillMean, Log, MinMax, Params, Standardise, Transform
from recsys.data.features.value_types import RowNumber
from recsys.data.raw.derive import FeatureInputs
from recsys.export.graphs import ML, ML_OPSET, OPSET

PREFIX = "model_"  # of the names in the model's own graph


def check_single_graph(fitted: Fitted) -> None:
    """Raise UserError if a feature has no form in one graph; the message names all of them."""
    data, source, needs = fitted.data, fitted.data.source, FeatureInputs.from_config(fitted.data)
    marks = (source.null_values, source.column_null_values, source.strip, source.thousands, source.decimal != ".")
    reasons = [
        (needs.sides, "data.source.joins has"),
        (needs.derive, "data.derive has"),
        (data.group is not None, "data.group: features that read other rows have"),
        (any(marks), "data.source: null_values, strip, decimal and thousands marks have"),
        *((c.formless, f"{c.key}: {c.formless} has") for c in data.columns),
    ]
    if lacking := [f"{reason} no form in ONNX" for applies, reason in reasons if applies]:
        shown = "; ".join(lacking[:5]) + (f"; and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        raise UserError(f"format=single_graph: {shown}; use format=onnx, which keeps the transforms beside the graph")


def written(meaning: RawType, text: str) -> list[str]:
    """Return the usual ways to write a category, of which no code makes one: 7 and 7.0, True and true."""
    if isinstance(meaning, RawBoolean) and text:
        digits = "1" if text.lower() == "true" else "0"
        return [*(style(text) for style in STYLES.values()), digits, f"{digits}.0"]
    is_number = isinstance(meaning, RawWhole) or meaning.dtype.is_numeric()
    return [whole := text.removesuffix(".0"), f"{whole}.0"] if text and is_number else [text]


class Transforms:
    """Builder of the graph from raw values to the inputs `dense` and `ids` of a model's graph.

    meanings: of the raw columns, which say in which ways clients write the values
    """

    def __init__(self, fitted: Fitted, meanings: Mapping[str, RawType]) -> None:
        from onnx import TensorProto

        self._fitted, data, features = fitted, fitted.data, fitted.features
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: dict[str, Any] = {}
        if features.dense:
            self._dense([(f.name, data.dense_columns[f.name]) for f in features.dense])
        columns = []
        for name in single_valued(features):
            c = data.sparse_columns[name]
            if isinstance(c.value_type, RowNumber):
                x = self._input(c.column, TensorProto.DOUBLE)
                row = self._clipped(self._add("Floor", [x]), np.array(0.0), np.array(c.value_type.rows - 1.0))
                # -1, whose vector is zero, for what is no row, NaN among it
                x = self._add("Where", [self._add("Equal", [row, x]), row, self._constant(np.array(-1.0))])
                columns.append(self._add("Cast", [x], to=TensorProto.INT64))
                continue
            text, values = self._input(c.column, TensorProto.STRING), fitted.vocabularies[c.table]["value"].to_list()
            known = {form: i for i, v in enumerate(values, 1) for form in written(meanings[c.column], v)}
            ids: dict[str, Any] = {"values_int64s": [*known.values()], "default_int64": 0}  # 0: unknown
            columns.append(self._add("LabelEncoder", [text], domain=ML, keys_strings=[*known], **ids))
        if columns:
            self._add("Cast", [self._add("Concat", columns, axis=1)], "ids", to=TensorProto.INT32)

    def _dense(self, columns: Sequence[tuple[str, DenseColumn]]) -> None:
        """Add all dense features: those with the same steps as one matrix (rows, F)."""
        from onnx import TensorProto

        groups: dict[tuple[Any, ...], list[int]] = {}
        for i, (_, c) in enumerate(columns):
            kinds = (
                (type(s), s.lower is None, s.upper is None) if isinstance(s, Clip) else (type(s),) for s in c.steps
            )
            groups.setdefault((c.fill is not None, *kinds), []).append(i)
        parts, order = [], list[int]()
        for places in groups.values():
            members = [columns[i] for i in places]
            x = self._add("Concat", [self._input(c.column, TensorProto.DOUBLE) for _, c in members], axis=1)
            if members[0][1].fill is not None:
                x = self._filled(x, [c.fill or 0.0 for _, c in members])
            for j, step in enumerate(members[0][1].steps):
                steps = [(c.steps[j], self._fitted.dense[n][j]) for n, c in members]
                x = self._step(x, step, steps)
            parts.append(x)
            order += places
        x = self._add("Concat", parts, axis=1)
        x = self._add("Gather", [x, self._constant(np.argsort(order).astype(np.int64))], axis=1)
        self._add("Cast", [x], "dense", to=TensorProto.FLOAT)

    def _step(self, x: str, step: Transform, own: list[tuple[Transform, Params]]) -> str:
        """Apply a step to a matrix, with the parameters of each column."""
        if isinstance(step, FillMean):
            return self._filled(x, [p["value"] for _, p in own])
        numbers = [s.numbers(p) for s, p in own]
        if isinstance(step, Clip):
            lows, highs = (np.array([n[name] for n in numbers]) for name in ("lower", "upper"))
            return self._clipped(x, lows, highs)

        def column(name: str) -> str:
            return self._constant(np.array([n[name] for n in numbers]))

        if isinstance(step, Standardise | MinMax):
            centre = "mean" if isinstance(step, Standardise) else "min"
            x = self._add("Mul", [self._add("Sub", [x, column(centre)]), column("factor")])
            low, high = (-FLOAT32_MAX, FLOAT32_MAX) if isinstance(step, Standardise) else (0.0, 1.0)
            return self._clipped(x, np.array(low), np.array(high))
        assert isinstance(step, Log)
        one = self._constant(np.array(1.0))
        x = self._add("Add", [self._add("Sub", [x, column("min")]), one])
        return self._add("Log", [self._add("Max", [x, one])])

    def _filled(self, x: str, values: list[float]) -> str:
        return self._add("Where", [self._add("IsNaN", [x]), self._constant(np.array(values)), x])

    def _clipped(self, x: str, low: np.ndarray, high: np.ndarray) -> str:
        return self._add("Min", [self._add("Max", [x, self._constant(low)]), self._constant(high)])

    def _input(self, column: str, kind: int) -> str:
        """Return the input of a column; one that is read as text and as a number is two inputs."""
        from onnx import TensorProto, helper

        taken = self.inputs.get(column)
        name = column
        if taken is not None and taken.type.tensor_type.elem_type != kind:
            name = f"{column}_{'text' if kind == TensorProto.STRING else 'number'}"
        self.inputs.setdefault(name, helper.make_tensor_value_info(name, kind, ["batch", 1]))
        return name

    def _constant(self, value: np.ndarray) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def _add(self, kind: str, inputs: list[str], output: str | None = None, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name


def write_single_graph(fitted: Fitted, meanings: Mapping[str, RawType], graph: Path, file: Path) -> None:
    """Write the graph that joins the transforms and a model's graph. `file` must lie in the folder of `graph`.

    Raises UserError if a feature has no form.
    """
    import onnx
    from onnx import compose, helper

    check_single_graph(fitted)
    original = onnx.load(str(graph), load_external_data=False)
    names = [i.name for i in original.graph.input]
    built = Transforms(fitted, meanings)
    outputs = []
    for i in original.graph.input:
        kind = i.type.tensor_type
        outputs.append(helper.make_tensor_value_info(i.name, kind.elem_type, ["batch", kind.shape.dim[1].dim_value]))
    first = helper.make_graph(built.nodes, "transforms", list(built.inputs.values()), outputs, built.constants)
    results = [o.name for o in original.graph.output]
    original = compose.add_prefix(original, PREFIX)
    merged = compose.merge_graphs(first, original.graph, [(n, PREFIX + n) for n in names])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
    whole = helper.make_model(merged, opset_imports=opsets, ir_version=original.ir_version)
    for node in whole.graph.node:  # the outputs keep their names
        node.output[:] = [o.removeprefix(PREFIX) if o.removeprefix(PREFIX) in results else o for o in node.output]
        node.input[:] = [i.removeprefix(PREFIX) if i.removeprefix(PREFIX) in results else i for i in node.input]
    for output in whole.graph.output:
        output.name = output.name.removeprefix(PREFIX)
    onnx.save(whole, str(file))
    onnx.checker.check_model(str(file))
