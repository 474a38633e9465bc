"""Find lists whose elements are the rows: events of sessions, parallel lists, and impressions with their clicks.

Rows that source.explode cannot make, such as JSON objects as text, are refused with a command that writes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl

from recsys.base.errors import NeedsAnswer
from recsys.data.features.blocks import ELEMENT, LINE, LIST, numbered
from recsys.data.raw.byte_ranges import ALL, WHOLE
from recsys.data.raw.nested import explode_blocks
from recsys.new.column_kinds import column_of
from recsys.new.known_names import ITEMS, LABELS, RATINGS, SESSIONS, USERS, names_an_id_of, rank_of, words
from recsys.new.layout import Layout
from recsys.new.propose_features import sql_name
from recsys.new.questions import Answers
from recsys.new.roles import counts_up
from recsys.new.sample import thinned
from recsys.new.statistics import mean
from recsys.new.value_marks import Marks
from recsys.schema.data_schema import SourceConfig

MOSTLY_LISTS = 0.8  # of the rows have a list, if its elements are the rows
MOST_ROWS = 400_000  # of the sample, after it is exploded
SEPARATORS = (" ", "|", ";", ",")
TOKENS = r"^\S+-[01]( \S+-[01])*$"  # MIND: N55689-1 N35729-0
LISTS_OF_ITEMS = ("items", "events", "history", "sequence", "seq", "list", "basket", "clicks", "views", "aids", "itens")
OBJECT = r'^\s*\{\s*"'
FIRST_ROWS = 1000  # that are looked at for rows within values
MOSTLY_WITHIN = 0.9  # of these rows have an object, or chosen items that were shown
READERS = {"parquet": "pl.read_parquet('{}')", "jsonl": "pl.read_ndjson('{}')"}
MOST_NAMED = 20  # columns whose names stand in a command


@dataclass
class Exploded:
    """Rows that are elements of lists.

    frame: the rows, under the names of the YAML
    settings: source.explode
    elements: the columns whose values differ within a raw row
    why: why elements are rows
    rename: new name -> name in the file
    derive: columns that SQL makes of the elements
    """

    frame: pl.DataFrame
    settings: Any
    elements: list[str]
    why: str
    rename: dict[str, str] = field(default_factory=dict)
    derive: dict[str, str] = field(default_factory=dict)


def explode(frame: pl.DataFrame, layout: Layout, answers: Answers) -> Exploded | None:
    """Return the rows if they are elements of lists; None if each raw row is a row."""
    asked = answers.label
    whole = [n for n, dtype in frame.schema.items() if not isinstance(dtype, pl.List | pl.Array)]
    if (tokens := next((n for n in whole if _are_tokens(frame[n])), None)) is not None:
        return _of_tokens(frame, layout, tokens)
    lists = [n for n, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    given = answers.item in lists  # the user says that an element of a list is the item
    if asked in whole or (not given and any(_says_row(frame[n]) for n in whole if n != answers.user)):
        return None
    kinds: tuple[Callable[[pl.DataFrame, list[str], list[str]], tuple[Any, str] | None], ...]
    kinds = (_of_objects, _parallel, _parallel_text, _single)
    guess = next(filter(None, (kind(frame, lists, whole) for kind in kinds)), None)
    named = asked in (None, "auto") or any(n == asked or n.endswith(f".{asked}") for n in frame.columns)
    if guess is None or not named:
        return None
    settings, why = guess
    exploded = _exploded(frame, settings, why)
    if any(names_an_id_of(n, (*USERS, *SESSIONS)) for n in whole):
        exploded.frame = exploded.frame.drop(LIST)
    prefix = f"{settings}." if isinstance(settings, str) else "."
    short = {n: n.removeprefix(prefix) for n in exploded.frame.columns if n.startswith(prefix)}
    taken = set(exploded.frame.columns)
    short = {n: new for n, new in short.items() if new not in taken and "." not in new}
    exploded.frame, exploded.rename = exploded.frame.rename(short), {new: n for n, new in short.items()}
    exploded.elements = [short.get(n, n) for n in exploded.elements]
    return exploded


def _says_row(values: pl.Series) -> bool:
    """Return True if a column names an item or a label, so that a raw row is a row, and its lists are features."""
    name, few = values.name, 1 < values.drop_nulls().n_unique() <= 21
    return names_an_id_of(name, ITEMS) or (few and rank_of(name, (*LABELS, *RATINGS)) is not None)


def _are_tokens(values: pl.Series) -> bool:
    if values.dtype != pl.String:
        return False
    head = values.drop_nulls().head(2000)
    return head.len() > 1 and mean(head.str.contains(" ")) > 0.5 and mean(head.str.contains(TOKENS)) > 0.95


def _of_tokens(frame: pl.DataFrame, layout: Layout, column: str) -> Exploded:
    """Return the rows of impressions `N55689-1 N35729-0`: items, and whether each was clicked."""
    if layout.dialect is not None and not layout.dialect.header and layout.format == "csv":
        names = _names(frame, column)
        layout.columns = list(names.values())
        layout.dialect.reasons["columns"] = "the file has no header; names by the content (a guess)"
        frame, column = frame.rename(names), names[column]
    exploded = _exploded(frame, {column: " "}, "each value is an item, and -1 if it was clicked")
    rest = exploded.frame.drop(LIST)
    item = "item" if "item" not in rest.columns else f"{column}_item"
    clicked = "clicked" if "clicked" not in rest.columns else f"{column}_clicked"
    dashes = rest[column].str.count_matches("-").max()
    quoted = sql_name(column)
    first = f"SPLIT_PART({quoted}, '-', 1)" if dashes == 1 else f"LEFT({quoted}, -2)"
    exploded.derive = {item: first, clicked: f"RIGHT({quoted}, 1)"}
    exploded.frame = rest.with_columns(pl.sql_expr(sql).alias(n) for n, sql in exploded.derive.items()).drop(column)
    exploded.elements = [item, clicked]
    return exploded


def _names(frame: pl.DataFrame, impressions: str) -> dict[str, str]:
    """Return names for the columns of impressions without a header."""
    names: dict[str, str] = {}
    for n in frame.columns:
        c = column_of(frame[n], Marks())
        kinds = {"row id": "impression", "time": "timestamp", "list": "history", "id": "user", "category": "user"}
        kind = "row id" if counts_up(c) else c.kind  # again from 1 on in each file
        name = "impressions" if n == impressions else kinds.get(kind, n)
        spaced = name in ("user", "impression") and " " in "".join(frame[n].drop_nulls().head(50).cast(pl.String))
        name = "history" if spaced else name
        names[n] = name if name not in names.values() else n
    return names


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


def _of_objects(frame: pl.DataFrame, lists: Sequence[str], _: Sequence[str]) -> tuple[Any, str] | None:
    """Lists of objects: the one with most elements."""
    paths, names = {n.rpartition(".")[0]: n for n in lists if "." in n}, set(frame.columns)
    sizes = {path: mean(frame[n].list.len().fill_null(0)) for path, n in paths.items() if path not in names}
    best = max(sizes, key=lambda path: sizes[path], default=None)
    if best is not None and mean(frame[paths[best]].list.len().fill_null(0) > 0) < MOSTLY_LISTS:
        return None  # rows without a list would be lost
    return None if best is None else (best, "each element of these lists is a row")


def _parallel(frame: pl.DataFrame, lists: Sequence[str], _: Sequence[str]) -> tuple[Any, str] | None:
    """Lists of the same length in every row."""
    return _same_lengths({n: frame[n].list.len().fill_null(0) for n in lists})


def _parallel_text(frame: pl.DataFrame, _: Sequence[str], whole: Sequence[str]) -> tuple[Any, str] | None:
    """Text with the same number of separated values in every row."""
    schema = frame.schema  # polars makes another one at each call
    texts = [n for n in whole if schema[n] == pl.String]
    for separator in SEPARATORS:
        counts = {n: frame[n].str.strip_chars().str.count_matches(separator, literal=True).fill_null(0) for n in texts}
        several = {n: c for n, c in counts.items() if mean(c > 0) > 0.5}
        if (same := _same_lengths(several)) is not None:
            return dict.fromkeys(same[0], separator), same[1]
    return None


def _same_lengths(lengths: dict[str, pl.Series]) -> tuple[list[str], str] | None:
    groups: dict[bytes, list[str]] = {}
    for name, lengths_of_name in lengths.items():
        groups.setdefault(lengths_of_name.to_numpy().tobytes(), []).append(name)
    for same in groups.values():
        if len(same) > 1 and lengths[same[0]].n_unique() > 2:
            return same, f"{same[0]} and {same[1]} have the same length in every row"
    return None


def _single(frame: pl.DataFrame, lists: Sequence[str], whole: Sequence[str]) -> tuple[Any, str] | None:
    """The only list, if its name says that it holds items."""
    why = "its elements are the items of a row, in order"
    schema = frame.schema
    if lists:
        dtype = schema[lists[0]]
        several = len(lists) > 1 or (isinstance(dtype, pl.List) and dtype.inner.is_float())
        return None if several or not _names_items(lists[0]) else (lists[0], why)
    texts = [column_of(frame[n], Marks()) for n in whole if schema[n] == pl.String and _names_items(n)]
    texts = [c for c in texts if c.kind == "list"]
    return ({texts[0].name: texts[0].split or ","}, why) if len(texts) == 1 else None


def _names_items(name: str) -> bool:
    return any(w in LISTS_OF_ITEMS or (w.endswith("s") and w[:-1] in ITEMS) for w in words(name))


def reader(file: Path, layout: Layout) -> str:
    """Return the call of polars that reads a file, under the names of the layout if they are few."""
    if layout.format in READERS or layout.dialect is None:
        return READERS.get(layout.format, "pl.read_csv('{}')").format(file)
    given = [f"'{file}'"]
    if (separator := layout.dialect.separator.strip(" ") or " ") != ",":
        given.append("separator=" + repr(separator))
    if not layout.dialect.header:
        given.append("has_header=False")
        if len(layout.columns) <= MOST_NAMED:
            given.append(f"new_columns={layout.columns}")
    return f"pl.read_csv({', '.join(given)})"


def check_rows_within(frame: pl.DataFrame, file: Path, layout: Layout) -> None:
    """Raise NeedsAnswer, with the command that writes the rows, if a value of a row holds rows itself."""
    read = reader(file, layout)
    for name in frame.select(pl.col(pl.String)).columns:
        head = frame[name].drop_nulls().head(FIRST_ROWS)
        if head.len() and mean(head.str.contains(OBJECT)) > MOSTLY_WITHIN:
            objects = f"pl.DataFrame([json.loads(v) for v in f['{name}']]).rename(lambda n: '{name}_' + n)"
            rows = f"pl.concat([f.drop('{name}'), {objects}], how='horizontal')"
            command = _command(rows, f"import json, polars as pl; f = {read}")
            why = f"{name} holds JSON objects as text; write their keys as columns: {command}"
            raise NeedsAnswer(f"{file}: {why}; or keep the text by label=NAME")
    lists = [n for n, dtype in frame.schema.items() if isinstance(dtype, pl.List) and not dtype.inner.is_nested()]
    for shown, chosen in ((a, b) for a in lists for b in lists if a != b):
        if _are_chosen(frame, shown, chosen):
            rows = f"{read}.with_row_index('impression').explode('{shown}')"
            label = f"clicked=pl.col('{shown}').is_in(pl.col('{chosen}'))"
            command = _command(f"{rows}.with_columns({label}).drop('{chosen}')")
            why = f"{chosen} has some of the items of {shown}; write a row for each item that was shown: {command}"
            raise NeedsAnswer(f"{file}: {why}; or keep the lists by label=NAME")


def _command(rows: str, first: str = "import polars as pl") -> str:
    return f"python -c \"{first}; {rows}.write_parquet('rows.parquet')\""


def _are_chosen(frame: pl.DataFrame, shown: str, chosen: str) -> bool:
    """Return True if the lists of `chosen` hold some elements of the longer lists of `shown` in the same rows."""
    both = frame.select(shown, chosen).drop_nulls().head(FIRST_ROWS)
    if not both.height or both[shown].dtype != both[chosen].dtype:
        return False
    within = both[chosen].list.set_difference(both[shown]).list.len() == 0
    lengths = [mean(both[name].list.len()) for name in (shown, chosen)]
    return mean(within) > MOSTLY_WITHIN and lengths[1] >= 0.5 and lengths[0] > 2 * lengths[1]
