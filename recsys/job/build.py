"""Find the classes that a config's `_target_` nodes name, check them, and build their objects."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from omegaconf import OmegaConf

from recsys.base.errors import UserError, did_you_mean
from recsys.config.safe_targets import moved, refuse_unsafe
from recsys.interface.features import FeatureSpec
from recsys.schema.class_facts import names_in
from recsys.schema.run_schema import TrainConfig

if TYPE_CHECKING:
    import torch


HYDRAS = ("_args_", "_convert_", "_partial_", "_recursive_")  # keys of Hydra's instantiate, which have no use here
BUILT_WITH = ("features", "device")  # the parameters that every model takes


def locate(target: str, key: str, base: type | None = None) -> Callable[..., Any]:
    """Return the class, or the function that makes a schedule, that the `_target_` of `key` names.

    Args:
        key: the key of the config that holds the `_target_`, such as model or optim.dense.
        base: the class that it must be a subclass of; by default, the one that the key needs.

    Raises:
        UserError: there is no such class, or it is not of the kind that the key needs.
    """
    named = _find(target, f"{key}._target_={target}")
    needed, what = _needed(key) if base is None else ((base,), f"a subclass of {base.__module__}.{base.__name__}")
    made = named
    if key == "optim.scheduler" and inspect.isfunction(named):
        made = _hints(named).get("return")
        what += ", or a function that is annotated to return one"
    if not inspect.isclass(made) or not set(needed) & set(inspect.getmro(made)):
        raise UserError(f"{key}._target_={target}: must be {what}")
    return named


def bind(node: Mapping[str, Any], key: str, base: type | None = None) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the class that a node names and the values of its parameters. base: as in `locate`

    A value may be a node itself, if the parameter is annotated with the class that it needs; it is built.

    Raises:
        UserError: a class is missing, or is not of the kind that its key or parameter needs.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UserError(f"{key}: needs a _target_, the class to build")
    values: dict[str, Any] = dict(OmegaConf.to_container(node, resolve=True) if OmegaConf.is_dict(node) else node)  # type: ignore[arg-type]
    named = locate(values.pop("_target_"), key, base)
    return named, _built(named, values, key)


def _find(target: object, where: str) -> Any:
    """Return the object that a dotted path names. Raises UserError if it does not exist or may not be imported."""
    module, name = _place(target, where)
    try:
        loaded = import_module(module)
    except (ImportError, ValueError) as e:
        raise UserError(f"{where}: cannot import {module or target} ({e})") from e
    if not hasattr(loaded, name):
        raise _lacks(name, module, vars(loaded), where)
    return getattr(loaded, name)


def _place(target: object, where: str) -> tuple[str, str]:
    """Return the module and the name in it of a dotted path. Raises UserError if it may not be imported."""
    if not isinstance(target, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", target):
        raise UserError(f"{where}: must be the dotted path of a class, such as recsys.models.dlrm.DLRM")
    module, _, name = moved(target).rpartition(".")
    refuse_unsafe(module, where)
    return module, name


def _lacks(name: str, module: str, names: Iterable[str], where: str) -> UserError:
    return UserError(
        f"{where}: {module} has no {name}{did_you_mean(name, [n for n in names if not n.startswith('_')])}"
    )


def check_target_path(node: Mapping[str, Any], key: str) -> None:
    """Raise UserError if a node names no class, as far as this shows without an import."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UserError(f"{key}: needs a _target_, the class to build")
    target = node["_target_"]
    where = f"{key}._target_={target}"
    module, name = _place(target, where)
    if module in sys.modules:
        return
    top = module.partition(".")[0]
    if not top or find_spec(top) is None:
        raise UserError(f"{where}: cannot import {module or target} (there is no module {top or target})")
    if (names := names_in(module)) and name not in names:
        raise _lacks(name, module, names, where)


def _needed(key: str) -> tuple[tuple[type, ...], str]:
    """Return the classes of which one must be a base of the class that `key` names, and a description of them."""
    if key == "model":
        from torch.nn import Module

        return (Module,), "a model, a subclass of torch.nn.Module"
    if key == "loss":
        from recsys.losses import RankingLoss, RetrievalLoss, Tasks

        return (RankingLoss, RetrievalLoss, Tasks), "a loss, a subclass of recsys.losses.RankingLoss or RetrievalLoss"
    if key == "numeric":
        from recsys.models.common.numeric import NumericEmbedding

        base = "recsys.models.common.numeric.NumericEmbedding"
        return (NumericEmbedding,), f"an embedding of numbers, a subclass of {base}"
    if key == "optim.dense":
        from torch.optim import Optimizer

        return (Optimizer,), "an optimizer, a subclass of torch.optim.Optimizer"
    if key == "optim.scheduler":
        from torch.optim.lr_scheduler import LRScheduler

        return (LRScheduler,), "a learning-rate schedule, a subclass of torch.optim.lr_scheduler.LRScheduler"
    if key.startswith("logger."):
        from pytorch_lightning.loggers import Logger

        return (Logger,), "a logger, a subclass of pytorch_lightning.loggers.Logger"
    raise UserError(f"{key}: does not take a _target_; remove it")


def check_takes(named: Callable[..., Any], where: str, given: Sequence[str]) -> None:
    """Raise UserError if a class lacks a parameter that the framework passes. where: `key._target_=target`"""
    makers = [vars(c).get("__init__", c) for c in inspect.getmro(named)] if inspect.isclass(named) else [named]
    parameters = {name for maker in makers for name in inspect.signature(maker).parameters}  # *args are a base's
    for name in given:
        if name not in parameters:
            raise UserError(f"{where}: has no parameter {name}; recsys builds it with {' and '.join(given)}")


def _built(named: Callable[..., Any], values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the parameters of a class, with the objects that nested nodes describe."""
    for name in values:
        if name in HYDRAS:
            raise UserError(f"{key}.{name}: is not supported; name the parameters and leave {name} out")
    hints = _hints(named.__init__ if inspect.isclass(named) else named)  # type: ignore[misc]
    return {name: _object(value, _classes(hints.get(name)), f"{key}.{name}") for name, value in values.items()}


def _object(value: object, classes: tuple[type, ...], key: str) -> Any:
    """Return a value with its nested nodes built. A node must name a subclass of one of the classes."""
    if isinstance(value, list):
        return [_object(item, classes, f"{key}.{i}") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "_target_" not in value:
        return {name: _object(item, classes, f"{key}.{name}") for name, item in value.items()}
    values = dict(value)
    target = values.pop("_target_")
    where = f"{key}._target_={target}"
    if not classes:
        raise UserError(f"{where}: this parameter takes no object; annotate it with the class that it needs")
    named = _find(target, where)
    if not inspect.isclass(named) or not set(classes) & set(inspect.getmro(named)):
        raise UserError(f"{where}: must be a subclass of {' or '.join(c.__name__ for c in classes)}")
    return named(**_built(named, values, key))


def _classes(hint: object) -> tuple[type, ...]:
    """Return the classes in a type hint that an object can be built for: not object, and none of builtins."""
    if arguments := get_args(hint):
        return tuple(c for a in arguments for c in _classes(a))
    return (hint,) if inspect.isclass(hint) and hint.__module__ not in sys.stdlib_module_names else ()


def _hints(function: object) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def make(node: Mapping[str, Any], key: str, base: type | None = None) -> Callable[..., Any]:
    """Return a function that takes run-time objects (a FeatureSpec, parameters) and builds the object of the node.

    Args:
        node: `_target_` and the values of its parameters.
        key: the key of the config that holds the node, which decides the classes that it may name.
        base: the class that it must name a subclass of, if the key does not decide it.
    """
    named, values = bind(node, key, base)
    return partial(named, **values)


def make_scheduler(cfg: TrainConfig, total_steps: int | None) -> Callable[..., Any]:
    """Return a function that builds the scheduler.

    The scheduler gets total_steps if it accepts it and the config does not set it.
    """
    node = cfg.optim.scheduler or {}
    build = make(node, "optim.scheduler")
    takes_total = "total_steps" in inspect.signature(locate(node["_target_"], "optim.scheduler")).parameters
    return partial(build, total_steps=total_steps) if takes_total and node.get("total_steps") is None else build


def build_model(cfg: TrainConfig, features: FeatureSpec, device: torch.device) -> Any:
    """Build the model for `features`, with its tables on `device`. Raises UserError if the model rejects a value."""
    features = with_dims(cfg, features)
    try:
        numeric = None if cfg.numeric is None else make(cfg.numeric, "numeric")(features)
    except ValueError as e:
        raise UserError(f"numeric: {e}") from e
    check_takes(locate(cfg.model["_target_"], "model"), f"model._target_={cfg.model['_target_']}", BUILT_WITH)
    from recsys.models.common.meta_values import without_meta_values

    try:
        with without_meta_values():
            model = make(cfg.model, "model")(features if numeric is None else numeric.features, device=device)
    except ValueError as e:
        raise UserError(f"model: {e}") from e
    except TypeError as e:  # the config of a run from elsewhere; that of a command has been checked
        if "__init__()" not in str(e):
            raise
        raise UserError(f"model: {str(e).partition('__init__() ')[2]}") from e
    if numeric is None:
        return model
    from recsys.models.common.numeric import WithNumericEmbedding

    return WithNumericEmbedding(numeric, model)


def with_dims(cfg: TrainConfig, features: FeatureSpec) -> FeatureSpec:
    """Return the features with the dims of their tables that `dims` sets. Raises UserError if it is wrong."""
    given = cfg.dims
    if given is None:
        return features
    most = cfg.model.get("dim")
    if not isinstance(most, int):
        raise UserError("dims: this model has no tables of model.dim columns; leave dims= out")
    rules: Mapping[str, Any] = {"*": given} if isinstance(given, str | int) else given
    dims: dict[str, int] = {}
    for pattern, value in rules.items():
        matching = [t for t in features.tables if fnmatchcase(t, str(pattern))]
        if not matching:
            raise UserError(f"dims.{pattern}: matches no table{did_you_mean(str(pattern), features.tables)}")
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 4 or value % 4):
            key = "dims" if rules is not given else f"dims.{pattern}"
            raise UserError(f"{key}={value}: must be auto or a multiple of 4, as FBGEMM's kernels need")
        histories = {f.table for f in features.sparse if f.sequence} if value == "auto" else set()
        for table in [t for t in matching if t not in histories]:  # TorchRec's unpooled tables have one dim
            # 6 rows^(1/4), which Google's engineers used for TensorFlow
            rows = features.tables[table][0].cardinality
            dims[table] = min(most, 4 * math.ceil(1.5 * rows**0.25)) if value == "auto" else value
    return replace(features, sparse=tuple(replace(f, dim=f.dim or dims.get(f.table)) for f in features.sparse))


def build_loss(cfg: TrainConfig) -> Any:
    """Build the loss, which the config has. Raises UserError if the loss rejects a value."""
    assert cfg.loss is not None
    try:
        return make(cfg.loss, "loss")()
    except ValueError as e:
        raise UserError(f"loss: {e}") from e
