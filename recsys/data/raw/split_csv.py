"""CSV files that hold some columns each of the same rows, line by line: NVIDIA's csv chunks."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from recsys.config.schema_data import PartConfig, SourceConfig
from recsys.data.raw.blocks import LINE, BadRow, Block
from recsys.data.raw.ranges import ALL, WHOLE, FileRange, Projection
from recsys.data.raw.text import read_csv
from recsys.errors import UserError

FORMAT = "split_csv"


def no_rows(source: SourceConfig, file: Path) -> pl.DataFrame:
    parts = source.parts[str(file)]
    for part in parts:
        for name in part.files:
            if not Path(name).is_file():
                raise UserError(f"{name}: no such file; it should hold {', '.join(part.columns)}")
    return pl.DataFrame(schema=dict.fromkeys([c for part in parts for c in part.columns], pl.String))


def read(source: SourceConfig, file: Path, _names: list[str], piece: FileRange, wanted: Projection) -> Iterator[Block]:
    """Where one part has all columns, as CSV is read; else the lines of all parts together, in one piece."""
    parts = source.parts[str(file)]
    if len(parts) == 1 and len(parts[0].files) == 1:
        return read_csv(source, file, list(parts[0].columns), piece, wanted)
    return _zipped(file, [_Lines(part, _lines(source, part)) for part in parts])


def _lines(source: SourceConfig, part: PartConfig) -> Iterator[Block]:
    """A part's rows as text, their lines counted over all of its files."""
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
class _Lines:
    """What has been read of a part, and not yet been handed on."""

    part: PartConfig
    blocks: Iterator[Block]
    frame: pl.DataFrame = field(default_factory=pl.DataFrame)
    bad: list[BadRow] = field(default_factory=list)
    lines: int = 0
    ended: bool = False

    def more(self) -> None:
        block = next(self.blocks, None)
        if block is None:
            self.ended = True
            return
        self.frame = pl.concat([self.frame, block.frame]) if self.frame.height else block.frame
        self.bad += block.bad
        self.lines = block.lines

    def upto(self, line: int) -> tuple[pl.DataFrame, list[BadRow]]:
        done, self.frame = self.frame.filter(pl.col(LINE) <= line), self.frame.filter(pl.col(LINE) > line)
        bad, self.bad = [b for b in self.bad if b.line <= line], [b for b in self.bad if b.line > line]
        return done, bad


def _zipped(file: Path, parts: list[_Lines]) -> Iterator[Block]:
    """A line that is bad in one of the parts is bad in all, so that the others stay with their rows."""
    done = 0
    while not all(p.ended for p in parts):
        min((p for p in parts if not p.ended), key=lambda p: p.lines).more()
        ready, short = min(p.lines for p in parts), min(parts, key=lambda p: p.lines)
        if short.ended and any(p.lines > ready for p in parts):
            long = next(p for p in parts if p.lines > ready)
            raise UserError(
                f"{short.part.files[-1]}: its columns end after {ready} lines, those of {long.part.files[-1]} go on; "
                "they must be of the same rows"
            )
        if ready == done:
            continue
        (frame, bad), *others = [p.upto(ready) for p in parts]
        for more, wrong in others:
            frame = frame.join(more, on=LINE, how="inner", maintain_order="left")
            bad = bad + wrong
        first = {b.line: b for b in reversed(bad)}  # one reason a line
        yield Block(file, frame, [replace(first[n], file=str(file)) for n in sorted(first)], lines=ready)
        done = ready
