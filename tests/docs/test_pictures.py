"""The command that makes pictures of pages."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import warm_python

ROOT = Path(__file__).parents[2]


def test_pages_show_them() -> None:
    pages = (ROOT / "docs" / "how_to" / name for name in ("compare.md", "shard.md"))
    pictures = [p.parent / found for p in pages for found in re.findall(r"\]\((\S+\.png)\)", p.read_text())]
    assert {p.name for p in pictures} >= {"report.png", "users.png", "plan.png"}
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_plans_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheap half of the command: three plans side by side, as in the picture."""
    spec = importlib.util.spec_from_file_location("make", ROOT / "docs" / "pictures" / "make.py")
    assert spec is not None and spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    monkeypatch.setattr(sys, "executable", warm_python())
    make._recsys(tmp_path, "plan", *make.PLAN, "output=plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert all(f"sharding={name}" in page for name in ("auto", "tablewise", "rowwise")) and "t_cat_22" in page


@pytest.mark.slow
def test_makes_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "docs" / "pictures" / "make.py", tmp_path], check=True, timeout=500)
    browser = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    for name in ("report", "users", "plan"):
        assert "</html>" in (tmp_path / f"{name}.html").read_text()[-200:]
        assert (tmp_path / f"{name}.png").exists() == browser
