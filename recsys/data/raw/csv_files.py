"""Rows that are lines of text: CSV, also with its columns in several files, libfm, SVMlight, lists of items."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, LIST, BadRow, Block, set_apart
from recsys.data.raw.byte_ranges import ALL, WHOLE, FileRange, Projection
from recsys.data.raw.dialect import SPACES, first_lines, read_head, whole_lines
from recsys.data.raw.raw_format import TextFormat, check_column_names
from recsys.data.raw.text import read_csv
from recsys.schema.source_schema import PartConfig, SourceConfig

LABEL, TEXT = "label", "text"


class Csv(TextFormat):
    """Fields between separators, with or without a header. A row is one line, unless line_breaks_in_quotes is set."""

    name = "csv"
    suffixes = (".csv",)
    names_columns = has_header = explodes = True

    def can_be_cut(self, source: SourceConfig, file: Path) -> bool:
        return super().can_be_cut(source, file) and not source.line_breaks_in_quotes

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        names = read_head(source, file).names
        check_column_names(names, file)
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String))

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        return read_csv(source, file, names, file_range, projection)


class LibFm(TextFormat):
    """Lines 'label index:value index:value ...'; the i-th index becomes the i-th column's id, as a string."""

    name = "libfm"

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        return _given_columns(source, file, [])

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        lines = whole_lines(source)
        for block in read_csv(lines, file, ["text"], file_range, ALL):
            fields = block.frame.select(LINE, "text", parts=pl.col("text").str.strip_chars(" ").str.split(" "))
            ids = pl.col("parts").list.eval(pl.element().str.extract(r"^([^:]+):", 1))
            wide = pl.col("parts").list.len() != len(names)
            odd = ids.list.slice(1).list.eval(pl.element().is_null()).list.any()
            reason = (
                pl.when(wide)
                .then(pl.format("{} fields, not {}", pl.col("parts").list.len(), len(names)))
                .when(odd)
                .then(pl.lit("a field is not index:value"))
            )
            block.frame = set_apart(block, fields.with_columns(ids=ids), reason).select(
                pl.col("parts").list.get(0).alias(names[0]),
                *(pl.col("ids").list.get(i).alias(name) for i, name in enumerate(names[1:], start=1)),
                LINE,
            )
            yield block


class Lists(TextFormat):
    """Lines 'user item item ...' as one row per item, in order, with the leading columns and LIST."""

    name = "lists"
    names_file = True

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        return _given_columns(source, file, [LIST])

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        lines = whole_lines(source)
        *before, item, _list = names
        between = " " if source.separator == SPACES else source.separator
        for block in read_csv(lines, file, ["text"], file_range, ALL):
            text = pl.col("text").str.strip_chars()
            if source.separator == SPACES:
                text = text.str.replace_all(SPACES, " ")
            parts = block.frame.select(LINE, "text", parts=text.str.split(between)).with_columns(
                pl.col("parts").list.eval(pl.element().filter(pl.element() != ""))
            )
            n = pl.col("parts").list.len()
            short = pl.when(n <= len(before)).then(pl.format(f"{{}} fields, not {len(before) + 1} or more", n))
            rows = set_apart(block, parts, short).with_columns(
                *(pl.col("parts").list.get(i).alias(name) for i, name in enumerate(before)),
                pl.col("parts").list.slice(len(before)).alias(item),
                pl.concat_str(pl.lit(f"{file}:{file_range.start}:"), pl.col(LINE)).alias(LIST),
            )
            block.frame = rows.explode(item).select(*before, item, LIST, LINE)
            yield block


def _given_columns(source: SourceConfig, file: Path, more: list[str]) -> pl.DataFrame:
    names = [*source.columns, *more]
    if not names:
        raise UserError("data.source.columns: missing; files without a header need it")
    read_head(replace(source, header=False), file)
    return pl.DataFrame(schema=dict.fromkeys(names, pl.String))


def drop_missing_labels(source: SourceConfig, labels: list[str], file: Path, names: list[str]) -> list[str]:
    """Return the columns of a file without a header.

    Drop the columns that rows to be predicted may lack, labels and weight, if the first line has as many fields less.
    """
    head = read_head(source, file)
    rest = [n for n in names if n not in labels]
    return rest if head.fields - head.trailing == len(rest) else names


class SplitCsv(TextFormat):
    """CSV files that each hold some columns of the same rows, as `data.spec` describes them."""

    name = "split_csv"
    has_head = False
    needs_spec = True

    def can_be_cut(self, source: SourceConfig, file: Path) -> bool:
        return super().can_be_cut(source, file) and len(source.parts[str(file)]) == 1

    def files(self, source: SourceConfig, file: Path) -> list[Path]:
        return [Path(f) for part in source.parts[str(file)] for f in part.files]

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        parts = source.parts[str(file)]
        for part in parts:
            for name in part.files:
                if not Path(name).is_file():
                    raise UserError(f"{name}: no such file; it should hold {', '.join(part.columns)}")
        return pl.DataFrame(schema=dict.fromkeys([c for part in parts for c in part.columns], pl.String))

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        parts = source.parts[str(file)]
        if len(parts) == 1 and len(parts[0].files) == 1:
            return read_csv(source, file, list(parts[0].columns), file_range, projection)
        return _zip_lines(file, [_PartLines(part, _read_part(source, part)) for part in parts])


def _read_part(source: SourceConfig, part: PartConfig) -> Iterator[Block]:
    """Read a part's rows as text; lines are counted over all of its files."""
    before = 0
    for name in part.files:
        last = before
        for block in read_csv(source, Path(name), list(part.columns), WHOLE, ALL):
            last = before + block.lines
            frame = block.frame.with_columns(pl.col(LINE) + before)
            bad = [replace(b, line=b.line + before) for b in block.bad]
            yield Block(Path(name), frame, bad, lines=last)
        before = last


@dataclass
class _PartLines:
    """The rows of a part that were read but not yet handed on."""

    part: PartConfig
    blocks: Iterator[Block]
    frame: pl.DataFrame = field(default_factory=pl.DataFrame)
    bad: list[BadRow] = field(default_factory=list)
    lines: int = 0
    ended: bool = False

    def read_more(self) -> None:
        """Read the next block, or set `ended`."""
        block = next(self.blocks, None)
        if block is None:
            self.ended = True
            return
        self.frame = pl.concat([self.frame, block.frame]) if self.frame.height else block.frame
        self.bad += block.bad
        self.lines = block.lines

    def take(self, line: int) -> tuple[pl.DataFrame, list[BadRow]]:
        """Remove and return the rows, good and bad, up to `line`."""
        rows, self.frame = self.frame.filter(pl.col(LINE) <= line), self.frame.filter(pl.col(LINE) > line)
        bad, self.bad = [b for b in self.bad if b.line <= line], [b for b in self.bad if b.line > line]
        return rows, bad


def _zip_lines(file: Path, parts: list[_PartLines]) -> Iterator[Block]:
    """Join the parts' columns line by line. A line that is bad in one part is dropped from all, so that rows match."""
    yielded = 0  # lines
    while not all(p.ended for p in parts):
        min((p for p in parts if not p.ended), key=lambda p: p.lines).read_more()
        ready, short = min(p.lines for p in parts), min(parts, key=lambda p: p.lines)
        if short.ended and any(p.lines > ready for p in parts):
            long = next(p for p in parts if p.lines > ready)
            raise UserError(
                f"{short.part.files[-1]}: has only {ready} lines, fewer than {long.part.files[-1]}; both must hold "
                "the same rows"
            )
        if ready == yielded:
            continue
        (frame, bad), *others = [p.take(ready) for p in parts]
        for other_columns, other_bad in others:
            frame = frame.join(other_columns, on=LINE, how="inner", maintain_order="left")
            bad = bad + other_bad
        first = {b.line: b for b in reversed(bad)}  # one reason a line
        yield Block(file, frame, [replace(first[n], file=str(file)) for n in sorted(first)], lines=ready)
        yielded = ready


def svmlight_column(key: str) -> str:
    """Return the column of a key of SVMlight: a whole number such as 7 is f7."""
    return f"f{key}" if key.isdigit() else key


def svmlight_keys(source: SourceConfig, file: Path) -> list[str]:
    """Return the keys of the first lines, whole numbers in ascending order. Raises UserError if there are none."""
    found: dict[str, None] = {}
    for line in first_lines(source, file):
        fields = line.decode().partition("#")[0].split()
        found |= dict.fromkeys(x.partition(":")[0] for x in fields[1:] if ":" in x)
    if not found:
        raise UserError(f"{file}: no line is 'label key:value key:value ...', as data.source.format=svmlight needs")
    return sorted(found, key=lambda k: (k.isdigit(), int(k) if k.isdigit() else 0))


class SvmLight(TextFormat):
    """Lines 'label key:value key:value ... # comment', as SVMlight, LIBSVM and the LETOR data sets write them.

    Columns are `label` and the keys of the first lines. A line that lacks a number has the value 0 there; a line that
    lacks another key, such as qid, has a missing value. Values are text, as in CSV.
    """

    name = "svmlight"

    def empty_frame(self, source: SourceConfig, file: Path) -> pl.DataFrame:
        return pl.DataFrame(
            schema=dict.fromkeys([LABEL, *map(svmlight_column, svmlight_keys(source, file))], pl.String)
        )

    def read(
        self, source: SourceConfig, file: Path, names: list[str], file_range: FileRange, projection: Projection
    ) -> Iterator[Block]:
        known = svmlight_keys(source, file)
        wanted = [k for k in known if projection.columns is None or svmlight_column(k) in projection.columns]
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
    names = {key: svmlight_column(key) for key in wanted}
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
