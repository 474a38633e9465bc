"""Look at files and propose the config of a data set."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from recsys.console import say
from recsys.errors import UserError
from recsys.new import label as labels
from recsys.new import split as splits
from recsys.new.columns import Column, Marks, columns_of
from recsys.new.features import Features, features_of, time_sql
from recsys.new.find_files import Found, find, globs_for, split_of
from recsys.new.label import Label
from recsys.new.roles import Roles, assign, name_unnamed
from recsys.new.sample import Layout, Sample, layout_of, read_sample
from recsys.new.sides import Side, find_sides
from recsys.new.split import Split

RECBOLE = re.compile(r":(token|float|token_seq|float_seq)$")
FEW_ROWS = 200_000  # fewer rows make few steps of 2048 rows
MOST_SNIFFED = 60


@dataclass
class Proposal:
    """The config of a data set, and the reasons.

    source: the keys of `source:`, with reasons by key
    unused: files of the folder that are neither rows nor side tables, and why
    """

    root: str
    source: dict[str, Any]
    reasons: dict[str, str]
    columns: list[Column]
    roles: Roles
    label: Label | None
    split: Split
    features: Features
    rows: int
    sides: list[Side] = field(default_factory=list)
    unused: list[tuple[str, str]] = field(default_factory=list)
    where: str | None = None
    group: dict[str, Any] | None = None
    items: Side | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def retrieves(self) -> bool:
        """Whether the config is for retrieval models."""
        return self.group is not None

    def command(self, name: str) -> str:
        """Return the command that trains."""
        if self.retrieves:
            return f"python -m recsys.train data={name} model=sasrec"
        small = " trainer.batch_size=256" if self.rows < FEW_ROWS else ""
        return f"python -m recsys.train data={name}{small}"


def propose(given: Sequence[str], asked: str | None) -> Proposal:
    """Look at the files, and return the config of their data set.

    Args:
        given: paths, folders and globs.
        asked: the column of the label, None for data without a label, or auto.

    Raises:
        UserError: no file can be read, or nothing in them can be learned.
    """
    found = find(given)
    layout, files, others = _main_files(found)
    root = Path(found.root)
    unused = [(str(f.relative_to(root)) if f.is_relative_to(root) else str(f), why) for f, why in others.unused]
    say(f"looking at {len(files)} {'file' if len(files) == 1 else 'files'} ({layout.format}): {files[0]}{' ...' if files[1:] else ''}")
    sample = read_sample(files, layout)
    if sample.frame.height < 2 or not sample.frame.width:
        raise UserError(f"{files[0]}: has no rows, or its columns could not be found; check the file")
    columns, marks = columns_of(sample.frame)
    columns, rename = _named(columns, layout)
    roles = assign(columns, asked or "")
    retrieval = roles.user is not None and roles.item is not None
    label = None if asked is None else labels.choose(columns, asked, retrieval=retrieval or layout.format == "lists")
    if label is not None:
        label.column.role = "label"
    elif not (retrieval or layout.format == "lists"):
        names = ", ".join(c.name for c in columns[:12])
        raise UserError(f"files={','.join(given)}: no column is a label, and no two are a user and an item; type label=NAME (columns: {names})")
    source, reasons = _source(found, layout, files, [*others.sides, *(f for f, _ in others.unused)], marks, columns, rename)
    p = Proposal(found.root, source, reasons, columns, roles, label, splits.at_random("no column holds a time"), Features(), sample.rows, unused=unused)
    p.sides, not_joined = find_sides(others.sides, root, columns)
    p.unused += not_joined
    if label is None:
        _retrieval(p, layout)
    else:
        _ranking(p, layout, files, root, others)
    if p.split.by_files:
        p.source.pop("files")
    if not (p.features.dense or p.features.sparse):
        raise UserError(f"files={','.join(given)}: no column but the label can be a feature; " + "; ".join(f"{n}: {why}" for n, why in p.features.left_out[:4]))
    return p


@dataclass
class _Others:
    """Files that do not hold the rows: possible side tables, and those that are of no use, with the reason."""

    sides: list[Path]
    unused: list[tuple[Path, str]]


def _main_files(found: Found) -> tuple[Layout, list[Path], _Others]:
    """Return the layout and the files of the rows: those of the same columns with the most bytes."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    layouts: dict[tuple[str, ...], Layout] = {}
    unused: list[tuple[Path, str]] = []
    by_kind: dict[tuple[str, str], tuple[str, ...]] = {}
    for i, f in enumerate(found.files):
        kind = (f.suffix, re.sub(r"\d+", "#", f.name))
        if i >= MOST_SNIFFED and kind in by_kind:  # as the others of this kind
            groups[by_kind[kind]].append(f)
            continue
        try:
            layout = layout_of(f)
        except UserError as e:
            unused.append((f, str(e).partition(": ")[2]))
            continue
        if layout.format == "text":
            unused.append((f, "no separator divides its lines into columns"))
            continue
        shape = str(layout.dialect.width) if layout.dialect and not layout.dialect.header else ""
        key = (layout.format, layout.dialect.separator if layout.dialect else "", shape, *(layout.columns if not shape else ()))
        by_kind[kind] = key
        groups.setdefault(key, []).append(f)
        layouts.setdefault(key, layout)
    rows = {k: g for k, g in groups.items() if k[0] != "json"}
    if not rows:
        raise UserError("; ".join(f"{f.name}: {why}" for f, why in unused[:3]) or f"{found.root}: no file holds rows")
    best = max(rows, key=lambda k: (any(split_of(f) == "train" for f in rows[k]), sum(f.stat().st_size for f in rows[k])))
    sides = []
    for key, files in groups.items():
        if key == best:
            continue
        for f in files:
            if split_of(f) == "test":
                unused.append((f, "it has other columns; predict its rows with recsys.predict"))
            else:
                sides.append(f)
    return layouts[best], groups[best], _Others(sides, unused)


def _named(columns: list[Column], layout: Layout) -> tuple[list[Column], dict[str, str]]:
    """Rename columns: those without a header by their content, and RecBole's by their name without the type."""
    rename: dict[str, str] = {}
    names = [c.name for c in columns]
    if layout.format == "libfm":
        layout.columns = names
        for c in columns[1:]:
            c.kind, c.numbers, c.reason = ("id" if c.distinct > 50 else "category"), None, f"{c.distinct:,} indices"
            c.time = None
    elif layout.dialect and not layout.dialect.header and layout.format == "csv" and (new := name_unnamed(columns)):
        layout.columns = layout.dialect.columns = new
        layout.dialect.reasons["columns"] = "the file has no header; names by the content (a guess)"
        for c, name in zip(columns, new, strict=True):
            c.name, c.values = name, c.values.alias(name)
            if name in ("user", "item"):
                c.kind = "id"
    plain = [RECBOLE.sub("", n) for n in names]
    if plain != names and len(set(plain)) == len(plain):
        rename = {new: old for new, old in zip(plain, names, strict=True) if new != old}
        for c, new in zip(columns, plain, strict=True):
            c.name, c.values = new, c.values.alias(new)
    return columns, rename


def _source(found: Found, layout: Layout, files: Sequence[Path], others: Sequence[Path], marks: Marks, columns: Sequence[Column], rename: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of `source:` that differ from the defaults, and the reasons of some."""
    d, reasons = layout.dialect, dict(layout.dialect.reasons) if layout.dialect else {}
    globs = list(found.globs)
    matched = {p for g in globs for p in Path(found.root).glob(g)}
    if not globs or matched & set(others):
        globs = globs_for(Path(found.root), files, others)
    source: dict[str, Any] = {"format": layout.format, "files": globs}
    if d is not None and layout.format in ("csv", "lists"):
        source["separator"] = d.separator
        if d.quote != '"':
            source["quote"] = d.quote
    if d is not None:
        source |= {k: v for k, v in (("encoding", d.encoding), ("comment", d.comment), ("strip", d.strip)) if v and v != "utf-8"}
    if layout.format == "csv" and d is not None:
        if not d.header:
            source["header"] = False
        if not d.header or d.renamed:
            source["columns"] = list(layout.columns)
            reasons.setdefault("columns", "the file has no header")
    elif layout.format in ("lists", "libfm"):
        source["columns"] = list(layout.columns)
    if layout.format in ("csv", "lists", "libfm"):
        source |= _marks(marks, columns)
    if rename:
        source["rename"] = rename
    return source, reasons


def _marks(marks: Marks, columns: Sequence[Column]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if marks.decimal != ".":
        found["decimal"] = marks.decimal
    if marks.thousands:
        found["thousands"] = marks.thousands
    if marks.null_values:
        found["null_values"] = marks.null_values
    if own := {c.name: c.nulls for c in columns if c.nulls}:
        found["column_null_values"] = own
    return found


def _ranking(p: Proposal, layout: Layout, files: Sequence[Path], root: Path, others: _Others) -> None:
    """Fill in features and split of data with a label."""
    label = p.label
    assert label is not None
    found = labels.leaks(p.columns, label)
    typed = layout.format not in ("csv", "lists", "libfm")
    joined = [c for side in p.sides for c in side.columns]
    p.features = features_of([*p.columns, *joined], found, typed=typed)
    for side in p.sides:
        p.source.setdefault("joins", []).append(side.join())
    if label.column.missing:
        p.where = f'"{label.column.name}" IS NOT NULL'
    time = p.roles.time
    by_time = None
    if time is not None and time.time is not None:
        column = _time_column(p, time, typed=typed)
        by_time = splits.by_time(time, label, column)
    rest = [*others.sides, *(f for f, _ in others.unused)]
    random = splits.at_random("no column holds a time" if time is None else f"{time.name} is the same in too many rows to split by")
    p.split = splits.by_files(root, files, rest) or by_time or random


def _time_column(p: Proposal, time: Column, *, typed: bool) -> str:
    """Return the column of the time: the file's, or the one that SQL derives."""
    assert time.time is not None
    if time.time.sql is None:
        return time.name
    sql = time_sql(time, typed=typed)
    known = next((name for name, other in p.features.derive.items() if other == sql), None)
    if known is None:
        known = f"{time.name}_time"
        p.features.derive[known] = sql
    return known


def _retrieval(p: Proposal, layout: Layout) -> None:
    """Fill in groups, sequences, items and split of data without a label: users and the items that they chose."""
    lists = layout.format == "lists"
    user = p.roles.user or next((c for c in p.columns if c.name in ("user", "list")), None)
    item = p.roles.item or next(c for c in p.columns if c.name == "item")
    assert user is not None
    typed = layout.format not in ("csv", "lists", "libfm")
    group: dict[str, Any] = {"by": user.name}
    if p.roles.time is not None:
        group["order"] = _time_column(p, p.roles.time, typed=typed)
    p.group = group
    lengths = user.values.drop_nulls().value_counts()["count"]
    longest = int(lengths.quantile(0.9) or 50)
    p.reasons["sequences"] = f"nine of ten users of the sample have at most {longest} rows"
    p.group["max_length"] = min(max(longest, 10), 200)
    p.split = splits.leave_one_out()
    if lists and user.name == "list":
        p.split = Split({"by": "hash", "column": "list", "validation": 0.1, "test": 0.1}, "whole lines are held out")
    p.columns = [c for c in p.columns if c is not user or user.name != "list"]
    derived = dict(p.features.derive)
    p.features = features_of([_as_item(item)], {}, typed=typed)
    p.features.derive = derived
    p.items = next((s for s in p.sides if s.key == item.name and s.items()), None)
    used = {item.name, user.name, p.roles.time.name if p.roles.time else ""}
    constant = _constant_per_user(p.columns, user, used)
    extra = features_of([c for c in constant], {}, typed=typed)
    for f in extra.sparse:
        f.settings["per"] = "group"
    p.features.sparse += extra.sparse
    p.features.left_out += [(c.name, "models of sequences read items; a value per row is not known before") for c in p.columns if c.name not in used and c not in constant]


def _as_item(item: Column) -> Column:
    if item.kind not in ("id", "category"):
        item.kind = "id"
    item.role = "item"
    return item


def _constant_per_user(columns: Sequence[Column], user: Column, used: set[str]) -> list[Column]:
    """Return the categories that are the same in all rows of a user: properties of the user."""
    found = []
    for c in columns:
        if c.name in used or c.kind not in ("category", "id"):
            continue
        frame = pl.DataFrame({"user": user.values, "x": c.values})
        per_user = frame.group_by("user").agg(pl.col("x").n_unique().alias("n"), pl.len())
        several = per_user.filter(pl.col("len") > 1)
        if several.height > 10 and several["n"].max() == 1:
            found.append(c)
    return found


def describe_sample(sample: Sample) -> str:
    """Return how many rows were looked at."""
    return f"{sample.frame.height:,} of about {sample.rows:,} rows"
