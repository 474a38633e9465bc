"""`--help` of the commands that do one thing: the usage, and each key with its default and its meaning.

The meanings are the comments in the schema (recsys/schema/command_schemas.py): the one behind a field or, if there is
none, the lines above it.
"""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from rich.table import Table
from rich.text import Text

from recsys.cli.console import results
from recsys.config.compose import COMMANDS
from recsys.ranges import NotEmpty, Range

COMMAND_SCHEMAS = "recsys.schema.command_schemas"
COMPOSED = ("train", "plan", "preprocess", "doctor", "new")  # --help is Hydra's, with the groups of conf/


def show(command: str) -> None:
    """Print the help of a command."""
    results.print(usage(command), markup=False)
    table = Table("key", "default", "meaning", box=None, pad_edge=False, header_style="bold")
    for key in keys(COMMANDS[command]):
        table.add_row(Text(key.name), Text(key.default), Text(key.meaning))
    results.print(table)
    results.print("\nSet a key with KEY=VALUE. --cfg job prints the config; --hydra-help lists Hydra's own options.")


@dataclass(frozen=True)
class Key:
    """A key of a command: its name with those of the parts that it is in, its type, default, limits and meaning."""

    name: str
    type: str
    default: str
    meaning: str
    limits: Range | NotEmpty | None


def usage(command: str) -> str:
    """Return the docstring of a command's module: how to call it, and what it does."""
    module = importlib.import_module(f"recsys.{command}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"recsys.{command}.__main__")
    return module.__doc__ or ""


def keys(schema: type[Any], prefix: str = "") -> Iterator[Key]:
    """Yield the keys of a schema, and of its parts. The parts of a command's schema replace settings of a run."""
    hints, meanings = get_type_hints(schema), _comments(schema)
    for f in fields(schema):
        part, meaning = hints[f.name], meanings.get(f.name, "")
        if isinstance(part, type) and is_dataclass(part):
            yield from keys(part, f"{prefix}{f.name}.")
            continue
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        limits = next(iter(f.metadata.values()), None)
        meaning = meaning or ("as in the run" if prefix and schema.__module__ == COMMAND_SCHEMAS else _hint(f))
        yield Key(prefix + f.name, _type(part), _text(default), meaning, limits)


def _type(hint: Any) -> str:
    """Return a type as people write it."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _hint(f: Field[Any]) -> str:
    """Return the meaning of a text option, from the hint in the error for an empty one."""
    limits = [limit for limit in f.metadata.values() if isinstance(limit, NotEmpty)]
    return limits[0].hint.removeprefix("name ").removeprefix("write ") if limits else ""


def _text(default: Any) -> str:
    if default == "???":
        return "needed"
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _comments(schema: type[Any]) -> dict[str, str]:
    """Return the comment of each field of a dataclass, from its source and that of the classes that it extends."""
    found: dict[str, str] = {}
    for parent in schema.__bases__:
        found |= _comments(parent) if is_dataclass(parent) else {}
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
