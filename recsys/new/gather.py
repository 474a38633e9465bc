"""Divide the files that the user named into those of rows, possible side tables, and others."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recsys.errors import UserError
from recsys.new.find_files import Found, split_of
from recsys.new.sample import Layout, layout_of

MOST_SNIFFED = 60
MOST_UNTESTED = 2


@dataclass
class Gathered:
    """Files by their use.

    layout, files: the files of rows, and how they are read
    sides: files of other columns, which may be side tables
    unused: files that are of no use, and why
    untested: the columns that a file of test rows lacks, if they are one or two: the label, and what follows it
    """

    layout: Layout
    files: list[Path]
    sides: list[Path]
    unused: list[tuple[Path, str]]
    untested: tuple[str, ...] = ()

    @property
    def others(self) -> list[Path]:
        """All files that do not hold the rows."""
        return [*self.sides, *(f for f, _ in self.unused)]


def gather(found: Found) -> Gathered:
    """Find the files of the rows: those of the same columns with the most bytes.

    Raises:
        UserError: no file holds rows.
    """
    groups: dict[tuple[str, ...], list[Path]] = {}
    layouts: dict[tuple[str, ...], Layout] = {}
    unused: list[tuple[Path, str]] = []
    by_name: dict[tuple[str, str], tuple[str, ...]] = {}
    for i, f in enumerate(found.files):
        name = (f.suffix, re.sub(r"\d+", "#", f.name))
        if i >= MOST_SNIFFED and name in by_name:  # as the others of such names
            groups[by_name[name]].append(f)
            continue
        try:
            layout = layout_of(f)
        except UserError as e:
            unused.append((f, str(e).partition(": ")[2]))
            continue
        if layout.format == "text":
            unused.append((f, "no separator divides its lines into columns"))
            continue
        key = _columns_key(layout)
        by_name[name] = key
        groups.setdefault(key, []).append(f)
        known = layouts.setdefault(key, layout).dialect
        if (
            known is not None and layout.dialect is not None and not known.comment
        ):  # one file has comments, another none
            known.comment = layout.dialect.comment
            known.reasons = layout.dialect.reasons | known.reasons
    rows = {key: files for key, files in groups.items() if not layouts[key].maps_keys}
    if not rows:
        raise UserError("; ".join(f"{f}: {why}" for f, why in unused[:3]) or f"{found.root}: no file holds rows")
    best = max(rows, key=lambda key: _size(rows[key]))
    rest = [f for key, files in groups.items() if key != best for f in files]
    tests = [f for f in rest if split_of(f) == "test"]
    unused += [(f, "it has other columns; predict its rows with recsys.predict") for f in tests]
    untested = next(
        (lacking for key in groups if key != best and (lacking := _untested(layouts, key, best, groups))), ()
    )
    return Gathered(layouts[best], groups[best], [f for f in rest if f not in tests], unused, untested)


def _untested(
    layouts: dict[tuple[str, ...], Layout],
    key: tuple[str, ...],
    best: tuple[str, ...],
    groups: dict[tuple[str, ...], list[Path]],
) -> tuple[str, ...]:
    """Return the one or two columns of the rows that files of test rows lack, nothing if these differ otherwise."""
    named = [d is None or d.header for d in (layouts[key].dialect, layouts[best].dialect)]
    if not all(named) or not any(split_of(f) == "test" for f in groups[key]):
        return ()
    own, theirs = layouts[best].columns, set(layouts[key].columns)
    lacking = tuple(name for name in own if name not in theirs)
    added = len(theirs - set(own))
    return lacking if 1 <= len(lacking) <= MOST_UNTESTED and added <= 1 and len(own) > len(lacking) + 1 else ()


def _columns_key(layout: Layout) -> tuple[str, ...]:
    """Return what files of the same columns have in common: their names or, without any, their number."""
    if layout.format in ("jsonl", "svmlight"):
        return (layout.format,)
    d = layout.dialect
    if d is None:
        return (layout.format, *sorted(layout.columns))
    names = [str(d.width)] if not d.header else layout.columns
    return (layout.format, d.separator, *names)


def _size(files: Sequence[Path]) -> tuple[bool, int]:
    """Return the order by which files are taken for those of rows: training files first, then by size."""
    return any(split_of(f) == "train" for f in files), sum(f.stat().st_size for f in files)
