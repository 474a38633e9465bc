"""The extras of the package, and the line that says which one a command lacks."""

from importlib.util import find_spec
from pathlib import Path

from recsys.base.errors import UserError

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
        return sync if checkout else "pip uninstall -y onnxruntime && pip install 'recsys[serve-gpu]'"
    return f"uv sync --inexact --extra {extra}" if checkout else f"pip install 'recsys[{extra}]'"


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
