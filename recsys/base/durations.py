"""Lengths of time with units, such as 30d or 1d12h."""

import math
import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

# Seconds of a unit. Months and years are not units: their lengths differ, and joins by time cannot use them.
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_AGE_SECONDS = 100 * 366 * UNITS["d"]  # of a max_age; polars counts in nanoseconds, of which 64 bits hold 292 years
PART = re.compile(f"([0-9]{{1,18}})({'|'.join(UNITS)})")


def microseconds_of_age(age: str) -> int:
    """Return a max_age with units in whole microseconds, exactly; what is less than one is cut off."""
    return sum(int(count) * round(UNITS[unit] * 1e9) for count, unit in PART.findall(age)) // 1000


@lru_cache  # asked for each request
def seconds_of_age(age: str | None) -> float | None:
    """Return a max_age in seconds; a number is one of seconds. Raises ValueError if it is neither.

    >>> seconds_of_age("30d"), seconds_of_age("1h"), seconds_of_age(None)
    (2592000, 3600, None)
    """
    if age is None:
        return None
    if is_number(age):
        seconds = float(age)
    elif re.fullmatch(f"({PART.pattern})+", age):
        seconds = sum(int(count) * UNITS[unit] for count, unit in PART.findall(age))
    else:
        raise ValueError("is not a duration")
    if not 0 < seconds < math.inf:
        raise ValueError("must be above 0")
    if seconds > MAX_AGE_SECONDS and not is_number(age):
        raise ValueError("is longer than 100 years")
    return seconds


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_age(age: str | float) -> str | float:
    """Return a duration with a unit, or a number above 0. Raises ValueError if it is neither."""
    try:
        seconds_of_age(str(age))
    except ValueError as e:
        raise ValueError(f"{e}; write a number and a unit, such as 30d or 12h") from None
    return age


Duration = Annotated[str, AfterValidator(check_age)]
