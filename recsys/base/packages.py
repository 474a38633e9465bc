"""The packages that recsys runs with: its extras, and compatible versions of torch, torchrec and fbgemm."""

import os
import shutil
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from recsys.base.errors import UserError

DISTRIBUTION = "declarative-recsys"  # the name of the package `recsys` on PyPI, where another project is named recsys
SERVE = ("onnxruntime", "uvicorn", "uvloop", "httptools", "orjson", "grpc", "tritonclient", "prometheus_client")
EXTRAS: dict[str, tuple[str, ...]] = {  # an extra of pyproject.toml -> the modules that a command of it imports
    "spark": ("pyspark",),
    "s3": ("s3fs",),
    "slurm": ("submitit",),
    "gcs": ("gcsfs",),
    "sql": ("duckdb", "sqlalchemy"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "export": ("onnx", "onnxscript", "onnxruntime", "treelite"),
    "serve": SERVE,
    "serve-gpu": SERVE,  # onnxruntime-gpu instead of onnxruntime: two packages of one module
    "redis": ("redis",),
    "kafka": ("confluent_kafka",),
    "index": ("faiss", "usearch"),
    "milvus": ("pymilvus",),
    "stages": ("rbloom",),
    "gbm": ("lightgbm", "xgboost", "catboost"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
# torch -> (torchrec, fbgemm), by release series
TRIPLES = {
    "2.11": ("1.6", "1.6"),
    "2.12": ("1.7", "1.7"),
    "2.13": ("1.8", "1.8"),
    "2.14": ("1.9", "1.9"),
}
FBGEMM = ("fbgemm-gpu-cpu", "fbgemm-gpu", "fbgemm-gpu-nightly-cpu")
PINNED = ("2.13.0", "1.8.0", "1.8.0")


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains it
        return False


def install_command(extra: str) -> str:
    """Return the command that installs an extra: uv's in a checkout, whose environment has no pip."""
    checkout = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    if extra == "serve-gpu":  # the groups that a checkout installs by default have onnxruntime
        sync = "uv pip uninstall onnxruntime && uv sync --inexact --no-default-groups --extra serve-gpu"
        return sync if checkout else f"pip uninstall -y onnxruntime && pip install '{DISTRIBUTION}[serve-gpu]'"
    return f"uv sync --inexact --extra {extra}" if checkout else f"pip install '{DISTRIBUTION}[{extra}]'"


def check_extra(extra: str, reason: str, *modules: str) -> None:
    """Raise UserError if modules of an extra are not installed.

    Args:
        extra: a key of EXTRAS.
        reason: the setting or the command that needs them, which begins the message.
        modules: the modules that are needed; by default all of the extra.
    """
    missing = next((m for m in modules or EXTRAS[extra] if not is_installed(m)), None)
    if missing is not None:
        raise UserError(f"{reason}: needs {missing}, which is not installed; run: {install_command(extra)}")


def no_compiler(gpu: bool) -> str | None:
    """Return what is missing to compile at run time, or None: Triton's launcher on GPUs is C, Inductor's code C++."""
    names = ([os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]) if gpu else [os.environ.get("CXX", "g++")]
    if any(map(shutil.which, names)) and Path(sysconfig.get_path("include"), "Python.h").is_file():
        return None
    missing = f"no compiler ({' or '.join(names)}) or no Python.h is found"
    return f"{missing}: what needs it is off, the run goes on in eager mode; on Debian, apt install g++ python3-dev"


class VersionMismatch(UserError):
    """The installed versions of torch, torchrec and fbgemm are not compatible.

    problem: which versions are installed
    command: the command that installs compatible versions
    """

    def __init__(self, problem: str, command: str) -> None:
        super().__init__(f"{problem}; run: {command}")
        self.problem, self.command = problem, command


def check_versions() -> None:
    """Raise UserError, with the command to run, for a missing or mismatched package."""
    torch, torchrec = _series("torch"), _series("torchrec")
    fbgemm = next(filter(None, map(_series, FBGEMM)), None)
    if torch is None or torchrec is None or fbgemm is None or TRIPLES.get(torch) != (torchrec, fbgemm):
        installed = f"torch {torch or 'missing'}, torchrec {torchrec or 'missing'}, fbgemm {fbgemm or 'missing'}"
        want = TRIPLES.get(torch or "")
        torchrec_pin, fbgemm_pin = (f"{want[0]}.*", f"{want[1]}.*") if want else PINNED[1:]
        first = "" if want else f"pip install torch=={PINNED[0]} && "
        raise VersionMismatch(
            f"{installed}: these versions are not compatible",
            f"{first}pip install --no-deps 'torchrec=={torchrec_pin}' 'fbgemm-gpu-cpu=={fbgemm_pin}' "
            "(with a GPU: fbgemm-gpu); in a checkout: uv sync",
        )


def describe() -> str:
    """Return the versions of recsys, torch, torchrec and fbgemm on one line."""
    fbgemm = next((p for p in FBGEMM if version_of(p)), FBGEMM[0])
    packages = ("torch", "torchrec", fbgemm)
    return f"recsys {version_of('recsys')} (" + ", ".join(f"{p} {version_of(p) or 'missing'}" for p in packages) + ")"


def version_of(package: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed. recsys: this one's"""
    try:
        return version(DISTRIBUTION if package == "recsys" else package)
    except PackageNotFoundError:
        return None


def _series(package: str) -> str | None:
    found = version_of(package)
    return found and ".".join(found.split(".")[:2])
