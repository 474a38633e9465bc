"""The name of a file, and of a public class, exists once in recsys/."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2] / "recsys"
FILES = {"__init__.py", "__main__.py"}
CLASSES = {
    "TritonPythonModel",  # Triton finds it by this name
    "Items",  # sources of pipelines are named by users; and the vectors of items, by models of users
    "Column",  # of raw files, and of a table of a page
    "Popularity",  # a model, and what losses draw negatives by
}


def test_files() -> None:
    places = defaultdict(list)
    for file in ROOT.rglob("*.py"):
        places[file.name].append(str(file.relative_to(ROOT)))
    assert {name: p for name, p in places.items() if len(p) > 1 and name not in FILES} == {}


def test_classes() -> None:
    places = defaultdict(list)
    for file in ROOT.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(ROOT)))
    assert {name: p for name, p in places.items() if len(p) > 1 and name not in CLASSES} == {}


def test_tables_of_classes() -> None:
    """A dict that finds a class or a function by a key has a name of its own: LABEL_KINDS, not KINDS."""
    places = defaultdict(list)
    for file in ROOT.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict | ast.DictComp):
                continue
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            values = node.value.values if isinstance(node.value, ast.Dict) else [node.value.value]
            if isinstance(target, ast.Name) and any(isinstance(v, ast.Name | ast.Lambda) for v in values):
                places[target.id].append(str(file.relative_to(ROOT)))
    assert {name: p for name, p in places.items() if len(p) > 1} == {}
