"""The passes that prepare data: read, arrange, fit, write. Each is a function over chunks that an engine runs."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from recsys.base.console import Bar, bar, say
from recsys.base.errors import UserError
from recsys.data.features import Fitted
from recsys.data.features.find_types import Types, find_types
from recsys.data.features.fit import PartialStatistics, StatisticsPass, fit
from recsys.data.features.fitted import RAW_SCHEMA, SEMANTIC_IDS, fitted_files
from recsys.data.features.group_features import REPEATED, TRAIN
from recsys.data.features.grow import check_growth, check_same_labels, grow, reweighted
from recsys.data.features.resolved_data import ResolvedData
from recsys.data.prepare.bad_rows import BadRows, TimeUnits
from recsys.data.prepare.chunks import Chunk, ParsedChunk, is_chunk, read_chunk
from recsys.data.prepare.engine import Engine
from recsys.data.prepare.item_table import read_items
from recsys.data.prepare.k_core import CORE, REMOVED, k_core
from recsys.data.prepare.shuffle import shuffle
from recsys.data.prepare.split import SPLITS, Splitter
from recsys.data.prepare.writer import FILE_ROWS, PartWriter
from recsys.data.raw.formats import FORMATS
from recsys.data.raw.raw_files import is_remote
from recsys.data.raw.raw_schema import RawSchema
from recsys.data.raw.vector_files import read_initial_tables, read_vectors, training_values
from recsys.files import manifest
from recsys.files.atomic import remove_folder, write_text
from recsys.files.manifest import Entry

INFO = "prepared.json"
WINDOW = "window-{:+013d}-"  # begins the names of the files of a window's training rows
MAX_WAITING = 1 << 30  # maximum bytes of prepared rows that a job holds before it writes them


@dataclass
class Build:
    """One preparation of data.

    data: the data config
    chunks: the raw files' chunks
    spec: the part of the config that parsed rows depend on (`read_spec`)
    target: the folder of the prepared data
    folder: the folder to build in, which becomes the target; it may hold what a killed run has written
    engine: runs the passes
    contents: digest of the content of all raw files
    fitted: the transforms to apply; by default they are fitted on the training rows
    grows: add the new values of the training rows to the vocabularies of `fitted`
    codes: the folder of the semantic ids, or None
    types: the meaning of raw columns of text, once the chunks have been read
    older: the name of the folder in which an older version prepared the same data; empty if none did
    """

    data: ResolvedData
    chunks: list[Chunk]
    spec: str
    target: Path
    folder: Path
    engine: Engine
    contents: str
    fitted: Fitted | None = None
    grows: bool = False
    codes: Path | None = None
    types: Types | None = None
    older: str = ""

    def with_transforms(self, folder: Path, *, grows: bool = False) -> "Build":
        """Return the build that applies the fitted transforms in a folder, instead of fitting its own.

        grows: add the new values of the training rows to their vocabularies
        """
        entries = manifest.entries_of(folder, fitted_files(folder))
        key = [self.target.name, entries, *(["grows"] if grows else [])]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
        target = self.target.with_name(f"{self.data.name}-{digest}")
        fitted = Fitted.load(folder)
        check_same_labels(fitted, self.data)
        if grows:
            check_growth(fitted, self.data)
        return replace(self, target=target, folder=building_of(target), fitted=fitted, grows=grows)

    @property
    def bad_rows(self) -> Path:
        return Path(f"{self.target}.bad_rows.csv")

    def parsed(self) -> tuple[list[ParsedChunk], Splitter, int]:
        """Return the parsed rows (arranged, if the data has groups), their splitter, and the number of bad rows."""
        chunks, bad = self._read()
        if not any(c.rows for c in chunks):
            where = f"; see {self.bad_rows}" if bad else ""
            raise UserError(f"data={self.data.name}: no usable row in {self.chunks[0].file}{where}")
        if self.data.k_core:
            chunks = k_core(self.data, self.engine, chunks, self.folder / CORE)
        data = self.data if self.fitted is None else self.fitted.data
        splitter = Splitter(self.data.split, chunks, data.sample_negatives)
        if self.fitted is not None:
            self.types = self.fitted.types
        else:
            samples = [ParsedChunk(folder, 0).info.get("types", {}) for folder in self.chunk_folders()]
            self.types = find_types(self.data, [c.values for c in chunks], samples)
        if self.data.group is not None:
            by = (self.types or {}).get(self.data.group.by)
            chunks = shuffle(self.data, self.engine, chunks, splitter, self.folder / "arranged", by)
        return chunks, splitter, bad

    def run(self) -> None:
        """Prepare the data in `folder`. Raises UserError if a split has no rows."""
        chunks, splitter, bad = self.parsed()
        fitted = self._fit(chunks, splitter)
        rows, entries = self._write(fitted, chunks, splitter)
        for split, n in rows.items():
            if n == 0 and getattr(self.data.split, split, 1) > 0:  # the share of a held-out split
                raise self.data.without_rows(split)
        info = {
            "name": self.data.name,
            "root": self.data.root,
            "contents": self.contents,
            "rows": rows,
            "bad_rows": bad,
            "split": splitter.describe(),
            "files": list(dict.fromkeys(str(c.file) for c in self.chunks)),
            "manifest": True,
            "read": [str(f) for f in self.chunk_folders()] if self.data.keep_read else [],
        }
        if self.data.k_core:
            info["k_core"] = json.loads((self.folder / CORE / REMOVED).read_text(encoding="utf-8"))
        for scratch in ("arranged", CORE):
            shutil.rmtree(self.folder / scratch, ignore_errors=True)
        (self.folder / INFO).write_text(json.dumps(info, indent=1) + "\n")
        manifest.write(self.folder, manifest.entries_of(self.folder, known=entries))
        if not self.data.keep_read:
            for folder in self.chunk_folders():
                remove_folder(folder)

    # --- read ----------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[ParsedChunk], int]:
        """Pass 1: parse the chunks that are not parsed yet; list the bad rows in one file and return their number."""
        folders = self.chunk_folders()
        by_folder = dict(zip(folders, self.chunks, strict=True))
        pending = [(c, f) for f, c in by_folder.items() if not is_chunk(f)]
        if len(pending) < len(by_folder):
            say(f"{len(by_folder) - len(pending)} of {len(by_folder)} chunks of the raw files have been read before")
        unread = {f for _, f in pending}
        parsed: list[ParsedChunk] = []
        bad, units = BadRows(self.data, self.bad_rows), TimeUnits(self.data)
        with bar("reading", _expected_rows(self.data, [c for c, _ in pending])) as progress:
            job = partial(read_chunk, self.data)
            # closed here: an error would keep it, and a garbage collection would end the job amid another one
            with closing(self.engine.map(job, pending, progress.advance, reads=True)) as results:
                for chunk, folder in zip(self.chunks, folders, strict=True):
                    if folder in unread:
                        next(results)
                        unread.discard(folder)  # equal chunks are read once
                    first = parsed[-1].first_row + parsed[-1].rows if parsed else 0
                    parsed.append(ParsedChunk(folder, first, chunk.split))
                    bad.add(chunk, parsed[-1])
                    units.add(chunk, parsed[-1])
            progress.total = progress.done
            progress.advance(0)
        bad.report()
        return parsed, bad.bad

    def chunk_folders(self) -> list[Path]:
        """Return the folder of each parsed chunk."""
        return [Path(self.data.prepared) / "read" / c.key(self.spec) for c in self.chunks]

    # --- fit -----------------------------------------------------------------------------------------

    def _fit(self, chunks: list[ParsedChunk], splitter: Splitter) -> Fitted:
        """Pass 2: fit the transforms, unless they are given or a killed run has done so."""
        if (self.folder / RAW_SCHEMA).exists():
            return Fitted.load(self.folder)
        if self.fitted is not None and not self.grows and self.data.weight_column is None:
            return self._save(replace(self.fitted, data=replace(self.fitted.data, weight=self.data.weight)))
        scratch = self.folder / "counts"
        with bar("fitting", sum(c.rows for c in chunks)) as progress:
            training = _TrainingRows(self.engine, chunks, splitter, scratch, progress)
            if self.fitted is not None and not self.grows:
                return self._save(reweighted(self.fitted, self.data, training))
            if self.fitted is None:
                fitted = fit(self.data, training, self.types)
            else:
                fitted = grow(self.fitted, self.data, training)
            fitted.vectors = read_vectors(self.data, training_values(fitted))
            old_items = None if self.fitted is None else self.fitted.items
            core = self.folder / CORE / f"{self.data.item_feature}.parquet"
            fitted.items = read_items(self.data, fitted, self.codes, old_items, core if core.exists() else None)
            fitted.initial_tables = read_initial_tables(fitted)
        shutil.rmtree(scratch, ignore_errors=True)
        for table in (t for t, v in fitted.vocabularies.items() if v.is_empty()):
            say(f"table {table}: no value is in min_count training rows, so that all values share row 0")
        return self._save(fitted)

    def _save(self, fitted: Fitted) -> Fitted:
        fitted.save(self.folder)
        if self.codes is not None:
            shutil.copytree(self.codes, self.folder / SEMANTIC_IDS, dirs_exist_ok=True)
        RawSchema.from_data(fitted.data).save(self.folder)
        return fitted

    # --- write ---------------------------------------------------------------------------------------

    def _write(
        self, fitted: Fitted, chunks: list[ParsedChunk], splitter: Splitter
    ) -> tuple[dict[str, int], dict[str, Entry]]:
        """Pass 3: transform and write, in jobs of enough rows for a file.

        Return the number of rows of each split, and the files' entries in the manifest.

        Each job writes a note of its files when it is finished, so that the next run can continue after a run is
        killed.
        """
        notes = self.folder / "written"
        notes.mkdir(exist_ok=True)
        jobs = list(enumerate(_jobs(chunks)))
        rows = dict.fromkeys(SPLITS, 0)
        written: dict[str, Entry] = {}
        pending = [(n, job) for n, job in jobs if not (notes / f"{n}.json").exists()]
        with bar("writing", sum(c.rows for _, job in pending for c in job)) as progress:
            for _ in self.engine.map(partial(_write_job, fitted, splitter, self.folder), pending, progress.advance):
                pass
        for n, _ in jobs:
            note = json.loads((notes / f"{n}.json").read_text(encoding="utf-8"))
            for split in SPLITS:
                rows[split] += note["rows"][split]
                written |= {f"{split}/{name}": tuple(entry) for name, entry in note["files"][split].items()}
        for split in SPLITS:
            for file in (self.folder / split).iterdir():
                if f"{split}/{file.name}" not in written:  # a killed run left it incomplete
                    file.unlink()
            if rows[split] == 0:  # write an empty file, so that readers find the columns
                no_rows = pl.read_parquet(self.folder / min(written), n_rows=0, glob=False)
                no_rows.write_parquet(self.folder / split / "part-00000-000.parquet")
        shutil.rmtree(notes)
        return rows, written


def building_of(target: Path) -> Path:
    """Return the folder in which a build writes what becomes `target`."""
    return target.with_name(f"{target.name}.building")


@dataclass
class _TrainingRows:
    """A features.fit.Training over chunks. Tables of counts are written under `scratch` and summed from there."""

    engine: Engine
    chunks: list[ParsedChunk]
    splitter: Splitter
    scratch: Path
    progress: Bar

    def collect(self, statistics_pass: StatisticsPass) -> Iterator[PartialStatistics]:
        if self.progress.done:  # a later step of a transform reads all rows again
            self.progress.total = (self.progress.total or 0) + sum(c.rows for c in self.chunks)
            self.progress.passes += 1
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        job = partial(_collect_chunk, statistics_pass, self.splitter, self.scratch)
        return self.engine.map(job, list(enumerate(self.chunks)), self.progress.advance)

    def total(self, names: Sequence[str], keys: Sequence[str], least: int) -> pl.DataFrame:
        files = [f for n in names for f in sorted((self.scratch / n).glob("*.parquet"))]
        return self.engine.total(files, keys, least)


def _collect_chunk(
    statistics_pass: StatisticsPass,
    splitter: Splitter,
    scratch: Path,
    numbered: tuple[int, ParsedChunk],
    advance: Callable[[float], None],
) -> PartialStatistics:
    number, chunk = numbered

    def training() -> Iterator[pl.DataFrame]:
        for frame in chunk.frames(statistics_pass.columns | splitter.columns):
            rows, split = splitter.with_row(frame, chunk.split)
            yield rows.filter(split == TRAIN)

    partial_statistics = statistics_pass(training(), chunk.values(statistics_pass.columns))
    for name, table in partial_statistics.tables.items():
        if not partial_statistics.rows and table.is_empty():
            continue
        (scratch / name).mkdir(exist_ok=True)
        table.write_parquet(scratch / name / f"{number:05d}.parquet", compression="lz4")
    partial_statistics.tables = {}
    advance(chunk.rows)
    return partial_statistics


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
    repeats = any(look_back.is_list for look_back in fitted.data.look_backs.values())
    writers = {(split, ""): PartWriter(folder / split, f"part-{number:05d}", repeats) for split in SPLITS}
    rows = dict.fromkeys(SPLITS, 0)
    for chunk in chunks:
        indices = fitted.code_indices(chunk.values())
        for frame in chunk.frames():
            with_row, which = splitter.with_row(frame, chunk.split)
            transformed = fitted.apply_codes(with_row, indices)
            which = which.replace(REPEATED, TRAIN)
            for i, split in enumerate(SPLITS):
                part = transformed if (which == i).all(ignore_nulls=False) else transformed.filter(which == i)
                rows[split] += part.height
                if i != TRAIN or (windows := splitter.windows(with_row)) is None:
                    writers[split, ""].write(part)
                    continue
                window_of = windows.filter(which == i)
                for w in window_of.unique():
                    prefix = WINDOW.format(w)
                    if (split, prefix) not in writers:
                        writers[split, prefix] = PartWriter(folder / split, f"{prefix}part-{number:05d}", repeats)
                    writers[split, prefix].write(part.filter(window_of == w))
            if sum(writer.bytes for writer in writers.values()) >= MAX_WAITING:  # long lists
                for writer in writers.values():
                    writer.flush()
            advance(frame.height)
    files: dict[str, dict[str, Entry]] = {split: {} for split in SPLITS}
    for (split, _), writer in writers.items():
        writer.flush()
        files[split] |= writer.files
    note = {"rows": rows, "files": files}
    write_text(folder / "written" / f"{number}.json", json.dumps(note))


def _expected_rows(data: ResolvedData, chunks: list[Chunk]) -> float | None:
    """Estimate the number of rows for the progress bar: exact for Parquet, from the first lines' length for text.

    Return None if unknown: for gzip and remote files.
    """
    total = 0.0
    for chunk in chunks:
        if is_remote(str(chunk.file)):
            return None  # each file would take a request
        if (rows := FORMATS[data.source.format].expected_rows(chunk.file, chunk.file_range)) is None:
            return None
        total += rows
    return total
