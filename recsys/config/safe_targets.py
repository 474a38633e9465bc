"""Refuse configs of run folders that could do more than describe a run."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from recsys.base.errors import UserError

MOVED = {"recsys.schedules.": "recsys.training.schedules."}  # old prefix of a `_target_`: new one


def moved(target: str) -> str:
    """Return the current path of a `_target_`; configs of older runs may contain the old path."""
    for old, new in MOVED.items():
        if target.startswith(old):
            return new + target.removeprefix(old)
    return target


def check_run_config(cfg: DictConfig | ListConfig, folder: Path) -> None:
    """Raise UserError if the config of a run folder could do more than describe the run.

    Its values are final, because a run's config is written without interpolations; `${oc.env:NAME}` would read this
    machine's environment. None of its `_target_`s may name a module inside the folder, or of the standard library.
    """
    place = folder / "config.yaml"
    for key, value in _leaves(OmegaConf.to_container(cfg)):
        if not isinstance(value, str):
            continue
        if "${" in value:
            raise UserError(f"{place}: {key}={value}: a run's config has no interpolations; write the value itself")
        if key.rpartition(".")[2] == "_target_":
            module = moved(value).rpartition(".")[0]
            refuse_unsafe(module, f"{place}: {key}={value}")
            if _is_inside(module, folder):
                raise UserError(f"{place}: {key}={value}: is code inside the run folder, which is never executed")


def refuse_unsafe(module: str, where: str) -> None:
    """Raise UserError if importing the module may do more than define classes."""
    parts = module.split(".")
    if module in sys.modules and module not in sys.stdlib_module_names:
        return  # also __main__, where a notebook defines its classes
    if parts[0] in sys.stdlib_module_names or "__main__" in parts:
        raise UserError(f"{where}: must be a class of recsys, of torch, or of a module of your own")


def _is_inside(module: str, folder: Path) -> bool:
    """Return whether importing the module could read a file of the folder, from the search path or through a folder
    that lies in it.
    """
    whole = folder.resolve()
    for base in sys.path:
        place = Path(base or ".").resolve()
        for part in module.split("."):
            place = place / part
            if place.is_relative_to(whole) and (place.exists() or any(place.parent.glob(f"{part}.*"))):
                return True
    return False


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key and value of every leaf of nested mappings and lists, and every key of a mapping as a value."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield key, name
            yield from _leaves(item, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{key}.{i}")
    else:
        yield key, value
