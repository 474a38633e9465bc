"""Text without control characters, which a value from elsewhere could use to change what a terminal or a page shows."""

import json
from typing import Any

KEPT = "\n\t\u00a0\u2060"  # what messages and pages themselves use and isprintable refuses; U+2060: no line break


def visible(value: object) -> Any:
    """Return text with its control characters, including those for direction, as escapes; markup stays as it is.

    >>> visible("a\\x1b]0;b")
    'a\\\\x1b]0;b'
    """
    if not isinstance(value, str) or value.isprintable() or hasattr(value, "__html__"):
        return value
    return "".join(c if c in KEPT else escaped(c) for c in value)


def escaped(text: str) -> str:
    """Return text of any characters on one line, in which those that cannot be printed are escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible_json(line: str) -> str:
    """Return a line of JSON whose texts have their control characters as escapes of JSON."""
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
