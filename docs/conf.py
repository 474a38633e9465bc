"""Settings of Sphinx: `just docs` builds the site in docs/_build/html, which opens from the folder without a network.

RECSYS_REPOSITORY, the web address of the repository, turns links to files outside docs/ into links to it, and adds edit
links to all pages. Without it, such links become plain text.
"""

import os
import re
import sys
from pathlib import Path

from pydantic.fields import FieldInfo
from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
from make_reference import write_reference  # noqa: E402

from recsys.distributed.ranks import silence  # noqa: E402

silence()  # the logs of FBGEMM
ENDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
FieldInfo.__repr__ = lambda self: " and ".join(  # type: ignore[method-assign]  # Annotated[int, at least 1]
    f"{word} {getattr(limit, end):g}" for limit in self.metadata for end, word in ENDS.items() if hasattr(limit, end)
)

REPOSITORY = os.environ.get("RECSYS_REPOSITORY", "").rstrip("/")
project = "recsys"
author = "the recsys developers"
extensions = [
    *("myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.autosummary", "sphinx_copybutton"),
]
exclude_patterns = ["_build", "pictures", "deploy", "notebooks/.ipynb_checkpoints"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the links of these pages name headings as GitHub does
nb_execution_mode = "off"  # the notebooks keep their outputs; docs/notebooks/make.py executes them
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
copybutton_prompt_text = r"\$ "
# Lexers of YAML and JSON refuse the excerpts and comments of some examples; these are shown as they are.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "recsys"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = (
    {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"} if REPOSITORY else {}
)
html_show_sphinx = False
html_show_copyright = False
FIELD = re.compile(r"[a-z_][\w, ]*: ")  # a field of a dataclass, or several
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s:#]+)((?:#[^)\s]*)?)\)")


def link_files_elsewhere(_: Sphinx, name: str, source: list[str]) -> None:
    """Point links to files outside the site to the repository; without an address of it, keep their text alone."""
    folder = (DOCS / name).parent

    def linked(match: re.Match[str]) -> str:
        text, path, anchor = match.groups()
        target = (folder / path).resolve()
        if (target.suffix in (".md", ".ipynb", ".png", ".svg") and target.is_relative_to(DOCS)) or not target.exists():
            return match[0]
        place = target.relative_to(DOCS.parent).as_posix()
        kind = "tree" if target.is_dir() else "blob"
        return f"[{text}]({REPOSITORY}/{kind}/main/{place}{anchor})" if REPOSITORY else f"{text} (`{place}`)"

    source[0] = LINK.sub(linked, source[0])


def list_fields(_app: Sphinx, _kind: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Make a list of the lines NAME: MEANING of docstrings of dataclasses, which are plain paragraphs there."""
    out: list[str] = []
    listed = False
    for line in (x.replace("|", r"\|") for x in lines):
        if FIELD.match(line):
            out += ([] if listed else [""]) + [f"- {line}"]
            listed = True
        elif listed and line.startswith("    "):
            out.append(f"  {line.strip()}")
        else:
            out += [""] if listed and line else []
            listed = False
            out.append(line)
    lines[:] = out


def setup(app: Sphinx) -> None:
    """Register the hooks, and write the pages of the reference."""
    write_reference(DOCS / "reference")
    app.connect("source-read", link_files_elsewhere)
    app.connect("autodoc-process-docstring", list_fields)
