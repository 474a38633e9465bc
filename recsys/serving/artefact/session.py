"""Sessions of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recsys.errors import UserError


def open_session(file: Path, threads: int = 1) -> Any:
    """Load a graph on the CPU. Tables beside it are memory-mapped, so that processes share them.

    threads: number of threads of one call

    Raises UserError if onnxruntime is not installed or cannot load the graph.
    """
    try:
        import onnxruntime as ort
    except ImportError as e:
        raise UserError("onnxruntime is not installed; run: pip install 'recsys[serve]'") from e
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the CPU to others
    try:
        return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime's own errors have no common base
        raise UserError(f"{file}: onnxruntime {ort.__version__} cannot load it: {str(e).splitlines()[0]}") from e
