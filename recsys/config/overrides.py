"""Write overrides of the command line, and values that code passes, in the form that Hydra accepts."""

import re
from collections.abc import Sequence

from recsys.base.console import say_once

PLAIN = re.compile(r"[\w./~-]+", re.ASCII)  # words that Hydra takes as they are
# prefixes of keys whose last part the user chooses
FREE_PREFIXES = ("sharding.per_table.", "engine.options.", "sweep.slurm.", "data.")
PARTS_OF_A_RUN = ("model.", "loss.", "numeric.", "optim.dense.", "optim.scheduler.")  # as its choices have them
PARTS = ("sources.", "merge.", "filters.", "score.", "order.", "items.columns.", "users.columns.", "events.columns.")
RENAMED = {  # old key: new one, longest first
    "ranking.protocols": "protocol.candidates",
    "ranking": "protocol",
    "model.unknown_users": "loader.unknown",
}


def quoted(word: str) -> str:
    """Return a word as Hydra's text, whatever characters a path has."""
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"


def override(key: str, value: object) -> str:
    """Return KEY=VALUE as Hydra reads it, whatever characters a path has.

    >>> override("run_dir", "runs/a=b")
    "run_dir='runs/a=b'"
    """
    word = str(value)
    return f"{key}={word if PLAIN.fullmatch(word) else quoted(word)}"


def free_keys(overrides: Sequence[str], command: str = "train") -> list[str]:
    """Return the overrides in the form that Hydra accepts.

    Keys whose names the user chooses get the prefix ++, so that Hydra adds them; local[2] is quoted; renamed keys get
    their new names. recsys.new and recsys.serve get names where other commands get choices of a group.
    """
    if command == "new":
        return [_new_key(o) for o in overrides]
    if command == "serve":  # they name a folder and a file there, and no choices of the groups of conf/
        overrides = [re.sub(r"^model=", "models=", o) for o in overrides]
        return [_quoted(re.sub(r"^pipeline=", "pipeline_file=", o)) for o in overrides]
    if command == "follow":
        return [_quoted(o) for o in overrides]
    if command == "loadtest":  # names a model of the server there, and no choice of the group `model`
        return [re.sub(r"^model=", "model_name=", o) for o in overrides]
    if command == "evaluate":
        overrides = [re.sub(r"^importance=", "importance.on=", o) for o in overrides]
    if command == "feature_store":
        overrides = [_as_texts(o) for o in overrides]
    if command == "pipeline":
        return [f"++{o}" if o.startswith(PARTS) else o for o in overrides]
    overrides = [_renamed(o) for o in overrides]
    if any(re.match(r"(resume|start_from)=(?!null$|auto$)", o) for o in overrides):  # the run's model, not the default
        overrides = [f"++{o}" if o.startswith(PARTS_OF_A_RUN) else o for o in overrides]
    overrides = [re.sub(r"^(engine\.master)=(local\[.*)$", r'\1="\2"', o) for o in overrides]
    return [f"++{o}" if o.startswith(FREE_PREFIXES) else o for o in overrides]


def _new_key(override: str) -> str:
    """Return an override of recsys.new: `data=mine` names no choice of the group `data`; paths need no quotes."""
    key, equals, value = override.partition("=")
    if not equals or override.startswith(("hydra.", "-")):
        return override
    if value not in ("null", "") and not value.startswith(("[", '"', "'")):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"create.{key}={value}" if key in ("data", "model", "experiment") else f"{key}={value}"


def _renamed(override: str) -> str:
    for old, new in RENAMED.items():
        if m := re.match(rf"([+~]*){re.escape(old)}(?=[.=]|$)", override):
            say_once(f"{old} is now {new}; the old key still works")
            return f"{m[1]}{new}{override[m.end() :]}"
    return override


def _quoted(override: str) -> str:
    """Quote the elements of overrides=[root=DIR] and readmit=[day=2026-01-31], in which Hydra takes no = as it is."""
    found = re.fullmatch(r"(overrides|readmit)=\[([^'\"]*)\]", override)
    return override if found is None else f"{found[1]}=[{_quoted_elements(found[2])}]"


def _as_texts(override: str) -> str:
    """Quote the keys of entities, as in keys=[12e5,1.50], which Hydra would take for numbers."""
    found = re.fullmatch(r"keys=(?:\[([^'\"]+)\]|([^\['\"].*))", override)
    return override if found is None else f"keys=[{_quoted_elements(found[1] or found[2])}]"


def _quoted_elements(elements: str) -> str:
    found = re.findall(r"(?:\[[^\]]*\]|[^,])+", elements)  # a comma inside brackets divides nothing
    return ",".join(quoted(e.strip()) for e in found)
