"""Elements of HTML and SVG, which escape all their attributes and all text in them."""

from collections.abc import Iterable

from markupsafe import Markup, escape

from recsys.pages.formatting import visible


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
