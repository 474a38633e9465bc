"""What a reader sees first: the top of recsys/, the functions of a run, and how far optional products reach."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from recsys.__main__ import COMMANDS

ROOT = Path(__file__).parents[2] / "recsys"
STORY = (
    "run.py",
    "epochs.py",
    "train_stepwise.py",
    "fit_at_once.py",
    "step.py",
    "module.py",
    "trainer.py",
    "results.py",
)
LONGEST = 40  # statements of a function of the story
OPTIONAL = {  # modules that few users need -> the rooms that may import them freely
    "server.canary_guard": "server",
    "server.tracing": "server",
    "index.milvus": "index",
    "store.feast": "store",
    "export.write_delta": "export",
    "export.artefact.apply_delta": "export",
}


def test_the_top_has_commands_and_rooms() -> None:
    files = {f.stem for f in ROOT.glob("*.py")} - {"__init__", "__main__", "api"}
    assert files <= {*COMMANDS}, "what is no command goes into a room"


def test_functions_of_the_story_are_short() -> None:
    long = {}
    for name in STORY:
        for node in ast.walk(ast.parse((ROOT / "training" / name).read_text())):
            if isinstance(node, ast.FunctionDef):
                statements = sum(isinstance(n, ast.stmt) for n in ast.walk(node)) - 1
                if statements > LONGEST:
                    long[f"{name}:{node.name}"] = statements
    assert long == {}


@pytest.mark.parametrize("module", OPTIONAL)
def test_few_modules_know_an_optional_product(module: str) -> None:
    home, readers = OPTIONAL[module], []
    for file in ROOT.rglob("*.py"):
        names = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
        known = {f"{n.module}.{a.name}" for n in names for a in n.names} | {n.module for n in names}
        if f"recsys.{module}" in known and file.relative_to(ROOT).parts[0] != home:
            readers.append(str(file.relative_to(ROOT)))
    assert len(readers) <= 4, readers


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for types and within functions count, too."""
    files = {str(f.relative_to(ROOT.parent))[:-3].replace("/", "."): f for f in ROOT.rglob("*.py")}
    imports: dict[str, set[str]] = {}
    for module, file in files.items():
        if file.name in ("__init__.py", "__main__.py"):  # they hand names on
            continue
        nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
        names = {n.module or "" for n in nodes} | {f"{n.module}.{a.name}" for n in nodes for a in n.names}
        imports[module] = (names & {*files}) - {module}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the files
