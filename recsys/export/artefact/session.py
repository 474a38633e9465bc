"""Sessions of ONNX Runtime, on a GPU where there is one; the single graph from raw values to predictions."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recsys.base.errors import UserError
from recsys.base.packages import check_extra, install_command
from recsys.files import manifest
from recsys.files.text_values import text_of
from recsys.online.servable import Outputs, Row

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
OWN_SHARE = 0.5  # of the machine's memory: tables beyond it are mapped here, because ONNX Runtime cannot map them


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
