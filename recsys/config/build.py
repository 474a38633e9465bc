"""Build the objects that a config's `_target_` nodes name."""

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recsys.errors import UserError, did_you_mean

MOVED = {"recsys.schedules.": "recsys.training.schedules."}  # old prefix of a `_target_`: new one


def locate(target: str, path: str) -> Callable[..., Any]:
    """Return the class or function that a dotted `target` names. Raises UserError if it does not exist."""
    target = moved(target)
    module, _, name = target.rpartition(".")
    try:
        loaded = import_module(module)
    except ImportError as e:
        raise UserError(f"{path}._target_={target}: cannot import {module or target} ({e})") from e
    if not hasattr(loaded, name):
        public = [n for n in vars(loaded) if not n.startswith("_")]
        raise UserError(f"{path}._target_={target}: {module} has no {name}{did_you_mean(name, public)}")
    named = getattr(loaded, name)
    assert callable(named)
    return named  # type: ignore[no-any-return]


def moved(target: str) -> str:
    """Return the current path of a `_target_`; configs of older runs may contain the old path."""
    for old, new in MOVED.items():
        if target.startswith(old):
            return new + target.removeprefix(old)
    return target


def make(node: DictConfig) -> Callable[..., Any]:
    """Return a function that takes run-time objects (a FeatureSpec, parameters) and builds the object of the node."""
    from hydra.utils import instantiate

    if "_target_" in node:
        node = OmegaConf.merge(node, {"_target_": moved(node["_target_"])})  # type: ignore[assignment]
    return instantiate(node, _partial_=True, _convert_="all")  # type: ignore[no-any-return]


def make_scheduler(cfg: DictConfig, total_steps: int | None) -> Callable[..., Any]:
    """Return a function that builds the scheduler.

    The scheduler gets total_steps if it accepts it and the config does not set it.
    """
    node = cfg.optim.scheduler
    takes_total = "total_steps" in inspect.signature(locate(node["_target_"], "optim.scheduler")).parameters
    return (
        partial(make(node), total_steps=total_steps) if takes_total and node.get("total_steps") is None else make(node)
    )


def build_model(cfg: DictConfig, features: Any, device: Any) -> Any:
    """Build the model for `features`, with its tables on `device`. Raises UserError if the model rejects a value."""
    try:
        return make(cfg.model)(features, device=device)
    except ValueError as e:
        raise UserError(f"model: {e}") from e


def build_loss(cfg: DictConfig) -> Any:
    """Build the loss. Raises UserError if the loss rejects a value."""
    try:
        return make(cfg.loss)()
    except ValueError as e:
        raise UserError(f"loss: {e}") from e
