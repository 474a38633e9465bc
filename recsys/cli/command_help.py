"""`--help` of the commands: the usage, the choices of the groups of conf/, and each key with its value and meaning.

The meanings are the comments in the schemas (recsys/schema/): the one behind a field or, if there is none, the lines
above it. Those of the keys of a model, a loss or another choice are the comments in its YAML file.
"""

import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf
from rich.table import Table
from rich.text import Text

from recsys.base.console import results
from recsys.base.errors import UserError
from recsys.base.secrets import masked
from recsys.config.compose import COMMANDS, compose_with_choices, file_of_choice
from recsys.ranges import NotEmpty, Range

COMMAND_SCHEMAS = "recsys.schema.command_schemas"
COMPOSED = ("train", "plan", "preprocess", "doctor")  # their configs have choices of the groups of conf/
FIRST = ("model", "loss", "data", "sharding")  # groups in the order of the help; then the others
HIDDEN = "data."  # keys of data sets, which a general --help leaves out: they belong into YAML files
VALUE_WIDTH = 30


def show(command: str, overrides: Sequence[str] = (), words: Sequence[str] = ()) -> None:
    """Print the help of a command.

    Args:
        command: the command's name.
        overrides: choices and keys, as on the command line; the help shows the values that they lead to.
        words: show only the keys whose name or meaning contains one of these words.
    """
    found = list(keys(COMMANDS[command]))
    choices, groups = dict[str, str | None](), dict[str, list[str]]()
    if command in COMPOSED:
        cfg, choices, groups = compose_with_choices(command, overrides)
        found = list(_composed(found, cfg, choices))
    if words:
        matches = [k for k in found if any(w.lower() in f"{k.name} {k.meaning}".lower() for w in words)]
        if not matches:
            raise UserError(f"--help {' '.join(words)}: no key of recsys.{command} has that in its name or meaning")
        results.print(_key_table(matches, groups))
        return
    results.print(usage(command), markup=False)
    hidden = [k for k in found if groups and k.name.startswith(HIDDEN)]
    if groups:
        table = _table("group", "now", "choices")
        for group in sorted(groups, key=[*FIRST, *sorted(groups)].index):
            table.add_row(group, choices[group] or "null", Text(", ".join(groups[group])))
        results.print(table, "")
    results.print(_key_table([k for k in found if k not in hidden], groups), "")
    if groups:
        results.print("Take a choice with GROUP=CHOICE: a file of conf/GROUP, or of a folder conf/GROUP of your own.")
    results.print("Set a key with KEY=VALUE. --help WORD shows the keys that have a word in their name or meaning.")
    if hidden:
        results.print(f"The {len(hidden)} keys of data sets are left out here: --help {HIDDEN} shows them.")
    results.print("--cfg job prints the config; --hydra-help lists Hydra's own options.")


def _key_table(found: list["Key"], groups: object) -> Table:
    table = _table("key", "value" if groups else "default", "meaning")
    for key in found:
        table.add_row(Text(key.name.removeprefix("create.")), Text(key.default), Text(key.meaning))
    return table


def _table(*head: str) -> Table:
    return Table(*head, box=None, pad_edge=False, header_style="bold")


def _composed(found: list["Key"], cfg: DictConfig, choices: dict[str, str | None]) -> Iterator["Key"]:
    """Yield the keys with their values in a config; a choice that is a class has the keys of its YAML file."""
    values: Any = masked(OmegaConf.to_container(cfg))
    for key in found:
        value: Any = values
        for part in key.name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, dict) or "_target_" not in value:
            yield Key(key.name, key.type, _cut(_text(value)), key.meaning, key.limits)
            continue
        yield Key(key.name, key.type, str(value["_target_"]).rpartition(".")[2], key.meaning, None)
        group = {"optim.dense": "optim", "optim.scheduler": "schedule"}.get(key.name, key.name)
        choice = choices.get(group)
        file = file_of_choice(group, choice) if choice else None
        lines = file.read_text(encoding="utf-8").splitlines() if file is not None else []
        comments = (re.match(r"\s*(\w+):.*?\s# (.+)", line) for line in lines)
        meanings = {m[1]: m[2] for m in comments if m}
        for name, part in value.items():
            if name != "_target_":
                yield Key(f"{key.name}.{name}", "", _cut(_text(part)), meanings.get(name, ""), None)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_WIDTH else f"{text[: VALUE_WIDTH - 3]}..."


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
        hints_of_text = [limit.hint for limit in f.metadata.values() if isinstance(limit, NotEmpty)]
        if not meaning and prefix and schema.__module__ == COMMAND_SCHEMAS:
            meaning = "as in the run"
        elif not meaning and hints_of_text:  # of a text option: the hint in the error for an empty one
            meaning = hints_of_text[0].removeprefix("name ").removeprefix("write ")
        is_name = isinstance(part, type) and not get_args(part)
        type_name = part.__name__ if is_name else str(part).replace("typing.", "")
        yield Key(prefix + f.name, type_name, _text(default), meaning, limits)


def _text(default: Any) -> str:
    if default == "???":
        return "needed"
    if isinstance(default, dict | list):
        return str(default).replace("'", "")
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
