"""The commands that README, docs and CONTRIBUTING show are commands that compose."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recsys.config.compose import compose, compose_file, conf_dir
from recsys.stages.assemble import build_parts
from recsys.sweep.space import read_space

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if not {"generated", "_build"} & set(p.parts)),
    *ROOT.glob("experiments/*/README.md"),
]
WORDS = {
    "checkpoint": ("action", "run"),
    "export": ("action", "artefact"),
    "feature_store": ("action",),
    "registry": ("action",),
    "follow": ("file",),
    "serve": ("models",),
}
COMMAND = re.compile(r"^(?: {4})?(?:uv run (?:--no-dev )?)?python -m recsys\.(\w+) ([^#\n]*)", re.M)
FOUND = {
    (m[1], " ".join(shlex.split(re.sub(r"(?<!\S)\[([^\]]*)\]", r"\1", m[2].split("  ")[0]))))  # [what may be left out]
    for page in PAGES
    for m in COMMAND.finditer(page.read_text())
    if "..." not in m[2] and m[1] != "sweep"  # whose words are no overrides
}
COMMANDS = sorted(FOUND)


def test_some_were_found() -> None:
    assert len(COMMANDS) >= 10


@pytest.mark.few(60)
@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_command_composes(command: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "conf" / "data"
    own.mkdir(parents=True)
    for name in ("mine", "clicks"):  # the user's own, which the page tells to write
        (own / f"{name}.yaml").write_text(f"name: {name}\nsparse: {{a: {{}}}}\n")
    for config in ROOT.glob("experiments/*/conf/data/*.yaml"):  # for commands that run in the experiment's folder
        (own / config.name).write_bytes(config.read_bytes())
    monkeypatch.chdir(tmp_path)
    overrides = [a for a in arguments.split() if not a.startswith("--config-")]  # a run's, which is not here
    if command == "pipeline":  # whose keys are those of the file that run= names
        keys = [o for o in overrides if "=" in o and not o.startswith("run=")]
        build_parts(compose_file(conf_dir() / "pipeline" / "sample.yaml", ["root=DIR", *keys]))
        return
    words = [w for w in overrides if "=" not in w and not w.startswith("-")]
    if command in WORDS:  # whose first arguments are bare words
        overrides = [f"{k}={w}" for k, w in zip(WORDS[command], words, strict=False)] + overrides[len(words) :]
    if "-m" in overrides:  # a sweep: its first trial
        space = read_space(["model=dnn" if o == "model=zoo" else o for o in overrides if o != "-m"])  # one that fits
        overrides = space.overrides(space.ends()[0])
    else:  # the first of several plans
        overrides = [re.sub(r"=([^\[{]*?),.*", r"=\1", o) for o in overrides]
    if command == "report":  # likewise folders
        overrides = [w for w in overrides if "=" in w]
    cfg = compose(command, overrides)
    assert "data" in cfg or command in (*WORDS, "evaluate", "predict", "report", "dashboard", "new", "loadtest")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_first_command_in_a_fresh_clone(tmp_path: Path) -> None:
    """The two lines of the README that a newcomer types, but for `pip install uv`, in an environment of their own."""
    lines = re.findall(r"^    (uv run .*|pip install uv)$", (ROOT / "README.md").read_text(), re.M)
    assert lines[0] == "pip install uv" and lines[1].startswith("uv run --no-dev python -m recsys.train ")
    if shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(shlex.split(lines[1]), cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Bayes (test)" in done.stdout


def test_wheel_carries_conf(tmp_path: Path) -> None:
    built = subprocess.run(["uv", "build", "--wheel", "-o", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"no wheel can be built here: {built.stderr[-200:]}")
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = set(archive.namelist())
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    assert "Requires-Dist: torchrec" not in metadata
    parts = [str(f.relative_to(ROOT)) for f in (ROOT / "recsys").rglob("*") if f.suffix in (".html", ".css", ".js")]
    assert len(parts) > 10 and set(parts) <= names, "templates, styles and scripts of pages"
    (tmp_path / "empty").mkdir()
    code = "import sys; sys.path.insert(0, '../site'); import recsys.train; print(recsys.__file__); recsys.train.main()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, "--cfg", "job", "model=dcn"],
        cwd=tmp_path / "empty",
        capture_output=True,
        text=True,
    )
    assert "site/recsys/__init__.py" in done.stdout, done.stderr
    assert "recsys.models.dcn.DCN" in done.stdout, done.stderr


@pytest.mark.slow
def test_the_python_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines as they stand, in one namespace."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    rng = np.random.default_rng(0)
    columns = {
        "user": rng.integers(0, 20, 600).astype(str),
        "price": rng.random(600),
        "clicked": rng.integers(0, 2, 600),
    }
    names: dict[str, Any] = {"frame": pd.DataFrame(columns)}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["frame"]["probability"].between(0, 1).all()
    assert names["probability"].is_between(0, 1).all()
    assert names["probability"].len() == 2
    assert names["items"].height == 5 and names["lists"]["user"].to_list() == ["a", "b"]
    assert names["logits"].shape == (2048, 1)
