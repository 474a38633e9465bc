"""Start a real Triton Inference Server without Docker, to compare with and to test against.

    python benchmarks/serving/triton.py serve REPOSITORY environment=DIR [http=8100] [grpc=8101] [metrics=8102]
    python benchmarks/serving/triton.py example REPOSITORY

`serve` creates a virtual environment in DIR with the package nvidia-pytriton, which contains Triton (about 300 MB,
once), starts Triton on a folder of models, says when it is ready, and stops it at Ctrl-C or SIGTERM. This Triton has
only the Python backend and ensembles. `packages=[onnxruntime,...]` installs what the models import. `example` writes
a repository with the model `identity`, whose output is its input.

The Python backend ignores PYTHONPATH: a model.py that imports other code has to extend sys.path itself. An input of
TYPE_STRING has to be sent as BYTES; numpy arrays of it hold objects.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

TRITON = "nvidia-pytriton==0.7.0"
PYTHON = "3.11"
KEYS = {"environment": "", "http": "8100", "grpc": "8101", "metrics": "8102", "packages": "", "threads": ""}
READY_S = 120.0
STOP_S = 15.0

CONFIG = """\
name: "identity"
backend: "python"
max_batch_size: 1024
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ] } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU, count: 1 } ]
"""
MODEL = '''\
import triton_python_backend_utils as utils


class TritonPythonModel:
    """Returns its input."""

    def execute(self, requests):
        inputs = [utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [utils.InferenceResponse([utils.Tensor("y", x)]) for x in inputs]
'''


def create_environment(folder: Path, packages: list[str]) -> Path:
    """Create the environment with Triton if it does not exist, install packages into it, and return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing {TRITON} into {folder}, once", flush=True)
        subprocess.run(["uv", "venv", "--quiet", "--python", PYTHON, folder], check=True)  # nosec B607
    if packages or not _package_folder(python).is_dir():
        subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, TRITON, *packages], check=True)  # nosec B607
    return python


def _ask(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _package_folder(python: Path) -> Path:
    """Return the folder of the wheel's Triton. It is not imported, because its import takes seconds."""
    return Path(_ask(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])")) / "pytriton" / "tritonserver"


def prepare_backend(folder: Path, python: Path) -> Path:
    """Copy the Python backend, with the stub of the environment's Python, and return the folder of backends."""
    triton, backends = _package_folder(python), folder / "backends"
    if not (backends / "python" / "triton_python_backend_stub").exists():
        shutil.copytree(triton / "backends" / "python", backends / "python", dirs_exist_ok=True)
        shutil.copy(triton / "python_backend_stubs" / PYTHON / "triton_python_backend_stub", backends / "python")
    return backends


def library_path(python: Path) -> str:
    """Return LD_LIBRARY_PATH: the interpreter's own libraries come first, otherwise the stub loads another libpython.

    With another libpython, a model dies with "RLock has no attribute _recursion_count".
    """
    own = _ask(python, "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")
    libraries = _package_folder(python).parents[1] / "nvidia_pytriton.libs"
    return os.pathsep.join(filter(None, [own, str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]))


def command(repository: Path, backends: Path, python: Path, ports: dict[str, str], threads: str) -> list[str]:
    """Return the command line of Triton. threads: the number of threads of its HTTP server; empty for its default"""
    arguments = {
        "model-repository": str(repository),
        "backend-directory": str(backends),
        "http-port": ports["http"],
        "grpc-port": ports["grpc"],
        "metrics-port": ports["metrics"],
        "log-verbose": "0",
        "log-info": "false",
        **({"http-thread-count": threads} if threads else {}),
    }
    binary = _package_folder(python) / "bin" / "tritonserver"
    return [str(binary), *(f"--{name}={value}" for name, value in arguments.items())]


def wait_until_ready(process: subprocess.Popen[bytes], port: str) -> bool:
    """Return whether the server becomes ready before it ends or READY_S seconds have passed."""
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1) as answer:  # nosec B310
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    return False


def stop(process: subprocess.Popen[bytes]) -> int:
    """End the server, and the processes of its models, which are in its session. Return its exit status."""
    process.terminate()
    try:
        status = process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        status = -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return status


def serve(repository: Path, settings: dict[str, str]) -> int:
    """Run Triton until a signal comes; return the exit status."""
    folder = Path(settings["environment"]).absolute()
    python = create_environment(folder, [p for p in settings["packages"].strip("[]").split(",") if p])
    line = command(repository.absolute(), prepare_backend(folder, python), python, settings, settings["threads"])
    environment = os.environ | {"LD_LIBRARY_PATH": library_path(python)}
    environment["PATH"] = os.pathsep.join([str(python.parent), environment["PATH"]])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = subprocess.Popen(line, env=environment, start_new_session=True)
    try:
        if not wait_until_ready(process, settings["http"]):
            print("error: Triton has not become ready; its messages are above", file=sys.stderr)
            return 1
        print(f"ready: http://127.0.0.1:{settings['http']}, gRPC at port {settings['grpc']}", flush=True)
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        stop(process)


def write_example(repository: Path) -> None:
    """Write a repository with the model `identity`."""
    folder = repository / "identity"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text(MODEL)


def main(arguments: list[str]) -> int:
    """Run the command; return the exit status."""
    words = [a for a in arguments if "=" not in a]
    settings = KEYS | dict(a.split("=", 1) for a in arguments if "=" in a)
    if unknown := next((key for key in settings if key not in KEYS), None):
        print(f"error: {unknown}: no such key; valid: {', '.join(KEYS)}", file=sys.stderr)
        return 2
    if len(words) != 2 or words[0] not in ("serve", "example"):
        print(__doc__, file=sys.stderr)
        return 2
    repository = Path(words[1])
    if words[0] == "example":
        write_example(repository)
        return 0
    if not repository.is_dir():
        print(f"error: {repository}: no such folder; name a repository of models", file=sys.stderr)
        return 2
    if not settings["environment"]:
        print("error: environment: is missing; name a folder for Triton's virtual environment", file=sys.stderr)
        return 2
    return serve(repository, settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
