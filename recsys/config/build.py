"""Build the objects that a config's `_target_` nodes name."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from omegaconf import DictConfig

from recsys.config.targets import bind, locate
from recsys.errors import UserError


def make(node: DictConfig, key: str) -> Callable[..., Any]:
    """Return a function that takes run-time objects (a FeatureSpec, parameters) and builds the object of the node.

    key: the key of the config that holds the node, which decides the classes that it may name (targets.py)
    """
    named, values = bind(node, key)
    return partial(named, **values)


def make_scheduler(cfg: DictConfig, total_steps: int | None) -> Callable[..., Any]:
    """Return a function that builds the scheduler.

    The scheduler gets total_steps if it accepts it and the config does not set it.
    """
    node = cfg.optim.scheduler
    build = make(node, "optim.scheduler")
    takes_total = "total_steps" in inspect.signature(locate(node["_target_"], "optim.scheduler")).parameters
    return partial(build, total_steps=total_steps) if takes_total and node.get("total_steps") is None else build


def build_model(cfg: DictConfig, features: Any, device: Any) -> Any:
    """Build the model for `features`, with its tables on `device`. Raises UserError if the model rejects a value."""
    numeric = build_numeric(cfg, features)
    try:
        model = make(cfg.model, "model")(features if numeric is None else numeric.features, device=device)
    except ValueError as e:
        raise UserError(f"model: {e}") from e
    if numeric is None:
        return model
    from recsys.models.common.numeric import WithNumericEmbedding

    return WithNumericEmbedding(numeric, model)


def build_numeric(cfg: DictConfig, features: Any) -> Any:
    """Build the embedding of numbers, None if the config has none. Raises UserError if it rejects the features."""
    if cfg.get("numeric") is None:
        return None
    try:
        return make(cfg.numeric, "numeric")(features)
    except ValueError as e:
        raise UserError(f"numeric: {e}") from e


def build_loss(cfg: DictConfig) -> Any:
    """Build the loss. Raises UserError if the loss rejects a value."""
    try:
        return make(cfg.loss, "loss")()
    except ValueError as e:
        raise UserError(f"loss: {e}") from e
