"""The pages of docs/: short enough to read, with links that lead somewhere, and all of them in the site."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if not {"generated", "_build"} & set(p.parts)]
GENERATED = DOCS / "reference" / "generated"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```(?!\{toctree).*?^```", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the names of the headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#{1,6} (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_a_page(page: Path) -> None:
    assert page.stat().st_size <= 12_000, "divide it"
    text = prose(page)
    assert len(re.findall(r"^# ", text, re.M)) == 1, "one title"
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = Path(os.path.normpath(page.parent / path)) if path else page
        assert file.exists() or file.is_relative_to(GENERATED), target
        if anchor and file.suffix == ".md" and file.exists():
            assert anchor in anchors(file), target


@pytest.mark.parametrize("page", [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")])
def test_links_of_the_other_pages(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if path and not re.match(r"[a-z]+:", target):
            file = Path(os.path.normpath(page.parent / path))
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


def test_the_readme_is_short() -> None:
    words = (ROOT / "README.md").read_text().split()
    assert len(words) <= 900


def test_every_page_is_in_the_site() -> None:
    """A page that no list of contents names is found by nobody."""
    named = {DOCS / "index.md"}
    for page in PAGES:
        for block in re.findall(r"```\{toctree\}(.*?)```", page.read_text(), re.S):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    entry = os.path.normpath(page.parent / line.strip())
                    named |= set(DOCS.glob(os.path.relpath(entry, DOCS) + ".md"))
    assert [str(p.relative_to(DOCS)) for p in PAGES if p not in named] == []
