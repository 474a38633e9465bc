"""`--help` of the commands: the usage, the choices of the groups of conf/, and each key with its value and meaning.

The schemas (recsys/schema/) give the meanings. For the keys of a model, a loss or another choice, the comments in its
YAML file do.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from rich.table import Table
from rich.text import Text

from recsys.base.console import results
from recsys.base.errors import UserError
from recsys.base.secrets import masked
from recsys.config.compose import COMMANDS, compose_with_choices, file_of_choice
from recsys.schema.fields import MISSING

COMMAND_SCHEMAS = ("recsys.schema.command_schemas", "recsys.schema.evaluate_schema")
COMPOSED = ("train", "plan", "preprocess", "doctor")  # their configs have choices of the groups of conf/
FIRST = ("model", "loss", "data", "sharding")  # groups in the order of the help; then the others
HIDDEN = "data."  # keys of data sets, which a general --help leaves out: they belong into YAML files
VALUE_WIDTH = 30


def show(command: str, overrides: Sequence[str] = (), words: Sequence[str] = ()) -> None:
    """Print the help of a command.

    Args:
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
    values: object = masked(OmegaConf.to_container(cfg))
    for key in found:
        value: object = values
        for part in key.name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, dict) or "_target_" not in value:
            yield Key(key.name, key.hint, _cut(_text(value)), key.meaning)
            continue
        yield Key(key.name, key.hint, str(value["_target_"]).rpartition(".")[2], key.meaning)
        group = {"optim.dense": "optim", "optim.scheduler": "schedule"}.get(key.name, key.name)
        choice = choices.get(group)
        file = file_of_choice(group, choice) if choice else None
        lines = file.read_text(encoding="utf-8").splitlines() if file is not None else []
        comments = (re.match(r"\s*(\w+):.*?\s# (.+)", line) for line in lines)
        meanings = {m[1]: m[2] for m in comments if m}
        for name, part in value.items():
            if name != "_target_":
                yield Key(f"{key.name}.{name}", Any, _cut(_text(part)), meanings.get(name, ""))


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_WIDTH else f"{text[: VALUE_WIDTH - 3]}..."


@dataclass(frozen=True)
class Key:
    """A key of a command. name: the dotted name, such as trainer.max_epochs"""

    name: str
    hint: object
    default: str
    meaning: str


def usage(command: str) -> str:
    """Return the docstring of a command's module: how to call it, and what it does."""
    module = importlib.import_module(f"recsys.{command}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"recsys.{command}.__main__")
    return module.__doc__ or ""


def keys(schema: type[Any], prefix: str = "") -> Iterator[Key]:
    """Yield the keys of a schema, and of its parts. The parts of a command's schema replace settings of a run."""
    for name, declared in schema.__pydantic_fields__.items():
        hint: object = declared.annotation
        if isinstance(hint, type) and is_dataclass(hint):
            yield from keys(hint, f"{prefix}{name}.")
            continue
        choices = next((get_args(h) for h in (hint, *get_args(hint)) if get_origin(h) is Literal), ())
        meaning = declared.description or ""
        if choices and " | " not in meaning:
            meaning = ": ".join(filter(None, (" | ".join(map(str, choices)), meaning)))
        if not meaning and prefix and schema.__module__ in COMMAND_SCHEMAS:
            meaning = "as in the run"
        default = MISSING if declared.is_required() else declared.get_default(call_default_factory=True)
        limited = Annotated[hint, *declared.metadata] if declared.metadata else hint
        yield Key(prefix + name, limited, _text(default), meaning)


def _text(default: object) -> str:
    if default == MISSING:
        return "needed"
    if isinstance(default, dict | list):
        return str(default).replace("'", "")
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
