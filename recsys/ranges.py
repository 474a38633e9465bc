"""Ranges of the numbers in a config, declared beside the field or the parameter that they limit.

A field of a schema:                 batch_size: int = number(2048, at_least=1)
A field that names a folder:         run_dir: str | None = folder(None, "name a folder")
A parameter of a model or a loss:    dim: Width, or dim: Annotated[int, Range(at_least=1)]

`check_values` checks a config against its schema, and `range_problem` one parameter against its annotation.
"""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from recsys.base.errors import UserError, did_you_mean

FLOAT32_MAX = 3.4e38
MOST = 2**31 - 1  # the limit of a whole number whose field names none


@dataclass(frozen=True)
class Range:
    """The numbers that a value may have.

    at_least, above, at_most, below: the ends of the range
    limit: the largest value that can be meant seriously; a message names it only if the value is larger
    special: a value outside the range that has a meaning of its own, and the meaning
    example: a typical value
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    limit: float | None = None
    special: tuple[float, str] | None = None
    example: float | None = None

    def problem(self, value: float, optional: bool = False) -> str | None:
        """Return why `value` is invalid, None if it is valid. optional: whether the value may also be null."""
        if self.special is not None and value == self.special[0]:
            return None
        inside = (
            not math.isnan(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )
        if not inside:
            text = f"must be {self.text()}"
            text += "" if self.example is None else f", such as {self.example}"
            others = [f"{self.special[0]} for {self.special[1]}"] if self.special else []
            others += ["null"] if optional else []
            return ", or ".join([text, *others])
        limit = self.limit if self.limit is not None else MOST if isinstance(value, int) else None
        if limit is not None and self.at_most is None and value > limit:
            return f"must be at most {limit}"
        return None

    def __repr__(self) -> str:
        return self.text() or "any number"  # as the documentation of a parameter shows it

    def text(self) -> str:
        """Return the range in words."""
        if self.at_least is not None and self.at_most is not None:
            return f"from {self.at_least} to {self.at_most}"
        if self.above is not None and self.below is not None:
            return f"between {self.above} and {self.below}"
        ends = [("at least", self.at_least), ("above", self.above), ("at most", self.at_most), ("below", self.below)]
        return " and ".join(f"{name} {end}" for name, end in ends if end is not None)


@dataclass(frozen=True)
class NotEmpty:
    """A text that may not be empty. hint: what to type instead."""

    hint: str


def number(default: Any, **ends: Any) -> Any:
    """Return a field of a schema whose number, or each number of whose list, lies in Range(**ends)."""
    return field(default=default, metadata={"values": Range(**ends)})


def folder(default: Any, hint: str) -> Any:
    """Return a field of a schema that names a file or a folder. hint: what to type instead of an empty name."""
    return field(default=default, metadata={"values": NotEmpty(hint)})


Width = Annotated[int, Range(at_least=1, limit=2**16)]  # width of a layer or of an embedding
Depth = Annotated[int, Range(at_least=1, limit=2**10)]  # number of layers, blocks or heads
Length = Annotated[int, Range(at_least=1, limit=2**20)]  # of a list of items
Share = Annotated[float, Range(at_least=0, below=1)]  # of values that dropout or masking removes
Deviation = Annotated[float, Range(at_least=0)]  # standard deviation of initial weights


def check_values(value: Any, schema: Any, key: str = "", *, finite: bool = True) -> None:
    """Check all keys and numbers of a config, and that its names of files and folders are not empty.

    Args:
        value: a config, as a plain container or as the schema's dataclass.
        schema: the dataclass, or the type hint of `value`.
        key: the config key of `value`.
        finite: refuse NaN and infinities everywhere, also where the schema declares no range.

    Raises:
        UserError: a number is out of range or not finite, a name is empty, or the schema has no such key.
    """
    _check(value, schema, key, None, finite)


def range_problem(value: Any, hint: Any) -> str | None:
    """Return why `value` is out of the Range in its annotation, such as list[Width] | None; None if it is valid."""
    optional, hint = without_none(hint)
    if get_origin(hint) is Annotated:
        limits = [m for m in get_args(hint)[1:] if isinstance(m, Range)]
        return next((p for m in limits if _is_number(value) and (p := m.problem(value, optional))), None)
    if isinstance(value, Sequence) and not isinstance(value, str) and get_args(hint):
        return next((p for v in value if (p := range_problem(v, get_args(hint)[0]))), None)
    return None


def _check(value: Any, hint: Any, key: str, limits: Range | NotEmpty | None, finite: bool) -> None:
    optional, hint = without_none(hint)
    if is_dataclass(value) and not isinstance(value, type):
        hint = type(value)
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        declared = _fields(hint) if isinstance(hint, type) and is_dataclass(hint) else {}
        inner = get_args(hint)[1] if len(get_args(hint)) == 2 else Any
        for name, item in value.items():
            if declared and name not in declared:
                raise UserError(f"{key}.{name}".lstrip(".") + f": no such key{did_you_mean(str(name), declared)}")
            item_hint, item_limits = declared.get(name, (inner, None))
            _check(item, item_hint, f"{key}.{name}".lstrip("."), item_limits, finite)
    elif isinstance(value, list | tuple):
        inner = get_args(hint)[0] if get_args(hint) else Any
        for i, item in enumerate(value):
            _check(item, inner, f"{key}[{i}]", limits, finite)
    elif _is_number(value):
        if finite and not math.isfinite(value):
            raise UserError(f"{key}={value}: must be a finite number")
        if isinstance(limits, Range) and (problem := limits.problem(value, optional)):
            raise UserError(f"{key}={value}: {problem}")
    elif isinstance(value, str) and isinstance(limits, NotEmpty) and not value.strip():
        raise UserError(f"{key}={value}: is empty; {limits.hint}")


@cache
def _fields(schema: Any) -> dict[str, tuple[Any, Range | NotEmpty | None]]:
    """Return the type hint and the declared values of each field of a dataclass."""
    hints = get_type_hints(schema)
    return {f.name: (hints[f.name], f.metadata.get("values")) for f in fields(schema)}


@cache
def without_none(hint: Any) -> tuple[bool, Any]:
    """Return whether the hint is X | None, and X."""
    if get_origin(hint) not in (types.UnionType, Union):
        return False, hint
    others = [h for h in get_args(hint) if h is not types.NoneType]
    return len(others) < len(get_args(hint)), others[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
