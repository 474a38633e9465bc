"""Read a sample of the rows, and find what its columns hold, which of them identify, and what the YAML calls them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError
from recsys.data.features.blocks import LIST
from recsys.data.raw.raw_files import partitions
from recsys.new.choose_label import choose
from recsys.new.column_kinds import CategoryKind, Column, IdKind, NumberKind
from recsys.new.explode import Exploded, check_rows_within, explode
from recsys.new.find_files import Found, globs_for
from recsys.new.find_kinds import MAX_CATEGORIES, columns_of, count_partitions, set_codes
from recsys.new.gather import Gathered
from recsys.new.known_names import RECBOLE
from recsys.new.layouts import Layout
from recsys.new.questions import Answers
from recsys.new.raw_bytes import Sample
from recsys.new.roles import Roles, assign, name_unnamed, set_item, set_kinds_by_items
from recsys.new.sample import read_sample
from recsys.new.statistics import largest, least
from recsys.new.value_marks import Marks


@dataclass
class Rows:
    """The sample of the rows, and what is known of its columns."""

    sample: Sample  # if rows are elements of lists, each element is a row
    exploded: Exploded | None  # how the lists became rows; None if each raw row is a row
    columns: list[Column]
    marks: Marks
    roles: Roles
    rename: dict[str, str] = field(default_factory=dict)  # `source.rename`


def read_rows(found: Found, gathered: Gathered, answers: Answers) -> Rows:
    """Read the sample, and find the kinds and the roles of its columns. Raises UserError if there are no rows."""
    layout, files = gathered.layout, gathered.files
    sample = read_sample(files, layout, gathered.layouts)
    if sample.frame.height < 2 or not sample.frame.width:
        raise UserError(f"{files[0]}: has no rows, or its columns could not be found; check the file")
    if layout.names_fields and layout.typed:  # rows of JSON
        folders = partitions(files[0], None)
        later = [n for n in sample.frame.columns if n not in (*layout.columns, *gathered.optional, *folders)]
        gathered.optional = (*gathered.optional, *later)
    if answers.label == "auto":
        check_rows_within(sample.frame, files[0])
    exploded = explode(sample.frame, answers)
    if exploded is not None and _repeats_label(exploded, answers.label):
        exploded = None
    if exploded is not None:
        sample = Sample(exploded.frame, round(sample.rows * exploded.frame.height / sample.frame.height))
    columns, marks = columns_of(sample.frame)
    values = [partitions(f, found.root) for f in files]
    count_partitions(columns, {n: [v.get(n) for v in values] for n in values[0] if n not in layout.columns})
    rename = _rename_columns(columns, layout) if exploded is None else exploded.rename
    if exploded is not None and answers.item in rename.values():  # the user writes its name in the files
        answers = replace(answers, item=next(new for new, old in rename.items() if old == answers.item))
    roles = assign(columns, answers)
    if exploded is not None and roles.item is None:
        set_item(roles, [c for c in columns if c.name in exploded.elements])
    set_codes(columns, as_text=layout.takes_marks)
    _set_quantities(columns, layout)
    set_kinds_by_items(columns)
    return Rows(sample, exploded, columns, marks, roles, rename)


def _repeats_label(exploded: Exploded, asked: str | None) -> bool:
    """Return whether the label would be a column of the whole raw row, so that its lists are histories, not rows."""
    if asked is None:
        return False
    columns, _ = columns_of(exploded.frame.drop(LIST, strict=False))
    roles = assign(columns)
    if roles.item is None:
        set_item(roles, [c for c in columns if c.name in exploded.elements])
    try:
        label = choose(columns, asked, retrieval=roles.item is not None)
    except UserError:
        return False
    return label is not None and label.column.name not in exploded.elements


def _rename_columns(columns: Sequence[Column], layout: Layout) -> dict[str, str]:
    """Rename columns: those without a header by their content, RecBole's by their names without the types.

    Return `source.rename`.
    """
    names = [c.name for c in columns]
    if layout.holds_indices:
        layout.columns = names
        for c in columns[1:]:
            is_id = c.distinct > MAX_CATEGORIES
            c.kind, c.numbers = (IdKind if is_id else CategoryKind)(f"{c.distinct:,} indices"), None
    elif layout.is_csv and not layout.header and (given := name_unnamed(columns)) is not None:
        layout.columns = names = given
        layout.reasons["columns"] = "the file has no header; names by the content (a guess)"
        for c, name in zip(columns, names, strict=True):
            c.name, c.values = name, c.values.alias(name)
            if name in ("user", "item"):
                c.kind = IdKind(c.reason)
    plain = [RECBOLE.sub("", n) for n in names]
    if plain == names or len(set(plain)) < len(plain):
        return {}
    for c, new in zip(columns, plain, strict=True):
        c.name, c.values = new, c.values.alias(new)
    return {new: old for new, old in zip(plain, names, strict=True) if new != old}


def _set_quantities(columns: Sequence[Column], layout: Layout) -> None:
    """Take whole numbers of more than two values for numbers where categories are columns of 0 and 1."""
    for c in columns:
        numbered = layout.holds_quantities and not c.role and c.name[1:].isdigit() and c.distinct > 2
        if numbered and c.kind.is_code and c.numbers is not None:
            c.kind = NumberKind(f"{least(c.numbers):g} to {largest(c.numbers):g}")


def source_of(found: Found, gathered: Gathered, rows: Rows) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of `source:` that differ from the defaults, and the reasons of some."""
    layout, root, marks = gathered.layout, Path(found.root), rows.marks
    matches = {g: {*root.glob(g)} for g in found.globs}
    globs = [g for g, its in matches.items() if not its <= {*gathered.others}]  # as typed, so that new files match
    matched = {p for g in globs for p in matches[g]}
    if not globs or matched & set(gathered.others) or not matched >= set(gathered.files):
        globs = globs_for(root, gathered.files, gathered.empty)
    source: dict[str, Any] = {"format": layout.format, "files": globs} | layout.options()
    reasons = dict(layout.reasons)
    if gathered.optional:
        source["optional_columns"] = list(gathered.optional)
        reasons["optional_columns"] = "some files, or the first rows, lack them; their values are then missing"
    if layout.takes_marks:
        marks = Marks() if layout.typed else marks  # numbers of JSON are written in one way
        source |= {"decimal": marks.decimal} if marks.decimal != "." else {}
        nulls = {c.name: c.nulls for c in rows.columns if c.nulls}
        keys = {"thousands": marks.thousands, "null_values": marks.null_values, "column_null_values": nulls}
        source |= {key: value for key, value in keys.items() if value}
        if nulls:
            reasons["column_null_values"] = "texts among numbers or times, or the only negative number (a guess)"
    if rows.exploded is not None:
        source["explode"], reasons["explode"] = rows.exploded.settings, rows.exploded.why
    return source | ({"rename": rows.rename} if rows.rename else {}), reasons
