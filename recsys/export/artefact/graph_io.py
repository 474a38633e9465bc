"""Run the graph of an artefact with ONNX Runtime, on a GPU where there is one: its sessions, inputs and outputs."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from recsys.base.errors import UserError
from recsys.base.packages import check_extra, install_command
from recsys.data.features.arrays import Arrays, single_valued
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.features.value_types import Number
from recsys.files import manifest
from recsys.files.text_values import text_of
from recsys.interface.features import FeatureSpec
from recsys.online.servable import Datatype, Outputs, Row, TensorSpec

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
OWN_SHARE = 0.5  # of the machine's memory: tables beyond it are mapped here, because ONNX Runtime cannot map them
Feed = dict[str, np.ndarray]
Signature = dict[str, tuple[TensorSpec, ...]]
TYPES = {"FP32": np.dtype(np.float32), "INT32": np.dtype(np.int32)}


@dataclass(frozen=True)
class GraphInputs:
    """The inputs of a graph for `rows` rows."""

    feed: Feed
    rows: int


class Session(Protocol):
    """A loaded graph. Threads may share it."""

    def run(self, outputs: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[Any]:
        """Return the outputs with these names, or all."""
        ...

    def get_inputs(self) -> list[Any]:
        """Return the inputs: objects with a name, a type and a shape."""
        ...

    def get_outputs(self) -> list[Any]:
        """Return the outputs in the same way."""
        ...


def providers(device: str = "auto") -> list[Any]:
    """Return ONNX Runtime's providers: CUDA's if there is one, and the CPU's for operations that it lacks.

    Args:
        device: auto | cpu | cuda: only with a GPU. The number of a GPU may follow, as in auto:1.

    Raises:
        UserError: device=cuda without CUDA's provider, or without a GPU.
    """
    import onnxruntime as ort

    device, _, number = device.partition(":")
    has_provider = CUDA in ort.get_available_providers()
    if device == "cuda" and not has_provider:
        install = install_command("serve-gpu")
        raise UserError(f"device=cuda: onnxruntime {ort.__version__} has no CUDA provider; run: {install}")
    if device != "cpu" and has_provider and has_gpu():
        ort.preload_dlls()  # CUDA and cuDNN from NVIDIA's wheels
        # products of 10 bits differ by more than the tolerance of an artefact
        return [(CUDA, {"use_tf32": "0", "device_id": number or "0"}), CPU]
    if device == "cuda":
        raise UserError("device=cuda: CUDA's driver finds no GPU here (see nvidia-smi); use device=cpu")
    return [CPU]


def has_gpu() -> bool:
    """Return whether CUDA's driver finds a GPU. CUDA's provider is installed and offered without one, too."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def open_session(file: Path, threads: int = 1, own_share: float = OWN_SHARE, device: str = "auto") -> Session:
    """Load a graph. Tables beside it are memory-mapped, so that processes share them; a GPU has a copy.

    threads: number of threads of one call
    own_share: of the machine's memory; larger tables are served on the CPU, see TableSession
    device: see `providers`

    Raises UserError if onnxruntime is not installed or cannot load the graph, or there is no GPU for device=cuda.
    """
    check_extra("serve", str(file), "onnxruntime")
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the CPU to others
    large = _bytes_of_tables(file.parent) > own_share * os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    if large and device == "cuda":
        raise UserError(f"device=cuda: the tables of {file.parent} have more than half of the memory; use device=cpu")
    graph, tables = _with_tables_as_inputs(file) if large else (str(file), {})
    chosen = [CPU] if large else providers(device)
    try:
        session = ort.InferenceSession(graph, options, providers=chosen)
    except Exception as e:  # onnxruntime's own errors have no common base
        fix = "; or serve it with device=cpu" if len(chosen) > 1 else ""
        raise UserError(f"{file}: onnxruntime {ort.__version__} cannot load it: {str(e).splitlines()[0]}{fix}") from e
    if device == "cuda" and CUDA not in session.get_providers():  # it went on without libraries that it did not find
        install = install_command("serve-gpu")
        raise UserError(f"device=cuda: onnxruntime {ort.__version__} cannot load CUDA's libraries; run: {install}")
    return TableSession(session, tables) if large else session


class TableSession:
    """A session whose tables are inputs of its graph, mapped by this process.

    ONNX Runtime maps tables for writing, which Linux refuses for files that are larger than its memory. This mapping is
    for reading alone, and its pages are read one by one: with the usual reading ahead, a row of a table that is not in
    memory costs up to megabytes (benchmarks/serving/larger_than_memory.py).
    """

    def __init__(self, session: Session, tables: Mapping[str, np.ndarray]) -> None:
        self._session, self.tables = session, tables

    def run(self, outputs: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[Any]:
        return self._session.run(outputs, {**feed, **self.tables})

    def get_inputs(self) -> list[Any]:
        return [i for i in self._session.get_inputs() if i.name not in self.tables]

    def get_outputs(self) -> list[Any]:
        return self._session.get_outputs()


def _bytes_of_tables(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.glob("tables/*.bin"))


def _with_tables_as_inputs(file: Path) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return a graph that has its external data as inputs, and these inputs."""
    check_extra("export", f"{file}, which has tables of more than half of the memory", "onnx")
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    graph, tables = model.graph, dict[str, np.ndarray]()
    for tensor in [i for i in graph.initializer if i.external_data]:
        place = {e.key: e.value for e in tensor.external_data}
        dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), list(tensor.dims)
        with manifest.inside(file.parent, place["location"]).open("rb") as f:
            content = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        if hasattr(mmap, "MADV_RANDOM"):  # Linux
            content.madvise(mmap.MADV_RANDOM)
        offset = int(place.get("offset", 0))
        tables[tensor.name] = np.frombuffer(content, dtype, int(np.prod(shape)), offset).reshape(shape)
        graph.initializer.remove(tensor)
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    return model.SerializeToString(), tables


class SingleGraph:
    """The graph in a file single_graph.onnx. Threads may share it."""

    def __init__(self, file: Path, threads: int = 1) -> None:
        self.session = open_session(file, threads)
        self._inputs = [(i.name, i.type == "tensor(string)") for i in self.session.get_inputs()]
        self._outputs = [o.name for o in self.session.get_outputs()]

    def feed(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Return the graph's inputs for raw rows, (rows, 1) each. Raises ValueError for text that is not a number."""
        feed: dict[str, np.ndarray] = {}
        for name, is_text in self._inputs:
            values = [row.get(name) for row in rows]
            if is_text:
                texts = [text_of(x) if isinstance(x, int | float | None) else str(x) for x in values]  # 7 for 7.0
                feed[name] = np.array([[x or ""] for x in texts], object)
            else:
                feed[name] = np.array([[np.nan if x is None or x == "" else float(x)] for x in values], np.float64)
        return feed

    def __call__(self, rows: Sequence[Row]) -> Outputs:
        """Return the predictions of raw rows, (rows,) each."""
        return dict(zip(self._outputs, self.session.run(self._outputs, self.feed(rows)), strict=True))


def graph_inputs(arrays: Arrays, features: FeatureSpec, *, one_length: bool = False) -> GraphInputs:
    """Return the inputs of a graph: lists are padded with -1 to the longest.

    one_length: whether to pad all features to the same length
    """
    feed: Feed = {}
    if features.dense:
        feed["dense"] = arrays.dense
    if arrays.ids.shape[1]:
        feed["ids"] = arrays.ids
    longest = {n: int(x.max(initial=1)) for n, x in arrays.lengths.items()}
    most = max(longest.values(), default=1)
    for name, values in arrays.values.items():
        lengths, length = arrays.lengths[name], most if one_length else longest[name]
        feed[name] = np.full((len(lengths), length), -1, np.int32)
        feed[name][np.arange(length) < lengths[:, None]] = values
    return GraphInputs(feed, arrays.rows)


def longest_lists(data: ResolvedData) -> dict[str, int]:
    """Return the length of the longest list that the transforms make of each feature, if there is one."""
    own = {n: c.longest for n, c in data.sparse_columns.items()}
    whole = None if data.sequences is None else data.sequences.max_length + 1
    return {n: length for n, c in own.items() if (length := c or whole) is not None}


def check_feed(
    tensors: Mapping[str, np.ndarray], specs: tuple[TensorSpec, ...], features: FeatureSpec, longest: Mapping[str, int]
) -> GraphInputs:
    """Check features that a client has computed. longest: see `longest_lists`

    Raises UserError if a name, shape, type or id is wrong, or a list is longer than those that the model is made for:
    the memory of attention grows with its square.
    """
    names = [s.name for s in specs]
    if missing := [n for n in names if n not in tensors]:
        raise UserError(f"input {missing[0]}: is missing; the inputs are {', '.join(names)}")
    feed, rows = {}, len(tensors[names[0]])
    for spec in specs:
        x = np.ascontiguousarray(tensors[spec.name])
        wanted = [rows if i == 0 else n for i, n in enumerate(spec.shape)]
        if x.ndim != len(wanted) or any(n not in (-1, m) for n, m in zip(wanted, x.shape, strict=True)):
            shown = ["rows" if i == 0 else "any" if n < 0 else n for i, n in enumerate(spec.shape)]
            shape = ", ".join(map(str, shown))
            raise UserError(f"input {spec.name}: has shape {list(x.shape)}, and the model takes [{shape}]")
        if 0 in x.shape[1:]:
            raise UserError(f"input {spec.name}: has shape {list(x.shape)}; pad empty lists with -1")
        if spec.shape[1:] == (-1,) and x.shape[1] > longest.get(spec.name, x.shape[1]):
            most = longest[spec.name]
            raise UserError(f"input {spec.name}: has lists of {x.shape[1]:,}; the longest are of {most:,}")
        if x.dtype != TYPES[spec.datatype]:
            raise UserError(f"input {spec.name}: has type {x.dtype}, and the model takes {spec.datatype}")
        feed[spec.name] = x
    # an id that is not a row of its table would let the graph read beyond the table
    singles = [f for f in features.sparse if not f.multi_valued]
    if singles and len(ids := feed["ids"]):
        table_rows = np.array([f.cardinality for f in singles])
        if ids.min() < 0 or (ids.max(axis=0) >= table_rows).any():  # which one is looked for only then
            for i, f in enumerate(singles):
                _check_range(f.name, ids[:, i], 0, f.cardinality)
    for f in features.sparse:
        if f.multi_valued and f.name in feed:  # retrieval models need not read all
            _check_range(f.name, feed[f.name], -1, f.cardinality)
    if "dense" in feed and not np.isfinite(feed["dense"]).all():
        raise UserError("input dense: holds NaN or infinite numbers; fill missing values as the transforms do")
    return GraphInputs(feed, rows)


def _check_range(name: str, ids: np.ndarray, low: int, rows: int) -> None:
    if ids.size and not (low <= ids.min() and ids.max() < rows):
        wrong = ids[(ids < low) | (ids >= rows)].flat[0]
        raise UserError(f"feature {name}: has the id {wrong}; ids are from 0 to {rows - 1}")


def raw_inputs(types: pl.Schema, data: ResolvedData) -> tuple[TensorSpec, ...]:
    """Return a tensor of the rows' values for each raw column; times, lists and the like are text.

    Whole numbers are FP64, so that NaN is a missing value, unless they may be ids, of which FP64 would lose digits.
    """
    read = {column for column, of_column in data.column_reads.items() if of_column == {Number}}
    sparse = {column for c in data.sparse_columns.values() for column in c.source.columns}
    group = set() if data.group is None else {data.group.by, data.group.order}
    numbers = read - sparse - group  # which dense features alone read
    specs = []
    for name, dtype in types.items():
        datatype: Datatype = "BOOL" if dtype == pl.Boolean else "BYTES"
        if dtype.is_integer() or dtype.is_float():
            datatype = "INT64" if dtype.is_integer() and name not in numbers else "FP64"
        specs.append(TensorSpec(name, datatype, (-1, 1), optional=True))
    return tuple(specs)


def feature_inputs(features: FeatureSpec) -> tuple[TensorSpec, ...]:
    """Return the inputs of the graph: `dense`, `ids` and the lists of multi-valued features, padded with -1."""
    specs = [TensorSpec("dense", "FP32", (-1, features.dense_width))] if features.dense else []
    if singles := single_valued(features):
        specs.append(TensorSpec("ids", "INT32", (-1, len(singles))))
    specs += [TensorSpec(f.name, "INT32", (-1, -1)) for f in features.sparse if f.multi_valued]
    return tuple(specs)


def output_specs(names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return an output of one number a row for each name."""
    return tuple(TensorSpec(name, "FP32", (-1,)) for name in names)


def signature_json(signature: Signature) -> dict[str, Any]:
    """Return a signature as JSON values."""
    return {part: [asdict(spec) | {"shape": list(spec.shape)} for spec in specs] for part, specs in signature.items()}


def apart(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the differences of numbers, relative to wanted numbers above 1; infinity for NaN."""
    differences = np.abs(found - wanted) / np.maximum(np.abs(wanted), 1)
    return np.where(np.isnan(differences), np.inf, differences)
