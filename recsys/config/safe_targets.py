"""Refuse configs of run folders that could do more than describe a run."""

import os
import re
import sys
from collections.abc import Collection, Iterator
from glob import iglob
from pathlib import Path
from shlex import quote
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from recsys.base.errors import UserError

TRUSTED = "RECSYS_TRUSTED_MODULES"  # environment variable: modules that configs of run folders may name, with commas
LIBRARIES = ("recsys", "torch", "torchrec", "pytorch_lightning")
_MODULE = re.compile(r"^[^#\n]*_target_['\"]?:\s*['\"]?([\w.]+)\.\w", re.M)  # of a class that conf/ names
MOVED = {"recsys.schedules.": "recsys.training.schedules."}  # old prefix of a `_target_`: new one


def moved(target: str) -> str:
    """Return the current path of a `_target_`; configs of older runs may contain the old path."""
    for old, new in MOVED.items():
        if target.startswith(old):
            return new + target.removeprefix(old)
    return target


def check_run_config(cfg: DictConfig | ListConfig, place: Path) -> None:
    """Raise UserError if the config of a run folder could do more than describe the run.

    Its values are final, because a run's config is written without interpolations; `${oc.env:NAME}` would read this
    machine's environment. A `_target_` may not even make Python import a module that nobody on this machine has chosen.

    place: the file that holds the config
    """
    for key, value in _leaves(OmegaConf.to_container(cfg)):
        if not isinstance(value, str):
            continue
        if "${" in value:
            raise UserError(f"{place}: {key}={value}: a run's config has no interpolations; write the value itself")
        if key.rpartition(".")[2] == "_target_":
            module, where = moved(value).rpartition(".")[0], f"{place}: {key}={value}"
            refuse_unsafe(module, where)
            if module and not _is_trusted(module):
                trust = f"{TRUSTED}={quote(module)}"
                raise UserError(f"{where}: is code of others; if you trust it, set the variable {trust}")


def _is_trusted(module: str) -> bool:
    """Return whether the module is a library's, is imported already, or is named by the user."""
    named = [name.strip() for name in os.environ.get(TRUSTED, "").split(",") if name.strip()]
    if module in sys.modules or any(f"{module}.".startswith(f"{known}.") for known in (*LIBRARIES, *named)):
        return True
    files = (Path(f) for f in iglob("conf/**/*.yaml", recursive=True) if Path(f).is_file())  # also through links
    return any(module == found for f in files for found in _MODULE.findall(f.read_text("utf-8", errors="replace")))


def check_loggers(loggers: object, place: Path, typed: Collection[str]) -> None:
    """Raise UserError if a logger that a run folder names could write to another place, or send anything there.

    loggers, place: the key `logger` of a training that goes on from a run, and the file of that run's config
    typed: the keys that the user has typed
    """
    for key, value in _leaves(loggers, "logger"):
        is_place = isinstance(value, str) and ("/" in value or ".." in value)
        if is_place and not any(f"{key}.".startswith(f"{t}.") for t in typed):
            raise UserError(f"{place}: {key}={value}: may be another place; type ++{key}={value}, or logger=csv")


def refuse_unsafe(module: str, where: str) -> None:
    """Raise UserError if importing the module may do more than define classes."""
    first, *others = module.split(".")
    if first in sys.stdlib_module_names or "__main__" in others:  # a notebook defines its classes in __main__
        raise UserError(f"{where}: must be a class of recsys, of torch, or of a module of your own")


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
