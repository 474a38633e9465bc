"""Check settings of continuous training against their pydantic schema, with errors of one line."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from recsys.errors import UserError, did_you_mean

INSTEAD = {  # of pydantic's messages, which do not say what to write
    "list_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping, such as {key: value}",
    "model_type": "must be a mapping, such as {key: value}",
}


class FollowSettings(BaseModel):
    """Settings without unknown keys, which do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T", bound=FollowSettings)


def validated(schema: type[T], value: Any, where: str) -> T:
    """Return settings from plain values of a YAML file.

    Args:
        schema: class of the settings.
        value: a mapping; None gives the defaults.
        where: the file, and the key in it, for errors.

    Raises:
        UserError: a key is unknown, or a value is not one that it can have.
    """
    try:
        return schema.model_validate({} if value is None else value)
    except ValidationError as e:
        first = e.errors()[0]
        key = ".".join([where, *(str(part) for part in first["loc"])])
        if first["type"] == "extra_forbidden":
            names = _names(schema, first["loc"][:-1])
            raise UserError(f"{key}: no such key{did_you_mean(str(first['loc'][-1]), names)}") from None
        problem = INSTEAD.get(first["type"]) or first["msg"].removeprefix("Value error, ")
        given = "" if isinstance(first["input"], dict) else f"={first['input']!r}"
        raise UserError(f"{key}{given}: {problem[:1].lower()}{problem[1:]}") from None


def _names(schema: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Return the keys of a schema, or of the part of it at a path."""
    for part in path:
        inner = schema.model_fields[str(part)].annotation if str(part) in schema.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        schema = inner
    return list(schema.model_fields)
