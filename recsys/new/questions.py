"""Questions that files alone do not answer: what recsys.new asks instead of guessing in silence."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

MARK = "# OPEN QUESTION"  # in the first line of a YAML file that another answer may replace


def typed(key: str, value: str) -> str:
    """Return KEY=VALUE as a word of the shell; recsys.new quotes values for Hydra itself."""
    return shlex.quote(f"{key}={value}") if not value.isidentifier() else f"{key}={value}"


@dataclass(frozen=True)
class Answers:
    """The user's answers about the data: names of columns, None for no such column, or auto.

    label: the label
    user, item, time: who chose, what was chosen, and when
    positive: the values of a label of text or codes that are positive; None for a class of each, or auto
    header: whether the first line of text names the columns; None if the user does not say
    sure: whether to take the likeliest answers instead of asking
    """

    label: str | None = "auto"
    user: str | None = "auto"
    item: str | None = "auto"
    time: str | None = "auto"
    positive: tuple[str, ...] | str | None = "auto"
    header: bool | None = None
    sure: bool = False

    def names(self) -> dict[str, str]:
        """Return the columns that the user names, by role."""
        roles = {"label": self.label, "user": self.user, "item": self.item, "time": self.time}
        return {role: name for role, name in roles.items() if name not in (None, "auto")}  # type: ignore[misc]


@dataclass(frozen=True)
class Question:
    """A question about the data.

    text: what is not certain, and why
    guess: what the YAML takes
    answers: what to type, the likeliest first
    """

    text: str
    guess: str
    answers: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """Return the question, what is taken, and what to type."""
        hint = f"answer by {' or '.join(self.answers)}" if self.answers else "correct the YAML"
        return (self.text, f"taken for now: {self.guess}; {hint}, or take all guesses by yes=true")
