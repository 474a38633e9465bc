"""Read lines 'label key:value key:value ... # comment', as SVMlight, LIBSVM and the LETOR data sets write them.

Columns are `label` and the keys of the first lines; a whole number such as 7 is the column f7. A line that lacks a
number has the value 0 there; a line that lacks another key, such as qid, has a missing value. Values are text, as in
CSV.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, Block, set_apart
from recsys.data.raw.byte_ranges import ALL, FileRange, Projection
from recsys.data.raw.dialect import head_lines, whole_lines
from recsys.data.raw.raw_format import TextFormat
from recsys.data.raw.text import read_csv
from recsys.schema.source_schema import SourceConfig

HEAD_LINES = 10_000
LABEL, TEXT = "label", "text"


def column(key: str) -> str:
    """Return the column of a key."""
    return f"f{key}" if key.isdigit() else key


def parts(line: str) -> list[str]:
    """Return the fields of a line."""
    return line.partition("#")[0].split()


def keys(source: SourceConfig, file: Path) -> list[str]:
    """Return the keys of the first lines, whole numbers in ascending order. Raises UserError if there are none."""
    lines = head_lines(whole_lines(source), file)
    found: dict[str, None] = {}
    for line in lines[: max(min(len(lines) - 1, HEAD_LINES), 1)]:  # the last one may be cut
        found |= dict.fromkeys(x.partition(":")[0] for x in parts(line.decode())[1:] if ":" in x)
    if not found:
        raise UserError(f"{file}: no line is 'label key:value key:value ...', as data.source.format=svmlight needs")
    return sorted(found, key=lambda k: (k.isdigit(), int(k) if k.isdigit() else 0))


class SvmLight(TextFormat):
    """Lines of a label and key:value."""

    name = "svmlight"

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        return pl.DataFrame(schema=dict.fromkeys([LABEL, *map(column, keys(source, file))], pl.String))

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        known = keys(source, file)
        wanted = [k for k in known if projection.columns is None or column(k) in projection.columns]
        for block in read_csv(whole_lines(source), file, [TEXT], file_range, ALL):
            text = pl.col(TEXT).str.replace(r"#.*$", "").str.replace_all(r"\s+", " ").str.strip_chars(" ")
            rows = block.frame.select(LINE, TEXT, parts=text.str.split(" ")).with_columns(
                keys=pl.col("parts").list.slice(1).list.eval(pl.element().str.extract(r"^([^:]+):[^:]+$", 1))
            )
            unknown = pl.col("keys").list.eval(pl.element().filter(~pl.element().is_in(known)))
            reason = (
                pl.when(pl.col("keys").list.eval(pl.element().is_null()).list.any())
                .then(pl.lit("a field is not key:value"))
                .when(pl.col("keys").list.n_unique() < pl.col("keys").list.len())
                .then(pl.lit("a key occurs twice"))
                .when(unknown.list.len() > 0)
                .then(pl.format("key {} is not in the first lines of the file", unknown.list.first()))
            )
            rows = set_apart(block, rows, reason)
            label = rows.select(LINE, pl.col("parts").list.get(0).alias(LABEL))
            block.frame = pl.concat([label, _values(rows, wanted)], how="horizontal")
            yield block


def _values(rows: pl.DataFrame, wanted: list[str]) -> pl.DataFrame:
    """Return the values of the keys, a column for each."""
    value = pl.element().str.extract(r":(.*)$", 1)
    names = {key: column(key) for key in wanted}
    if not rows.height or not wanted:
        return pl.DataFrame(schema=dict.fromkeys(names.values(), pl.String), height=rows.height)
    lists = rows.select(keys="keys", values=pl.col("parts").list.slice(1).list.eval(value))
    if lists["keys"].n_unique() == 1:  # all lines have the same keys, as in LETOR
        places = {key: i for i, key in enumerate(lists["keys"][0])}
        take = lambda k: pl.col("values").list.get(places[k]) if k in places else pl.lit(None, pl.String)  # noqa: E731
        return lists.select(_or_0(take(key), key).alias(name) for key, name in names.items())
    long = lists.with_row_index("row").explode("keys", "values").filter(pl.col("keys").is_in(wanted))
    return pivoted(long, wanted, rows.height).select(_or_0(pl.col(k), k).alias(name) for k, name in names.items())


def pivoted(long: pl.DataFrame, wanted: list[str], height: int) -> pl.DataFrame:
    """Return a column for each key, of `height` rows, from a frame of row, keys and values."""
    wide = long.pivot(on="keys", on_columns=wanted, index="row", values="values")
    numbered = pl.DataFrame({"row": pl.int_range(height, dtype=pl.UInt32, eager=True)})
    return numbered.join(wide, on="row", how="left", maintain_order="left")


def _or_0(values: pl.Expr, key: str) -> pl.Expr:
    return values.fill_null("0") if key.isdigit() else values
