"""A job that fails as it is told to: executors import it, for tests."""

import os
from collections.abc import Callable

from recsys.base.errors import UserError


def fails(kind: str, item: int, advance: Callable[[float], None]) -> int:
    advance(1)
    if item == 5 and kind == "user":
        raise UserError("f.csv: line 3: it is wrong")
    if item == 5 and kind == "disk":
        raise OSError(28, "No space left on device", "/shared/f")
    if item == 5 and kind == "dies":
        os._exit(3)
    return item * 10
