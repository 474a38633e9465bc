"""Build the objects that a config's `_target_` nodes name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from recsys.base.errors import UserError, did_you_mean
from recsys.features import FeatureSpec
from recsys.job.run_config import RunConfig
from recsys.job.targets import bind, check_takes, locate

if TYPE_CHECKING:
    import torch

BUILT_WITH = ("features", "device")  # the parameters that every model takes


def make(node: Mapping[str, Any], key: str, base: type | None = None) -> Callable[..., Any]:
    """Return a function that takes run-time objects (a FeatureSpec, parameters) and builds the object of the node.

    Args:
        node: `_target_` and the values of its parameters.
        key: the key of the config that holds the node, which decides the classes that it may name (targets.py).
        base: the class that it must name a subclass of, if the key does not decide it.
    """
    named, values = bind(node, key, base)
    return partial(named, **values)


def make_scheduler(cfg: RunConfig, total_steps: int | None) -> Callable[..., Any]:
    """Return a function that builds the scheduler.

    The scheduler gets total_steps if it accepts it and the config does not set it.
    """
    node = cfg.optim.scheduler or {}
    build = make(node, "optim.scheduler")
    takes_total = "total_steps" in inspect.signature(locate(node["_target_"], "optim.scheduler")).parameters
    return partial(build, total_steps=total_steps) if takes_total and node.get("total_steps") is None else build


def build_model(cfg: RunConfig, features: FeatureSpec, device: torch.device) -> Any:
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


def with_dims(cfg: RunConfig, features: FeatureSpec) -> FeatureSpec:
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


def build_loss(cfg: RunConfig) -> Any:
    """Build the loss, which the config has. Raises UserError if the loss rejects a value."""
    assert cfg.loss is not None
    try:
        return make(cfg.loss, "loss")()
    except ValueError as e:
        raise UserError(f"loss: {e}") from e
