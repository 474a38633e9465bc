"""The passes that make prepared data, each a function over chunks, run by an engine: read, arrange, fit, write."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from recsys.atomic import write_text
from recsys.config.schema_data import DataConfig
from recsys.console import Bar, bar, say
from recsys.data.group_features import AGAIN, TRAIN, is_arranged
from recsys.data.prepare.bad_rows import BadRows
from recsys.data.prepare.chunks import Chunk, ParsedChunk, read_chunk, remove_chunk
from recsys.data.prepare.engine import Engine
from recsys.data.prepare.item_table import read_items
from recsys.data.prepare.shuffle import shuffle
from recsys.data.prepare.split import SPLITS, Splitter
from recsys.data.prepare.writer import FILE_ROWS, PartWriter
from recsys.data.raw.fixed_width import FORMATS as OF_ROWS
from recsys.data.raw.formats import parquet_file
from recsys.data.raw.storage import is_remote
from recsys.data.raw.vector_files import read_vectors
from recsys.data.raw_schema import RawSchema
from recsys.data.transforms import Fitted, PartialStatistics, StatisticsPass, fit
from recsys.data.transforms.fitted import RAW_SCHEMA
from recsys.errors import UserError


@dataclass
class Build:
    """One preparation, into `folder`, which may hold part of it already."""

    data: DataConfig
    chunks: list[Chunk]
    spec: str  # what of the config typed rows depend on
    target: Path
    folder: Path  # what becomes the target, when it is whole
    engine: Engine

    @property
    def bad_rows(self) -> Path:
        return Path(f"{self.target}.bad_rows.csv")

    def typed(self) -> tuple[list[ParsedChunk], Splitter, int]:
        """Typed rows, arranged where they are to be, their splitter, and how many rows are bad."""
        chunks, bad = self._read()
        if not any(c.rows for c in chunks):
            where = f"; see {self.bad_rows}" if bad else ""
            raise UserError(f"data={self.data.name}: no usable row in {self.chunks[0].file}{where}")
        splitter = Splitter(self.data.split, chunks)
        if is_arranged(self.data):
            chunks = shuffle(self.data, self.engine, chunks, splitter, self.folder / "arranged")
        return chunks, splitter, bad

    def run(self) -> None:
        typed_chunks, splitter, bad = self.typed()
        total = sum(c.rows for c in typed_chunks)
        fitted = self._fitted(typed_chunks, splitter, total)
        rows = self._write(fitted, typed_chunks, splitter, total)
        for split, n in rows.items():
            if n == 0 and (split != "validation" or self.data.split.validation > 0):
                raise UserError(
                    f"data={self.data.name}: the {split} split has no rows ({total} in all); see data.split"
                )
        info = {
            "name": self.data.name,
            "root": self.data.root,
            "rows": rows,
            "bad_rows": bad,
            "split": splitter.describe(),
            "files": list(dict.fromkeys(str(c.file) for c in self.chunks)),
            "read": [str(f) for f in self._folders()] if self.data.keep_read else [],
        }
        shutil.rmtree(self.folder / "arranged", ignore_errors=True)
        (self.folder / "prepared.json").write_text(json.dumps(info, indent=1) + "\n")
        if not self.data.keep_read:
            for folder in self._folders():
                remove_chunk(folder)

    # --- read ----------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[ParsedChunk], int]:
        """Pass 1: every chunk in typed rows, those that are there as they are; bad rows in one file."""
        folders = self._folders()
        by_folder = dict(zip(folders, self.chunks, strict=True))
        todo = [(c, f) for f, c in by_folder.items() if not (f / "chunk.json").exists()]
        if len(todo) < len(by_folder):
            say(f"{len(by_folder) - len(todo)} of {len(by_folder)} pieces of the files have been read before")
        unread = {f for _, f in todo}
        found: list[ParsedChunk] = []
        bad = BadRows(self.data, self.bad_rows)
        with bar("reading", _expected_rows(self.data, [c for c, _ in todo])) as shown:
            made = self.engine.map(partial(_read_one, self.data), todo, shown.advance, reads=True)
            for chunk, folder in zip(self.chunks, folders, strict=True):
                if folder in unread:
                    next(made)
                    unread.discard(folder)  # equal pieces are read once
                first = found[-1].first_row + found[-1].rows if found else 0
                found.append(ParsedChunk(folder, first, chunk.split))
                bad.add(chunk, found[-1])
            _finish(shown)
        bad.tell()
        return found, bad.bad

    def _folders(self) -> list[Path]:
        """Where each chunk is, or will be, as it was read."""
        return [Path(self.data.prepared) / "read" / c.key(self.spec) for c in self.chunks]

    # --- fit -----------------------------------------------------------------------------------------

    def _fitted(self, chunks: list[ParsedChunk], splitter: Splitter, total: int) -> Fitted:
        if (self.folder / RAW_SCHEMA).exists():
            return Fitted.load(self.folder)
        scratch = self.folder / "counts"
        with bar("fitting", total) as shown:
            fitted = fit(
                self.data, _TrainingRows(self.engine, chunks, splitter, scratch, shown), read_vectors(self.data)
            )
            fitted.items = read_items(self.data, fitted)
        fitted.save(self.folder)
        RawSchema.from_data(fitted.data).save(self.folder)
        shutil.rmtree(scratch, ignore_errors=True)
        return fitted

    # --- write ---------------------------------------------------------------------------------------

    def _write(self, fitted: Fitted, chunks: list[ParsedChunk], splitter: Splitter, total: int) -> dict[str, int]:
        """Pass 3, in jobs of enough rows for a file; each leaves a note of what it wrote, when it is done."""
        notes = self.folder / "written"
        notes.mkdir(exist_ok=True)
        jobs = list(enumerate(_jobs(chunks)))
        rows = dict.fromkeys(SPLITS, 0)
        written: set[str] = set()
        todo = [(n, job) for n, job in jobs if not (notes / f"{n}.json").exists()]
        with bar("writing", sum(c.rows for _, job in todo for c in job)) as shown:
            for _ in self.engine.map(partial(_write_job, fitted, splitter, self.folder), todo, shown.advance):
                pass
        for n, _ in jobs:
            note = json.loads((notes / f"{n}.json").read_text())
            for split in SPLITS:
                rows[split] += note["rows"][split]
                written |= {f"{split}/{name}" for name in note["files"][split]}
        for split in SPLITS:
            for file in (self.folder / split).iterdir():
                if f"{split}/{file.name}" not in written:  # what a killed run began
                    file.unlink()
            if rows[split] == 0:  # so that its columns are known
                no_rows = pl.read_parquet(self.folder / min(written), n_rows=0)
                no_rows.write_parquet(self.folder / split / "part-00000-000.parquet")
        shutil.rmtree(notes)
        return rows


@dataclass
class _TrainingRows:
    """transforms.Training over chunks: tables of counts go from pass to sum as files under `scratch`."""

    engine: Engine
    chunks: list[ParsedChunk]
    splitter: Splitter
    scratch: Path
    shown: Bar
    passes: int = 0

    def gather(self, gather: StatisticsPass) -> Iterator[PartialStatistics]:
        if self.passes:  # a later step of a transform: all rows once more
            self.shown.total = (self.shown.total or 0) + sum(c.rows for c in self.chunks)
        self.passes += 1
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        job = partial(_gather_chunk, gather, self.splitter, self.scratch)
        return self.engine.map(job, list(enumerate(self.chunks)), self.shown.advance)

    def total(self, names: Sequence[str], keys: Sequence[str], least: int) -> pl.DataFrame:
        files = [f for n in names for f in sorted((self.scratch / n).glob("*.parquet"))]
        return self.engine.total(files, keys, least)


def _read_one(data: DataConfig, todo: tuple[Chunk, Path], advance: Callable[[float], None]) -> None:
    read_chunk(data, *todo, advance)


def _gather_chunk(
    gather: StatisticsPass,
    splitter: Splitter,
    scratch: Path,
    numbered: tuple[int, ParsedChunk],
    advance: Callable[[float], None],
) -> PartialStatistics:
    number, chunk = numbered

    def training() -> Iterator[pl.DataFrame]:
        for frame in chunk.frames(gather.columns | splitter.columns):
            placed, which = splitter.place(frame, chunk.split)
            yield placed.filter(which == 0)

    found = gather(training(), chunk.values(gather.columns))
    for name, table in found.tables.items() if found.rows else ():
        (scratch / name).mkdir(exist_ok=True)
        table.write_parquet(scratch / name / f"{number:05d}.parquet", compression="lz4")
    found.tables = {}
    advance(chunk.rows)
    return found


def _jobs(chunks: list[ParsedChunk]) -> Iterator[list[ParsedChunk]]:
    job: list[ParsedChunk] = []
    for chunk in chunks:
        job.append(chunk)
        if sum(c.rows for c in job) >= FILE_ROWS:
            yield job
            job = []
    if job:
        yield job


def _write_job(
    fitted: Fitted,
    splitter: Splitter,
    folder: Path,
    numbered: tuple[int, list[ParsedChunk]],
    advance: Callable[[float], None],
) -> None:
    number, chunks = numbered
    writers = {split: PartWriter(folder / split, f"part-{number:05d}") for split in SPLITS}
    rows = dict.fromkeys(SPLITS, 0)
    for chunk in chunks:
        indices = fitted.indices(chunk.values())
        for frame in chunk.frames():
            placed, which = splitter.place(frame, chunk.split)
            done = fitted.applied(placed, indices)
            which = which.replace(AGAIN, TRAIN)
            for i, split in enumerate(SPLITS):
                piece = done if (which == i).all() else done.filter(which == i)
                rows[split] += piece.height
                writers[split].write(piece)
            advance(frame.height)
    for writer in writers.values():
        writer.close()
    note = {"rows": rows, "files": {split: w.files for split, w in writers.items()}}
    write_text(folder / "written" / f"{number}.json", json.dumps(note))


def _finish(shown: Bar) -> None:
    shown.total = shown.done
    shown.advance(0)


def _expected_rows(data: DataConfig, chunks: list[Chunk]) -> float | None:
    """For the ETA: exact for Parquet; from the first lines' length for text; unknown for gzip."""
    total = 0.0
    for chunk in chunks:
        start, stop = chunk.piece.start, chunk.piece.stop
        if is_remote(str(chunk.file)):
            return None  # a request each
        if data.source.format in OF_ROWS:
            total += (stop or 0) - start
        elif chunk.file.suffix == ".parquet":
            with parquet_file(chunk.file) as parquet:
                total += sum(parquet.metadata.row_group(i).num_rows for i in range(start, stop or 0))
        elif chunk.file.suffix == ".gz" or stop is None:
            return None
        else:
            with chunk.file.open("rb") as f:
                f.seek(start)
                head = f.read(1 << 16)
            total += (stop - start) / (len(head) / max(head.count(b"\n"), 1)) if head else 0
    return total
