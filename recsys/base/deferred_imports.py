"""Packages that TorchRec and Lightning import for names that a run never uses, loaded when such a name is used.

`import torchrec` imports torch._dynamo, sympy, tensordict and PyTorch's DTensor, and `import pytorch_lightning` scipy
and matplotlib: half of the CPU seconds of a start. While a module of IMPORTERS is imported, each package of DEFERRED is
an empty module, and a name that is imported from it is a placeholder. The package is loaded when a placeholder is
called, or when any other code reads an attribute of the module. Only commands do this; RECSYS_EAGER_IMPORTS=1 turns it
off. A process of the user's that imports recsys has the real packages.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

IMPORTERS = (
    "torchrec",
    "fbgemm_gpu",
    "pytorch_lightning",
    "lightning_fabric",
    "torchmetrics",
    "torch.distributed.checkpoint",
)
# Each package, and its names that PyTorch calls in a run where nothing is compiled. Until the package is loaded, they
# do what it would do then: decorators return the function, guards return their bool, the others do nothing.
DEFERRED: dict[str, set[str]] = {
    "torch._dynamo": {"disable", "graph_break", "trace_rules"},
    "torch.fx.experimental.symbolic_shapes": {"expect_true", "guard_or_false", "guard_or_true"},  # imports sympy
    "tensordict": set(),
    "torch.distributed.tensor": set(),  # imports sympy too; runs have none of its tensors
    "torch.distributed._tensor": set(),
    "scipy": set(),
    "matplotlib": set(),
    "transformers": set(),  # torchmetrics imports it where it is installed: seconds
}
VALUES = ("__all__", "__version__")  # read at once: by import *, and by scikit-learn, which an importer may import
_state = threading.local()  # importing: whether this thread imports a module of IMPORTERS


def install() -> None:
    """Defer the packages of DEFERRED that nobody has imported yet. Calling it again does nothing."""
    if not os.environ.get("RECSYS_EAGER_IMPORTS") and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _importing() -> bool:
    return getattr(_state, "importing", False)


@contextmanager
def _set_importing(value: bool) -> Iterator[None]:
    before, _state.importing = _importing(), value
    try:
        yield
    finally:
        _state.importing = before


def _package(name: str, packages: Iterable[str]) -> str | None:
    """Return the package that a module is, or belongs to."""
    return next((p for p in packages if name == p or name.startswith(p + ".")), None)


class _Finder:
    """Gives importers and deferred packages their loaders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if _package(name, IMPORTERS):
            return _with_loader(PathFinder.find_spec(name, path), _ImporterLoader)
        if (root := _package(name, DEFERRED)) is None:
            return None
        if name == root or _importing():
            return _with_loader(PathFinder.find_spec(name, path), _DeferredLoader)
        if isinstance(parent := sys.modules.get(name.rpartition(".")[0]), DeferredModule):
            parent.load_deferred()
        return None


def _with_loader(spec: ModuleSpec | None, loader: type[SourceFileLoader]) -> ModuleSpec | None:
    """Return the spec with another loader of source files; None, for the usual way, if it is no source file."""
    if spec is None or type(spec.loader) is not SourceFileLoader:
        return None
    spec.loader = loader(spec.loader.name, spec.loader.path)
    return spec


class _ImporterLoader(SourceFileLoader):
    """Executes a module of IMPORTERS."""

    def exec_module(self, module: ModuleType) -> None:
        with _set_importing(True):
            super().exec_module(module)


class _DeferredLoader(SourceFileLoader):
    """Leaves a module empty until it is used."""

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = DeferredModule  # type: ignore[assignment]


class DeferredModule(ModuleType):
    """A module that is loaded when one of its names is used."""

    def load_deferred(self) -> None:
        """Execute the module, after the packages that it belongs to."""
        with _set_importing(False):
            if isinstance(parent := sys.modules.get(self.__name__.rpartition(".")[0]), DeferredModule):
                parent.load_deferred()
            if type(self) is DeferredModule:
                self.__class__ = ModuleType  # type: ignore[assignment]
                assert isinstance(self.__loader__, SourceFileLoader)
                SourceFileLoader.exec_module(self.__loader__, self)

    def __getattr__(self, name: str) -> Any:
        if name not in VALUES:
            if name.startswith("__"):
                raise AttributeError(name)
            if name in DEFERRED.get(self.__name__, ()) or _importing():
                return _placeholder(self, name)
        self.load_deferred()
        return getattr(self, name)


class _Placeholder(type):
    """A name of a deferred module: a class, so that it can stand in annotations and in isinstance."""

    owner: DeferredModule | _Placeholder

    def _real(cls) -> Any:
        """Load the module and return what the name stands for."""
        if isinstance(cls.owner, _Placeholder):
            return getattr(cls.owner._real(), cls.__name__)
        if isinstance(cls.owner, DeferredModule):
            cls.owner.load_deferred()
        try:
            return getattr(cls.owner, cls.__name__)
        except AttributeError:
            return import_module(f"{cls.owner.__name__}.{cls.__name__}")

    def _is_deferred(cls) -> bool:
        owner = cls.owner
        return owner._is_deferred() if isinstance(owner, _Placeholder) else isinstance(owner, DeferredModule)

    def _is_idle(cls) -> bool:
        """Return whether this is a name of DEFERRED's sets, or in one, and its module is not loaded."""
        owner = cls.owner
        if isinstance(owner, _Placeholder):
            return owner._is_idle()
        return isinstance(owner, DeferredModule) and cls.__name__ in DEFERRED.get(owner.__name__, ())

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        idle = cls._is_idle()
        if not idle and not _importing():
            return cls._real()(*args, **kwargs)
        first = args[0] if args else None
        if idle and type(first) is bool:
            return first
        if isinstance(first, FunctionType):  # @name
            return cls._decorated(first, lambda: cls._real()(*args, **kwargs))
        if idle and first is not None:
            return cls._real()(*args, **kwargs)
        return lambda function: cls._decorated(function, lambda: cls._real()(*args, **kwargs)(function))  # @name(...)

    def _decorated(cls, function: Callable[..., Any], decorate: Callable[[], Any]) -> Callable[..., Any]:
        """Return a function that is decorated when it is called."""

        @wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            return (function if cls._is_idle() else cached())(*args, **kwargs)

        cached = cache(decorate)
        return decorated

    def __instancecheck__(cls, instance: object) -> bool:
        return not cls._is_deferred() and isinstance(instance, cls._real())

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(cls, name) if _importing() or cls._is_idle() else getattr(cls._real(), name)

    def __setattr__(cls, name: str, value: object) -> None:
        setattr(cls._real(), name, value)


@cache
def _placeholder(owner: DeferredModule | _Placeholder, name: str) -> _Placeholder:
    return _Placeholder(name, (), {"owner": owner})
