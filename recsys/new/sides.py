"""Find side tables: files that describe the values of a column, such as the items or the users."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.errors import UserError
from recsys.data.raw.formats import SIDE_FORMATS
from recsys.files.json_text import parse_json
from recsys.new.column_kinds import Column, Features, IdKind, RowIdKind, sql_name
from recsys.new.find_files import split_of
from recsys.new.find_kinds import FEW, column_of, columns_of
from recsys.new.find_layout import layout_of
from recsys.new.known_names import NAMES, RECBOLE, names_an_id_of, words
from recsys.new.layouts import SHARED, Layout, TextLayout
from recsys.new.propose_features import features_of
from recsys.new.questions import Question, typed
from recsys.new.sample import read_sample
from recsys.new.statistics import mean
from recsys.new.value_marks import Marks

LARGEST = 1 << 30  # bytes; side tables are held in memory
KNOWN_KEYS = 0.9  # share of the rows' values that the table has to know


@dataclass
class Side:
    """A side table, joined on `key`."""

    file: str  # relative to data.root
    key: str
    file_key: str  # the name of the key in the file
    columns: list[Column]  # what it adds, under names that the rows do not have
    names: dict[str, str]  # name here -> name in the file
    options: dict[str, Any] = field(default_factory=dict)  # how its text is read
    why: str = ""
    keys: pl.Series | None = None  # the values of the key in the sample

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
        assert self.keys is not None
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
    files: Sequence[Path], root: Path, columns: Sequence[Column]
) -> tuple[list[Side], list[tuple[str, str]], list[Question]]:
    """Return the side tables among `files`, the other files with the reason, and the questions about them."""
    sides, unused, questions = list[Side](), list[tuple[str, str]](), list[Question]()
    taken = {c.name for c in columns}
    for f in sorted(files, key=lambda f: split_of(f, root) != "train"):
        name = str(f.relative_to(root)) if f.is_relative_to(root) else str(f)
        try:
            side = _side(f, name, columns, taken)
        except UserError as e:
            unused.append((name, str(e)))
            continue
        if isinstance(side, Question):
            questions.append(side)
            side = "it has some of the rows only"
        elif isinstance(side, Side):  # files of one name and the same columns in two folders are parts
            look = (Path(side.file).name, side.key, len(side.columns), side.options)
            twins = [s for s in sides if (Path(s.file).name, s.key, len(s.columns), s.options) == look]
            if twins:
                side = f"it has the columns of {twins[0].file}; write both into one file"
        if isinstance(side, str):
            unused.append((name, f"not joined: {side}"))
        else:
            sides.append(side)
            taken |= set(side.names)
    return sides, unused, questions


def _side(f: Path, name: str, columns: Sequence[Column], taken: set[str]) -> Side | str | Question:
    """Return a side table, the reason why the file is not one, or the question whether it names the positive rows.

    taken: the names that columns of the table cannot have
    """
    layout = layout_of(f)
    if f.stat().st_size > LARGEST:
        return f"it has more than {LARGEST >> 30} GiB, and side tables are held in memory"
    if not layout.joins:
        return f"a side table has to be CSV, Parquet, JSON lines or a JSON object, not {layout.format or 'other text'}"
    if layout.maps_keys:
        return _json_side(f, name, columns, taken) or "its keys are the values of no column of the rows"
    named = layout.names_columns
    if not named:
        layout.columns = [f"{f.stem}_{i}" for i in range(1, layout.width + 1)]
    side_columns, marks = columns_of(read_sample([f], layout).frame)
    if marks.decimal != ".":  # `source.decimal` is that of the rows
        for c in side_columns:
            if c.kind.is_number and c.sql is None and c.values.dtype == pl.String:
                number = "REPLACE({}, '.', '')" if marks.thousands == "." else "{}"
                c.sql = f"TRY_CAST(REPLACE({number}, ',', '.') AS DOUBLE)"
    problems: list[str] = []
    for c in side_columns:
        raw_name, c.name = c.name, RECBOLE.sub("", c.name)
        key = _key(c, f, columns, named=named)
        if key is not None and len(side_columns) > 1 and _names_some_rows(key, c, f):
            text = f"{name} has {_percent(_known(key, c))} of the rows, by {key.name}: are they the positive ones?"
            return Question(text, "no", (typed("label", name),))
        if key is None or (why := _why_no_key(key, c)):
            problems += [] if key is None else [f"{c.name} {why}"]
            c.name = raw_name
            continue
        if key.kind.is_number:
            key.kind = IdKind(f"it is the key of {f.name}")
        unnamed = set()  # such as the index of pandas
        if layout.renamed and isinstance(layout, TextLayout):
            unnamed = set(layout.columns) - set(layout.fields(layout.first))
        added = [other for other in side_columns if other is not c and other.name not in unnamed]
        names: dict[str, str] = {}
        # ids that differ in all rows are other names of the key; names are those of no other column
        for other in added:
            is_id = (other.kind.is_id and other.kind.is_code) or (other.kind.is_number and other.is_whole and not named)
            if is_id and other.distinct == other.rows > FEW:
                other.kind = RowIdKind(f"each {key.name} has its own value, as under another name")
            new, old = RECBOLE.sub("", other.name), other.name
            new = new if new not in taken else f"{f.stem}_{new}"
            other.name, other.values, names[new] = new, other.values.alias(new), old
        # the reader goes by the suffix, unless `format` says another one
        options = {} if SIDE_FORMATS.get(f.suffix, "csv") == layout.format else {"format": layout.format}
        options |= _options(layout, marks, added) | ({} if named else {"names": layout.columns})
        why = f"{_percent(_known(key, c))} of the values of {key.name} are in it"
        return Side(name, key.name, raw_name, added, names, options, why, c.values)
    if not named:
        return "it has no header, and none of its columns holds the values of an id of the rows"
    side_names, row_names = {c.name for c in side_columns}, {c.name for c in columns}
    if len(side_names & row_names) >= SHARED * len(side_names | row_names):
        differ = ", ".join(sorted(side_names ^ row_names)[:5])
        hint = f"add it to source.files and {differ} to source.optional_columns"
        return f"not all files have {differ}; if it holds rows, {hint}"
    return "; ".join(problems[:3]) or "it has no column of the same name as one of the rows"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _key(side: Column, file: Path, columns: Sequence[Column], *, named: bool) -> Column | None:
    """Return the column of the rows that a side table's column may join: by its name, its meaning or its values.

    By its values, it is the user or the item. Numbers from 1 on may be those of users and of items, so the file's name
    has to say which. If the table lacks one of the rows' numbers, the rows may count from 1 on while the table has
    numbers of its own.
    """
    if named and (key := next((c for c in columns if c.name == side.name), None)) is not None:
        return key
    about = {w.removesuffix("s") for w in words(file.name)} | set(words(file.name))
    for c in columns:
        among = {"user": NAMES.users, "item": NAMES.items}.get(c.role)
        if among is None or _why_no_key(c, side):
            continue
        if named and words(side.name) != ["id"]:
            if names_an_id_of(side.name, among):
                return c
        elif c.numbers is None or (about & {*among, *words(c.name)} and _known(c, side) == 1):
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
    return f"has only {_percent(known)} of the values of the rows" if known < KNOWN_KEYS else ""


def _names_some_rows(key: Column, side: Column, file: Path) -> bool:
    """Return True for a file of outcomes, such as clicks.csv: it has the keys of some rows, each once."""
    if not key.kind.is_row_id or side.values.n_unique() < side.values.len() or _known(side, key) < KNOWN_KEYS:
        return False
    named = {form for word in words(file.stem) for form in (word, word.removesuffix("s"), word.removesuffix("es"))}
    return bool(named & {*NAMES.outcomes, *NAMES.labels, *NAMES.event_positives}) and _known(key, side) < KNOWN_KEYS


@dataclass
class Outcomes:
    """The label that a file of some of the rows makes: these rows are positive."""

    label: Column
    join: dict[str, Any]  # the entry of `source.joins` that reads the file
    sql: str  # makes the label of the joined column


def outcomes_of(file: Path, name: str, columns: Sequence[Column]) -> Outcomes:
    """Return the label that a file of outcomes makes. Raises UserError if it has no key of the rows, or only that."""
    layout = layout_of(file)
    side_columns, marks = columns_of(read_sample([file], layout).frame)
    by_name = {c.name: c for c in columns}
    side = next((c for c in side_columns if c.name in by_name and _names_some_rows(by_name[c.name], c, file)), None)
    if side is None or len(side_columns) < 2:
        raise UserError(f"label={name}: the file must have the key of its rows, each once, and another column")
    value = next(c for c in side_columns if c is not side and not c.missing)
    given = by_name[side.name].values.cast(pl.String).is_in(side.values.cast(pl.String).implode())
    joined = f"{file.stem}_{value.name}"
    join = {"file": name, "key": side.name, "columns": {joined: value.name}} | _options(layout, marks, [value])
    return Outcomes(column_of(given.alias(f"in_{file.stem}"), Marks()), join, f"{sql_name(joined)} IS NOT NULL")


def _known(key: Column, side: Column) -> float:
    """Return the share of the values of `key` that the side table has."""
    return mean(key.texts.is_in(side.texts.implode()))


def _options(layout: Layout, marks: Marks, columns: Sequence[Column]) -> dict[str, Any]:
    """Return the keys of a join that say how the text of a side table is read."""
    if not isinstance(layout, TextLayout):
        return {}
    own = layout.options().items()
    options = {k: v for k, v in own if k not in ("header", "columns") and (k, v) != ("separator", ",")}
    nulls = {c.name: c.nulls for c in columns if c.nulls}
    options |= {"null_values": marks.null_values} if marks.null_values else {}
    return options | ({"column_null_values": nulls} if nulls else {})


def _json_side(f: Path, name: str, columns: Sequence[Column], taken: set[str]) -> Side | None:
    """Return the side table of a JSON object {key: value or list}; None if the keys are values of no column of ids."""
    with f.open(encoding="utf-8") as raw:
        table: dict[str, Any] = parse_json(raw.read())
    keys = Column("key", pl.Series("key", list(table), dtype=pl.String))
    ids = [c for c in columns if c.kind.is_id or c.kind.is_code]
    best = max(ids, key=lambda c: (c.role == "item", _known(c, keys)), default=None)
    if best is None or _known(best, keys) < KNOWN_KEYS:
        return None
    new = f.stem.rpartition("2")[2] or "attributes"
    new = new if new.isidentifier() and new not in taken else f"{f.stem}_value"
    values = [[str(x) for x in v] if isinstance(v, list) else [str(v)] for v in table.values()]
    lists = any(isinstance(v, list) for v in table.values())
    [column], _ = columns_of(pl.Series(new, values if lists else [v[0] for v in values]).to_frame())
    why = f"its keys are the values of {best.name} (a guess)"
    return Side(name, best.name, "key", [column], {new: "value"}, why=why)
