"""Say what the files beside the rows are: tables of users or items, which a line of YAML joins, or something else."""

from collections.abc import Sequence
from pathlib import Path

from recsys.base.errors import UserError
from recsys.new.column_kinds import Column, mean
from recsys.new.find_kinds import columns_of
from recsys.new.find_layout import layout_of
from recsys.new.known_names import NAMES, RECBOLE, names_an_id_of
from recsys.new.questions import Question
from recsys.new.sample import read_sample
from recsys.new.yaml_text import flow

MIN_KNOWN = 0.9  # share of the rows' values that a side table knows


def describe_sides(
    files: Sequence[Path], root: Path, columns: Sequence[Column]
) -> tuple[list[tuple[str, str]], list[Question]]:
    """Return the files beside the rows, each with what it is and how to join it, and the questions about them."""
    described, questions = list[tuple[str, str]](), list[Question]()
    for f in files:
        name = str(f.relative_to(root)) if f.is_relative_to(root) else str(f)
        try:
            what = _describe(f, name, columns)
        except UserError as e:
            what = str(e)
        if isinstance(what, Question):
            questions.append(what)
            what = "it has some of the rows only"
        described.append((name, what))
    return described, questions


def _describe(f: Path, name: str, columns: Sequence[Column]) -> str | Question:
    """Return what a file is, or the question whether it names the positive rows."""
    layout = layout_of(f)
    if not layout.header:
        return "its columns have no names, so it is not joined; write them into its first line"
    side_columns, _ = columns_of(read_sample([f], layout).frame)
    for c in side_columns:
        key = _key(RECBOLE.sub("", c.name), columns)
        if key is None or key.role == "label" or key.values.dtype.is_nested() or c.values.dtype.is_nested():
            continue
        known, is_unique = mean(key.texts.is_in(c.texts.implode())), c.values.n_unique() == c.values.len()
        if key.kind.is_row_id and is_unique and 0 < known < MIN_KNOWN and len(side_columns) > 1:
            text = f"{name} has {known:.0%} of the rows, by {key.name}: are they the positive ones?"
            guess = "no; if so, write a column into the rows that says it, and type label=COLUMN"
            return Question(text, guess, key="label")
        if is_unique and known >= MIN_KNOWN and layout.joins:
            join: dict[str, object] = {"file": name, "key": key.name}
            join |= {"columns": {key.name: c.name}} if key.name != c.name else {}
            join |= {"separator": layout.separator} if layout.is_csv and layout.separator != "," else {}
            return f"a table of {key.name}; to join it, write under source: {flow({'joins': [join]})}, and its features"
    return "it has other columns than the rows"


def _key(name: str, columns: Sequence[Column]) -> Column | None:
    """Return the column of the rows that a side table's column may join: of its name, or another name of an id."""
    if (key := next((c for c in columns if c.name == name), None)) is not None:
        return key
    among = {"user": NAMES.users, "item": NAMES.items}
    return next((c for c in columns if c.role in among and names_an_id_of(name, among[c.role])), None)
