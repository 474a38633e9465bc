"""Make objects of settings from the values of YAML and JSON, with errors of one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from recsys.base.errors import UserError, did_you_mean

T = TypeVar("T")
adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
PROBLEMS = {  # beginnings of pydantic's types of errors
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_pattern_mismatch": "is empty; write a name, or leave the key out",
    "string_type": "must be text; write it in quotes",
    "list_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping, such as {{a: 1}}; in a shell, in quotes",
    "too_short": "is empty",
    "value_error": "{error}",
}


class StrictSettings(BaseModel):
    """Settings without unknown keys, which do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WrongKey(UserError):
    """A key of a config does not exist, or has an invalid value."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def parse(schema: type[T], values: object, place: str = "", *, file: str = "") -> T:
    """Return an object of a schema. Keys that are missing have their defaults.

    Args:
        schema: a class of settings: a dataclass or a model of pydantic.
        values: a mapping, such as that of a YAML file.
        place: the key of `values` in the config, for messages.
        file: the file of `values`, for messages.

    Raises:
        WrongKey: a key does not exist, or its value has the wrong type or is out of range.
    """
    try:
        made: T = adapter(schema).validate_python(values)
    except ValidationError as e:
        wrong = _mistake(e, schema, values, place)
        raise WrongKey(wrong.key, f"{file}: {wrong}") if file else wrong from e
    return made


def without_none(hint: object) -> object:
    """Return X for the type hint X | None."""
    arguments = get_args(hint)
    return next(a for a in arguments if a is not NoneType) if NoneType in arguments else hint


def names_of(schema: object) -> list[str]:
    """Return the keys of a schema; none for other types."""
    return list(getattr(schema, "__pydantic_fields__", ()))


def part_of(hint: object, name: str) -> object:
    """Return the type hint of a key of a schema, or of an element of a mapping or a list."""
    hint = without_none(hint)
    if names_of(hint):
        return without_none(get_type_hints(hint).get(name))
    return without_none(get_args(hint)[-1]) if get_origin(hint) in (dict, list, tuple) else None


def reason_of(error: Mapping[str, Any]) -> str:
    """Return why pydantic refused a value, as the end of a message."""
    facts = error.get("ctx", {})
    if error["type"] == "literal_error":
        valid = facts["expected"].replace("'", "")
        near = did_you_mean(str(error["input"]), valid.replace(" or ", ", ").split(", "))
        return f"must be {valid}{near if 'valid' not in near else ''}"
    for beginning, text in PROBLEMS.items():
        if error["type"].startswith(beginning):
            return text.format(**{k: f"{v:g}" if isinstance(v, float) else v for k, v in facts.items()})
    return error["msg"][:1].lower() + error["msg"][1:]


def _mistake(error: ValidationError, schema: object, values: object, place: str = "") -> WrongKey:
    """Return the first mistake in the values of a schema."""
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] in UNKNOWN), errors[0])  # a wrong name says why another is missing
    value, hint = values, schema
    for part in first["loc"]:
        names = names_of(hint)
        if isinstance(value, list | tuple) and isinstance(part, int):
            place, value = f"{place}[{part}]", value[part]
        elif isinstance(value, Mapping) and (part in value or first["type"] == "missing"):
            place, value = f"{place}.{part}".lstrip("."), value.get(part)
        else:
            continue  # the name of a type, of which the value may have several
        if names and part not in names:
            return WrongKey(place, f"{place}: no such key{did_you_mean(str(part), names)}")
        hint = part_of(hint, str(part))
    if first["type"] == "missing":
        return WrongKey(place, f"{place}: must be set")
    return WrongKey(place, _wrong_value(place, value, hint, reason_of(first)))


def _wrong_value(place: str, value: object, hint: object, reason: str) -> str:
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
    names = names_of(hint)
    if not place and not isinstance(value, Mapping):
        return f"must have the keys {', '.join(names)}"
    if isinstance(value, Mapping):  # two of its keys do not fit each other
        key = re.match(r"(\w+)[=.]", reason)
        joint = "." if key is not None and key[1] in names else ": "
        return f"{place}{joint}{reason}".removeprefix(joint)
    if value is None and not names:
        return f"{place}=null: cannot be null; leave it out for the default"
    if value is None:
        unset = next((n for n in ("patience", "column", "file") if n in names), None)
        advice = f"set {place}.{unset}=null" if unset else "set one of its keys"
        return f"{place}=null: has keys of its own, and cannot be null; {advice} (keys: {', '.join(names)})"
    if names:
        likely = next((n for n in ("by", "column", "kind") if n in names), None)
        advice = f"; did you mean {place}.{likely}={shown}?" if likely else f": {', '.join(names)}"
        return f"{place}={shown}: has keys of its own{advice}"
    return f"{place}={shown}: {reason}"
