"""Modules under the names that they had before 0.3, so that models and losses of users still import."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

MOVED = {f"recsys.{name}": f"recsys.interface.{name}" for name in ("batch", "features", "labels", "candidates")}
MOVED |= {"recsys.task": "recsys.losses.task", "recsys.ranges": "recsys.base.ranges"}


class _Moved(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(MOVED[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has run under its own name."""


def install() -> None:
    """Let the old names be imported."""
    sys.meta_path.append(_Moved())
