"""Read what recsys's own models and losses declare from the source of their classes.

PyTorch, TorchRec and FBGEMM take seconds to import, and a mistake in a config is to be reported at once. So the bases
of a class and the constants in its body are read without an import. A class of your own is checked after the imports.
"""

import ast
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
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
    values = next(n.value for n in _source(TASKS) if isinstance(n, ast.Assign) and _name(n.targets[0]) == "LOSSES")
    assert isinstance(values, ast.Dict)
    losses = [(key, own_loss(f"{TASKS}.{_name(value)}")) for key, value in zip(values.keys, values.values, strict=True)]
    return {ast.literal_eval(key): loss for key, loss in losses if key is not None and loss is not None}


@cache
def _source(module: str) -> list[ast.stmt]:
    """Return the statements of a module of recsys; none if it has no such module."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((ast.parse(f.read_bytes()).body for f in files if f.is_file()), [])


@cache
def _class(target: str) -> ClassFacts | None:
    """Return the facts of a class of recsys, also under the name of a module that imports it."""
    module, _, name = target.rpartition(".")
    if module.partition(".")[0] != "recsys":
        return None
    for node in _source(module):
        if isinstance(node, ast.ImportFrom) and node.module and name in {a.name for a in node.names}:
            return _class(f"{node.module}.{name}")
        if isinstance(node, ast.ClassDef) and node.name == name:
            above = [facts for base in node.bases if (facts := _class(f"{module}.{_name(base)}")) is not None]
            constants = {k: v for facts in reversed(above) for k, v in facts.constants.items()}
            return ClassFacts(frozenset({name}.union(*(f.names for f in above))), constants | _constants(node))
    return None


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
