"""Find rows that are hidden in values: lists of shown items with lists of clicked ones, and JSON objects as text."""

from pathlib import Path

import polars as pl

from recsys.errors import NeedsAnswer
from recsys.new.layout import Layout
from recsys.new.statistics import mean

MOST_NAMED = 20  # columns whose names stand in a command
ROWS = 1000  # that are looked at
MOSTLY = 0.9
OBJECT = r'^\s*\{\s*"'


READERS = {"parquet": "pl.read_parquet('{}')", "jsonl": "pl.read_ndjson('{}')"}


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
        head = frame[name].drop_nulls().head(ROWS)
        if head.len() and mean(head.str.contains(OBJECT)) > MOSTLY:
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
    both = frame.select(shown, chosen).drop_nulls().head(ROWS)
    if not both.height or both[shown].dtype != both[chosen].dtype:
        return False
    within = both[chosen].list.set_difference(both[shown]).list.len() == 0
    lengths = [mean(both[name].list.len()) for name in (shown, chosen)]
    return mean(within) > MOSTLY and lengths[1] >= 0.5 and lengths[0] > 2 * lengths[1]
