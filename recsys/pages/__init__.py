"""Self-contained HTML pages: the frame, style and tooltips that all of them share."""

from html import escape
from pathlib import Path


def document(title: str, body: str, folder: Path, kind: str = "", *, charts: bool = False) -> str:
    """Return a page.

    Args:
        folder: folder of the page's own page.css and, if it has one, page.js.
        kind: class of <main>.
        charts: whether the page has line charts (recsys.pages.charts).
    """
    here = Path(__file__).parent
    parts = [here / "base.css", *([here / "charts.css"] if charts else []), folder / "page.css"]
    css = "".join(part.read_text() for part in parts)
    parts = [here / "tip.js", *([here / "charts.js"] if charts else []), folder / "page.js"]
    script = "".join(part.read_text() for part in parts if part.exists())
    main = f'<main class="{kind}">' if kind else "<main>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style></head>\n<body>{main}\n{body}</main>\n"
        f'<div id="tip"></div><script>\n{script}</script></body></html>\n'
    )


def footer(sentence: str, notes: tuple[str, ...]) -> str:
    """Return a footer: a sentence, then a list of notes."""
    return f"<footer>{sentence}<ul>{''.join(f'<li>{escape(n)}</li>' for n in notes)}</ul></footer>"
