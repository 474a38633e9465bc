"""Self-contained HTML pages: the frame, style and tooltips that all of them share."""

from html import escape
from pathlib import Path


def document(title: str, body: str, folder: Path, kind: str = "") -> str:
    """Return a page.

    Args:
        folder: folder of the page's own page.css and, if it has one, page.js.
        kind: class of <main>.
    """
    here = Path(__file__).parent
    css = "".join((f / name).read_text() for f, name in ((here, "base.css"), (folder, "page.css")))
    script = (here / "tip.js").read_text()
    if (folder / "page.js").exists():
        script += (folder / "page.js").read_text()
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
