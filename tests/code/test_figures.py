"""Figures of recsys/ and tests/ that may fall and not rise: `python tests/code/test_figures.py` prints them.

A change that lowers a figure lowers its ceiling here.
"""

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent / "recsys"
CEILINGS = {  # figure -> (ceiling, goal)
    "lines": (84_592, 74_000),
    "files": (537, 420),
    "files above 400 lines": (0, 0),
    "raises of user errors": (1_096, 800),
    "private functions of one mention, %": (48, 45),
    "comparisons of the name of an encoding, a format or a kind": (14, 15),
    "functions that take a DictConfig": (10, 30),
    "class names that occur twice": (4, 5),
    "annotations that are Any": (269, 350),
    "lines of tests": (56_004, 47_000),
}
KINDS = ("encode", "format", "kind")  # attributes and variables that hold the name of a kind


def named(node: ast.AST | None) -> str:
    """Return the last part of a name: x, or a.x."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def compares_kinds(node: ast.AST) -> bool:
    """Return whether something like x.format == "csv" or kind in ("a", "b") is compared."""
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    if any(isinstance(side, ast.Attribute) and named(side.value) == "dtype" for side in sides):
        return False  # the kind of a type is NumPy's
    texts = (n for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return any(named(side) in KINDS for side in sides) and next(texts, None) is not None


def figures() -> dict[str, int]:
    texts = [p.read_text(encoding="utf-8") for p in ROOT.rglob("*.py")]
    assert len(texts) > 300
    of_file = [list(ast.walk(ast.parse(text))) for text in texts]
    nodes = [n for file in of_file for n in file]
    classes = [n for n in nodes if isinstance(n, ast.ClassDef)]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    errors = {"UserError"}
    while more := {c.name for c in classes if {named(b) for b in c.bases} & errors} - errors:
        errors |= more
    raised = [n.exc.func if isinstance(n.exc, ast.Call) else n.exc for n in nodes if isinstance(n, ast.Raise)]
    private = []  # mentions of each, in its file
    for file in of_file:
        mentions = Counter(named(n) for n in file)
        own = (n for n in file if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        private += [mentions[n.name] for n in own if n.name.startswith("_") and not n.name.startswith("__")]
    given = [a for f in functions for a in (*f.args.args, *f.args.kwonlyargs)]
    annotations = [a.annotation for a in given] + [f.returns for f in functions]
    annotations += [n.annotation for n in nodes if isinstance(n, ast.AnnAssign)]
    return {
        "lines": sum(text.count("\n") for text in texts),
        "files": len(texts),
        "files above 400 lines": sum(text.count("\n") > 400 for text in texts),
        "raises of user errors": sum(named(e) in errors for e in raised),
        "private functions of one mention, %": round(100 * private.count(1) / len(private)),
        "comparisons of the name of an encoding, a format or a kind": sum(map(compares_kinds, nodes)),
        "functions that take a DictConfig": sum(named(a.annotation) == "DictConfig" for a in given),
        "class names that occur twice": sum(n > 1 for n in Counter(c.name for c in classes).values()),
        "annotations that are Any": sum(named(a) == "Any" for a in annotations),
        "lines of tests": sum(p.read_text(encoding="utf-8").count("\n") for p in TESTS.rglob("*.py")),
    }


def test_figures_do_not_rise() -> None:
    assert {n: v for n, v in figures().items() if v > CEILINGS[n][0]} == {}


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{name:60} {value:7,}, at most {CEILINGS[name][0]:7,}, goal {CEILINGS[name][1]:7,}")
