"""Find lists whose elements are the rows: events of sessions, parallel lists, and impressions with their clicks.

Rows that source.explode cannot make, such as JSON objects as text, are refused with a command that writes them.
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
from recsys.new.column_kinds import ListKind, sql_name
from recsys.new.find_kinds import column_of
from recsys.new.known_names import NAMES, names_an_id_of, rank_of, words
from recsys.new.layouts import Layout
from recsys.new.questions import Answers
from recsys.new.raw_bytes import thinned
from recsys.new.roles import counts_up
from recsys.new.statistics import mean
from recsys.new.value_marks import Marks
from recsys.schema.source_schema import SourceConfig

MOST_ROWS = 400_000  # of the sample, after it is exploded
TOKENS = r"^\S+-[01]( \S+-[01])*$"  # MIND: N55689-1 N35729-0
FIRST_ROWS = 1000  # that are looked at for rows within values
MOSTLY_WITHIN = 0.9  # of these rows have an object, or chosen items that were shown


@dataclass
class Exploded:
    """Rows that are elements of lists."""

    frame: pl.DataFrame  # the rows, under the names of the YAML
    settings: Any  # source.explode
    elements: list[str]  # the columns whose values differ within a raw row
    why: str  # why elements are rows
    rename: dict[str, str] = field(default_factory=dict)  # new name -> name in the file
    derive: dict[str, str] = field(default_factory=dict)  # columns that SQL makes of the elements


def explode(frame: pl.DataFrame, layout: Layout, answers: Answers) -> Exploded | None:
    """Return the rows if they are elements of lists; None if each raw row is a row."""
    asked, schema = answers.label, frame.schema  # polars makes another schema at each call
    whole = [n for n, dtype in schema.items() if not isinstance(dtype, pl.List | pl.Array)]
    if (tokens := next((n for n in whole if _are_tokens(frame[n])), None)) is not None:
        return _of_tokens(frame, layout, tokens)
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


def _says_row(values: pl.Series) -> bool:
    """Return True if a column names an item or a label, so that a raw row is a row, and its lists are features."""
    name, few = values.name, 1 < values.drop_nulls().n_unique() <= 21
    return names_an_id_of(name, NAMES.items) or (few and rank_of(name, (*NAMES.labels, *NAMES.ratings)) is not None)


def _are_tokens(values: pl.Series) -> bool:
    head = values.drop_nulls().head(2000)
    if values.dtype != pl.String or head.len() < 2:
        return False
    return mean(head.str.contains(" ")) > 0.5 and mean(head.str.contains(TOKENS)) > 0.95


def _of_tokens(frame: pl.DataFrame, layout: Layout, column: str) -> Exploded:
    """Return the rows of impressions `N55689-1 N35729-0`: items, and whether each was clicked."""
    if layout.is_csv and not layout.header:
        names: dict[str, str] = {}
        for n in frame.columns:
            c = column_of(frame[n], Marks())
            by_kind = "timestamp" if c.time else "history" if c.kind.is_list else "user" if c.kind.is_code else n
            by_kind = "impression" if c.kind.is_row_id or counts_up(c) else by_kind  # again from 1 on in each file
            name = "impressions" if n == column else by_kind
            spaced = name in ("user", "impression") and " " in "".join(frame[n].drop_nulls().head(50).cast(pl.String))
            name = "history" if spaced else name
            names[n] = name if name not in names.values() else n
        layout.columns = list(names.values())
        layout.reasons["columns"] = "the file has no header; names by the content (a guess)"
        frame, column = frame.rename(names), names[column]
    exploded = _exploded(frame, {column: " "}, "each value is an item, and -1 if it was clicked")
    rest = exploded.frame.drop(LIST)
    item = "item" if "item" not in rest.columns else f"{column}_item"
    clicked = "clicked" if "clicked" not in rest.columns else f"{column}_clicked"
    quoted = sql_name(column)
    first = f"SPLIT_PART({quoted}, '-', 1)" if rest[column].str.count_matches("-").max() == 1 else f"LEFT({quoted}, -2)"
    exploded.derive = {item: first, clicked: f"RIGHT({quoted}, 1)"}
    exploded.frame = rest.with_columns(pl.sql_expr(sql).alias(n) for n, sql in exploded.derive.items()).drop(column)
    exploded.elements = [item, clicked]
    return exploded


def _exploded(frame: pl.DataFrame, settings: Any, why: str) -> Exploded:
    """Return the rows of the sample, as the reader makes them."""
    source = SourceConfig(explode=settings)
    names = {settings} if isinstance(settings, str) else set(settings)
    elements = [n for n in frame.columns if not names.isdisjoint(accumulate(n.split("."), "{}.{}".format))]
    one, file = elements[0], Path("sample")
    lengths = frame[one].str.count_matches(" ") + 1 if frame.schema[one] == pl.String else frame[one].list.len()
    if (total := int(lengths.sum() or 0)) > MOST_ROWS:
        frame = thinned(frame, max(frame.height * MOST_ROWS // total, 100))
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
    if best is not None and mean(lengths[paths[best]] > 0) >= 0.8:  # rows without a list would be lost
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


def check_rows_within(frame: pl.DataFrame, file: Path, layout: Layout) -> None:
    """Raise NeedsAnswer, with the command that writes the rows, if a value of a row holds rows itself."""
    read, problems = layout.polars_call(file), list[str]()
    for name in frame.select(pl.col(pl.String)).columns:
        head = frame[name].drop_nulls().head(FIRST_ROWS)
        if head.len() and mean(head.str.contains(r'^\s*\{\s*"')) > MOSTLY_WITHIN:
            objects = f"pl.DataFrame([json.loads(v) for v in f['{name}']]).rename(lambda n: '{name}_' + n)"
            rows = f"pl.concat([f.drop('{name}'), {objects}], how='horizontal')"
            command = _command(rows, f"import json, polars as pl; f = {read}")
            why = f"{name} holds JSON objects as text; write their keys as columns: {command}"
            problems.append(f"{why}; or keep the text by label=NAME")
    lists = [n for n, dtype in frame.schema.items() if isinstance(dtype, pl.List) and not dtype.inner.is_nested()]
    for shown, chosen in ((a, b) for a in lists for b in lists if a != b and not problems):
        both = frame.select(shown, chosen).drop_nulls().head(FIRST_ROWS)
        if not both.height or both[shown].dtype != both[chosen].dtype:
            continue
        within = both[chosen].list.set_difference(both[shown]).list.len() == 0
        of_shown, of_chosen = (mean(both[name].list.len()) for name in (shown, chosen))
        if mean(within) > MOSTLY_WITHIN and of_chosen >= 0.5 and of_shown > 2 * of_chosen:
            rows = f"{read}.with_row_index('impression').explode('{shown}')"
            label = f"clicked=pl.col('{shown}').is_in(pl.col('{chosen}'))"
            command = _command(f"{rows}.with_columns({label}).drop('{chosen}')")
            why = f"{chosen} has some of the items of {shown}; write a row for each item that was shown: {command}"
            problems.append(f"{why}; or keep the lists by label=NAME")
    if problems:
        raise NeedsAnswer(f"{file}: {problems[0]}")


def _command(rows: str, first: str = "import polars as pl") -> str:
    return f"python -c \"{first}; {rows}.write_parquet('rows.parquet')\""
