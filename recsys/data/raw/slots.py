"""Read lines of `slot:value` fields, as PaddleRec and many logs of ads write them: `label:1 user:7 item:3 item:9`.

A slot is a column, and the values of a slot that occurs several times in a line are joined by `source.separator`. A
slot whose name is a number, such as 210, is the column f210. Fields without a slot come first, in the same number in
each line; their names are `source.columns` or, without them, field_1, field_2 and so on. A line that lacks a slot has
a missing value. Values are text, as in CSV.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, Block, set_apart
from recsys.data.raw.byte_ranges import ALL, FileRange, Projection
from recsys.data.raw.dialect import head_lines, whole_lines
from recsys.data.raw.raw_format import TextFormat
from recsys.data.raw.svmlight import HEAD_LINES, TEXT, column, pivoted
from recsys.data.raw.text import read_csv
from recsys.schema.source_schema import SourceConfig

FIELD = r"^([^:]+):(.*)$"


def parts(line: str, separator: str) -> list[str]:
    """Return the fields of a line."""
    return line.split() if separator == " " else [p for p in line.strip().split(separator) if p]


def slots(lines: list[str], separator: str) -> tuple[int, list[str]]:
    """Return how many fields of most lines have no slot, and the names of the slots in the order of their places."""
    places: dict[str, None] = {}
    leading = Counter[int]()
    for line in lines:
        fields = parts(line, separator)
        leading[next((i for i, f in enumerate(fields) if ":" in f), len(fields))] += 1
        places |= dict.fromkeys(f.partition(":")[0] for f in fields if ":" in f)
    names = list(places)
    if all(n.isdigit() for n in names):
        names.sort(key=int)
    return (leading.most_common(1)[0][0] if leading else 0), names


def columns(source: SourceConfig, file: Path) -> tuple[list[str], list[str]]:
    """Return the names of the fields without a slot, and the slots. Raises UserError if a file has no slots."""
    lines = [line.decode() for line in head_lines(whole_lines(source), file)[:HEAD_LINES]]
    leading, names = slots(lines[: max(len(lines) - 1, 1)], source.separator)  # the last one may be cut
    if not names:
        raise UserError(f"{file}: no line holds slot:value, as data.source.format=slots needs")
    own = list(source.columns) or [f"field_{i}" for i in range(1, leading + 1)]
    if len(own) != leading:
        what = f"names {len(own)} fields, and the lines begin with {leading} without a slot"
        raise UserError(f"{file}: data.source.columns {what}; name these")
    return own, names


class Slots(TextFormat):
    """Lines of slot:value."""

    name = "slots"

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        own, names = columns(source, file)
        return pl.DataFrame(schema=dict.fromkeys([*own, *map(column, names)], pl.String))

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        first_columns, names = columns(source, file)
        wanted = [n for n in names if projection.columns is None or column(n) in projection.columns]
        for block in read_csv(whole_lines(source), file, [TEXT], file_range, ALL):
            text = pl.col(TEXT).str.strip_chars()
            text = text.str.replace_all(r"\s+", " ") if source.separator == " " else text
            fields = text.str.split(source.separator).list.eval(pl.element().filter(pl.element() != ""))
            rows = block.frame.select(LINE, TEXT, parts=fields).with_columns(
                pl.col("parts").list.head(len(first_columns)).alias("first"),
                pl.col("parts").list.slice(len(first_columns)).alias("rest"),
            )
            keys = pl.col("rest").list.eval(pl.element().str.extract(FIELD, 1))
            leading = len(first_columns)
            slotted = pl.col("first").list.eval(pl.element().str.contains(":"))
            unknown = pl.col("keys").list.eval(pl.element().filter(~pl.element().is_in(names)))
            reason = (
                pl.when((pl.col("first").list.len() < leading) | slotted.list.any())
                .then(pl.lit(f"it begins with fewer than {leading} fields without a slot"))
                .when(pl.col("keys").list.eval(pl.element().is_null()).list.any())
                .then(pl.lit("a field is not slot:value"))
                .when(unknown.list.len() > 0)
                .then(pl.format("slot {} is not in the first lines of the file", unknown.list.first()))
            )
            rows = set_apart(block, rows.with_columns(keys=keys), reason)
            first = rows.select(
                LINE, *(pl.col("first").list.get(i).alias(name) for i, name in enumerate(first_columns))
            )
            block.frame = pl.concat([first, _values(rows, wanted, source.separator)], how="horizontal")
            yield block


def _values(rows: pl.DataFrame, wanted: list[str], separator: str) -> pl.DataFrame:
    """Return the values of the slots, a column for each; several values of a line are joined."""
    names = {key: column(key) for key in wanted}
    if not rows.height or not wanted:
        return pl.DataFrame(schema=dict.fromkeys(names.values(), pl.String), height=rows.height)
    values = pl.col("rest").list.eval(pl.element().str.extract(FIELD, 2))
    long = rows.select("keys", values=values).with_row_index("row").explode("keys", "values")
    long = long.filter(pl.col("keys").is_in(wanted) & (pl.col("values") != ""))
    joined = long.group_by("row", "keys", maintain_order=True).agg(pl.col("values").str.join(separator))
    return pivoted(joined, wanted, rows.height).select(pl.col(key).alias(name) for key, name in names.items())
