"""Self-contained HTML pages: templates with autoescape, and the tables, legends and charts that all of them share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.base.printable import visible
from recsys.pages.elements import plain, share, size, tail

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str | Path, **values: Any) -> str:
    """Return a page. template: its path in recsys/, such as report/report_page.html, or a file elsewhere"""
    environment = _environment()
    if isinstance(template, Path):
        return environment.from_string(template.read_text(encoding="utf-8")).render(values)
    return environment.get_template(template).render(values)


@cache
def _environment() -> Environment:
    """Return the environment of all templates, which escapes whatever they write."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    environment.filters |= {"plain": plain, "tail": tail, "share": share, "size": size, "thousands": "{:,}".format}
    return environment
