"""Write `source:`: where the files are, how they are read, and what their columns are called."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from recsys.new.column_kinds import Column
from recsys.new.find_dialect import Dialect
from recsys.new.find_files import Found, globs_for
from recsys.new.gather import Gathered
from recsys.new.layout import Layout
from recsys.new.roles import name_unnamed
from recsys.new.statistics import largest, least
from recsys.new.value_marks import Marks

DENSE = 0.95
TEXT = ("csv", "lists", "libfm", "slots", "jsonl", "json")  # formats whose values are text to the reader
RECBOLE = re.compile(r":(token|float|token_seq|float_seq)$")  # types in the names of columns


def rename_columns(columns: Sequence[Column], layout: Layout) -> dict[str, str]:
    """Rename columns: those without a header by their content, RecBole's by their names without the types.

    Return `source.rename`.
    """
    names = [c.name for c in columns]
    if layout.format == "libfm":
        layout.columns = names
        for c in columns[1:]:  # indices of features, never quantities
            c.kind, c.numbers, c.time = ("id" if c.distinct > 50 else "category"), None, None
            c.reason = f"{c.distinct:,} indices"
    elif layout.dialect is not None and not layout.dialect.header and layout.format == "csv":
        _name_by_content(columns, layout)
    plain = [RECBOLE.sub("", n) for n in names]
    if plain == names or len(set(plain)) < len(plain):
        return {}
    for c, new in zip(columns, plain, strict=True):
        c.name, c.values = new, c.values.alias(new)
    return {new: old for new, old in zip(plain, names, strict=True) if new != old}


def _name_by_content(columns: Sequence[Column], layout: Layout) -> None:
    names = name_unnamed(columns)
    if names is None or layout.dialect is None:
        return
    layout.columns = names
    layout.dialect.reasons["columns"] = "the file has no header; names by the content (a guess)"
    for c, name in zip(columns, names, strict=True):
        c.name, c.values = name, c.values.alias(name)
        if name in ("user", "item"):
            c.kind = "id"
        elif c.kind == "number" and c.is_whole and c.numbers is not None and _are_dense(c.numbers.drop_nulls()):
            c.kind, c.reason = "id", "whole numbers without gaps from 0 or 1 on, without a name"


def _are_dense(x: pl.Series) -> bool:
    """Return True for whole numbers that start at 0 or 1 and have (almost) no gaps, as ids do."""
    return 0 <= least(x) <= 1 and x.n_unique() >= DENSE * (largest(x) - least(x) + 1)


def source_of(
    found: Found, gathered: Gathered, marks: Marks, columns: Sequence[Column], rename: dict[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of `source:` that differ from the defaults, and the reasons of some.

    Args:
        found: the files and globs that the user named.
        gathered: the files of the rows.
        marks: how numbers and missing values are written.
        columns: the columns of the rows.
        rename: `source.rename`.
    """
    layout = gathered.layout
    reasons = dict(layout.dialect.reasons) if layout.dialect else {}
    source: dict[str, Any] = {"format": layout.format, "files": _globs(found, gathered)}
    if layout.dialect is not None:
        source |= _text(layout, reasons)
    if gathered.optional:
        source["optional_columns"] = list(gathered.optional)
        reasons["optional_columns"] = "some files, or the first rows, lack them; their values are then missing"
    if layout.format in TEXT:
        source |= _marks(marks, columns, layout)
        if codes := [f"{c.name}: {c.code:g}" for c in columns if c.code is not None and c.nulls]:
            what = "numbers that seem to stand for missing values (the only negative one, or 0 for not rated)"
            reasons["column_null_values"] = f"{what}: {', '.join(codes)}"
    if rename:
        source["rename"] = rename
    return source, reasons


def _globs(found: Found, gathered: Gathered) -> list[str]:
    """Return the user's globs if they match nothing but the files of rows."""
    root = Path(found.root)
    matched = {p for g in found.globs for p in root.glob(g)}
    if found.globs and not matched & set(gathered.others) and matched >= set(gathered.files):
        return list(found.globs)
    return globs_for(root, gathered.files, gathered.empty)


def _text(layout: Layout, reasons: dict[str, str]) -> dict[str, Any]:
    dialect, options = layout.dialect, dict[str, Any]()
    assert dialect is not None
    if layout.format == "slots":
        options["separator"] = dialect.separator
        if dialect.columns:
            options["columns"] = list(dialect.columns)
    if layout.format in ("csv", "lists"):
        options["separator"] = dialect.separator
        if dialect.quote != '"':
            options["quote"] = dialect.quote
        options |= quoting(dialect)
    plain_options = (("encoding", dialect.encoding), ("comment", dialect.comment), ("strip", dialect.strip))
    options |= {key: value for key, value in plain_options if value and value != "utf-8"}
    if layout.format == "csv" and not dialect.header:
        options["header"] = False
    if layout.format in ("lists", "libfm") or (layout.format == "csv" and (not dialect.header or dialect.renamed)):
        options["columns"] = list(layout.columns)
        reasons.setdefault("columns", "the file has no header")
    return options


def quoting(dialect: Dialect) -> dict[str, Any]:
    """Return the keys of line breaks and escaped quotes within values."""
    return ({"escape": "\\"} if dialect.escape else {}) | (
        {"line_breaks_in_quotes": True} if dialect.line_breaks else {}
    )


def _marks(marks: Marks, columns: Sequence[Column], layout: Layout) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if layout.typed:  # JSON: numbers are written in one way
        marks = Marks()
    if marks.decimal != ".":
        keys["decimal"] = marks.decimal
    if marks.thousands:
        keys["thousands"] = marks.thousands
    if marks.null_values:
        keys["null_values"] = marks.null_values
    if nulls_by_column := {c.name: c.nulls for c in columns if c.nulls}:
        keys["column_null_values"] = nulls_by_column
    return keys
