"""Exceptions for mistakes that the user can fix (exit status 2)."""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """A mistake in the config or in the data. The message is one line: what is wrong, where, what to type instead.

    status: the exit status of a command that ends with it
    """

    status = 2


class NeedsAnswer(UserError):
    """The data leave open what only the user knows."""

    status = 3


class Unavailable(UserError):
    """A store does not answer. Another try may succeed, so that torchrun starts a job again that ends with it."""

    status = 1


class DoesNotFit(UserError):
    """No sharding plan fits the machines.

    `infeasible` (an Infeasibility) lists the tables that do not fit and the memory that is missing.
    """

    def __init__(self, message: str, infeasible: Any = None) -> None:
        super().__init__(message)
        self.infeasible = infeasible


class NotFinite(UserError):
    """A loss, a prediction or a weight is NaN or infinite."""


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return '; did you mean X?' for the nearest valid name, otherwise the list of valid names.

    >>> did_you_mean("adamm", ["adam", "sgd"])
    '; did you mean adam?'
    """
    names = [str(v) for v in valid]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; valid: {', '.join(sorted(names))}" if names else ""
