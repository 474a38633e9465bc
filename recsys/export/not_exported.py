"""The line of a model's code that cannot be exported, for an error of one line instead of PyTorch's traceback."""

import linecache
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recsys.base.errors import UserError

TORCH, HERE = Path(torch.__file__).parent, Path(__file__).parent
ADVICE = "use operations of whole tensors, such as those of recsys/models/common/lists.py"


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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
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
