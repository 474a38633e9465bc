"""Pages in notebooks: the frame, and charts as pictures that stand alone."""

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from recsys import Page
from recsys.base.errors import UserError
from recsys.pages import render
from recsys.pages.charts.plots import Series, lines
from recsys.pages.page_table import Paint

HOSTILE = "</style><script>alert(1)</script>"


@pytest.fixture
def page(tmp_path: Path) -> Page:
    template = tmp_path / "template.html"
    template.write_text(
        '{% extends "pages/base.html" %}{% from "pages/macros.html" import legend %}{% block body %}<h2>Training</h2>'
        '{{ legend(paints) }}{{ chart }}<svg class="cell"></svg><h2>No chart</h2>{% endblock %}'
    )
    paints = [Paint("first", "var(--c0)"), Paint(HOSTILE, "var(--c1)")]
    chart = lines(f"loss {HOSTILE}", [Series(paints[0], [(0, 1), (1, 0.5)])], "step")
    (tmp_path / "page.html").write_text(render(template, title="A page", paints=paints, chart=chart))
    return Page(tmp_path / "page.html")


def test_the_frame_has_the_whole_page(page: Page) -> None:
    [attribute] = re.findall(r' srcdoc="([^"]*)"', page._repr_html_())
    assert unescape(attribute) == page.path.read_text()


def test_a_picture_stands_alone(page: Page) -> None:
    """It is XML of its own, with title, legend, chart and style, whose rules hold in it alone, and without scripts."""
    [picture] = page.pictures
    assert picture.title == f"Training: loss {HOSTILE}"
    svg = ElementTree.fromstring(picture._repr_svg_())
    texts = ["".join(e.itertext()) for e in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {picture.title, "first", HOSTILE, "step"} <= set(texts)
    style = svg[0].text or ""
    rules = [line for line in style.splitlines() if "{" in line]
    assert len(rules) > 10 and all(line.startswith(".recsys-picture") for line in rules)
    assert "--c0: " in style and ".plot path" in style and "@media" not in style
    assert not any(e.tag.endswith("script") for e in svg.iter())


def test_finds_a_picture_by_words_of_its_title(page: Page) -> None:
    assert page.picture("Training", "loss").title == page.pictures[0].title
    with pytest.raises(UserError, match=r"no chart's title has the words accuracy; its charts: Training: loss"):
        page.picture("accuracy")


def test_a_page_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no.html: no such file; name the HTML file that a command has written"):
        Page(tmp_path / "no.html")
