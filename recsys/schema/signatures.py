"""Check the parameters of a class by its signature: as it is imported, or as its source has it, without an import.

The source of recsys's own classes, and of PyTorch's optimizers and schedules, says what their parameters are, and
which values their constructors refuse.
"""

import ast
import builtins
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from recsys.base.errors import UserError, did_you_mean
from recsys.base.parsing import reason_of
from recsys.schema.class_facts import Definition, definition, imported, statements

QUICK = ("pydantic", "recsys.base.ranges")  # modules besides Python's own that hints are evaluated with
HARMLESS = {
    n: getattr(builtins, n) for n in ("isinstance", "len", "float", "int", "str", "list", "tuple", "any", "all")
}


@dataclass(frozen=True)
class Parameter:
    """A parameter that a config may set. hint: its type; Any where no value can be checked against it"""

    hint: Any
    is_required: bool


def check_parameter_values(
    values: Mapping[str, Any], path: str, target: str, parameters: Mapping[str, Parameter]
) -> None:
    """Check the values of a node against the parameters of its target.

    Args:
        path: the node's key in the config.
        target: the class that the node names.

    Raises:
        UserError: a parameter is unknown, missing or of a wrong type.
    """
    for name in values:
        if name not in parameters:
            raise UserError(f"{path}.{name}: {target} has no such parameter{did_you_mean(name, parameters)}")
    for name, parameter in parameters.items():
        if parameter.is_required and name not in values:
            raise UserError(f"{path}.{name}: must be set; it is a required parameter of {target}")
    for name, value in values.items():
        if problem := _mismatch(value, parameters[name].hint):
            raise UserError(f"{path}.{name}={value!r}: {problem}")


def _mismatch(value: object, hint: Any) -> str | None:
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError:
            if not isinstance(value, list):
                raise
            adapter.validate_python(tuple(value), strict=True)  # YAML writes tuples, such as Adam's betas, as lists
    except ValidationError as e:
        return reason_of(e.errors()[0])
    except (PydanticUserError, TypeError):
        return None  # a type that no value can be checked against
    return None


# --- from source ---------------------------------------------------------------------------------------------


def check_against_source(node: Mapping[str, Any], path: str, given: Sequence[str] = ()) -> None:
    """Check the values of a `_target_` node against the source of its target, without an import.

    What the source does not tell is left to the checks after the imports, as are classes of users.

    Args:
        path: the node's key in the config.
        given: names of parameters that the caller passes, which the config may not set.

    Raises:
        UserError: a parameter is unknown, missing or of a wrong type, or the constructor refuses its value.
    """
    target = str(node["_target_"])
    values = {str(name): value for name, value in node.items() if name != "_target_"}
    parameters = source_parameters(target)
    if parameters is None or any(name.startswith("_") for name in values) or "_target_" in str(values):
        return
    check_parameter_values(values, path, target, {name: p for name, p in parameters.items() if name not in given})
    if (refused := _refusal(definition(target), values)) is not None:
        raise UserError(f"{path}: {refused}")


def source_parameters(target: str) -> dict[str, Parameter] | None:
    """Return the parameters of a class or function as its source has them; None if its source is not read."""
    if (found := definition(target)) is None:
        return None
    if (maker := _maker(found)) is None:
        return {}
    arguments = _arguments(maker.node)
    return {n: Parameter(_hint(hint, maker.module), default is None) for n, (hint, default) in arguments.items()}


def _maker(found: Definition) -> Definition | None:
    """Return a function, or the constructor of a class, which may be a base's."""
    if isinstance(found.node, ast.FunctionDef):
        return found
    own = (n for n in found.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    if (node := next(own, None)) is not None:
        return Definition(found.module, node)
    return next((maker for base in _bases(found) if (maker := _maker(base)) is not None), None)


def _bases(found: Definition) -> Iterator[Definition]:
    names = [b.id for b in getattr(found.node, "bases", ()) if isinstance(b, ast.Name)]
    yield from (base for name in names if (base := definition(f"{found.module}.{name}")) is not None)


def _arguments(node: ast.ClassDef | ast.FunctionDef) -> dict[str, tuple[ast.expr | None, ast.expr | None]]:
    """Return the hint and the default of each parameter but self."""
    assert isinstance(node, ast.FunctionDef)
    a = node.args
    missing: list[ast.expr | None] = [None] * (len(a.args) - len(a.defaults))
    pairs = [*zip(a.args, [*missing, *a.defaults], strict=True), *zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return {p.arg: (p.annotation, default) for p, default in pairs if p.arg != "self"}


class _ModuleNames(dict[str, Any]):
    """The names of a module that hints are made of. Those of classes that are not imported stand for some class."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        origin = imported(self.module, name)
        if origin is None:
            return self._defined(name)
        module, _, name = origin.rpartition(".")
        if module in QUICK or module.partition(".")[0] in sys.stdlib_module_names:
            return getattr(import_module(module), name)
        return type(name, (), {}) if module == "torch" else _ModuleNames(module)[name]

    def _defined(self, name: str) -> Any:
        if definition(f"{self.module}.{name}") is not None:
            return type(name, (), {})  # no value of YAML is an object of it
        for node in statements(self.module):
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return _evaluate(node.value, self)
        raise NameError(name)


def _hint(node: ast.expr | None, module: str) -> Any:
    """Return a parameter's type; Any if its source does not tell it."""
    if node is None:
        return Any
    try:
        return _evaluate(node, _ModuleNames(module))
    except Exception:  # whatever a hint is made of; it is evaluated again after the imports
        return Any


def _evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Evaluate a line of recsys's or PyTorch's own source, which an import would run; never what a config holds."""
    return eval(compile(ast.Expression(node), "<source>", "eval"), {"__builtins__": {}}, names)  # nosec B307


def _refusal(cls: Definition | None, values: Mapping[str, Any]) -> str | None:
    """Return what a constructor says of values that it refuses: `if not 0 <= lr: raise ValueError(f"... {lr}")`.

    Only conditions on parameters themselves are tried, which no line above them changes.
    """
    if cls is None or (maker := _maker(cls)) is None:
        return None
    known = {name: value for name, (_, default) in _arguments(maker.node).items() for value in _literal(default)}
    known.update(values)
    for node in maker.node.body:
        if isinstance(node, ast.If) and (refused := _raised(node, known)) is not None:
            return refused
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("super().__init__("):
            passed = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & known.keys()  # under their own names
            for base in _bases(cls):
                if (refused := _refusal(base, {name: known[name] for name in passed})) is not None:
                    return refused
        if any(isinstance(n, ast.Return) for n in ast.walk(node)):
            return None
        for changed in (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)):
            known.pop(changed, None)
    return None


def _literal(node: ast.expr | None) -> list[Any]:
    try:
        return [] if node is None else [ast.literal_eval(node)]
    except ValueError:
        return []


def _raised(node: ast.If, known: Mapping[str, Any]) -> str | None:
    """Return the message of the ValueError that a statement raises for the values of parameters."""
    error = node.body[0].exc if isinstance(node.body[0], ast.Raise) else None
    if not isinstance(error, ast.Call) or ast.unparse(error.func) != "ValueError" or len(error.args) != 1:
        return None
    try:
        names = {**HARMLESS, **known}
        return str(_evaluate(error.args[0], names)) if _evaluate(node.test, names) else None
    except Exception:  # it reads more than the parameters
        return None
