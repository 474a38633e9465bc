"""A page that a command has written, in a notebook: the page itself in a frame, or its charts as pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape, unescape
from pathlib import Path

from markupsafe import Markup

from recsys.base.errors import UserError
from recsys.pages.charts.axes import LETTER, label
from recsys.pages.elements import el

PARTS = re.compile(  # of a page: its texts, legends and charts. Charts of class "cell" belong to tables
    r"<(?P<tag>h[1-4]|figcaption|p)\b[^>]*>(?P<text>.*?)</(?P=tag)>"
    r'|<div class="legend">(?P<legend>.*?)</div>'
    r'|(?P<chart><svg\b(?! class="cell").*?</svg>)',
    re.DOTALL,
)
ENTRIES = re.compile(r'<span[^>]*><i style="background:([^"]*)"></i>(.*?)</span>', re.DOTALL)  # of a legend
MAX_CAPTION_LENGTH = 60  # letters of a paragraph that can be the caption of a chart
WIDEST = 1.3  # how much larger the texts of wide charts are drawn, since a cell shrinks these charts
MARGIN = 24  # pixels beside a chart, which the larger texts need
MIN_PICTURE_PIXELS = 420  # least width of a picture in pixels
NARROW = 860  # width of a chart in pixels that a cell does not shrink


class Page:
    """A page that a command has written, such as a report. The last line of a cell shows it in a frame.

    Args:
        path: the HTML file.
        height: height of the frame in pixels.

    Raises UserError if the file does not exist.
    """

    def __init__(self, path: str | Path, height: int = 720) -> None:
        if not Path(path).is_file():
            raise UserError(f"{path}: no such file; name the HTML file that a command has written")
        self.path, self.height = Path(path), height
        self._text = self.path.read_text(encoding="utf-8")

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"

    def _repr_html_(self) -> str:
        look = f'width="100%" height="{self.height}" style="border:1px solid #dfe3ea"'
        return f'<div><iframe srcdoc="{escape(self._text)}" {look}></iframe></div>'

    @property
    def pictures(self) -> list[Picture]:
        """The charts of the page, in their order. Charts in cells of tables are left out."""
        heading = caption = legend = ""
        pictures = []
        for part in PARTS.finditer(self._text):
            if part["chart"]:
                title = ": ".join(dict.fromkeys(t for t in (heading, caption) if t))
                entries = [(colour, _plain(text)) for colour, text in ENTRIES.findall(legend)]
                pictures.append(Picture(title, part["chart"], entries, self._text))
            elif part["legend"]:
                legend = part["legend"]
            elif part["tag"] in ("h1", "h2"):
                heading, caption, legend = _plain(part["text"]), "", ""
            elif len(text := _plain(part["text"])) <= MAX_CAPTION_LENGTH or part["tag"] != "p":
                caption = text
        return pictures

    def picture(self, *words: str) -> Picture:
        """Return the first chart whose title has all these words. Raises UserError if no chart has them."""
        pictures = self.pictures
        for picture in pictures:
            if all(word in picture.title for word in words):
                return picture
        titles = "; ".join(picture.title for picture in pictures) or "none"
        raise UserError(f"{self.path}: no chart's title has the words {', '.join(words)}; its charts: {titles}")


class Picture:
    """A chart of a page, with its title and its legend. The last line of a cell shows it.

    Args:
        title: written above the chart.
        chart: an SVG element.
        legend: (colour, text) of each entry.
        page: the text of the page, for its style.
    """

    def __init__(self, title: str, chart: str, legend: Sequence[tuple[str, str]], page: str) -> None:
        self.title, self._chart, self._legend, self._page = title, chart, legend, page

    def __repr__(self) -> str:
        return f"Picture({self.title!r})"

    def _repr_svg_(self) -> str:
        wide, high = (float(n) for n in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', self._chart)[0])
        legend, x, y = [], 4.0, 38.0  # shapes in lines below the title
        for colour, text in self._legend:
            width = 17 + 1.06 * LETTER * _scale(wide) * len(text) + 16
            if x > 4 and x + width > wide:
                x, y = 4.0, y + 20
            square = el("rect", x=x, y=y - 10, width=11, height=11, rx=2, fill=colour)
            legend += [square, label(text, x + 17, y, "start")]
            x += width
        foot = y + 20 if legend else 32.0
        chart = re.sub(r' data-\w+="[^"]*"', "", self._chart)  # the values and tooltips for the page's scripts
        inner = chart.replace("<svg", f'<svg y="{foot:g}" width="{wide:g}" height="{high:g}" overflow="visible"', 1)
        title = label(self.title, 4, 16, "start", "title")
        view = f"{-MARGIN} 0 {wide + 2 * MARGIN:g} {foot + high + 6:g}"
        return str(
            el(
                "svg",
                el("style", Markup(_style(self._page, wide))),  # nosec B704 (the style of our own page)
                el("rect", x=-MARGIN, width=wide + 2 * MARGIN, height=foot + high + 6, class_="paper"),
                title,
                *legend,
                Markup(inner),  # nosec B704 (a chart of our own page, whose texts are escaped)
                xmlns="http://www.w3.org/2000/svg",
                class_="recsys-picture",
                viewBox=view,
                width=str(round(min(max(wide, MIN_PICTURE_PIXELS), NARROW))),
            )
        )


def _plain(html: str) -> str:
    """Return the text of an element, without its tags and what is in small letters."""
    return unescape(re.sub(r"<small>.*?</small>|<[^>]*>", "", html, flags=re.DOTALL)).strip()


def _scale(wide: float) -> float:
    return min(max(wide / NARROW, 1.0), WIDEST)


def _style(page: str, wide: float) -> str:
    """Return the rules of the page for charts in light colours, each limited to this picture."""
    css = re.sub(r"/\*.*?\*/", "", "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL)), flags=re.DOTALL)
    css = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^}]*\})*\s*\}", "", css)
    rules = [(s.strip(), body.strip()) for s, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css)]
    variables = " ".join(body for selector, body in rules if selector == ":root").replace("light dark", "light")
    size = 12 * _scale(wide)
    shown = [f".recsys-picture {{ {variables}; font-family: system-ui, 'DejaVu Sans', sans-serif; }}"]
    for selectors, body in rules:
        kept = [s for s in map(str.strip, selectors.split(",")) if re.match(r"(svg )?\.[a-z]+(?: |$)|svg |polyline", s)]
        scoped = [f".recsys-picture {s.removeprefix('svg ')}" for s in kept if ":" not in s]
        if scoped and re.search(r"stroke|fill|opacity", body):
            shown.append(f"{', '.join(scoped)} {{ {body} }}")
    shown += [
        f".recsys-picture text {{ font-size: {size:.3g}px; fill: var(--soft); }}",
        f".recsys-picture .in {{ font-size: {size - 1:.3g}px; fill: #10151d; }}",
        f".recsys-picture .title {{ font-size: {size + 1:.3g}px; font-weight: 600; fill: var(--ink); }}",
        ".recsys-picture .paper { fill: var(--paper); }",
    ]
    return "\n".join(shown)
