"""Operations that cannot be exported are named in one line, with the line of the model's code where it is known."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recsys.base.errors import UserError
from recsys.export.graphs import to_onnx, trace


class Graph(nn.Module):
    def __init__(self, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, parts: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"y": self.operation(inputs["dense"])}


def export(operation: Callable[[Tensor], Tensor], file: Path) -> None:
    program = trace(Graph(operation), [], {"dense": torch.zeros(3, 4)})
    to_onnx(program, [], ["dense"], ["y"], file, {})


def branches(x: Tensor) -> Tensor:
    return x + 1 if bool(x.sum() > 0) else x


def counts_rows(x: Tensor) -> Tensor:
    scale = torch.tensor([2.0] * len(x))
    return x * scale[:, None]


def leaves_torch(x: Tensor) -> Tensor:
    return x + torch.from_numpy(x.numpy())


def reduces_segments(x: Tensor) -> Tensor:
    return torch.segment_reduce(x, "sum", lengths=torch.full((1,), x.shape[0]), unsafe=True)


def shapes_do_not_fit(x: Tensor) -> Tensor:
    return x @ torch.zeros(7, 7)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (branches, r"test_not_exported\.py:\d+: `return x \+ 1 if bool.* cannot be exported: "),
        (counts_rows, r"test_not_exported\.py:\d+: `scale = .*` cannot be exported: the number of rows"),
        (leaves_torch, r"test_not_exported\.py:\d+: `return x \+ torch\.from_numpy.* cannot be exported: "),
        (reduces_segments, r"the model cannot be exported: ONNX has no counterpart of aten\.segment_reduce"),
        (shapes_do_not_fit, r"test_not_exported\.py:\d+: `return x @ torch\.zeros\(7, 7\)` cannot be exported"),
    ],
)
def test_the_operation_is_named(operation: Callable[[Tensor], Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as raised:
        export(operation, tmp_path / "graph.onnx")
    assert "\n" not in str(raised.value)


def test_other_errors_are_raised_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        export(torch.relu, tmp_path / "nowhere" / "graph.onnx")
