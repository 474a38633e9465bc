"""Read a sample of the rows, and find what its columns hold, which of them identify, and what the YAML calls them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.base.errors import UserError
from recsys.data.raw.raw_files import partitions
from recsys.new.column_kinds import CategoryKind, Column, IdKind
from recsys.new.find_files import Found, globs_for
from recsys.new.find_kinds import MAX_CATEGORIES, columns_of
from recsys.new.gather import Gathered
from recsys.new.known_names import RECBOLE
from recsys.new.layouts import Layout
from recsys.new.questions import Answers
from recsys.new.roles import Roles, assign, name_unnamed, set_kinds_by_items
from recsys.new.sample import Sample, read_sample
from recsys.new.value_marks import Marks


@dataclass
class SampledRows:
    """The sample of the rows, and what is known of its columns."""

    sample: Sample
    columns: list[Column]
    marks: Marks
    roles: Roles
    rename: dict[str, str]  # `source.rename`


def read_rows(found: Found, gathered: Gathered, answers: Answers) -> SampledRows:
    """Read the sample, and find the kinds and the roles of its columns. Raises UserError if there are no rows."""
    layout, files = gathered.layout, gathered.files
    sample = read_sample(files, layout)
    if sample.frame.height < 2 or not sample.frame.width:
        raise UserError(f"{files[0]}: has no rows, or its columns could not be found; check the file")
    columns, marks = columns_of(sample.frame)
    for c in columns:
        c.is_partition = c.name in partitions(files[0], found.root) and c.name not in layout.columns
    rename = _rename_columns(columns, layout)
    roles = assign(columns, answers)
    set_kinds_by_items(columns)
    return SampledRows(sample, columns, marks, roles, rename)


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
    elif layout.holds_items:
        for c in columns:
            c.kind = IdKind(c.reason)
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


def source_of(found: Found, gathered: Gathered, rows: SampledRows) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of `source:` that differ from the defaults, and the reasons of some."""
    layout, root, marks = gathered.layout, Path(found.root), rows.marks
    matched = {p for g in found.globs for p in root.glob(g) if p.is_file()}  # as typed, so that new files match
    globs = list(found.globs) if matched == {*gathered.files} else globs_for(root, gathered.files)
    source: dict[str, Any] = {"format": layout.format, "files": globs} | layout.options()
    reasons = dict(layout.reasons)
    if gathered.optional:
        source["optional_columns"] = list(gathered.optional)
        reasons["optional_columns"] = "some files lack them; their values are then missing"
    if layout.takes_marks:
        marks = Marks() if layout.typed else marks  # numbers of JSON are written in one way
        source |= {"decimal": marks.decimal} if marks.decimal != "." else {}
        nulls = {c.name: c.nulls for c in rows.columns if c.nulls}
        keys = {"thousands": marks.thousands, "null_values": marks.null_values, "column_null_values": nulls}
        source |= {key: value for key, value in keys.items() if value}
        if nulls:
            reasons["column_null_values"] = "texts among numbers or times, or the only negative number (a guess)"
    return source | ({"rename": rows.rename} if rows.rename else {}), reasons
