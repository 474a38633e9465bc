"""Find side tables: files with a row for each value of a column of the rows, such as the items or the users."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.errors import UserError
from recsys.data.raw.formats import SIDE_FORMATS
from recsys.new.column_kinds import Column, Features, IdKind, RowIdKind
from recsys.new.find_files import split_of
from recsys.new.find_kinds import MAX_CATEGORIES, column_of, columns_of
from recsys.new.find_layout import layout_of
from recsys.new.known_names import NAMES, RECBOLE, names_an_id_of
from recsys.new.layouts import MIN_SHARED
from recsys.new.propose_features import features_of
from recsys.new.questions import Question
from recsys.new.sample import read_sample
from recsys.new.statistics import mean
from recsys.new.value_marks import Marks

MAX_BYTES = 1 << 30  # side tables are held in memory
MIN_KNOWN = 0.9  # share of the rows' values that the table has to know


@dataclass
class Side:
    """A side table, joined on `key`."""

    file: str  # relative to data.root
    key: str
    file_key: str  # the name of the key in the file
    columns: list[Column]  # what it adds, under names that the rows do not have
    names: dict[str, str]  # name here -> name in the file
    keys: pl.Series  # the values of the key in the sample
    options: dict[str, Any] = field(default_factory=dict)  # how its text is read
    why: str = ""

    def features(self) -> Features:
        """Return the features that its columns make."""
        return features_of(self.columns, {}, typed=False)

    def joined(self, c: Column, key: Column) -> Column:
        """Return one of its columns as a column of the rows. key: the column of the rows"""
        table = pl.DataFrame({"key": self.keys.cast(pl.String), c.name: c.values})
        rows = pl.DataFrame({"key": key.values.cast(pl.String)})
        return column_of(rows.join(table, on="key", how="left", maintain_order="left")[c.name], Marks())

    def join(self) -> dict[str, Any]:
        """Return an entry of `source.joins` with the columns that make features."""
        return self._read({c.name for c in self.columns} - {name for name, _ in self.features().left_out})

    def items(self) -> dict[str, Any] | None:
        """Return `items:`, None if no column makes a feature."""
        made = self.features()
        usual = made.dense_defaults.items()  # those of the rows may differ
        dense = {f.name: f.settings | {k: v for k, v in usual if k not in f.settings} for f in made.dense}
        dense = {name: settings for name, settings in dense.items() if "cyclic" not in settings}
        sparse = {f.name: f.settings for f in made.sparse}
        used = {f.settings.get("column", f.name) for f in made.inputs}
        made_of = {k: v for k, v in (("dense", dense), ("sparse", sparse)) if v}
        return self._read(used) | made_of if made_of else None

    def _read(self, columns: set[str]) -> dict[str, Any]:
        """Return the settings that read some of the columns."""
        names = {self.key: self.file_key} if self.key != self.file_key else {}
        names |= {new: old for new, old in self.names.items() if new in columns}
        return {"file": self.file, "key": self.key, "columns": names, **self.options}


def find_sides(
    files: Sequence[Path], root: Path, columns: Sequence[Column], marks: Marks
) -> tuple[list[Side], list[tuple[str, str]], list[Question]]:
    """Return the side tables among `files`, the other files with the reason, and the questions about them."""
    sides, unused, questions = list[Side](), list[tuple[str, str]](), list[Question]()
    taken = {c.name for c in columns}
    for f in sorted(files, key=lambda f: split_of(f, root) != "train"):
        name = str(f.relative_to(root)) if f.is_relative_to(root) else str(f)
        try:
            side = _side(f, name, columns, taken, marks)
        except UserError as e:
            side = str(e)
        if isinstance(side, Question):
            questions.append(side)
            side = "it has some of the rows only"
        elif isinstance(side, Side):  # files of one name and the same columns in two folders are parts
            look = (Path(side.file).name, side.key, [*side.names.values()])
            if twins := [s for s in sides if (Path(s.file).name, s.key, [*s.names.values()]) == look]:
                side = f"it has the columns of {twins[0].file}; write both into one file"
        if isinstance(side, str):
            unused.append((name, f"not joined: {side}"))
        else:
            sides.append(side)
            taken |= set(side.names)
    return sides, unused, questions


def _side(f: Path, name: str, columns: Sequence[Column], taken: set[str], marks: Marks) -> Side | str | Question:
    """Return a side table, the reason why the file is not one, or the question whether it names the positive rows.

    taken: the names that columns of the table cannot have
    marks: how the rows write numbers, as tables have to
    """
    layout = layout_of(f)
    if not layout.joins or f.stat().st_size > MAX_BYTES:
        return f"a side table has to be CSV, Parquet or JSON lines of at most {MAX_BYTES >> 30} GiB"
    if not layout.header:
        return "its columns have no names; write them into its first line to join it"
    side_columns, own_marks = columns_of(read_sample([f], layout).frame)
    if own_marks.decimal != marks.decimal and any(c.kind.is_number and not c.is_whole for c in side_columns):
        return f"its numbers have the decimal mark {own_marks.decimal}, those of the rows {marks.decimal}; write one"
    problems: list[str] = []
    for c in side_columns:
        key = _key(RECBOLE.sub("", c.name), columns)
        if key is None:
            continue
        known, is_unique = mean(key.texts.is_in(c.texts.implode())), c.values.n_unique() == c.values.len()
        if key.kind.is_row_id and is_unique and 0 < known < MIN_KNOWN and len(side_columns) > 1:
            text = f"{name} has {known:.0%} of the rows, by {key.name}: are they the positive ones?"
            guess = "no; if so, write a column into the rows that says it, and type label=COLUMN"
            return Question(text, guess, key="label")
        if key.role == "label" or key.time is not None or key.values.dtype.is_nested():
            problems.append(f"{c.name} is the label, a time or a list, which is no key")
        elif not is_unique or known < MIN_KNOWN:
            problems.append(f"{c.name} has {known:.0%} of the values of the rows, or one twice")
        elif not key.kind.is_number or key.is_whole:
            key.kind = IdKind(f"it is the key of {f.name}") if key.kind.is_number else key.kind
            names = _renamed(key, c, side_columns, f, taken)
            options = {} if SIDE_FORMATS.get(f.suffix, "csv") == layout.format else {"format": layout.format}
            text_options = {k: v for k, v in layout.options().items() if k not in ("header", "columns")}
            options |= {k: v for k, v in text_options.items() if (k, v) != ("separator", ",")}
            added = [other for other in side_columns if other.name in names]
            if nulls := {other.name: other.nulls for other in added if other.nulls}:
                options["column_null_values"] = nulls
            why = f"{known:.0%} of the values of {key.name} are in it"
            return Side(name, key.name, c.name, added, names, c.values, options, why)
    side_names, row_names = {c.name for c in side_columns}, {c.name for c in columns}
    if len(side_names & row_names) >= MIN_SHARED * len(side_names | row_names):
        differ = ", ".join(sorted(side_names ^ row_names)[:5])
        return f"not all files have {differ}; if it holds rows, add it to source.files, and these to optional_columns"
    return "; ".join(problems[:3]) or "it has no column of the same name as one of the rows"


def _renamed(key: Column, c: Column, side_columns: Sequence[Column], f: Path, taken: set[str]) -> dict[str, str]:
    """Name the columns that a table adds like none of the rows, and return their names in the file."""
    names: dict[str, str] = {}
    for other in side_columns:
        if other is c or other.name.startswith("column_"):  # without a name, such as the index of pandas
            continue
        if other.kind.is_id and other.distinct == other.rows > MAX_CATEGORIES:
            other.kind = RowIdKind(f"each {key.name} has its own value, as under another name")
        new, old = RECBOLE.sub("", other.name), other.name
        new = new if new not in taken else f"{f.stem}_{new}"
        other.name, other.values, names[new] = new, other.values.alias(new), old
    return names


def _key(name: str, columns: Sequence[Column]) -> Column | None:
    """Return the column of the rows that a side table's column may join: of its name, or another name of an id."""
    if (key := next((c for c in columns if c.name == name), None)) is not None:
        return key
    among = {"user": NAMES.users, "item": NAMES.items}
    return next((c for c in columns if c.role in among and names_an_id_of(name, among[c.role])), None)
