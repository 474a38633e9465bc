"""Raw columns in requests to Triton's Python backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def raw_columns(pb: Any, request: Any, names: Iterable[str]) -> tuple[dict[str, list[Any]], int]:
    """Return the values of each column that a request has, and the number of rows. pb: triton_python_backend_utils"""
    found, rows = {}, 0
    for name in names:
        tensor = pb.get_input_tensor_by_name(request, name)
        if tensor is not None:
            values = tensor.as_numpy().reshape(-1)
            rows = len(values)
            found[name] = [v.decode() for v in values] if values.dtype == object else values.tolist()
    return found, rows
