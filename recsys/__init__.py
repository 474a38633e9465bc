"""Declarative deep recommender systems."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from recsys.base import moved_modules

moved_modules.install()

# Set this before torch loads OpenMP. By default, OpenMP's threads spin at barriers for milliseconds and take the cores
# from each other where cores are shared. With this setting they sleep after a few microseconds; benchmarks/README.md
# has the timings.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime 1.32 would report its use to Microsoft
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler would log that there is no GPU, and when it starts
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # W&B would send its crash reports, also from offline runs

if os.path.basename(sys.argv[0]) in ("-m", "recsys"):  # a command, not a process of the user's
    from recsys.base.deferred_imports import install

    install()
    _hook = sys.excepthook  # Ctrl-C before the command's handlers stand is one line, too

    def _explain(kind, error, trace):  # type: ignore[no-untyped-def]
        if issubclass(kind, KeyboardInterrupt):
            sys.stderr.write("error: interrupted\n")
        else:
            _hook(kind, error, trace)

    sys.excepthook = _explain

if TYPE_CHECKING:
    from recsys.api import TrainedRun as TrainedRun
    from recsys.api import load as load
    from recsys.api import new as new
    from recsys.api import open_pipeline as open_pipeline
    from recsys.api import recommend as recommend
    from recsys.api import similar as similar
    from recsys.api import train as train
    from recsys.base.errors import UserError as UserError
    from recsys.config.compose import compose as compose
    from recsys.job.check_built import check as check
    from recsys.job.run_config import RunConfig as RunConfig
    from recsys.online.predictor import Predictor as Predictor
    from recsys.online.recommender import Recommender as Recommender
    from recsys.online.row_transforms import RowTransforms as RowTransforms
    from recsys.pages.written_page import Page as Page

# names of docs/reference/python.md, imported when they are used
EXPORTS = {
    "TrainedRun": "recsys.api",
    "load": "recsys.api",
    "open_pipeline": "recsys.api",
    "recommend": "recsys.api",
    "similar": "recsys.api",
    "check": "recsys.job.check_built",
    "compose": "recsys.config.compose",
    "RunConfig": "recsys.job.run_config",
    "UserError": "recsys.base.errors",
    "Predictor": "recsys.online.predictor",
    "Recommender": "recsys.online.recommender",
    "RowTransforms": "recsys.online.row_transforms",
    "Page": "recsys.pages.written_page",
}


def __getattr__(name: str) -> Any:
    if name in ("train", "new"):  # modules that can be called: python -m recsys.train, and recsys.train([...])
        return import_module(f"recsys.{name}")
    if name not in EXPORTS:
        raise AttributeError(f"module 'recsys' has no attribute {name!r}")
    return getattr(import_module(EXPORTS[name]), name)
