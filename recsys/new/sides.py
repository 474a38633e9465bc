"""Find side tables: files that describe the values of a column, such as the items or the users."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.errors import UserError
from recsys.data.raw.formats import SIDE_FORMATS
from recsys.files.json_text import parse_json
from recsys.new.column_kinds import Column, column_of, columns_of
from recsys.new.find_dialect import fields
from recsys.new.find_files import split_of
from recsys.new.gather import SHARED
from recsys.new.known_names import EVENT_POSITIVES, ITEMS, LABELS, OUTCOMES, USERS, names_an_id_of, words
from recsys.new.layout import Layout, layout_of
from recsys.new.propose_features import Features, features_of, sql_name
from recsys.new.questions import Question, typed
from recsys.new.sample import read_sample
from recsys.new.source import quoting
from recsys.new.statistics import mean
from recsys.new.value_marks import Marks

LARGEST = 1 << 30  # bytes; side tables are held in memory
FEW_KEYS = 50  # among which values may differ by chance
KNOWN_KEYS = 0.9  # share of the rows' values that the table has to know
JOINED = ("csv", "parquet", "json", "jsonl")  # formats of side tables, by their suffix


@dataclass
class Side:
    """A side table, joined on `key`.

    file: relative to data.root
    file_key: the name of the key in the file
    columns: what it adds, under names that the rows do not have
    names: name here -> name in the file
    options: how its text is read
    why: why it is joined
    keys: the values of the key in the sample
    """

    file: str
    key: str
    file_key: str
    columns: list[Column]
    names: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    keys: pl.Series | None = None

    @property
    def has_features(self) -> bool:
        """Whether one of its columns makes a feature."""
        features = self.features()
        return bool(features.dense or features.sparse)

    def joined(self, c: Column, key: Column) -> Column:
        """Return one of its columns as a column of the rows. key: the column of the rows"""
        assert self.keys is not None
        table = pl.DataFrame({"key": self.keys.cast(pl.String), c.name: c.values})
        rows = pl.DataFrame({"key": key.values.cast(pl.String)})
        return column_of(rows.join(table, on="key", how="left", maintain_order="left")[c.name], Marks())

    def join(self) -> dict[str, Any]:
        """Return an entry of `source.joins` with the columns that make features."""
        left_out = {name for name, _ in self.features().left_out}
        names = {new: old for new, old in self.names.items() if new not in left_out}
        return {"file": self.file, "key": self.key, "columns": self._names(names), **self.options}

    def _names(self, names: dict[str, str]) -> dict[str, str]:
        return {self.key: self.file_key} | names if self.key != self.file_key else names

    def features(self) -> Features:
        """Return the features that its columns make."""
        return features_of(self.columns, {}, typed=False)

    def items(self) -> dict[str, Any] | None:
        """Return `items:`, None if no column makes a feature."""
        features = self.features()
        dense = {
            f.name: f.settings | _dense(features, f.settings) for f in features.dense if "cyclic" not in f.settings
        }
        sparse = {f.name: f.settings for f in features.sparse}
        used = {f.settings.get("column", f.name) for f in (*features.dense, *features.sparse)}
        if not dense and not sparse:
            return None
        names = self._names({new: old for new, old in self.names.items() if new in used})
        kept = {k: v for k, v in (("dense", dense), ("sparse", sparse)) if v}
        return {"file": self.file, "key": self.key, "columns": names, **self.options, **kept}


def _dense(made: Features, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults that a dense feature of the items needs, since those of the rows may differ."""
    return {k: v for k, v in made.dense_defaults.items() if k not in settings}


def find_sides(
    files: Sequence[Path], root: Path, columns: Sequence[Column]
) -> tuple[list[Side], list[tuple[str, str]], list[Question]]:
    """Return the side tables among `files`, the other files with the reason, and the questions about them."""
    sides: list[Side] = []
    unused: list[tuple[str, str]] = []
    questions: list[Question] = []
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
        elif isinstance(side, Side) and (twin := next((s for s in sides if _are_parts(s, side)), None)) is not None:
            side = f"it has the columns of {twin.file}; write both into one file"
        if isinstance(side, str):
            unused.append((name, f"not joined: {side}"))
            continue
        sides.append(side)
        taken |= set(side.names)
    return sides, unused, questions


def _are_parts(one: Side, another: Side) -> bool:
    """Return True for files of one name and the same columns in two folders."""
    same = Path(one.file).name == Path(another.file).name and one.key == another.key
    return same and len(one.columns) == len(another.columns) and one.options == another.options


def _side(f: Path, name: str, columns: Sequence[Column], taken: set[str]) -> Side | str | Question:
    """Return a side table, the reason why the file is not one, or the question whether it names the positive rows.

    Args:
        f: the file.
        name: its path relative to data.root.
        columns: the columns of the rows.
        taken: the names that columns of the table cannot have.
    """
    layout = layout_of(f)
    if f.stat().st_size > LARGEST:
        return f"it has more than {LARGEST >> 30} GiB, and side tables are held in memory"
    if layout.format not in JOINED:
        return f"a side table has to be CSV, Parquet, JSON lines or a JSON object, not {layout.format}"
    if layout.maps_keys:
        return _json_side(f, name, columns, taken) or "its keys are the values of no column of the rows"
    dialect = layout.dialect
    named = dialect is None or dialect.header or layout.format == "jsonl"
    if not named and dialect is not None:
        layout.columns = dialect.columns = [f"{f.stem}_{i}" for i in range(1, dialect.width + 1)]
    side_columns, marks = columns_of(read_sample([f], layout).frame)
    _read_decimal_commas(side_columns, marks)
    problems: list[str] = []
    for c in side_columns:
        c.name, raw_name = _plain(c.name), c.name
        key = _key(c, f, columns, named=named)
        if key is not None and len(side_columns) > 1 and _names_some_rows(key, c, f):
            share = f"{_known(key, c):.0%}".replace("%", " %")
            text = f"{name} has {share} of the rows, by {key.name}: are they the positive ones?"
            return Question(text, "no", (typed("label", name),))
        if key is None or (why := _why_no_key(key, c)):
            problems += [] if key is None else [f"{c.name} {why}"]
            c.name = raw_name
            continue
        if key.kind == "number":
            key.kind, key.reason = "id", f"it is the key of {f.name}"
        unnamed = set()  # such as the index of pandas
        if dialect is not None and dialect.renamed:
            unnamed = set(dialect.columns) - set(fields(dialect.first, dialect))
        added = [other for other in side_columns if other is not c and other.name not in unnamed]
        _set_aliases(added, key, named=named)
        names = _rename(added, f, taken)
        by_suffix = SIDE_FORMATS.get(f.suffix, "csv")  # the reader's choice, unless `format` says another one
        options = {} if by_suffix == layout.format else {"format": layout.format}
        options |= _options(layout, marks, added) | ({} if named else {"names": layout.columns})
        why = f"{_known(key, c):.0%} of the values of {key.name} are in it".replace("%", " %")
        return Side(name, key.name, raw_name, added, names, options, why, c.values)
    if not named:
        return "it has no header, and none of its columns holds the values of an id of the rows"
    return _why_no_side(side_columns, columns, problems)


def _key(side: Column, file: Path, columns: Sequence[Column], *, named: bool) -> Column | None:
    """Return the column of the rows that a side table's column may join: by its name, its values or its meaning."""
    if not named:
        return _key_by_values(side, file, columns)
    key = next((c for c in columns if c.name == side.name), None)
    if key is not None:
        return key
    return _key_by_values(side, file, columns) if words(side.name) == ["id"] else _key_by_meaning(side, columns)


def _set_aliases(columns: Sequence[Column], key: Column, *, named: bool) -> None:
    """Take ids that differ in all rows of a side table for other names of its key."""
    for c in columns:
        is_id = c.kind == "id" or (c.kind == "number" and c.is_whole and not named)
        if is_id and c.distinct == c.rows > FEW_KEYS:
            c.kind, c.reason = "row id", f"each {key.name} has its own value, as under another name"


def _rename(columns: Sequence[Column], file: Path, taken: set[str]) -> dict[str, str]:
    """Give the columns of a side table names that the rows do not have, and return new name -> name in the file."""
    names = {}
    for c in columns:
        new, old = _plain(c.name), c.name
        new = new if new not in taken else f"{file.stem}_{new}"
        c.name, c.values, names[new] = new, c.values.alias(new), old
    return names


def _why_no_side(side_columns: Sequence[Column], columns: Sequence[Column], problems: Sequence[str]) -> str:
    """Return why a file cannot be a side table. problems: why its columns that the rows have cannot be keys"""
    side_names, names = {c.name for c in side_columns}, {c.name for c in columns}
    if len(side_names & names) >= SHARED * len(side_names | names):
        differ = ", ".join(sorted(side_names ^ names)[:5])
        hint = f"add it to source.files and {differ} to source.optional_columns"
        return f"not all files have {differ}; if it holds rows, {hint}"
    return "; ".join(problems[:3]) or "it has no column of the same name as one of the rows"


def _read_decimal_commas(columns: Sequence[Column], marks: Marks) -> None:
    """Let SQL read the numbers of a table that writes 7,94: `source.decimal` is that of the rows."""
    if marks.decimal == ".":
        return
    for c in columns:
        if c.kind == "number" and c.sql is None and c.values.dtype == pl.String:
            plain_ = "REPLACE({}, '.', '')" if marks.thousands == "." else "{}"
            c.sql = f"TRY_CAST(REPLACE({plain_}, ',', '.') AS DOUBLE)"


def _key_by_values(side: Column, file: Path, columns: Sequence[Column]) -> Column | None:
    """Return the user or the item of the rows if a column without a name has its values.

    Numbers from 1 on may be those of users and of items, so the file's name has to say which. If the table lacks one
    of the rows' numbers, the rows may count from 1 on while the table has numbers of its own.
    """
    kinds = {w.removesuffix("s") for w in words(file.name)} | set(words(file.name))
    for c in columns:
        named = kinds & {*{"user": USERS, "item": ITEMS}.get(c.role, ()), *words(c.name)}
        certain = c.numbers is None or (named and _known(c, side) == 1)
        if c.role in ("user", "item") and certain and not _why_no_key(c, side):
            return c
    return None


def _key_by_meaning(side: Column, columns: Sequence[Column]) -> Column | None:
    """Return the user or the item of the rows if the name of the side table's column says that it identifies them."""
    for c in columns:
        among = {"user": USERS, "item": ITEMS}.get(c.role, ())
        if names_an_id_of(side.name, among) and not _why_no_key(c, side):
            return c
    return None


def _why_no_key(key: Column, side: Column) -> str:
    """Return why `key` cannot join a side table on its column `side`; an empty text if it can."""
    if key.role == "label":
        return "is the label"
    if key.kind == "time" or key.values.dtype.is_nested() or (key.kind == "number" and not key.is_whole):
        return "holds times, lists or fractions, which are no keys"
    if side.values.n_unique() < side.values.len():
        return "is not unique in it"
    if (known := _known(key, side)) < KNOWN_KEYS:
        return f"has only {known:.0%} of the values of the rows".replace("%", " %")
    return ""


def _names_some_rows(key: Column, side: Column, file: Path) -> bool:
    """Return True for a file of outcomes, such as clicks.csv: it has the keys of some rows, each once."""
    if key.kind != "row id" or side.values.n_unique() < side.values.len() or _known(side, key) < KNOWN_KEYS:
        return False
    named = {form for word in words(file.stem) for form in (word, word.removesuffix("s"), word.removesuffix("es"))}
    return bool(named & (OUTCOMES | {*LABELS, *EVENT_POSITIVES})) and _known(key, side) < KNOWN_KEYS


@dataclass
class Outcomes:
    """The label that a file of some of the rows makes: these rows are positive.

    label: the column of the label
    join: the entry of `source.joins` that reads the file
    sql: the SQL that makes the label of the joined column
    """

    label: Column
    join: dict[str, Any]
    sql: str


def outcomes_of(file: Path, name: str, columns: Sequence[Column]) -> Outcomes:
    """Return the label that a file of outcomes makes. Raises UserError if it has no key of the rows, or only that."""
    layout = layout_of(file)
    side_columns, marks = columns_of(read_sample([file], layout).frame)
    by_name = {c.name: c for c in columns}
    side = next((c for c in side_columns if c.name in by_name and _names_some_rows(by_name[c.name], c, file)), None)
    if side is None or len(side_columns) < 2:
        raise UserError(f"label={name}: the file must have the key of its rows, each once, and another column")
    label_name, value_column = f"in_{file.stem}", next(c for c in side_columns if c is not side and not c.missing)
    given = by_name[side.name].values.cast(pl.String).is_in(side.values.cast(pl.String).implode())
    joined = f"{file.stem}_{value_column.name}"
    join = {"file": name, "key": side.name, "columns": {joined: value_column.name}} | _options(
        layout, marks, [value_column]
    )
    return Outcomes(column_of(given.alias(label_name), Marks()), join, f"{sql_name(joined)} IS NOT NULL")


def _plain(name: str) -> str:
    head, colon, kind = name.rpartition(":")
    return head if colon and kind in ("token", "float", "token_seq", "float_seq") else name


def _known(key: Column, side: Column) -> float:
    """Return the share of the values of `key` that the side table has."""
    values = key.values.drop_nulls().cast(pl.String).unique()
    return mean(values.is_in(side.values.drop_nulls().cast(pl.String).implode()))


def _options(layout: Layout, marks: Marks, columns: Sequence[Column]) -> dict[str, Any]:
    dialect = layout.dialect
    if dialect is None:
        return {}
    options: dict[str, Any] = {} if dialect.separator == "," else {"separator": dialect.separator}
    if dialect.quote != '"':
        options["quote"] = dialect.quote
    options |= quoting(dialect)
    options |= {
        k: v
        for k, v in (("encoding", dialect.encoding), ("comment", dialect.comment), ("strip", dialect.strip))
        if v and v != "utf-8"
    }
    if marks.null_values:
        options["null_values"] = marks.null_values
    if nulls_by_column := {c.name: c.nulls for c in columns if c.nulls}:
        options["column_null_values"] = nulls_by_column
    return options


def _json_side(f: Path, name: str, columns: Sequence[Column], taken: set[str]) -> Side | None:
    """Return the side table of a JSON object {key: value or list}; None if the keys are values of no column of ids."""
    with f.open(encoding="utf-8") as raw:
        table: dict[str, Any] = parse_json(raw.read())
    keys = Column("key", pl.Series("key", list(table), dtype=pl.String))
    ids = [c for c in columns if c.kind in ("id", "row id", "category")]
    best = max(ids, key=lambda c: (c.role == "item", _known(c, keys)), default=None)
    if best is None or _known(best, keys) < KNOWN_KEYS:
        return None
    new = f.stem.rpartition("2")[2] or "attributes"
    new = new if new.isidentifier() and new not in taken else f"{f.stem}_value"
    lists = any(isinstance(v, list) for v in table.values())
    values = [[str(x) for x in v] if isinstance(v, list) else [str(v)] for v in table.values()]
    series = pl.Series(new, values if lists else [v[0] for v in values])
    [column], _ = columns_of(series.to_frame())
    return Side(
        name, best.name, "key", [column], {new: "value"}, {}, f"its keys are the values of {best.name} (a guess)"
    )
