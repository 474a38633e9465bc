"""Find side tables: files that describe the values of a column, such as the items or the users."""

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
from recsys.new.known_names import NAMES, RECBOLE, names_an_id_of, words
from recsys.new.layouts import MIN_SHARED, Layout, TextLayout
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

    @property
    def has_features(self) -> bool:
        """Whether one of its columns makes a feature."""
        features = self.features()
        return bool(features.dense or features.sparse)

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
        if not dense and not sparse:
            return None
        used = {f.settings.get("column", f.name) for f in (*made.dense, *made.sparse)}
        return self._read(used) | {k: v for k, v in (("dense", dense), ("sparse", sparse)) if v}

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
            look = (Path(side.file).name, side.key, [c.name for c in side.columns])
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
    if f.stat().st_size > MAX_BYTES:
        return f"it has more than {MAX_BYTES >> 30} GiB, and side tables are held in memory"
    if not layout.joins:
        return f"a side table has to be CSV, Parquet or JSON lines, not {layout.format or 'other text'}"
    if not layout.names_columns:
        return "its columns have no names; write them into its first line to join it"
    side_columns, own_marks = columns_of(read_sample([f], layout).frame)
    if own_marks.decimal != marks.decimal and any(c.kind.is_number and not c.is_whole for c in side_columns):
        return f"its numbers have decimal marks {own_marks.decimal}, those of the rows {marks.decimal}; write one kind"
    problems: list[str] = []
    for c in side_columns:
        key = _key(RECBOLE.sub("", c.name), f, columns)
        if key is None:
            continue
        if len(side_columns) > 1 and _names_some_rows(key, c):
            text = f"{name} has {_percent(_known(key, c))} of the rows, by {key.name}: are they the positive ones?"
            guess = "no; if so, write a column into the rows that says it, and type label=COLUMN"
            return Question(text, guess, key="label")
        if why := _why_no_key(key, c):
            problems.append(f"{c.name} {why}")
            continue
        if key.kind.is_number:
            key.kind = IdKind(f"it is the key of {f.name}")
        return _joined_on(key, c, f, name, side_columns, layout, taken)
    side_names, row_names = {c.name for c in side_columns}, {c.name for c in columns}
    if len(side_names & row_names) >= MIN_SHARED * len(side_names | row_names):
        differ = ", ".join(sorted(side_names ^ row_names)[:5])
        hint = f"add it to source.files and {differ} to source.optional_columns"
        return f"not all files have {differ}; if it holds rows, {hint}"
    return "; ".join(problems[:3]) or "it has no column of the same name as one of the rows"


def _joined_on(
    key: Column, c: Column, f: Path, name: str, side_columns: Sequence[Column], layout: Layout, taken: set[str]
) -> Side:
    """Return the side table that joins `key` of the rows on its own column c."""
    unnamed = set()  # such as the index of pandas
    if layout.renamed and isinstance(layout, TextLayout):
        unnamed = set(layout.columns) - set(layout.fields(layout.first))
    added = [other for other in side_columns if other is not c and other.name not in unnamed]
    names: dict[str, str] = {}
    for other in added:  # ids that differ in all rows are other names of the key
        if other.kind.is_id and other.distinct == other.rows > MAX_CATEGORIES:
            other.kind = RowIdKind(f"each {key.name} has its own value, as under another name")
        new, old = RECBOLE.sub("", other.name), other.name
        new = new if new not in taken else f"{f.stem}_{new}"
        other.name, other.values, names[new] = new, other.values.alias(new), old
    # the reader goes by the suffix, unless `format` says another one
    options = {} if SIDE_FORMATS.get(f.suffix, "csv") == layout.format else {"format": layout.format}
    if isinstance(layout, TextLayout):
        own = layout.options().items()
        options |= {k: v for k, v in own if k not in ("header", "columns") and (k, v) != ("separator", ",")}
        nulls = {other.name: other.nulls for other in added if other.nulls}
        options |= {"column_null_values": nulls} if nulls else {}
    why = f"{_percent(_known(key, c))} of the values of {key.name} are in it"
    return Side(name, key.name, c.name, added, names, c.values, options, why)


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _key(name: str, file: Path, columns: Sequence[Column]) -> Column | None:
    """Return the column of the rows that a side table's column may join: of its name, or another name of an id.

    `id` in a file of items is that of the item.
    """
    if (key := next((c for c in columns if c.name == name), None)) is not None:
        return key
    about = {w.removesuffix("s") for w in words(file.name)} | set(words(file.name))
    for role, among in (("user", NAMES.users), ("item", NAMES.items)):
        for c in columns:
            is_own = words(name) == ["id"] and about & {*among, *words(c.name)}
            if c.role == role and (is_own or names_an_id_of(name, among)):
                return c
    return None


def _why_no_key(key: Column, side: Column) -> str:
    """Return why `key` cannot join a side table on its column `side`; an empty text if it can."""
    if key.role == "label":
        return "is the label"
    if key.time is not None or key.values.dtype.is_nested() or (key.kind.is_number and not key.is_whole):
        return "holds times, lists or fractions, which are no keys"
    if side.values.n_unique() < side.values.len():
        return "is not unique in it"
    known = _known(key, side)
    return f"has only {_percent(known)} of the values of the rows" if known < MIN_KNOWN else ""


def _names_some_rows(key: Column, side: Column) -> bool:
    """Return True for a file that may name the positive rows, as clicks.csv: it has keys of some, each once."""
    if not key.kind.is_row_id or side.values.n_unique() < side.values.len():
        return False
    return _known(side, key) >= MIN_KNOWN > _known(key, side)


def _known(key: Column, side: Column) -> float:
    """Return the share of the values of `key` that the side table has."""
    return mean(key.texts.is_in(side.texts.implode()))
