"""Composing a config in a sixth of the time: what Hydra has parsed and merged is remembered in this process.

Tests compose more than a thousand configs, most from the same files, and open hundreds of runs. What is remembered is
looked up by the texts of the files, and is copied for each config; the overrides are applied to the copy by Hydra
itself. Commands that tests start compose without it.
"""

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType

from recsys.config import compose

loaded: dict[Any, bytes] = {}  # where a config is from, and its text -> the pickled ConfigResult
nodes: dict[int, Any] = {}  # those whose ID is in keys of `loaded`: no other object must get it


def origin(source: Any, config_path: str) -> Any:
    """Return what a config of a source depends on; None if that is not known."""
    kind = type(source).__name__  # Hydra imports the classes once more by itself
    where = (kind, source.provider, source.path, config_path)
    name = source._normalize_file_name(config_path)
    if kind == "FileConfigSource":
        return (*where, (Path(source.path) / name).read_bytes())
    if kind == "StructuredConfigSource":
        node = source.store._load(name).node
        nodes[id(node)] = node
        return (*where, id(node))
    return where if kind == "ImportlibResourcesConfigSource" and source.path == "hydra.conf" else None


def remembered(function: Callable[..., Any], key: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that copies what it has once returned for the same key; nothing is remembered for None."""
    returned: dict[Any, bytes] = {}

    def call(*args: Any, **named: Any) -> Any:
        this = key(*args, **named)
        if this is None:
            return function(*args, **named)
        if this not in returned:
            returned[this] = pickle.dumps(function(*args, **named), pickle.HIGHEST_PROTOCOL)
        return pickle.loads(returned[this])

    return call


def text_of(path: Path, *, aliases: bool = True) -> Any:
    """Return what the config of a file depends on; None for what is no file, such as a pipe."""
    return (path.read_bytes(), aliases) if path.is_file() else None


@cache
def remember_configs() -> None:
    """Let Hydra and recsys remember what they have read and merged, from now on."""
    load = ConfigRepository.load_config

    def load_config(self: ConfigRepository, config_path: str) -> Any:
        source = self._find_object_source(config_path=config_path, object_type=ObjectType.CONFIG)
        key = None if source is None else origin(source, config_path)
        if key is None:
            return load(self, config_path)
        if key not in loaded:
            loaded[key] = pickle.dumps(load(self, config_path), pickle.HIGHEST_PROTOCOL)
        result = pickle.loads(loaded[key])
        result.key = key
        return result

    def keys_of(self: ConfigLoaderImpl, defaults: Any, repo: Any) -> Any:
        keys = [(d.package, d.primary, getattr(repo.load_config(d.config_path), "key", None)) for d in defaults]
        return None if any(key is None for *_, key in keys) else tuple(keys)

    def choices_for_interpolations(overrides: Any, defaults: Any, self_added: bool) -> Any:
        """Nothing where there is no interpolation: Hydra makes a config of them for every file, and reads it for none."""
        return mapped(overrides, defaults, self_added) if any(d.is_interpolation() for d in defaults) else None

    mapped = defaults_list._create_interpolation_map
    defaults_list._create_interpolation_map = choices_for_interpolations
    compose._load_yaml = remembered(compose._load_yaml, text_of)
    compose.typed = remembered(compose.typed, lambda cfg: pickle.dumps(cfg))
    ConfigRepository.load_config = load_config
    merge = ConfigLoaderImpl._compose_config_from_defaults_list
    ConfigLoaderImpl._compose_config_from_defaults_list = remembered(merge, keys_of)
