"""`--help` of the commands that do one thing: the usage, and each key with its default and its meaning.

The meanings are the comments in the schema (recsys/schema/command_schemas.py): the one behind a field or, if there is
none, the lines above it.
"""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from types import ModuleType
from typing import Any, get_type_hints

from rich.table import Table

from recsys.cli.console import results
from recsys.config.compose import COMMANDS
from recsys.ranges import NotEmpty

COMPOSED = ("train", "plan", "preprocess", "doctor", "new")  # --help is Hydra's, with the groups of conf/


def show(command: str) -> None:
    """Print the help of a command."""
    results.print(_module(command).__doc__ or "", markup=False)
    table = Table("key", "default", "meaning", box=None, pad_edge=False, header_style="bold")
    for key, default, meaning in keys(COMMANDS[command]):
        table.add_row(key, default, meaning)
    results.print(table)
    results.print("\nSet a key with KEY=VALUE. --cfg job prints the config; --hydra-help lists Hydra's own options.")


def _module(command: str) -> ModuleType:
    module = importlib.import_module(f"recsys.{command}")
    return importlib.import_module(f"recsys.{command}.__main__") if hasattr(module, "__path__") else module


def keys(schema: type[Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the name, the default and the meaning of each key of a schema, and of its parts.

    The parts of a schema replace settings of a run.
    """
    hints, meanings = get_type_hints(schema), _comments(schema)
    for f in fields(schema):
        part, meaning = hints[f.name], meanings.get(f.name, "")
        if isinstance(part, type) and is_dataclass(part):
            yield from keys(part, f"{prefix}{f.name}.")
            continue
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        yield prefix + f.name, _text(default), meaning or ("as in the run" if prefix else _hint(f))


def _hint(f: Field[Any]) -> str:
    """Return the meaning of a text option, from the hint in the error for an empty one."""
    limits = [limit for limit in f.metadata.values() if isinstance(limit, NotEmpty)]
    return limits[0].hint.removeprefix("name ").removeprefix("write ") if limits else ""


def _text(default: Any) -> str:
    if default == "???":
        return "needed"
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _comments(schema: type[Any]) -> dict[str, str]:
    """Return the comment of each field of a dataclass, from its source."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(schema).splitlines():
        code, _, comment = line.strip().partition("# ")
        if not code and comment:
            above.append(comment)
            continue
        name, colon, _ = code.partition(":")
        comment = "" if comment.startswith("noqa") else comment
        if colon and name.isidentifier():
            found[name] = comment or " ".join(above)
        above = []
    return found
