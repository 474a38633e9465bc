"""Trace the graph of a model, say which line of it cannot be traced, and convert it to ONNX."""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recsys.base.errors import UserError
from recsys.data.features.arrays import single_valued
from recsys.export.fused_tables import PaddedFeatures, TablePart
from recsys.interface.features import FeatureSpec

if TYPE_CHECKING:
    import onnx

OPSET = 21
ML, ML_OPSET = "ai.onnx.ml", 5  # operators of text and of trees
EXAMPLE_ROWS, EXAMPLE_LENGTH, EXAMPLE_TABLE = 3, 5, 7  # sizes of the example inputs; the graph's own are dynamic

Inputs = dict[str, Tensor]
ADVICE = "use operations of whole tensors, such as those of recsys/models/common/lists.py"


def example_inputs(features: FeatureSpec) -> Inputs:
    """Return inputs of a few rows: `dense` (B, D), `ids` (B, S) and, by name, the padded lists (B, L)."""
    inputs: Inputs = {}
    if features.dense:
        inputs["dense"] = torch.zeros(EXAMPLE_ROWS, features.dense_width)
    if singles := single_valued(features):
        inputs["ids"] = torch.zeros(EXAMPLE_ROWS, len(singles), dtype=torch.int32)
    for f in features.sparse:
        if f.multi_valued:
            inputs[f.name] = torch.zeros(EXAMPLE_ROWS, EXAMPLE_LENGTH, dtype=torch.int32)
    return inputs


def features_of(features: FeatureSpec, inputs: Mapping[str, Tensor]) -> tuple[Tensor, PaddedFeatures]:
    """Return the dense features (B, D) and the sparse ones of a graph's inputs."""
    lists = {f.name: inputs[f.name] for f in features.sparse if f.multi_valued}
    any_of = next(iter(inputs.values()))
    dense = inputs["dense"] if features.dense else torch.zeros(any_of.shape[0], 0, device=any_of.device)
    return dense, PaddedFeatures(inputs.get("ids"), single_valued(features), lists)


def dynamic_shapes(inputs: Inputs, *, one_length: bool = False, **bounds: int) -> dict[str, dict[int, Any]]:
    """Return the dynamic dimensions of each input: the number of rows and, of lists, the length.

    one_length: whether the lists of all features are padded to the same length
    bounds: `min` and `max` of the dimensions
    """
    batch, shared = (torch.export.Dim(name, **bounds) for name in ("batch", "length"))
    lengths = {n: shared if one_length else torch.export.Dim(f"length_{i}", **bounds) for i, n in enumerate(inputs)}
    return {n: {0: batch} if n in ("dense", "ids") else {0: batch, 1: lengths[n]} for n in inputs}


def trace(
    graph: nn.Module, parts: Sequence[TablePart], inputs: Inputs, *, one_length: bool = False
) -> torch.export.ExportedProgram:
    """Trace a graph that takes (arrays of tables, inputs), with dynamic numbers of rows and lengths of lists.

    one_length: whether the lists of all features are padded to the same length
    """
    arrays = {p.name: torch.zeros(EXAMPLE_TABLE, p.columns, dtype=p.dtype) for p in parts}
    sizes = {n: {0: torch.export.Dim(f"rows_{i}")} for i, n in enumerate(arrays)}
    shapes = dynamic_shapes(inputs, one_length=one_length)
    graph.eval()

    def export() -> torch.export.ExportedProgram:
        return torch.export.export(graph, (arrays, inputs), dynamic_shapes=(sizes, shapes), strict=False)

    with quiet_exporter(), torch.no_grad(), explained():
        try:
            return export()
        except Exception as e:  # the class of torch.export's errors is private
            constant = "Constraints violated" in str(e)
            problem = specialising_line(graph, export) if constant else None
            raise e if problem is None else UserError(problem) from e


def to_onnx(
    program: torch.export.ExportedProgram,
    parts: Sequence[TablePart],
    inputs: Sequence[str],
    outputs: Sequence[str],
    file: Path,
    rows: Mapping[str, int],
    *,
    halved: bool = False,
    change: Callable[[Any], None] | None = None,
) -> None:
    """Write a traced graph as ONNX. The arrays of tables become external data in the files of `parts`, which exist.

    rows: the number of rows of each part
    halved: whether to store dense weights as bfloat16; ONNX Runtime converts them to float32 when it loads them
    change: changes the graph before it is written
    """
    import onnx

    with quiet_exporter(), torch.no_grad(), explained():  # with gradients, scan has no form
        converted = torch.onnx.export(
            program,
            (),
            dynamo=True,
            input_names=[*(f"table_{p.name}" for p in parts), *inputs],
            output_names=list(outputs),
            opset_version=OPSET,
            verbose=False,
        )
    assert converted is not None
    proto = converted.model_proto
    _forget_sources(proto.graph)
    for function in proto.functions:
        _forget_sources(function)
    _make_external(proto, {f"table_{p.name}": p for p in parts}, rows)
    if halved:
        _halve(proto)
    if change is not None:
        change(proto)
    onnx.save(proto, str(file))
    onnx.checker.check_model(str(file))


def _forget_sources(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Remove the lines of code that made each node, which name the folders of the machine that exported it."""
    for part in (*graph.node, *graph.value_info, *getattr(graph, "input", ()), *getattr(graph, "output", ())):
        if hasattr(part, "metadata_props"):
            del part.metadata_props[:]
        for attribute in getattr(part, "attribute", ()):
            if attribute.HasField("g"):
                _forget_sources(attribute.g)


def _halve(proto: onnx.ModelProto) -> None:
    """Store float32 weights, whose last 16 bits are 0, as bfloat16."""
    from onnx import TensorProto, helper

    weights = [t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) > 1]
    casts = []
    for tensor in weights:
        if tensor.data_location == TensorProto.EXTERNAL:
            continue
        bits = np.frombuffer(tensor.raw_data, np.uint32) >> 16
        stored = TensorProto(name=f"{tensor.name}_bf16", data_type=TensorProto.BFLOAT16, dims=tensor.dims)
        stored.raw_data = bits.astype(np.uint16).tobytes()
        casts.append(helper.make_node("Cast", [stored.name], [tensor.name], to=TensorProto.FLOAT))
        tensor.CopyFrom(stored)
    for node in reversed(casts):
        proto.graph.node.insert(0, node)


def _make_external(proto: onnx.ModelProto, parts: Mapping[str, TablePart], rows: Mapping[str, int]) -> None:
    """Turn the inputs for the tables into initializers whose data lies in files; drop inputs that nothing reads."""
    import onnx

    types = {
        torch.float32: onnx.TensorProto.FLOAT,
        torch.float16: onnx.TensorProto.FLOAT16,
        torch.uint8: onnx.TensorProto.UINT8,
    }
    read = {name for node in proto.graph.node for name in node.input}
    kept = [i for i in proto.graph.input if i.name not in parts and i.name in read]
    used = {i.name for i in proto.graph.input if i.name in parts and i.name in read}
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for name in sorted(used):
        part = parts[name]
        size = [rows[part.name], part.columns]
        tensor = proto.graph.initializer.add(name=name, data_type=types[part.dtype], dims=size)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        length = rows[part.name] * part.columns * part.dtype.itemsize
        for key, value in (("location", part.file), ("offset", "0"), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)


@contextlib.contextmanager
def quiet_exporter() -> Any:
    """Silence the warnings of PyTorch's exporter, which are about its own code."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(before)


TORCH, HERE = Path(torch.__file__).parent, Path(__file__).parent


@contextmanager
def explained() -> Iterator[None]:
    """Raise UserError for an error of torch.export or torch.onnx that an operation of a model has caused.

    Other errors are raised as they are.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as e:
        if operation := re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", str(e)):
            raise UserError(f"the model cannot be exported: ONNX has no counterpart of {operation[1]}; {ADVICE}") from e
        place = _in_model((f.filename, f.lineno or 0) for f in traceback.extract_tb(e.__traceback__))
        if place is None:
            raise
        problem = (
            "it depends on the values of a batch" if "data-dependent" in str(e) else str(e).strip().splitlines()[0]
        )
        raise UserError(_line(place, problem)) from e


def specialising_line(graph: nn.Module, export: Callable[[], Any]) -> str | None:
    """Trace a graph again whose trace fails, and return the line after which a dynamic size is a constant.

    graph: takes the arrays of tables and the inputs
    """
    watch = _Watch()
    hook = graph.register_forward_pre_hook(lambda _, arguments: watch.begin(arguments[1]))
    with suppress(Exception), watch:  # it fails as before
        export()
    hook.remove()
    problem = "the number of rows, or the length of the lists, is a constant from here on"
    return None if watch.place is None else _line(watch.place, problem)


class _Watch(TorchFunctionMode):
    """Finds the first function after which a dynamic size is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.place: tuple[str, int] | None = None
        self._sizes: list[Any] = []

    def begin(self, inputs: Mapping[str, Tensor]) -> None:
        self._sizes = [size for x in inputs.values() for size in x.shape if isinstance(size, torch.SymInt)]

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.place is None and any(size.node.maybe_as_int() is not None for size in self._sizes):
            self.place = _in_model((f.filename, f.lineno or 0) for f in traceback.extract_stack())
        return result


def _in_model(frames: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """Return the innermost frame in the code of a model, which a graph of this package calls."""
    found = None
    for file, line in frames:
        if Path(file).parent == HERE:
            found = None if Path(file) != Path(__file__) else found
        elif not Path(file).is_relative_to(TORCH):
            found = file, line
    return found


def _line(place: tuple[str, int], problem: str) -> str:
    code = linecache.getline(*place).strip()
    return f"{place[0]}:{place[1]}: `{code}` cannot be exported: {problem.rstrip('.')}; {ADVICE}"
