"""Elements of HTML and SVG, which escape all text, and the formatting of numbers, times and bytes in them."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from markupsafe import Markup, escape

from recsys.base.printable import escaped, visible

MAX_VALUE_LENGTH = 36  # number of characters shown of a value
TRIAL = re.compile(r"(.*/)?\d+: ")  # name of a trial, such as 3: lr=0.1, dim=8


def el(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element. Attributes that are None are left out, and _ stands for - in their names: class_, data_t."""
    shown = ""
    for name, value in attributes.items():
        if value is not None:
            text = escape(visible(value)) if isinstance(value, str) else pixels(value)
            shown += f' {name.rstrip("_").replace("_", "-")}="{text}"'
    inside = f">{join(children)}</{tag}>" if children else "/>"
    return Markup(f"<{tag}{shown}{inside}")  # nosec B704 (all parts are escaped; Markup.format takes eight times as long)


def join(parts: Iterable[str]) -> Markup:
    """Return elements and texts one after the other; texts are escaped."""
    return Markup("").join(visible(part) for part in parts)


def path(points: Iterable[tuple[float, float]]) -> str:
    """Return the line through these points, for an SVG path."""
    return "M" + "L".join(f"{pixels(x)} {pixels(y)}" for x, y in points)


def pixels(value: float) -> str:
    """Format a coordinate. Tooltips of charts read values from them, so that one decimal would be too coarse."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


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


def plain(text: str, longest: int = MAX_VALUE_LENGTH) -> str:
    """Shorten text to one printable line."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return escaped(cut)


def tail(name: str, most: int) -> str:
    """Shorten a name: keep the beginning of a trial's name, and the end of a path."""
    return (
        plain(name, most) if len(name) <= most or TRIAL.match(name) else "…\u2060" + plain(name[1 - most :])
    )  # U+2060: no line break after the ellipsis
