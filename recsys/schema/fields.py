"""Declare the keys of a config: their types, ranges and meanings; make objects of schemas from the values of YAML.

batch_size: Count = field(2048, "rows per batch", le=MAX_ROWS)
"""

import math
import re
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints

from recsys.base.parsing import adapter, without_none
from recsys.files.user_files import on_file_system

MISSING: Any = "???"  # OmegaConf's value of a key that must be set
CHECKED = ConfigDict(extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False, defer_build=True)
MIRROR = "checkpoint.mirror={} copies there"


def field(default: Any, meaning: str = "", **limits: Any) -> Any:
    """Return a key of a schema.

    Args:
        default: the value, or a function that makes it, such as `list`.
        meaning: what the key means, for `--help` and the documentation.
        limits: ge, gt, le and lt of a number, as pydantic's Field has them.
    """
    if callable(default):
        return Field(default_factory=default, description=meaning, **limits)
    return Field(default, description=meaning, **limits)


def _listed(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str | int | float) else value


def _count_or_names(value: object) -> object:
    if value is None or (isinstance(value, list) and value) or (type(value) is int and 1 <= value <= 100):
        return value
    raise ValueError("must be 1 to 100, or a list of names, such as [7,42]")


def _finite(value: Any) -> Any:
    """Return a value that no schema describes. Raises ValueError if it has a number that is not finite."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _finite(item)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Name = Annotated[str, StringConstraints(pattern=r"\S")]
Local = Annotated[Name, AfterValidator(lambda name: on_file_system(name))]  # a file or folder
LocalRun = Annotated[Name, AfterValidator(lambda name: on_file_system(name, MIRROR.format(re.sub(":/+", "://", name))))]
Place = Annotated[
    Name, AfterValidator(lambda name: name if "://" in name else on_file_system(name, "or a URL with ://"))
]
LISTED = BeforeValidator(_listed)
COUNT_OR_NAMES = BeforeValidator(_count_or_names)
Texts = Annotated[list[str], LISTED]  # one text, a list of them, or null for none
Locals = Annotated[list[Local], LISTED]
Places = Annotated[list[Place], LISTED]
Node = Annotated[Any, AfterValidator(_finite)]  # `_target_` and its parameters, which `_target_` describes
Nodes = Annotated[dict[str, Node], BeforeValidator(lambda value: {} if value is None else value)]


def plain(config: Any) -> dict[str, Any]:
    """Return the values of an object of a schema as dicts and lists."""
    values: dict[str, Any] = adapter(type(config)).dump_python(config, warnings=False)  # of keys that are MISSING
    return values


def defaults(schema: type[Any]) -> dict[str, Any]:
    """Return the default values of a schema as dicts and lists; a key that must be set has the value ???."""
    values = {}
    for name, declared in schema.__pydantic_fields__.items():
        part: Any = declared.default_factory or without_none(declared.annotation)
        if isinstance(part, type) and is_dataclass(part) and declared.default is not None:
            values[name] = defaults(part)
        else:
            default: Any = MISSING if declared.is_required() else declared.get_default(call_default_factory=True)
            values[name] = asdict(default) if is_dataclass(type(default)) else default
    return values


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return {"a.b": 1} for {a: {b: 1}}. An empty mapping is a value."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {k: v for name, item in value.items() for k, v in flatten(item, f"{prefix}.{name}".lstrip(".")).items()}
