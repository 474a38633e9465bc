"""Write YAML with comments, in the style of conf/: short mappings on one line, and a reason behind each guess."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

WIDTH = 120
PLAIN = re.compile(r"(?:[A-Za-z_]|\.{0,2}/|\.{1,2}$)[\w./+-]*(?: [\w./+-]+)*")


def scalar(value: object) -> str:
    """Return a value as YAML; text is quoted where YAML or OmegaConf would read something else."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) and abs(value) < 1e15 else str(value)
    text = str(value)
    if PLAIN.fullmatch(text) and yaml.safe_load(text) == text and text.lower() not in ("y", "n"):
        return text
    if "\\" in text and text.isprintable() and "${" not in text:
        return "'" + text.replace("'", "''") + "'"
    marks = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\n": "\\n"}
    characters = (marks.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return '"' + "".join(characters).replace("${", "\\\\${") + '"'


def flow(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(flow(v) for v in value) + "]"
    return scalar(value)


def _printable(text: str) -> str:
    """Return a text on one line, with marks instead of the characters that YAML cannot hold."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else f"\\x{ord(c):02x}" for c in text).split())


def comment(text: str, indent: str = "") -> list[str]:
    """Return a comment of one or several lines."""
    start = f"{indent}# "
    wrap = textwrap.TextWrapper(WIDTH - len(indent), start, start, break_long_words=False, break_on_hyphens=False)
    return wrap.wrap(_printable(text))


def entry(key: str, value: object, reason: str = "", indent: str = "") -> list[str]:
    """Return `key: value  # reason`. A long value is wrapped, and a long reason stands above it."""
    reason = _printable(reason)
    line = f"{indent}{scalar(key)}: {flow(value)}"
    if len(line) > WIDTH:
        above = comment(reason, indent) if reason else []
        if isinstance(value, Mapping):  # one entry per line
            inner = [line for k, v in value.items() for line in entry(str(k), v, indent=f"{indent}  ")]
            return [*above, f"{indent}{scalar(key)}:", *inner]
        if not isinstance(value, Sequence) or isinstance(value, str):
            return [*above, line]
        if all(isinstance(v, Mapping) for v in value):
            return [*above, f"{indent}{scalar(key)}:", *(f"{indent}  - {flow(v)}" for v in value)]
        items = [flow(v) for v in value]
        filled = _filled([*(f"{i}," for i in items[:-1]), f"{items[-1]}]"], f"{indent}  ")
        return [*above, f"{indent}{scalar(key)}: [", *filled]
    if not reason:
        return [line]
    if len(line) + len(reason) + 4 > WIDTH:
        return [*comment(reason, indent), line]
    return [f"{line}  # {reason}"]


def _filled(items: Sequence[str], indent: str) -> list[str]:
    """Return the items on as few lines as they fit."""
    lines, line = list[str](), indent.rstrip(" ")
    for item in items:
        if line.strip() and len(line) + len(item) + 1 > WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {item}" if line.strip() else f"{indent}{item}"
    return [*lines, line]


def mapping(key: str, entries: Sequence[tuple[str, Any, str]]) -> list[str]:
    """Return a block mapping: one line for each entry with its reason, or several to a line if there are many."""
    if not entries:
        return []
    if len(entries) > 150:  # wide data: a line each would hide the rest of the file
        items = [f"{scalar(k)}: {flow(v)}" for k, v, _ in entries]
        return [f"{key}:", *_filled([f"{{{items[0]},", *(f"{i}," for i in items[1:-1]), f"{items[-1]}}}"], "  ")]
    return [f"{key}:", *(line for k, v, why in entries for line in entry(k, v, why, "  "))]
