"""Read what recsys's own models and losses declare from the source of their classes.

PyTorch, TorchRec and FBGEMM take seconds to import, and a mistake in a config is to be reported at once. So the bases
of a class and the constants in its body are read without an import, as are the parameters of recsys's and PyTorch's
classes (signatures.py). A class of your own is checked after the imports.
"""

import ast
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

READ = ("recsys", "torch")  # packages whose source is read
KIND_OF_BASE = {"FittedRankingModel": "fitted_ranking", "RetrievalModel": "retrieval", "ClosedFormModel": "closed_form"}
TASKS = "recsys.losses.tasks"


@dataclass(frozen=True)
class ClassFacts:
    """The names of a class and of its bases in recsys, and the constants that they declare."""

    names: frozenset[str]
    constants: dict[str, Any]

    @property
    def model_kind(self) -> str:
        """The kind of a model (recsys/models/protocols.py)."""
        return next((kind for base, kind in KIND_OF_BASE.items() if base in self.names), "ranking")


@dataclass(frozen=True)
class LossFacts:
    """What a loss compares.

    protocol: RankingLoss, RetrievalLoss, or Tasks, which has a ranking loss for each label
    kinds: the kinds of labels that a ranking loss compares
    within_groups: whether it compares the rows of a group
    """

    protocol: str
    kinds: tuple[str, ...] = ()
    within_groups: bool = False


def own_model(target: str) -> ClassFacts | None:
    """Return the facts of one of recsys's own models; None for any other `_target_`."""
    return _class(target) if target.startswith("recsys.models.") else None


def own_loss(target: str) -> LossFacts | None:
    """Return the facts of one of recsys's own losses; None for any other `_target_`."""
    facts = _class(target) if target.startswith("recsys.losses.") else None
    if facts is None:
        return None
    protocol = next((p for p in ("RankingLoss", "RetrievalLoss", "Tasks") if p in facts.names), "")
    if protocol != "RankingLoss":
        return LossFacts(protocol) if protocol else None
    return LossFacts(protocol, facts.constants["kinds"], facts.constants["within_groups"])


def losses_by_name() -> dict[str, LossFacts]:
    """Return the facts of the losses that `loss.losses.LABEL` may name."""
    values = next(n.value for n in statements(TASKS) if isinstance(n, ast.Assign) and _name(n.targets[0]) == "LOSSES")
    assert isinstance(values, ast.Dict)
    losses = [(key, own_loss(f"{TASKS}.{_name(value)}")) for key, value in zip(values.keys, values.values, strict=True)]
    return {ast.literal_eval(key): loss for key, loss in losses if key is not None and loss is not None}


@dataclass(frozen=True)
class Definition:
    """A class or a function in the source of a module."""

    module: str
    node: ast.ClassDef | ast.FunctionDef


@cache
def definition(target: str) -> Definition | None:
    """Return where a class or a function is defined, also under the name of a module that imports it."""
    module, _, name = target.rpartition(".")
    if (origin := imported(module, name)) is not None:
        return definition(origin)
    nodes = (n for n in statements(module) if isinstance(n, ast.ClassDef | ast.FunctionDef))
    return next((Definition(module, n) for n in nodes if n.name == name), None)


def imported(module: str, name: str) -> str | None:
    """Return the dotted name of what a module imports as `name`; None if it does not import that."""
    for node in (n for n in statements(module) if isinstance(n, ast.ImportFrom)):
        for alias in node.names:
            if name == (alias.asname or alias.name):
                return f"{_origin(node, module)}.{alias.name}"
    return None


def names_in(module: str) -> set[str]:
    """Return the names that a module of recsys or PyTorch has; none of another one."""
    nodes = [node for statement in statements(module) for node in ast.walk(statement)]
    defined = {n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    aliases = [a for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    return defined | {n.id for n in nodes if isinstance(n, ast.Name)} | {a.asname or a.name for a in aliases}


def _origin(node: ast.ImportFrom, module: str) -> str:
    """Return the full name of the module that a statement of `module` imports from."""
    if not node.level:
        return node.module or ""
    file, parts = _file(module), module.split(".")
    up = node.level - (file is not None and file.name == "__init__.py")
    return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


@cache
def statements(module: str) -> list[ast.stmt]:
    """Return the statements of a module of recsys or PyTorch; none if it has no such module."""
    file = _file(module)
    return [] if file is None else ast.parse(file.read_bytes()).body


def _file(module: str) -> Path | None:
    top, *parts = module.split(".")
    spec = find_spec(top) if top in READ else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.joinpath(*parts)
    return next((f for f in (path / "__init__.py", path.with_name(f"{path.name}.py")) if f.is_file()), None)


@cache
def _class(target: str) -> ClassFacts | None:
    """Return the facts of a class of recsys, also under the name of a module that imports it."""
    found = definition(target) if target.startswith("recsys.") else None
    if found is None or not isinstance(found.node, ast.ClassDef):
        return None
    bases = [_class(f"{found.module}.{_name(base)}") for base in found.node.bases]
    above = [facts for facts in bases if facts is not None]
    constants = {k: v for facts in reversed(above) for k, v in facts.constants.items()}
    names = frozenset({found.node.name}.union(*(f.names for f in above)))
    return ClassFacts(names, constants | _constants(found.node))


def _constants(node: ast.ClassDef) -> dict[str, Any]:
    """Return the values in the body of a class that are literals."""
    found = {}
    for line in node.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            with suppress(ValueError):
                target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
                found[_name(target)] = ast.literal_eval(line.value)
    return found


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
