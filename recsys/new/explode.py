"""Find lists whose elements are the rows: events of sessions, parallel lists, and lists of items.

Values that hold rows in another way, such as JSON objects as text, are refused with the way to convert them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.errors import NeedsAnswer
from recsys.data.features.blocks import ELEMENT, LINE, LIST, numbered
from recsys.data.raw.byte_ranges import ALL, WHOLE
from recsys.data.raw.nested import explode_blocks
from recsys.new.column_kinds import ListKind
from recsys.new.find_kinds import column_of
from recsys.new.known_names import NAMES, names_an_id_of, rank_of, words
from recsys.new.questions import Answers
from recsys.new.raw_bytes import thinned
from recsys.new.statistics import mean
from recsys.new.value_marks import Marks
from recsys.schema.source_schema import SourceConfig

MAX_ROWS = 400_000  # of the sample, after it is exploded
MAX_VALUES = 21  # of a label in a row, whose lists are then features
MIN_LISTS = 0.8  # share of the rows that have a list; rows without one are lost
WITHIN = {  # texts that hold rows -> how to write them
    r'^\s*\{\s*"': "holds JSON objects as text; write their keys as columns, such as by polars' str.json_decode",
    r"^\S+-[01]( \S+-[01])*$": "holds items and clicks, such as N1-1; write a row of each item, with a column of clicks",
}


@dataclass
class Exploded:
    """Rows that are elements of lists."""

    frame: pl.DataFrame  # the rows, under the names of the YAML
    settings: Any  # source.explode
    elements: list[str]  # the columns whose values differ within a raw row
    why: str  # why elements are rows
    rename: dict[str, str] = field(default_factory=dict)  # new name -> name in the file


def explode(frame: pl.DataFrame, answers: Answers) -> Exploded | None:
    """Return the rows if they are elements of lists; None if each raw row is a row."""
    asked, schema = answers.label, frame.schema  # polars makes another schema at each call
    whole = [n for n, dtype in schema.items() if not isinstance(dtype, pl.List | pl.Array)]
    lists = [n for n, dtype in schema.items() if isinstance(dtype, pl.List)]
    given = answers.item in lists  # the user says that an element of a list is the item
    if asked in whole or (not given and any(_says_row(frame[n]) for n in whole if n != answers.user)):
        return None
    named = asked in (None, "auto") or any(n == asked or n.endswith(f".{asked}") for n in frame.columns)
    guess = _lists_of_rows(frame, lists, [n for n in whole if schema[n] == pl.String])
    if guess is None or not named:
        return None
    settings, why = guess
    exploded = _exploded(frame, settings, why)
    if any(names_an_id_of(n, (*NAMES.users, *NAMES.sessions)) for n in whole):
        exploded.frame = exploded.frame.drop(LIST)
    prefix = f"{settings}." if isinstance(settings, str) else "."
    taken = exploded.frame.columns
    short = {n: n.removeprefix(prefix) for n in taken if n.startswith(prefix)}
    short = {n: new for n, new in short.items() if new not in taken and "." not in new}
    exploded.frame, exploded.rename = exploded.frame.rename(short), {new: n for n, new in short.items()}
    exploded.elements = [short.get(n, n) for n in exploded.elements]
    return exploded


def check_rows_within(frame: pl.DataFrame, file: Path) -> None:
    """Raise NeedsAnswer if most values of a column hold rows themselves."""
    for name in frame.select(pl.col(pl.String)).columns:
        head = frame[name].drop_nulls().head(1000)
        for pattern, hint in WITHIN.items() if head.n_unique() > 2 else ():
            if mean(head.str.contains(pattern)) > 0.9:
                raise NeedsAnswer(f"{file}: {name} {hint}; or keep the text by label=NAME")


def _says_row(values: pl.Series) -> bool:
    """Return True if a column names an item or a label, so that a raw row is a row, and its lists are features."""
    name, few = values.name, 1 < values.drop_nulls().n_unique() <= MAX_VALUES
    return names_an_id_of(name, NAMES.items) or (few and rank_of(name, (*NAMES.labels, *NAMES.ratings)) is not None)


def _exploded(frame: pl.DataFrame, settings: Any, why: str) -> Exploded:
    """Return the rows of the sample, as the reader makes them."""
    source = SourceConfig(explode=settings)
    names = {settings} if isinstance(settings, str) else set(settings)
    elements = [n for n in frame.columns if not names.isdisjoint(accumulate(n.split("."), "{}.{}".format))]
    one, file = elements[0], Path("sample")
    lengths = frame[one].str.count_matches(" ") + 1 if frame.schema[one] == pl.String else frame[one].list.len()
    if (total := int(lengths.sum() or 0)) > MAX_ROWS:
        frame = thinned(frame, max(frame.height * MAX_ROWS // total, 100))
    blocks = list(explode_blocks(source, iter([numbered(file, frame, 1)]), WHOLE, ALL))
    return Exploded(pl.concat(b.frame for b in blocks).drop(LINE, ELEMENT), settings, elements, why)


def _lists_of_rows(frame: pl.DataFrame, lists: Sequence[str], texts: Sequence[str]) -> tuple[Any, str] | None:
    """Return source.explode and the reason if elements of lists are rows.

    They are lists of objects, lists or texts of the same length in every row, or the only list if its name says that it
    holds items.
    """
    paths, names = {n.rpartition(".")[0]: n for n in lists if "." in n}, set(frame.columns)
    lengths = {n: frame[n].list.len().fill_null(0) for n in lists}
    sizes = {path: mean(lengths[n]) for path, n in paths.items() if path not in names}
    best = max(sizes, key=lambda path: sizes[path], default=None)
    if best is not None and mean(lengths[paths[best]] > 0) >= MIN_LISTS:
        return best, "each element of these lists is a row"
    if (same := _same_lengths(lengths)) is not None:
        return same
    for separator in (" ", "|", ";", ","):
        counts = {n: frame[n].str.strip_chars().str.count_matches(separator, literal=True).fill_null(0) for n in texts}
        if (same := _same_lengths({n: c for n, c in counts.items() if mean(c > 0) > 0.5})) is not None:
            return dict.fromkeys(same[0], separator), same[1]

    def names_items(name: str) -> bool:
        return any(w in NAMES.lists_of_items or (w.endswith("s") and w[:-1] in NAMES.items) for w in words(name))

    why = "its elements are the items of a row, in order"
    if lists:
        dtype = frame[lists[0]].dtype
        is_vector = isinstance(dtype, pl.List) and dtype.inner.is_float()
        return (lists[0], why) if len(lists) == 1 and not is_vector and names_items(lists[0]) else None
    kinds = [(n, column_of(frame[n], Marks()).kind) for n in texts if names_items(n)]
    several = [(n, kind) for n, kind in kinds if isinstance(kind, ListKind)]
    return ({several[0][0]: several[0][1].separator}, why) if len(several) == 1 else None


def _same_lengths(lengths: dict[str, pl.Series]) -> tuple[list[str], str] | None:
    groups: dict[bytes, list[str]] = {}
    for name, lengths_of_name in lengths.items():
        groups.setdefault(lengths_of_name.to_numpy().tobytes(), []).append(name)
    for same in groups.values():
        if len(same) > 1 and lengths[same[0]].n_unique() > 2:
            return same, f"{same[0]} and {same[1]} have the same length in every row"
    return None
