"""Formatting of numbers, times, bytes and arbitrary text for a page."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

LONGEST = 36  # number of characters shown of a value
TRIAL = re.compile(r"(.*/)?\d+: ")  # name of a trial, such as 3: lr=0.1, dim=8
KEPT = "\n\t\u00a0\u2060"  # what pages themselves use and isprintable refuses; U+2060: no line break


def number(x: float) -> str:
    """Format whole numbers in full up to ten digits, others to four digits."""
    if x == int(x) and abs(x) < 1e10:
        return f"{int(x):,}"
    return f"{x:,.4g}" if 1e-3 <= abs(x) < 1e4 else f"{x:,.0f}" if 1e4 <= abs(x) < 1e10 else f"{x:.3g}"


def seconds(x: float) -> str:
    """Format seconds since 1970 as a date and a time."""
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=x):%Y-%m-%d %H:%M}"
    except OverflowError:  # before the year 1 or after 9999
        return f"{x:.3g} s"


def share(x: float | None) -> str:
    """Format a share as a percentage."""
    if x is None:
        return "–"
    if 0 < x < 0.0005 or 0.9995 < x < 1:
        return "< 0.1 %" if x < 0.5 else "> 99.9 %"
    return f"{x:.1%}".replace("%", " %").replace("100.0", "100") if x else "0"


def size(n: float) -> str:
    """Format bytes in a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1000:
            return f"{n:,.0f} {unit}" if unit == "B" or n >= 10 else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:,.1f} GiB"


def visible(value: Any) -> Any:
    """Return text with its control characters, including those for direction, as escapes; markup stays as it is."""
    if not isinstance(value, str) or value.isprintable() or hasattr(value, "__html__"):
        return value
    return "".join(c if c in KEPT else _escaped(c) for c in value)


def plain(text: str, longest: int = LONGEST) -> str:
    """Shorten text to one printable line."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return cut if cut.isprintable() else "".join(map(_escaped, cut))


def _escaped(c: str) -> str:
    return c if c.isprintable() else c.encode("unicode_escape").decode()


def tail(name: str, most: int) -> str:
    """Shorten a name: keep the beginning of a trial's name, and the end of a path."""
    return (
        plain(name, most) if len(name) <= most or TRIAL.match(name) else "…\u2060" + plain(name[1 - most :])
    )  # U+2060: no line break after the ellipsis
