"""Read CSV files that each hold some columns of the same rows, line by line: NVIDIA's csv chunks."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from recsys.base.errors import UserError
from recsys.data.features.blocks import LINE, BadRow, Block
from recsys.data.raw.byte_ranges import ALL, WHOLE, FileRange, Projection
from recsys.data.raw.raw_format import TextFormat
from recsys.data.raw.text import read_csv
from recsys.schema.source_schema import PartConfig, SourceConfig


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
