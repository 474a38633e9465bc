"""Write `source:`: where the files are, how they are read, and what their columns are called."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.new.column_kinds import CategoryKind, Column, IdKind, NumberKind
from recsys.new.find_files import Found, globs_for
from recsys.new.gather import Gathered
from recsys.new.known_names import RECBOLE
from recsys.new.layouts import Layout
from recsys.new.roles import name_unnamed
from recsys.new.statistics import largest, least
from recsys.new.value_marks import Marks


def rename_columns(columns: Sequence[Column], layout: Layout) -> dict[str, str]:
    """Rename columns: those without a header by their content, RecBole's by their names without the types.

    Return `source.rename`.
    """
    names = [c.name for c in columns]
    if layout.holds_indices:
        layout.columns = names
        for c in columns[1:]:
            c.kind, c.numbers = (IdKind if c.distinct > 50 else CategoryKind)(f"{c.distinct:,} indices"), None
    elif layout.is_csv and not layout.header and (given := name_unnamed(columns)) is not None:
        layout.columns = names = given
        layout.reasons["columns"] = "the file has no header; names by the content (a guess)"
        for c, name in zip(columns, names, strict=True):
            c.name, c.values = name, c.values.alias(name)
            if name in ("user", "item"):
                c.kind = IdKind(c.reason)
            elif c.kind.is_number and c.is_whole and c.numbers is not None:  # ids start at 0 or 1, almost without gaps
                x = c.numbers.drop_nulls()
                if 0 <= least(x) <= 1 and x.n_unique() >= 0.95 * (largest(x) - least(x) + 1):
                    c.kind = IdKind("whole numbers without gaps from 0 or 1 on, without a name")
    plain = [RECBOLE.sub("", n) for n in names]
    if plain == names or len(set(plain)) < len(plain):
        return {}
    for c, new in zip(columns, plain, strict=True):
        c.name, c.values = new, c.values.alias(new)
    return {new: old for new, old in zip(plain, names, strict=True) if new != old}


def set_quantities(columns: Sequence[Column], layout: Layout) -> None:
    """Take whole numbers of more than two values for numbers where categories are columns of 0 and 1."""
    for c in columns:
        numbered = layout.holds_quantities and not c.role and c.name[1:].isdigit() and c.distinct > 2
        if numbered and c.kind.is_code and c.numbers is not None:
            c.kind = NumberKind(f"{least(c.numbers):g} to {largest(c.numbers):g}")


def source_of(
    found: Found, gathered: Gathered, marks: Marks, columns: Sequence[Column], rename: dict[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of `source:` that differ from the defaults, and the reasons of some.

    Args:
        marks: how numbers and missing values are written.
        rename: `source.rename`.
    """
    layout, root = gathered.layout, Path(found.root)
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
        nulls = {c.name: c.nulls for c in columns if c.nulls}
        keys = {"thousands": marks.thousands, "null_values": marks.null_values, "column_null_values": nulls}
        source |= {key: value for key, value in keys.items() if value}
        if codes := [f"{c.name}: {c.code:g}" for c in columns if c.code is not None and c.nulls]:
            what = "numbers that seem to stand for missing values (the only negative one, or 0 for not rated)"
            reasons["column_null_values"] = f"{what}: {', '.join(codes)}"
    return source | ({"rename": rename} if rename else {}), reasons
