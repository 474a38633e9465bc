"""Prepare raw files as Parquet under a fingerprint, once, in bounded memory.

    PREPARED/<name>-<fingerprint>/
        train/ validation/ test/     part-00000-000.parquet ...: label, dense float32, ids int32
        features.json transforms.json vocabularies/     the transforms fitted on the training split
        prepared.json                rows, split, bad rows, digest of the raw files' content
        manifest.json                digests of all files, which are checked when they are read
    PREPARED/<name>-<fingerprint>.bad_rows.csv          file, line, reason, text
    PREPARED/read/<fingerprint>/                        parsed chunks of raw files (chunks.py)
    PREPARED/tables/<fingerprint>/                      rows of databases and tables

There are three passes: read the chunks that were not read before; fit on the training rows; apply and write. After a
run is killed, the next one resumes with the first chunk that is missing.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from filelock import FileLock

from recsys.base.console import bar, say
from recsys.base.errors import UserError
from recsys.base.memory import keep_freed_memory
from recsys.data.features import Fitted
from recsys.data.features.encoders import Vocabulary
from recsys.data.features.group_features import CONTEXT
from recsys.data.features.resolved_data import ResolvedData, resolve
from recsys.data.features.row_contents import targets
from recsys.data.prepare.check_data import SAMPLES, SplitFiles, check_files, check_root
from recsys.data.prepare.chunks import cut_chunks, label_spec, read_spec, source_spec
from recsys.data.prepare.engine import Engine, OneMachine
from recsys.data.prepare.item_table import items_join, items_vectors
from recsys.data.prepare.passes import INFO, WINDOW, Build, building_of
from recsys.data.prepare.shuffle import decode_column
from recsys.data.prepare.split import SPLITS
from recsys.data.raw import read_sources
from recsys.data.raw.complete_config import completed
from recsys.data.raw.databases import TABLES
from recsys.data.raw.formats import FORMATS
from recsys.data.raw.raw_files import combine, digests, partitions
from recsys.data.raw.vector_files import vector_files
from recsys.data.semantic_ids.fit_semantic_ids import TABLE, joined, other_joins, semantic_ids_folder
from recsys.files import manifest
from recsys.files.atomic import put_in_place, remove_folder, whole_folder
from recsys.files.manifest import BackgroundCheck, DamagedFile
from recsys.schema.data_schema import DataConfig


def is_table(data: ResolvedData) -> bool:
    """Return whether the rows come from a table instead of files."""
    return data.source.format in TABLES


def with_stored_rows(data: ResolvedData, home: Path) -> ResolvedData:
    """Return the config that reads the table's rows from Parquet files, after writing them under `home`.

    Raises:
        UserError: the table cannot be read, or lacks a column that the config names.
    """
    assert data.root is not None
    folder = home / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    # a digest or version that changes whenever the table does; None for a server, which has neither
    table = TABLES[data.source.format]
    if (file := table.file(data.root)) is not None and file.is_file():
        state: str | None = digests([file], home, verify=data.verify)[file]
    else:
        state = table.version(data.root)
    if state is None:
        building = Path(mkdtemp(dir=folder, prefix=".reading-"))
        try:
            _write(data, building)
            content = [entry[1:] for _, entry in sorted(manifest.entries_of(building).items())]
            target = folder / _key([data.source.query, content])
            with FileLock(f"{target}.lock"):
                if not target.exists():
                    put_in_place(building, target)
        finally:
            with suppress(OSError):
                remove_folder(building)
        return _local(data, target)
    target = folder / _key([data.source.format, data.root, data.source.query, state])
    with FileLock(f"{target}.lock"):
        if not target.exists():
            with whole_folder(target) as building:
                _write(data, building)
    return _local(data, target)


def _key(state: object) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def _write(data: ResolvedData, folder: Path) -> None:
    rows, table = 0, TABLES[data.source.format]
    with bar(f"reading {data.source.format}") as progress:
        for i, batch in enumerate(table.read(data.source, data.root or "")):
            # a column without a value in a batch has no type, so it becomes text
            frame = batch.with_columns(pl.col(n).cast(pl.String) for n, t in batch.schema.items() if t == pl.Null)
            file = folder / f"part-{i:05d}.parquet"
            frame.write_parquet(file, compression="lz4")
            if not i:
                read_sources.check_columns(_local(data, folder), file)
            rows += frame.height
            progress.advance(frame.height)
    if not rows:
        raise UserError(f"data.root: the {table.rows_of} returns no rows")


def _local(data: ResolvedData, folder: Path) -> ResolvedData:
    source = replace(data.source, format="parquet", files=["*.parquet"], query=None)
    return replace(data, root=str(folder), source=source)


FORMAT = 8  # increase it if a change prepares the same config and files differently


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data. Files are read on first use and cached."""

    folder: Path

    @cached_property
    def info(self) -> dict[str, Any]:
        """Name, split, rows and bad rows."""
        return manifest.read_json(self.folder / INFO, "name", "rows")

    @cached_property
    def fitted(self) -> Fitted:
        """The fitted transforms."""
        return Fitted.load(self.folder)

    def files(self, split: str) -> list[Path]:
        """Return the Parquet files of a split."""
        return sorted((self.folder / split).glob("*.parquet"))

    def windows(self, least: int) -> list[list[Path]]:
        """Return the files of each window of training rows, in order of time; [] without data.split.window.

        least: rows of a window; one with fewer is a part of the next one, and the last of the one before
        """
        start, length = WINDOW.index("{"), len(WINDOW.format(0))
        by_number: dict[int, list[Path]] = {}
        for file in self.files("train"):
            if file.name.startswith(WINDOW[:start]):
                by_number.setdefault(int(file.name[start : length - 1]), []).append(file)
        windows: list[list[Path]] = []
        rows = least
        for _, files in sorted(by_number.items()):
            windows += [[]] if rows >= least else []
            rows = sum(pq.read_metadata(f).num_rows for f in files) + (rows if rows < least else 0)
            windows[-1] += files
        return [*windows[:-2], windows[-2] + windows[-1]] if rows < least and windows[1:] else windows

    def check_in_background(self, files: Iterable[Path]) -> BackgroundCheck:
        """Return a check of these files, which the caller starts."""
        return BackgroundCheck(self.folder, files, f"remove {self.folder}, and the next run prepares the data again")

    def rows(self, split: str) -> int:
        """Return the number of rows of a split."""
        return int(self.info["rows"][split])

    def __reduce__(self) -> tuple[type["Prepared"], tuple[Path]]:
        return Prepared, (self.folder,)  # another process reads the folder itself


def prepare(data: DataConfig, engine: Engine | None = None, files: SplitFiles | None = None) -> Prepared:
    """Return the prepared data for this config; prepare it if it does not exist. Safe to call from many processes.

    files: the raw files, if `check_files` has already checked them
    """
    return finish(plan_build(data, engine, files))


def finish(build: Build) -> Prepared:
    """Return the data that a build prepares; run it if they do not exist. Safe to call from many processes.

    Damaged files, of the prepared data or of what was read from the raw files, are written again.
    """
    target = build.target
    with FileLock(f"{target}.lock"):
        if target.exists() and (damage := find_damage(target)) is not None:
            say(f"{damage}; preparing the data again")
            remove_folder(target)
        if not target.exists():
            keep_freed_memory()
            build.folder.mkdir(exist_ok=True)
            _run(build)
            put_in_place(build.folder, target)
    return Prepared(target)


def find_damage(folder: Path) -> DamagedFile | None:
    """Return the first damage in prepared data, or None, by the sizes of the parts and the content of other files."""
    parts = tuple(f"{split}/" for split in SPLITS)
    try:
        info = Prepared(folder).info
        entries = manifest.read(folder)
        if entries is None and info.get("manifest"):
            raise DamagedFile(folder / manifest.FILE, "is missing")
        for name, entry in (entries or {}).items():
            manifest.check_file(folder, name, entry, size_only=name.startswith(parts))
    except DamagedFile as e:
        return e
    return None


def _run(build: Build) -> None:
    try:
        build.run()
    except DamagedFile as e:  # a chunk that was read from a raw file before
        chunk = next((f for f in build.chunk_folders() if e.file.is_relative_to(f)), None)
        if chunk is None:
            raise
        say(f"{e}; its chunk of the raw files is read again")
        remove_folder(chunk)
        remove_folder(build.folder)
        build.folder.mkdir()
        build.run()


def parsed_rows(data: DataConfig) -> Iterator[tuple[pl.DataFrame, np.ndarray]]:
    """Yield frames of parsed rows with decoded text, and the split of each row: (rows,) 0, 1 or 2.

    Chunks that were read before are not read again.
    """
    build = plan_build(data)
    with TemporaryDirectory(dir=data.prepared, prefix="rows-") as folder:
        chunks, splitter, _ = replace(build, folder=Path(folder)).parsed()
        for chunk in chunks:
            text = chunk.values()
            for frame in chunk.frames():
                decoded = frame.with_columns(decode_column(n, frame, t) for n, t in text.items())
                split_of = splitter.assign(frame, chunk.split)
                yield decoded.filter(split_of != CONTEXT), split_of[split_of != CONTEXT]


def plan_build(config: DataConfig, engine: Engine | None = None, files: SplitFiles | None = None) -> Build:
    """Find the raw files and their digests, and return the build that prepares them.

    files: the raw files, if `check_files` has already checked them

    Raises UserError if a file is missing.
    """
    data = resolve(config)
    check_root(data)
    home = Path(data.prepared)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"data.prepared={home}: cannot be created ({e.strerror}); name another folder") from e
    data = _with_root(data, home)
    files = files or check_files(data)
    codes = semantic_ids_folder(data, home)
    data = joined(data, codes)
    data = completed(data, files[0][0])
    joins = [*data.source.joins, *filter(None, [items_join(data)])]
    sides = {join.file: read_sources.side_file(data, join) for join in joins}
    vectors = vector_files(data) | items_vectors(data)
    vectors |= {} if codes is None else {"semantic_ids": codes / TABLE}
    paths = {f: FORMATS[data.source.format].files(data.source, f) for f, _ in files}
    raw = dict.fromkeys(p for ps in paths.values() for p in ps)
    digest = digests([*raw, *sides.values(), *vectors.values()], home, verify=data.verify)
    digest |= {
        f: combine([digest[p] for p in ps], [[p.columns, p.dtypes] for p in data.source.parts.get(str(f), [])])
        for f, ps in paths.items()
        if ps != [f] or data.source.parts
    }
    digest |= {f: combine([digest[f]], p) for f in paths if (p := partitions(f, data.root))}
    own = {join.file for join in [*other_joins(data), *filter(None, [items_join(data)])]}
    side_contents = {name: digest[file] for name, file in sides.items() if name in own}
    vector_contents = {name: digest[file] for name, file in vectors.items()}
    contents = [[digest[f] for f, _ in files], [split for _, split in files], side_contents, vector_contents]
    content = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    schema = read_sources.raw_frame(data, files[0][0]).schema
    times = [schema.get(data.source.rename.get(c, c)) for c in data.moments.values()]
    if any(getattr(dtype, "time_zone", None) for dtype in times):  # rows were ordered by the clock before
        contents.append("instants")
    older, name = (f"{data.name}-{_fingerprint(data, contents, older=x)}" for x in (True, False))
    target = home / name
    spec = read_spec(data, {join.file: digest[sides[join.file]] for join in data.source.joins})
    chunks = cut_chunks(data, files, digest)
    return Build(data, chunks, spec, target, building_of(target), engine or OneMachine(), content, codes=codes,
                 older=older if older != name else "")  # fmt: skip


def raw_files(config: DataConfig) -> list[Path]:
    """Return the raw files of a data set, in reading order. Raises UserError if one is missing."""
    data = resolve(config)
    return [file for file, _ in check_files(_with_root(data, Path(data.prepared)))]


def _with_root(data: ResolvedData, home: Path) -> ResolvedData:
    """Return the config with a folder of raw files: that of the config, of the sample, or of a table's stored rows."""
    if data.root is not None:
        return with_stored_rows(data, home) if is_table(data) else data
    assert data.sample is not None
    kind = "" if data.sample.kind == "clicks" else f"{data.sample.kind}-"
    folder = home / f"sample-{kind}{data.sample.rows}-{data.sample.seed}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with whole_folder(folder) as building, bar("generating", data.sample.rows) as progress:
                written = lambda rows: progress.advance(rows - progress.done)  # noqa: E731
                SAMPLES[data.sample.kind](building, rows=data.sample.rows, seed=data.sample.seed, progress=written)
    return replace(data, root=str(folder))


def _fingerprint(data: ResolvedData, contents: object, *, older: bool = False) -> str:
    """Return the digest of what prepared data depend on. older: as versions did that thinned rows after the fit"""
    config = asdict(data)
    for key in ("root", "spec", "prepared", "max_bad_rows", "sample", "keep_read", "verify"):
        config.pop(key)
    if not data.k_core:
        config.pop("k_core")  # data that was prepared before this key existed keeps its fingerprint
    if config["group"] is not None and not (data.has_moments and data.look_backs):
        config["group"].pop("ties")  # as above: rows saw each other in the order of the files
    config["label"] = label_spec(config["label"])
    config["labels"] = {name: label_spec(label) for name, label in config["labels"].items()}
    kinds = [part[kind] for part in (config, config["items"]) for kind in ("dense", "sparse")]
    for c in (config["dense_defaults"], config["sparse_defaults"], *(c for kind in kinds for c in kind.values() if c)):
        for key in ("where", "time_zone"):
            if c.get(key) is None:
                c.pop(key, None)  # as above
    config["source"] = source_spec(replace(data.source, joins=other_joins(data)))
    config["derive"] = [*data.derive.items()]  # in order: one may read another
    for files in ("train_files", "validation_files", "test_files", "context_files"):
        config["split"].pop(files)  # `contents` has the split of each file
    for key in ("rows", "window", "origins"):
        if config["split"][key] is None:  # as above
            config["split"].pop(key)
    encoders = (c.encoder for c in data.sparse_columns.values())
    # FORMAT 8 missed some values of features with min_count: 0; the next FORMAT is 10
    unseen = any(isinstance(e, Vocabulary) and not e.min_count for e in encoders)
    marks = ["recency"] * bool(data.recency_columns)
    if not older:  # transforms were fitted to all negatives, and did not know their rows again
        marks += ["thinned"] * (data.sample_negatives < 1) + ["contents"] * bool(targets(data))
    text = json.dumps([FORMAT + unseen, config, contents, *marks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
