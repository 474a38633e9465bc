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
        module = import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module, which has run under its own name, its own specification back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let the old names be imported."""
    sys.meta_path.append(_Moved())
