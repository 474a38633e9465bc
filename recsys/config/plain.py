"""Plain containers: build the dataclasses of a schema from them, such as parsed JSON, and flatten them."""

from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from recsys.ranges import without_none

T = TypeVar("T")


def from_plain(schema: type[T], value: dict[str, Any]) -> T:
    """Return the dataclass `schema` with these values; keys that are missing keep their defaults.

    OmegaConf does the same and checks types, but takes several milliseconds for each nested dataclass: too long for
    the thousands of features of wide data, and not needed for values that a schema has checked before.
    """
    return cast(T, _build(schema, value))


def _build(hint: Any, value: Any) -> Any:
    _, hint = without_none(hint)
    if isinstance(value, dict):
        if is_dataclass(hint):
            kind: Any = hint
            return kind(**{name: _build(_hints(kind)[name], item) for name, item in value.items()})
        inner = get_args(hint)[1] if len(get_args(hint)) == 2 else Any
        return {name: _build(inner, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_build(get_args(hint)[0] if get_args(hint) else Any, item) for item in value]
    return value


@cache
def _hints(schema: Any) -> dict[str, Any]:
    return get_type_hints(schema)


def flatten_config(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return {"a.b": 1} for {a: {b: 1}}. An empty mapping is a value."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {
        k: v for name, item in value.items() for k, v in flatten_config(item, f"{prefix}.{name}".lstrip(".")).items()
    }
