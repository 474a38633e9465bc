"""The text of conf/data/NAME.yaml with the reason of each guess, and the table of columns that the command prints."""

from rich.markup import escape
from rich.table import Table

from recsys.new.proposal import Proposal
from recsys.new.questions import MARK
from recsys.new.yaml_text import comment, entry, flow, mapping


def document(p: Proposal, name: str, *, is_open: bool = False) -> str:
    """Return the text of conf/data/NAME.yaml. is_open: the user has to answer the questions"""
    kind = "Interactions of users with items, for retrieval models" if p.retrieves else "Rows with a label"
    written = "Written by recsys.new: comments give the reasons of its guesses; check them."
    lines = [f"# {p.command(name)}", *comment(f"{kind}; about {p.rows:,} rows. {written}")]
    for question in p.questions:
        text, *more = question.lines()
        texts = [f"{MARK.removeprefix('# ')}: {text}", *more] if is_open else [f"{text}; guessed: {question.guess}"]
        lines = [*(line for t in texts for line in comment(t)), *lines]
    root = entry("root", p.root, "" if p.root.startswith("/") else "relative to the folder where you run recsys")
    lines += [f"name: {name}", *root]
    if len(line := f"source: {flow(p.source)}") <= 110 and not set(p.source) & set(p.reasons):
        lines.append(line)
    else:
        lines += ["source:", *(x for k, v in p.source.items() for x in entry(k, v, p.reasons.get(k, ""), "  "))]
    lines += mapping("derive", [(k, v, "") for k, v in p.features.derive.items()])
    if p.where:
        why = f"rows without {' or '.join(dict.fromkeys(p.where.values()))} are left out"
        lines += entry("where", " AND ".join(p.where), why)
    if p.group is not None:
        no_order = [] if "order" in p.group else [f"{p.no_time}: the order of the files counts"]
        lines += entry("group", p.group, "; ".join([*no_order, *filter(None, [p.reasons.get("group")])]))
        lines += entry("sequences", {"max_length": p.max_length}, p.reasons["sequences"])
    if p.label is not None:
        lines += entry("label", {"column": p.label.column.name} | p.label.settings, f"{p.label.reason}; {p.label.what}")
    lines += entry("split", p.split.settings, p.split.why)
    if p.features.dense_defaults and p.features.dense:
        lines += entry("dense_defaults", p.features.dense_defaults)
    for key, features in (("dense", p.features.dense), ("sparse", p.features.sparse)):
        lines += mapping(key, [(f.name, f.settings, f.why) for f in features])
    for what, left_out in (("Columns", p.features.left_out[:200]), ("Files", p.unused[:20])):
        lines += [f"# {what} that are left out:"] if left_out else []
        lines += [line for name, why in left_out for line in comment(f"{name}: {why}")]
    return "\n".join(lines) + "\n"


def table(p: Proposal, most: int) -> Table:
    """Return the columns as a table: name, kind, role, distinct values, missing share, examples, reason."""
    shown = Table(title=f"{len(p.columns)} columns", title_justify="left")
    for name in ("column", "kind", "role", "values", "missing", "examples", "reason"):
        shown.add_column(name, justify="right" if name in ("values", "missing") else "left", overflow="fold")
    left_out = dict(p.features.left_out)
    for c in p.columns[:most]:
        reason = left_out.get(c.name, c.reason).partition(";")[0]
        if p.label is not None and c is p.label.column:
            reason = p.label.reason
        role = c.role or ("left out" if c.name in left_out else "feature")
        missing, examples = f"{c.missing:.1%}" if c.missing else "", ", ".join(c.examples())
        row = (c.name, c.kind.name, role, f"{c.distinct:,}", missing, examples, reason)
        shown.add_row(*map(escape, row))
    return shown
