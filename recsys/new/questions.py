"""Questions that files alone do not answer: what recsys.new asks instead of guessing in silence."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

MARK = "# OPEN QUESTION"  # in the first line of a YAML file that another answer may replace


@dataclass(frozen=True)
class Answers:
    """The user's answers about the data: names of columns, None for no such column, or auto."""

    label: str | None = "auto"
    user: str | None = "auto"  # who chose
    item: str | None = "auto"  # what was chosen
    time: str | None = "auto"  # when
    positive: tuple[str, ...] | str | None = "auto"  # the positive values of the label; None for a class of each
    header: bool | None = None  # whether the first line of text names the columns; None if the user does not say
    sure: bool = False  # whether to take the likeliest answers instead of asking

    def names(self) -> dict[str, str]:
        """Return the columns that the user names, by role."""
        roles = {"label": self.label, "user": self.user, "item": self.item, "time": self.time}
        return {role: name for role, name in roles.items() if name not in (None, "auto")}  # type: ignore[misc]


@dataclass(frozen=True)
class Question:
    """A question about the data."""

    text: str  # what is not certain, and why
    guess: str  # what the YAML takes
    answers: tuple[str, ...] = ()  # what to type, the likeliest first
    key: str = "yaml"  # what it is about: the key of the answer, or yaml if the YAML is to be corrected

    def lines(self) -> tuple[str, ...]:
        """Return the question, what is taken, and what to type."""
        hint = f"answer by {' or '.join(self.answers)}" if self.answers else "correct the YAML"
        return (self.text, f"taken for now: {self.guess}; {hint}, or take all guesses by yes=true")


def typed(key: str, value: str) -> str:
    """Return KEY=VALUE as a word of the shell; recsys.new quotes values for Hydra itself."""
    return shlex.quote(f"{key}={value}") if not value.isidentifier() else f"{key}={value}"
