"""Write a proposed data set as YAML with its reasons, and show its columns as a table."""

from typing import Any

from rich.markup import escape
from rich.table import Table

from recsys.new.column_kinds import Column
from recsys.new.propose import Proposal
from recsys.new.questions import MARK, Question
from recsys.new.yaml_text import comment, entry, flow, mapping

SHORT = 110


def document(p: Proposal, name: str, *, is_open: bool = False) -> str:
    """Return the text of conf/data/NAME.yaml. is_open: the user has to answer the questions"""
    lines = [f"# {p.command(name)}", *comment(_summary(p))]
    for question in p.questions:
        lines = [*_question(question, is_open=is_open), *lines]
    lines += [
        f"name: {name}",
        *entry("root", p.root, "" if p.root.startswith("/") else "relative to the folder where you run recsys"),
    ]
    lines += _source(p)
    if p.features.derive:
        lines += mapping("derive", [(k, v, "") for k, v in p.features.derive.items()])
    if p.where:
        why = f"rows without {' or '.join(dict.fromkeys(p.where.values()))} are left out"
        lines += entry("where", " AND ".join(p.where), why)
    if p.group is not None:
        lines += _groups(p)
    else:
        lines += _label(p)
        if p.within is not None:
            why = f"metrics of the order within a {p.within}: gauc, gndcg@k; loss=pairwise compares its rows"
            lines += entry("group", {"by": p.within, "together": True}, why)
    lines += entry("split", p.split.settings, p.split.why)
    lines += _items(p)
    if p.features.dense_defaults and p.features.dense:
        lines += entry("dense_defaults", p.features.dense_defaults)
    lines += mapping("dense", p.features.rows_of("dense"))
    lines += mapping("sparse", p.features.rows_of("sparse"))
    lines += _left_out(p)
    return "\n".join(lines) + "\n"


def _question(question: Question, *, is_open: bool) -> list[str]:
    text, *more = question.lines()
    texts = [f"{MARK.removeprefix('# ')}: {text}", *more] if is_open else [f"{text}; guessed: {question.guess}"]
    return [line for t in texts for line in comment(t)]


def _summary(p: Proposal) -> str:
    kind = "Interactions of users with items, for retrieval models" if p.retrieves else "Rows with a label"
    return (
        f"{kind}; about {p.rows:,} rows. Written by recsys.new: comments give the reasons of its guesses; check them."
    )


def _source(p: Proposal) -> list[str]:
    if len(line := f"source: {flow(p.source)}") <= SHORT and not set(p.source) & set(p.reasons):
        return [line]
    entries: list[str] = []
    for key, value in p.source.items():
        if key == "joins":
            entries += ["  joins:"]
            for join in value:
                entries += _block_item(
                    join, next((s.why for s in p.sides if s.file == join["file"]), "its rows are the positive ones")
                )
        else:
            entries += entry(key, value, p.reasons.get(key, ""), "  ")
    return ["source:", *entries]


def _block_item(value: dict[str, Any], why: str) -> list[str]:
    """Return a mapping as an item of a block list."""
    lines = [line for k, v in value.items() for line in entry(k, v, why if k == "file" else "", "      ")]
    first = next(i for i, line in enumerate(lines) if not line.lstrip().startswith("#"))
    return [*lines[:first], "    - " + lines[first].lstrip(), *lines[first + 1 :]]


def _label(p: Proposal) -> list[str]:
    label = p.label
    assert label is not None
    return entry("label", label.settings, f"{label.reason}; {label.what}")


def _groups(p: Proposal) -> list[str]:
    assert p.group is not None
    lines = entry("group", p.group, "" if "order" in p.group else f"{p.no_time}: the order of the files counts")
    return lines + entry("sequences", {"max_length": p.max_length}, p.reasons["sequences"])


def _items(p: Proposal) -> list[str]:
    settings = p.items.items() if p.items is not None and p.retrieves else None
    if settings is None or p.items is None:
        return []
    lines = ["items:", *comment(p.items.why, "  ")]
    for key, value in settings.items():
        if key in ("dense", "sparse"):
            whys = {f.name: f.why for f in (*p.items.features().dense, *p.items.features().sparse)}
            lines.append(f"  {key}:")
            lines += [line for k, v in value.items() for line in entry(k, v, whys.get(k, ""), "    ")]
        else:
            lines += entry(key, value, "", "  ")
    return lines


def _left_out(p: Proposal) -> list[str]:
    lines: list[str] = []
    if p.roles.weight is not None:
        weight = p.roles.weight.name
        lines += comment(f"{weight} looks like a weight of rows, so it is no feature. To weight rows by it, write:")
        lines += [f"# weight: {flow({'column': weight})}"]
    if p.features.left_out:
        lines += ["# Columns that are left out:"]
        for name, why in p.features.left_out[:200]:
            lines += comment(f"{name}: {why}", "")
    if p.unused:
        lines += ["# Files that are left out:"]
        for name, why in p.unused[:20]:
            lines += comment(f"{name}: {why}", "")
    return lines


def table(p: Proposal, most: int = 60) -> Table:
    """Return the columns as a table: name, kind, role, distinct values, missing share, examples, reason."""
    shown = Table(title=f"{len(p.columns)} columns", title_justify="left")
    for name in ("column", "kind", "role", "values", "missing", "examples", "reason"):
        shown.add_column(name, justify="right" if name in ("values", "missing") else "left", overflow="fold")
    reasons = dict(p.features.left_out)
    for c in [*p.columns, *(c for side in p.sides for c in side.columns)][:most]:
        shown.add_row(*_row(c, reasons, p))
    return shown


def _row(c: Column, reasons: dict[str, str], p: Proposal) -> list[str]:
    reason = reasons.get(c.name, c.reason).partition(";")[0]
    if p.label is not None and c is p.label.column:
        reason = p.label.reason
    missing = f"{c.missing:.1%}" if c.missing else ""
    role = c.role or ("left out" if c.name in reasons else "feature")
    return [escape(x) for x in (c.name, c.kind, role, f"{c.distinct:,}", missing, ", ".join(c.examples()), reason)]
