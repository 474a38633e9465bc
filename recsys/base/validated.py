"""Check settings of YAML and JSON files against their pydantic schema, with errors of one line."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from recsys.base.errors import UserError, did_you_mean

INSTEAD = {  # of pydantic's messages, which do not say what to write
    "missing": "is missing",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping, such as {key: value}",
    "model_type": "must be a mapping, such as {key: value}",
}


class StrictSettings(BaseModel):
    """Settings without unknown keys, which do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T", bound=StrictSettings)


def validated(schema: type[T], value: Any, where: str) -> T:
    """Return settings from plain values of a YAML or JSON file.

    Args:
        schema: class of the settings.
        value: a mapping.
        where: the file, for errors.

    Raises:
        UserError: a key is unknown, or a value is not one that it can have.
    """
    try:
        return schema.model_validate(value)
    except ValidationError as e:
        first = e.errors()[0]
        key = ": ".join(filter(None, [where, ".".join(map(str, first["loc"]))]))
        if first["type"] == "extra_forbidden":
            names = _names(schema, first["loc"][:-1])
            raise UserError(f"{key}: no such key{did_you_mean(str(first['loc'][-1]), names)}") from None
        problem = INSTEAD.get(first["type"]) or first["msg"].removeprefix("Value error, ")
        problem = problem.replace("Input should be", "must be")
        given = "" if isinstance(first["input"], dict) else f"={first['input']!r}"
        raise UserError(f"{key}{given}: {problem[:1].lower()}{problem[1:]}") from None


def _names(schema: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Return the keys of a schema, or of the part of it at a path."""
    for part in path:
        kind = schema.model_fields[str(part)].annotation if str(part) in schema.model_fields else None
        inner = [k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, BaseModel)]
        if not inner:
            break
        schema = inner[0]
    return list(schema.model_fields)
