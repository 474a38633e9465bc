"""The doors by which raw rows come to a model, and how each is asked: `DOORS`. What rows hold is in doors.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import polars as pl
import requests
import torch
import tritonclient.grpc
import tritonclient.http
from doors import TYPES, Lacks, Table, Writing, json_text, nothing, plain, write_frame
from fake_triton import Request, loaded
from served import Served

import recsys
from recsys.data.features.arrays import Arrays, dense_slices, single_valued
from recsys.data.features.batch_tensors import RowTensors
from recsys.data.features.blocks import LINE
from recsys.export.artefact import load
from recsys.export.artefact.graph_io import SingleGraph
from recsys.export.graphs import ML, ML_OPSET, OPSET
from recsys.export.single_graph import Transforms
from recsys.export.triton import transforms
from recsys.interface.labels import predict
from recsys.online.predictor import Predictor, file_blocks
from recsys.online.raw_rows import RawRows
from recsys.online.row_error import RowError
from recsys.online.row_transforms import RowTransforms
from recsys.schema.pipeline_schema import TableConfig
from recsys.stages.read_tables import read_table
from recsys.store.materialise import materialise
from recsys.store.request_features import OnlineFeatures
from recsys.store.stores import open_store
from recsys.store.views import View

Row = dict[str, Any]
Outcome = Arrays | str  # the features of a row, or the column that is refused


class Model:
    """A run that was trained from one format, its artefact, and a server of it."""

    def __init__(self, format_: str, run: Path) -> None:
        self.format, self.run, self.home = format_, run, run.parent
        self.trained = recsys.load(run)

    @cached_property
    def predictor(self) -> Predictor:
        return self.trained.predictor

    @cached_property
    def pipeline(self) -> RowTransforms:
        return RowTransforms.load(self.run)

    @cached_property
    def folder(self) -> Path:
        return self.trained.export(self.home / "artefact", ["triton=true", "name=doors"])

    @cached_property
    def artefact(self) -> Any:
        return load(self.folder)

    @cached_property
    def served(self) -> Served:
        served = Served(self.folder, load)
        served.start()
        return served

    def stop(self) -> None:
        if "served" in vars(self):
            self.served.stop()

    def features(self, parsed: pl.DataFrame) -> Arrays:
        fitted = self.predictor.fitted
        applied = fitted.apply(self.predictor.rows.in_context(parsed))
        return Arrays.from_frame(applied, fitted.features, fitted.matrices)

    def probabilities(self, arrays: Arrays) -> np.ndarray:
        """What the run predicts for features, in one batch."""
        batch = RowTensors.from_arrays(arrays, self.predictor.fitted.features).batch()
        with torch.no_grad():
            return predict(self.predictor.module.dmp(batch)[1], self.predictor.labels).numpy()[:, 0]


@dataclass(frozen=True)
class Asked:
    """What a door answered.

    outcomes: by row
    held: the rows whose value the door can hold; all others have the default
    writings: of each row's value
    """

    outcomes: Sequence[Outcome]
    held: set[int]
    writings: Sequence[str]


@dataclass(frozen=True)
class Door:
    """A door.

    ask: how a model answers the rows of a table
    """

    ask: Callable[[Model, Table], Asked]


def same(a: Outcome, b: Outcome) -> bool:
    """Whether two rows have equal features, bit by bit, or are refused for one column."""
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    lists = all(np.array_equal(a.values[n], b.values[n]) for n in a.values)
    return a.dense.tobytes() == b.dense.tobytes() and np.array_equal(a.ids, b.ids) and lists


def single(arrays: Arrays) -> list[Arrays]:
    return [arrays.take(np.array([i])) for i in range(arrays.rows)]


def by_line(model: Model, parsed: pl.DataFrame, bad: Sequence[Any], rows: int, first: int) -> list[Outcome]:
    found: dict[int, Outcome] = {b.line - first: b.column or b.reason for b in bad}
    if parsed.height:
        found |= dict(zip((parsed[LINE] - first).to_list(), single(model.features(parsed)), strict=True))
    assert sorted(found) == list(range(rows)), (sorted(found), rows)
    return [found[i] for i in range(rows)]


# files


def file_outcomes(model: Model, frame: pl.DataFrame, format_: str) -> list[Outcome]:
    """The features of a file, as recsys.predict computes them."""
    file = model.home / f"asked.{format_}"
    write_frame(frame, file)
    outcomes: dict[int, Outcome] = {}
    first = 2 if format_ == "csv" else 1
    for parsed, bad in file_blocks(model.predictor.rows, file):
        outcomes |= {b.line - first: b.column or b.reason for b in bad}
        if parsed.height:
            outcomes |= dict(zip((parsed[LINE] - first).to_list(), single(model.features(parsed)), strict=True))
    assert sorted(outcomes) == list(range(frame.height)), sorted(set(range(frame.height)) - set(outcomes))
    return [outcomes[i] for i in range(frame.height)]


def in_file(format_: str) -> Door:
    def takes(w: Writing) -> bool:
        return (flat(w) or format_ != "csv") and not (w.typed and format_ in ("csv", "jsonl"))

    def ask(model: Model, table: Table) -> Asked:
        frame, held, chosen = table.columns(takes)
        return Asked(file_outcomes(model, frame, format_), held, [chosen[c.type] for c in table.cases])

    return Door(ask)


# data frames


def checked(model: Model, outcomes: list[Outcome], probabilities: Any) -> list[Outcome]:
    """The outcomes, if the probabilities are those of their features, bit by bit, and null where a row is refused."""
    given = np.array([math.nan if p is None else p for p in probabilities], np.float32)
    good = [i for i, o in enumerate(outcomes) if not isinstance(o, str)]
    assert np.isnan(np.delete(given, good)).all(), "a refused row has a probability"
    if good:
        expected = model.probabilities(Arrays.concatenated([outcomes[i] for i in good]))  # type: ignore[misc]
        assert given[good].tobytes() == expected.tobytes(), "other probabilities than those of the features"
    return outcomes


def in_frame(takes: Callable[[Writing], bool]) -> Door:
    def ask(model: Model, table: Table) -> Asked:
        frame, held, chosen = table.columns(takes)
        parsed, bad = model.predictor.rows.parse_frame(frame)
        outcomes = by_line(model, parsed, bad, frame.height, 0)
        found = model.trained.predict(frame, allow_unknown=True)
        return Asked(checked(model, outcomes, found), held, [chosen[c.type] for c in table.cases])

    return Door(ask)


def beyond_floats(v: Any) -> bool:
    """A whole number that polars gives to pandas as a float, beside missing ones."""
    return type(v) is int and abs(v) > 2**53


def in_pandas(convert: Callable[[pd.DataFrame], pd.DataFrame], takes: Callable[[Writing], bool]) -> Door:
    def ask(model: Model, table: Table) -> Asked:
        frame, held, chosen = table.columns(takes, beyond_floats)
        of_pandas = convert(frame.to_pandas())
        parsed, bad = model.predictor.rows.parse_frame(recsys.api._polars(of_pandas))
        outcomes = by_line(model, parsed, bad, frame.height, 0)
        found = model.trained.predict(of_pandas, allow_unknown=True)
        return Asked(checked(model, outcomes, found), held, [chosen[c.type] for c in table.cases])

    return Door(ask)


def categories(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(
        **{n: x.astype("category") for n, x in frame.items() if x.map(type).isin([str, type(None)]).all()}
    )


# rows of Python and JSON


def every(_: Writing) -> bool:
    return True


def one_by_one(ask: Callable[[Row], Arrays], rows: Sequence[Row]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for row in rows:
        try:
            outcomes.append(ask(row))
        except RowError as e:
            outcomes.append(e.column if e.row in (None, 0) else f"row {e.row}")
    return outcomes


def together(ask: Callable[[list[Row]], Arrays], rows: Sequence[Row]) -> list[Outcome]:
    """Ask for all rows at once; without the row that is refused, as often as one is."""
    found: dict[int, Outcome] = {}
    left = list(range(len(rows)))
    while left:
        try:
            arrays = ask([rows[i] for i in left])
        except RowError as e:
            found[left.pop(-1 if e.row is None else e.row)] = e.column
            continue
        return [*map({**found, **dict(zip(left, single(arrays), strict=True))}.__getitem__, range(len(rows)))]
    return [found[i] for i in range(len(rows))]


def in_rows(
    ask: Callable[[Model], Callable[[Any], Arrays]],
    how: Any,
    convert: Callable[[Row], Row] = dict,
    takes: Callable[[Writing], bool] = every,
) -> Door:
    def asked(model: Model, table: Table) -> Asked:
        rows, held, names = table.rows(takes)
        return Asked(how(ask(model), [convert(row) for row in rows]), held, names)

    return Door(asked)


def transposed(rows: Sequence[Row]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in TYPES}


class Feed:
    """The features that an artefact's graph gets, as arrays."""

    def __init__(self, model: Model) -> None:
        self.spec, self.model = model.artefact.pipeline.features, model.artefact

    def arrays(self, inputs: Any) -> Arrays:
        feed = inputs.feed if hasattr(inputs, "feed") else inputs
        bags = {f.name: feed[f.name] for f in self.spec.sparse if f.multi_valued}
        values = {n: x[x >= 0] for n, x in bags.items()}
        return Arrays(
            feed["dense"], feed["ids"], values, {n: (x >= 0).sum(1).astype(np.int32) for n, x in bags.items()}
        )


def shared(model: Model) -> Callable[[Row], Arrays]:
    """The user's columns shared, as a pipeline's ranker and `shared` of /predict have them, and the item's in each row."""
    names = [*TYPES][::2]
    feed = Feed(model)

    def ask(row: Row) -> Arrays:
        own, common = {n: v for n, v in row.items() if n not in names}, {n: row[n] for n in names}
        return feed.arrays(model.artefact.features([own], common))

    return ask


# a server


def error_column(message: str) -> str:
    """The column that a message names."""
    return message.partition("column ")[2].partition(":")[0]


def checked_answers(
    model: Model, rows: Sequence[Row], ask: Callable[[Sequence[Row]], np.ndarray | str]
) -> list[Outcome]:
    """Ask a server for all rows that the artefact can read, and for each other one alone.

    The answers are those of the artefact, bit by bit; what is compared with other doors are its features.
    """
    feed = Feed(model)
    outcomes = one_by_one(lambda row: feed.arrays(model.artefact.features([row])), rows)
    good = [i for i, o in enumerate(outcomes) if not isinstance(o, str)]
    if good:
        answer = ask([rows[i] for i in good])
        assert not isinstance(answer, str), answer
        expected = model.artefact.run_arrays(Arrays.concatenated([outcomes[i] for i in good]))["probability"]  # type: ignore[misc]
        assert answer.astype(np.float32).tobytes() == expected.tobytes()
    for i in sorted({*range(len(rows))} - {*good}):
        answer = ask([rows[i]])
        assert isinstance(answer, str) and error_column(answer) == outcomes[i], (answer, outcomes[i])
    return outcomes


def predict_json(model: Model, rows: Sequence[Row]) -> np.ndarray | str:
    body = json_text({"rows": rows}).encode()
    answer = requests.post(f"{model.served.url}/predict", data=body, timeout=20)
    said = answer.json()
    return np.array(said["predictions"]) if answer.ok else str(said["error"])


def served_json() -> Door:
    def ask(model: Model, table: Table) -> Asked:
        rows, held, names = table.rows(in_json)
        rows = [plain(row) for row in rows]
        return Asked(checked_answers(model, rows, lambda r: predict_json(model, r)), held, names)

    return Door(ask)


def in_json(w: Writing) -> bool:
    return not w.typed


DATATYPES: dict[type, tuple[str, Any]] = {
    bool: ("BOOL", np.bool_),
    int: ("INT64", np.int64),
    float: ("FP64", np.float64),
    str: ("BYTES", object),
}


def tensor_columns(frame: pl.DataFrame) -> dict[str, tuple[str, np.ndarray]]:
    """The tensors of a frame without lists: (rows, 1) each. Times and decimals are text."""
    tensors = {}
    for name, x in ((n, frame[n]) for n in frame.columns):
        if x.dtype == pl.Boolean and not x.null_count():
            tensors[name] = ("BOOL", x.to_numpy())
        elif x.dtype.is_integer() and not x.null_count():
            tensors[name] = (str(x.dtype).upper(), x.to_numpy())
        elif x.dtype.is_float():
            tensors[name] = ("FP64" if x.dtype == pl.Float64 else "FP32", x.fill_null(math.nan).to_numpy())
        else:
            values = ["" if v is None else text_of_tensor(v) for v in x.to_list()]
            tensors[name] = ("BYTES", np.array([v.encode() for v in values], object))
    return {n: (kind, x.reshape(-1, 1)) for n, (kind, x) in tensors.items()}


def text_of_tensor(v: Any) -> str:
    if isinstance(v, date):
        return v.isoformat()
    return str(v)


def infer(model: Model, frame: pl.DataFrame, client: Any, url: str, **binary: Any) -> np.ndarray | str:
    inputs = []
    for name, (kind, values) in tensor_columns(frame).items():
        inputs.append(client.InferInput(name, list(values.shape), kind))
        inputs[-1].set_data_from_numpy(values, **binary)
    with client.InferenceServerClient(url) as asked:
        try:
            return np.asarray(asked.infer("doors", inputs).as_numpy("probability"))[:, 0]
        except tritonclient.utils.InferenceServerException as e:
            return str(e)


def flat(w: Writing) -> bool:
    return not isinstance(w.dtype, pl.List)


def flat_text(w: Writing) -> bool:
    return flat(w) and not w.typed


def infinite(v: Any) -> bool:
    """A number that JSON and the store lack; they refuse the whole body, or the row of the file."""
    return isinstance(v, float) and math.isinf(v)


def served_v2(ask_server: Callable[[Model, pl.DataFrame], np.ndarray | str], lacks: Lacks = nothing) -> Door:
    def ask(model: Model, table: Table) -> Asked:
        frame, held, chosen = table.columns(flat_text, lacks)
        columns = {n: [values_of_tensor(kind, v) for v in x[:, 0]] for n, (kind, x) in tensor_columns(frame).items()}
        rows = [{n: columns[n][i] for n in columns} for i in range(frame.height)]
        places = {id(row): i for i, row in enumerate(rows)}

        def answer(some: Sequence[Row]) -> np.ndarray | str:
            return ask_server(model, frame[[places[id(row)] for row in some]])

        return Asked(checked_answers(model, rows, answer), held, [chosen[c.type] for c in table.cases])

    return Door(ask)


def values_of_tensor(kind: str, v: Any) -> Any:
    return (v.decode() or None) if kind == "BYTES" else v.item() if hasattr(v, "item") else v


# Triton, a store, a pipeline


def in_triton(model: Model, table: Table) -> Asked:
    frame, held, chosen = table.columns(flat_text)
    feed = Feed(model)
    columns = {n: x for n, (_, x) in tensor_columns(frame).items()}
    folder = model.folder / "triton" / "doors_transforms"
    outcomes: list[Outcome] = []
    with loaded(transforms.TritonPythonModel(), folder) as served:
        for answer in served.execute(
            [Request({n: x[i : i + 1] for n, x in columns.items()}) for i in range(frame.height)]
        ):
            if isinstance(answer, str):
                outcomes.append(error_column(answer))
                continue
            made = {n: np.array(v, np.float32 if n == "dense" else np.int32) for n, v in answer.items()}
            outcomes.append(feed.arrays(made))
    return Asked(outcomes, held, [chosen[c.type] for c in table.cases])


def in_store(model: Model, table: Table) -> Asked:
    """All columns come from the latest values of a store, by the number of the row."""
    frame, held, chosen = table.columns(lambda w: not (w.typed or isinstance(w.dtype, pl.Decimal)), infinite)
    keyed = frame.with_columns(entity=pl.int_range(pl.len()), at=pl.lit(1))
    keyed.write_parquet(model.home / "stored.parquet")
    view = View("rows", (str(model.home / "stored.parquet"),), "entity", "at", tuple(TYPES))
    (model.home / "store.db").unlink(missing_ok=True)
    store = open_store(f"sqlite:///{model.home / 'store.db'}", write=True)
    materialise({"rows": view}, store)
    rows = OnlineFeatures({"rows": view}, store).join([{"entity": i} for i in range(frame.height)])
    assert all({*TYPES} <= {*row} for row in rows)
    return Asked(one_by_one(model.pipeline.arrays, rows), held, [chosen[c.type] for c in table.cases])


def another_number(v: Any) -> bool:
    """Text that a CSV table of a pipeline reads as a float: too many digits, or text that only looks like a number."""
    if not isinstance(v, str):
        return False
    return (v.strip().endswith(".0") and len(v.strip()) > 17) or v in ("7.0", "1e3", "-0", "nan", "NaN")


def in_pipeline_table(format_: str) -> Door:
    """A table of a pipeline, whose rows are the rows of its ranker."""

    def ask(model: Model, table: Table) -> Asked:
        if format_ == "csv":
            frame, held, chosen = table.columns(flat_text, another_number)
        else:
            frame, held, chosen = table.columns(every)
        file = model.home / f"items.{format_}"
        write_frame(frame, file)
        rows = read_table(TableConfig(file=[str(file)]), model.home, "items").to_dicts()
        return Asked(one_by_one(model.pipeline.arrays, rows), held, [chosen[c.type] for c in table.cases])

    return Door(ask)


GRAPH = {"dense": {"number"}, "sparse": {"text", "zeros", "whole", "point", "row", "boolean", "flag", "day"}}


def in_graph(model: Model, table: Table) -> Asked:
    """The transforms of single_graph.onnx, for the features that have a form there.

    It refuses nothing: what other doors refuse is another question. It does not know text with spaces, and 7 for a
    column of text is "7".
    """
    rows, held, names = table.rows(lambda w: not w.typed)
    rows = [plain(row) for row in rows]
    own = model.pipeline._rows.restricted(GRAPH["dense"], GRAPH["sparse"])
    feed = SingleGraph.__new__(SingleGraph)
    session = onnx_session(own)
    feed._inputs = [(i.name, i.type == "tensor(string)") for i in session.get_inputs()]
    features = model.pipeline.features
    dense = dense_slices(features)["number"]
    places = [single_valued(features).index(n) for n in single_valued(own.fitted.features)]
    outcomes: list[Outcome] = []
    for i, (row, case) in enumerate(zip(rows, table.cases, strict=True)):
        known = one_by_one(model.pipeline.arrays, [row])[0]
        spaced = isinstance(row[case.type], str) and row[case.type] != row[case.type].strip()
        if isinstance(known, str) or case.type not in GRAPH["dense"] | GRAPH["sparse"] or spaced:
            held.discard(i)
            outcomes.append(known)
            continue
        row = {
            n: x if i in held and n == case.type else TYPES[n].writings[TYPES[n].text].written(TYPES[n].default)
            for n, x in row.items()
        }
        x, ids = session.run(["dense", "ids"], feed.feed([row]))
        known.dense[:, dense], known.ids[:, places] = x, ids
        outcomes.append(known)
    return Asked(outcomes, held, names)


def onnx_session(rows: RawRows) -> Any:
    """The transforms as one graph."""
    from onnx import TensorProto, helper

    built = Transforms(rows.fitted, rows.meanings)
    outputs = [
        helper.make_tensor_value_info(n, t, None) for n, t in (("dense", TensorProto.FLOAT), ("ids", TensorProto.INT32))
    ]
    graph = helper.make_graph(built.nodes, "transforms", list(built.inputs.values()), outputs, built.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
    return onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )


DOORS: dict[str, Door] = {
    **{f"{name} file": in_file(name) for name in ("csv", "jsonl", "parquet", "arrow")},
    "polars frame": in_frame(every),
    "polars frame of text": in_frame(lambda w: w.is_text),
    "pandas frame": in_pandas(lambda f: f, flat),
    "pandas frame of objects": in_pandas(lambda f: f.astype(object), flat),
    "pandas frame of nullable types": in_pandas(lambda f: f.convert_dtypes(), flat),
    "pandas frame of categories": in_pandas(categories, flat),
    "row": in_rows(lambda m: m.pipeline.arrays, one_by_one),
    "rows": in_rows(lambda m: m.pipeline.arrays, together),
    "columns": in_rows(lambda m: lambda rows: m.pipeline.arrays_of_columns(transposed(rows), len(rows)), together),
    "artefact": in_rows(lambda m: lambda rows: Feed(m).arrays(m.artefact.features(rows)), together),
    "artefact, shared columns": in_rows(shared, one_by_one),
    "/predict": served_json(),
    "v2 HTTP, JSON": served_v2(lambda m, f: infer(m, f, tritonclient.http, m.served.http, binary_data=False), infinite),
    "v2 HTTP, binary": served_v2(lambda m, f: infer(m, f, tritonclient.http, m.served.http)),
    "v2 gRPC": served_v2(lambda m, f: infer(m, f, tritonclient.grpc, m.served.grpc)),
    "Triton": Door(in_triton),
    "single_graph.onnx": Door(in_graph),
    "feature store": Door(in_store),
    "CSV table of a pipeline": in_pipeline_table("csv"),
    "Parquet table of a pipeline": in_pipeline_table("parquet"),
}
